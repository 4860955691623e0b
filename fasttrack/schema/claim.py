"""What an author claims: `Claim`, `Target`, `Cell`. What maintainers demand is `policy`.

All models are frozen and refuse unknown keys; units are part of the names. A claim's digest is
taken before anything is measured and travels into every later file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fasttrack.schema._json import digest

CLAIM_SCHEMA = "fasttrack.claim/v1"
Arm = Literal["base", "candidate"]
ARMS: tuple[Arm, Arm] = ("base", "candidate")
Positive = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
OpName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


class Frozen(BaseModel):
    """Base of everything that travels between rooms: immutable, closed, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def json_value(self) -> dict[str, Any]:
        """The JSON object of this value, as `canonical_bytes` takes it."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """Hex SHA-256 of the canonical JSON."""
        return digest(self.json_value())


class Tier(StrEnum):
    """How much is measured; never how honestly."""

    SMOKE = "smoke"
    STANDARD = "standard"
    FULL = "full"


class Sentence(StrEnum):
    """The speed sentence to be proved; each is decided by its own rule."""

    FASTER_EVERYWHERE = "faster_everywhere"
    FASTER_IN_NAMED_CELLS = "faster_in_named_cells"
    SLOWER_NOWHERE = "slower_nowhere"


class Scope(Frozen):
    """Where the change may have an effect. Everything outside must stay stock."""

    models: tuple[str, ...] = Field(min_length=1)
    """Architecture names the change applies to."""
    paths: tuple[str, ...] = Field(min_length=1)
    """Glob patterns, relative to the repository root, of the files the change may touch."""
    ops: tuple[OpName, ...] = Field(min_length=1)
    """Names of the changed operations; each needs a kernel case of the same name."""
    falls_back_when: tuple[str, ...] = ()
    """Every condition under which a step runs the stock path, in the author's words."""

    def covers(self, path: str) -> bool:
        """Whether a file, by its path from the repository root, lies in scope.

        In a pattern `*` also stands for any number of folders.
        """
        return any(fnmatchcase(path, pattern) for pattern in self.paths)

    @model_validator(mode="after")
    def _no_repeats(self) -> Scope:
        if len(set(self.ops)) != len(self.ops):
            raise ValueError("ops names an op twice")
        return self


class Switch(Frozen):
    """The one difference between the arms."""

    key: str = Field(pattern=r"^additional_config(\.[A-Za-z_][A-Za-z0-9_]*)+$")
    base: str
    candidate: str

    @model_validator(mode="after")
    def _differs(self) -> Switch:
        if self.base == self.candidate:
            raise ValueError("base and candidate are the same value: the arms would not differ")
        return self

    def additional_config(self, arm: Arm) -> dict[str, Any]:
        """The engine's `additional_config` for an arm, e.g. ``{"decode_backend": "auto"}``."""
        value: Any = getattr(self, arm)
        for part in reversed(self.key.split(".")[1:]):
            value = {part: value}
        return dict(value)


class Plugin(Frozen):
    """How the engine finds the optimization, and how the harness reads its path evidence.

    An exception at start-up whose class name ends in `RefusedError` is told as a refusal (ENG-007),
    one that ends in `CheckpointError` as a bad checkpoint (ENV-005); anything else is ENG-001.
    """

    distribution: str
    module: str
    """Importable package; named in error messages and in provenance."""
    vllm_plugins: tuple[str, ...] = ()
    """Names in the entry-point group `vllm.general_plugins`."""
    cases: str | None = None
    """``module:function`` of the kernel cases, used when the distribution is not installed; it is
    imported with the optimization's folder on the path."""
    compiled_kernels: str | None = None
    """``module:function`` that lists the kernels the optimization compiles, for the audit of their
    machine code; found as `cases` is, and imported by a Python that has the compiler."""
    worker_extension: str | None = None
    """Dotted class with a method `fasttrack_evidence(clear)`, mixed into the engine's worker."""
    entry: str | None = Field(default=None, pattern=r"^[\w.]+:[\w.]+$")
    """``module:Class.function`` that a specialised step calls once, and goes on with its tensor.

    In the path stage the harness counts its calls and replaces its result by a constant."""


Workload = Literal["decode", "prefill", "mixed"]
"""Pure decode; prompts alone; decode with prompts that come and go beside it."""


class Grid(Frozen):
    """Axes of the performance sweep; the cells are their product."""

    batch: tuple[Positive, ...] = Field(min_length=1)
    context_tokens: tuple[Positive, ...] = Field(min_length=1)
    workload: tuple[Workload, ...] = Field(default=("decode",), min_length=1)
    tensor_parallel_size: tuple[Positive, ...] = ()
    """Sizes to measure; empty: the target's alone."""
    decode_context_parallel_size: tuple[Positive, ...] = Field(default=(1,), min_length=1)
    """Sizes to measure with each tensor parallel size that they divide."""
    draft_tokens: tuple[Annotated[int, Field(ge=0, le=32)], ...] = Field(default=(0,), min_length=1)
    """Draft tokens that every request verifies in every step; above 0 for pure decode alone."""
    window_steps: Positive | None = None
    """Decode steps to record per cell and session, at least the tier's: where steps are so short
    that the tier's take less time than a disturbance lasts. No axis."""
    unsupported: Mapping[str, str] = Field(default_factory=dict)
    """Cells that are not claimed, as globs over their names, each with a sentence why."""

    def unsupported_because(self, cell: str) -> str:
        """Why a cell is not claimed; empty if it is.

        Of several globs that name it the first by name counts: the order in which a claim was
        written is lost in its canonical form.
        """
        named = (why for name, why in sorted(self.unsupported.items()) if fnmatchcase(cell, name))
        return next(named, "")

    @model_validator(mode="after")
    def _no_repeats(self) -> Grid:
        for name in Grid.model_fields.keys() - {"unsupported", "window_steps"}:
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ValueError(f"{name} names a value twice")
        return self


class Checkpoint(Frozen):
    """The weights of a target: a name, how to make them, and which digest they must have."""

    name: Name
    build: tuple[str, ...] = ()
    """Command that writes the folder; `{python}` and `{out}` are replaced."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


ExternalName = Literal["aime25", "gsm-symbolic", "mrcr"]


class ExternalEval(Frozen):
    """A public benchmark on the user's own copy of its data, asked beside the embedded tasks."""

    file: str = Field(min_length=1, max_length=400)
    """JSON lines or Parquet, in the official form: path from the optimization's folder, or inside
    `repo`."""
    repo: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$")
    """A dataset of the Hugging Face hub that holds the file."""
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """Commit of `repo`."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest the file must have; without one, that of the file when its items are frozen."""
    answer_tokens: Positive
    """Most tokens of an answer."""
    samples: Annotated[int, Field(ge=1, le=256)] = 1
    """Answers per item, each drawn from a recorded seed of its own; the score is their mean."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)

    server: bool = False
    """Ask the engine's OpenAI-compatible server, which is started for it, over HTTP."""

    @model_validator(mode="after")
    def _consistent_eval(self) -> ExternalEval:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("samples above 1 need a temperature: greedy answers are all one")
        if (self.repo is None) != (self.revision is None):
            raise ValueError("repo and revision go together: data of the hub are pinned")
        return self


class PromptSet(Frozen):
    """The user's own text for the sweep, instead of the shipped one."""

    file: str = Field(min_length=1, max_length=400)
    """Path from the optimization's folder: JSON lines with a text under `text` or `prompt`."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest the file must have."""


class AgentTraffic(Frozen):
    """Recorded conversations of agents, replayed against the engine's server: tool stalls,
    sub-agents, shared prefixes. Lengths, timing and structure are the traces', words made up."""

    traces: str | None = Field(default=None, min_length=1, max_length=400)
    """Path from the optimization's folder: a folder of `.json` files in the Weka format, or one of
    them; by default the project's own traces."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest the traces must have, as every report of a replay tells it."""
    concurrency: tuple[Positive, ...] = Field(default=(1,), min_length=1)
    """Trees of conversations that run at once, each its own cell; sub-agents come on top."""
    tiers: tuple[Tier, ...] = (Tier.STANDARD, Tier.FULL)
    """Tiers that replay them; `--agent` does so at any."""
    idle_cap_s: float = Field(default=10.0, gt=0, le=600)
    """Longest stall of the whole system that is waited out."""
    request: Mapping[str, Any] = Field(default_factory=dict)
    """Further fields of every request, equal in both arms, e.g. `allowed_token_ids`."""
    engine_args: Mapping[str, Any] = Field(default_factory=dict)
    """Further engine arguments of these boots, equal in both arms."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of its cells: ``agent/concurrency=1``."""
        return tuple(f"agent/concurrency={count}" for count in self.concurrency)

    @model_validator(mode="after")
    def _no_repeats(self) -> AgentTraffic:
        if len(set(self.concurrency)) != len(self.concurrency):
            raise ValueError("concurrency names a value twice")
        return self


class Drafts(Frozen):
    """How cells with draft tokens get them, equally in both arms."""

    speculative_config: Mapping[str, Any] = Field(
        default_factory=lambda: {
            "method": "custom_class",
            "model": "fasttrack.engine._vllm_drafter.Lookup",
        }
    )
    """The engine's, without the number of tokens; by default the harness's own lookup in the text
    so far, which always makes as many drafts as asked for."""
    engine_args: Mapping[str, Any] = Field(default_factory=dict)
    """Further engine arguments of boots with drafts."""
    acceptance: float | None = Field(default=None, ge=0, le=1)
    """Chance that a draft token is accepted if the one before was, whatever it is: answers are
    worthless then, and only times are told. By default the model decides."""

    def arguments(self, count: int) -> dict[str, Any]:
        """Engine arguments for `count` draft tokens."""
        config = {**self.speculative_config, "num_speculative_tokens": count}
        if self.acceptance is not None:
            config["rejection_sample_method"] = "synthetic"
            config["synthetic_acceptance_rates"] = [
                self.acceptance ** (place + 1) for place in range(count)
            ]
        return {**self.engine_args, "speculative_config": config}

    def expected(self, count: int) -> float | None:
        """Share of `count` draft tokens that is accepted; None where the model decides."""
        if self.acceptance is None:
            return None
        return sum(self.acceptance ** (place + 1) for place in range(count)) / count


class Trace(Frozen):
    """Names in a trace of engine steps that tell the specialised path from stock on one target.

    Names are the device profiler's: operators on a CPU, kernels on a GPU; `*` stands for anything.
    """

    shows: tuple[str, ...] = ()
    """Each is seen in every specialised step, and in no other."""
    hides: tuple[str, ...] = ()
    """Each is seen in every decode step of stock, and in no specialised one."""


class Target(Frozen):
    """One combination of hardware, parallelism and checkpoint."""

    engine: str
    role: Literal["evidence", "development"]
    checkpoint: Checkpoint | None = None
    dtype: str = "float32"
    tensor_parallel_size: Positive = 1
    max_model_len: Positive = 2048
    max_num_seqs: Positive = 64
    engine_args: Mapping[str, Any] = Field(default_factory=dict)
    """Further engine arguments, equal in both arms."""
    grid: Grid
    evals: Mapping[ExternalName, ExternalEval] = Field(default_factory=dict)
    """External evals; `fasttrack evals prepare` freezes their items."""
    prompts: PromptSet | None = None
    """Text of the sweep's prompts; by default the project's own."""
    trace: Trace = Trace()
    drafts: Drafts = Drafts()
    agent: AgentTraffic | None = None
    """Agent traffic to be replayed; by default none, unless asked for by `--agent`."""
    baseline_note: str = ""
    """What stock is on this target, shown in the report (e.g. that it is the plugin's own)."""

    @model_validator(mode="after")
    def _reachable(self) -> Target:
        problems = []
        if max(self.grid.batch) > self.max_num_seqs:
            problems.append(
                f"batch {max(self.grid.batch)} is above max_num_seqs {self.max_num_seqs}"
            )
        if max(self.grid.context_tokens) >= self.max_model_len:
            problems.append(
                f"context_tokens {max(self.grid.context_tokens)} does not fit max_model_len "
                f"{self.max_model_len}"
            )
        if "mixed" in self.grid.workload and max(self.grid.batch) == self.max_num_seqs:
            problems.append("mixed needs a sequence beside the batch: raise max_num_seqs")
        ranks = self.grid.tensor_parallel_size or (self.tensor_parallel_size,)
        problems += [
            f"decode_context_parallel_size {size} divides no tensor_parallel_size"
            for size in self.grid.decode_context_parallel_size
            if not any(rank % size == 0 for rank in ranks)
        ]
        if max(self.grid.draft_tokens) and "decode" not in self.grid.workload:
            problems.append("draft_tokens needs the workload decode")
        if problems:
            raise ValueError("impossible grid: " + "; ".join(problems))
        return self


class Shape(NamedTuple):
    """What a boot must have so that a cell can be measured in it."""

    tensor_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    draft_tokens: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """``name=value`` of what is not the plain engine's."""
        plain = Shape()._asdict()
        return tuple(f"{name}={n}" for name, n in self._asdict().items() if n != plain[name])

    @property
    def name(self) -> str:
        """``tp2-dcp2-draft3``; empty for the plain engine."""
        short = zip(("tp", "dcp", "draft"), self, Shape(), strict=True)
        return "-".join(f"{name}{n}" for name, n, plain in short if n != plain)


class Cell(Frozen):
    """One point of the sweep."""

    workload: Workload
    batch: int
    context_tokens: int
    tensor_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    draft_tokens: int = 0

    @property
    def id(self) -> str:
        """Stable name, e.g. ``decode/batch=8/context_tokens=128``; parallelism and draft tokens if
        there are any."""
        name = f"{self.workload}/batch={self.batch}/context_tokens={self.context_tokens}"
        return "/".join([name, *self.shape.parts])

    @property
    def noise_class(self) -> str:
        """Cells with the same noise floor: those that differ in context alone."""
        return "/".join([f"{self.workload}/batch={self.batch}", *self.shape.parts])

    @property
    def shape(self) -> Shape:
        """The engine that measures it."""
        return Shape(
            self.tensor_parallel_size, self.decode_context_parallel_size, self.draft_tokens
        )

    @property
    def lane_tokens(self) -> int:
        """Tokens that a request runs in a decode step."""
        return 1 + self.draft_tokens


class Speed(Frozen):
    """The speed sentence and the margin below which a difference does not count as slower."""

    sentence: Sentence
    faster_batches: tuple[Positive, ...] = ()
    """For `faster_in_named_cells`: the batches in which every cell must be FASTER."""
    faster_workloads: tuple[Workload, ...] = Field(default=("decode",), min_length=1)
    """Workloads in which the sentence claims a gain; in the others no cell may be slower."""
    slower_margin_percent: float = Field(default=2.0, gt=0, le=10)

    @model_validator(mode="after")
    def _consistent(self) -> Speed:
        named = self.sentence is Sentence.FASTER_IN_NAMED_CELLS
        if named != bool(self.faster_batches):
            raise ValueError("faster_batches goes with the sentence faster_in_named_cells only")
        return self


class Features(Frozen):
    """User-visible engine features: kept unless refused here with a reason."""

    refused: Mapping[str, str] = Field(default_factory=dict)


StaticCode = Literal["ISO-IMPORT", "ISO-PATCH", "ISO-ENV", "ISO-TORCH"]


class Exemption(Frozen):
    """A finding of the source scan that the author declares, with a sentence for the reader.

    It is shown in every report, and sets the finding aside only as far as policy lets its code be
    declared. Nothing that differs at run time can be declared away.
    """

    code: StaticCode
    path: str = Field(min_length=1)
    """Glob over files, relative to the repository root."""
    what: str = "*"
    """Glob over what the finding names, e.g. ``torch.set_num_threads``."""
    why: str = Field(min_length=20, max_length=400)


class Isolation(Frozen):
    """What the author has to say about the isolation stage."""

    exempt: tuple[Exemption, ...] = ()


class Claim(Frozen):
    """An optimization's claim, as frozen before measuring."""

    schema_: Literal["fasttrack.claim/v1"] = Field(alias="schema")
    name: Name
    title: str = Field(max_length=120)
    summary: str = Field(max_length=2000)
    scope: Scope
    switch: Switch
    plugin: Plugin
    speed: Speed
    features: Features = Features()
    isolation: Isolation = Isolation()
    targets: Mapping[Name, Target] = Field(min_length=1)

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, serialize_by_alias=True
    )

    def cells(self, target: str) -> tuple[Cell, ...]:
        """The cells of a target, in the order of its axes."""
        return tuple(_cells(self.targets[target]))

    def agent_traffic(self, target: str, tier: Tier, asked: bool) -> AgentTraffic | None:
        """The agent traffic that a run replays; None for none. `asked`: by `--agent`."""
        declared = self.targets[target].agent
        if asked:
            return declared or AgentTraffic()
        return declared if declared is not None and tier in declared.tiers else None


def _cells(target: Target) -> Iterator[Cell]:
    grid = target.grid
    sizes = grid.tensor_parallel_size or (target.tensor_parallel_size,)
    axes = product(
        sizes,
        grid.decode_context_parallel_size,
        grid.draft_tokens,
        grid.workload,
        grid.context_tokens,
        grid.batch,
    )
    for ranks, shared, drafts, workload, context, batch in axes:
        if ranks % shared == 0 and (not drafts or workload == "decode"):
            yield Cell(
                workload=workload,
                batch=batch,
                context_tokens=context,
                tensor_parallel_size=ranks,
                decode_context_parallel_size=shared,
                draft_tokens=drafts,
            )

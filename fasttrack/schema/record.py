"""Raw observations: what stages append and rules read. Nothing here is a verdict.

A record is one JSON line, discriminated by `kind`. Times are seconds; a value that was not finite
is stored as null beside a flag or count that says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from fasttrack.schema._json import loads
from fasttrack.schema.agent import AgentRecord
from fasttrack.schema.claim import Arm, Frozen

Scalar = str | int | float | bool | None
Stage = Literal["isolation", "kernels", "path", "features", "evals", "perf"]
STAGES: tuple[Stage, ...] = ("isolation", "kernels", "path", "features", "evals", "perf")


class Check(Frozen):
    """One comparison that a rule repeats: `observed` against `bound` under `relation`."""

    name: str
    relation: Literal["equal", "at_least", "at_most"]
    observed: Scalar
    bound: Scalar

    @property
    def holds(self) -> bool:
        """Whether the comparison holds; a missing or uncomparable value never does."""
        if self.relation == "equal":
            same_kind = isinstance(self.observed, bool) == isinstance(self.bound, bool)
            return same_kind and self.observed == self.bound
        numbers = (int, float)
        if not isinstance(self.observed, numbers) or not isinstance(self.bound, numbers):
            return False
        if self.relation == "at_least":
            return self.observed >= self.bound
        return self.observed <= self.bound


class SessionRecord(Frozen):
    """One engine boot of one arm, from start to stop."""

    kind: Literal["session"] = "session"
    stage: Stage
    session: str
    arm: Arm
    variant: str = ""
    """Name of the engine arguments this boot has beside the target's; empty for none."""
    machine: str = ""
    """Which machine it ran on, as an opaque name; empty where nobody tells."""
    started_utc: str
    start_s: float
    ready_s: float
    end_s: float
    """`start_s`, `ready_s`, `end_s`: the machine's monotonic clock."""
    beside: tuple[str, ...] = ()
    """Sessions that were booted together with this one: all but one are idle at any time."""
    turn_s: float | None = None
    """When this one's turn came, by the same clock; null: as soon as it was ready."""
    switch: str | None
    """The switch value the engine reported as effective."""
    fingerprint: Mapping[str, Scalar]
    """Engine build and effective configuration, without the switch: equal across a run's sessions
    of one variant."""
    peak_rss_mib: float | None = None


class PathStep(Frozen):
    """What one engine step did, as the optimization's own log tells it."""

    step: int
    path: Literal["specialised", "stock", "profile"]
    reason: str
    requests: int
    tokens: int
    prefill_tokens: int
    """Tokens of rows that are not a one-token decode."""
    wrote: Mapping[str, str] = Field(default_factory=dict)
    """Cache rows written, as ranges: ``{"kda_slots": "3-5,9"}``."""


class EngineStep(Frozen):
    """What one engine step did, as the engine's own scheduler tells it."""

    start_s: float
    duration_s: float
    decode_tokens: int
    prefill_tokens: int


class PathRecord(Frozen):
    """Path evidence of one call of an engine session."""

    kind: Literal["path"] = "path"
    stage: Stage
    session: str
    arm: Arm
    cell: str
    steps: Sequence[PathStep]
    scheduled: Sequence[tuple[int, int]]
    """(decode tokens, prefill tokens) per step, from the engine's scheduler: the cross-check."""
    drafted: Sequence[int] = ()
    """Indices of steps in which the scheduler gave some row draft tokens to verify."""


class CodeRecord(Frozen):
    """Compiled code a process had mapped, as the operating system tells; none where it is silent.

    `source` is ``engine`` or the op of a kernel case; `arm` base is stock's process: an engine with
    the switch off, or the referee of the case.
    """

    kind: Literal["code"] = "code"
    stage: Stage
    source: str
    arm: Arm
    files: Mapping[str, str]
    """Readable name by SHA-256 of the content; the interpreter's and the system's are left out."""


class TraceRecord(Frozen):
    """Names the device's profiler saw in the steps of one call of the path stage."""

    kind: Literal["trace"] = "trace"
    session: str
    arm: Arm
    cell: str
    decode_steps: int
    """Steps that decoded and prefilled nothing, as the scheduler tells."""
    least: Mapping[str, int]
    most: Mapping[str, int]
    """Fewest and most times a name was seen in one of them; a name that some lack has no least."""
    prefill: Mapping[str, int]
    """Most times a name was seen in one of the other steps."""
    entry_calls: int | None
    """Calls of the claim's entry during the call, counted by the harness; null if it cannot."""
    rank: int = 0
    """Of the engine; each of several has a record of its own."""


class Timeline(Frozen):
    """What ran when in one steady decode step under the device's profiler: its typical step.

    On a GPU its kernels; on a CPU the operators that no other operator called, and compiled units.
    The profiler costs time in every one of them: times are for comparison, `plain_us` is without.
    """

    device: str
    kinds: Sequence[str]
    """Kind of every decoder layer, in order, by the cache it keeps."""
    names: Sequence[str]
    spans: Sequence[tuple[int, float, float, int, int | None]]
    """(index of its name, start and duration in microseconds, stream, decoder layer), in order of
    starts; no layer where no module of the model was seen around it."""
    steps: Sequence[tuple[int, float]]
    """(spans, microseconds from the first one's start to the last one's end) per profiled step."""
    plain_us: Sequence[float]
    """Engine steps just before, without a profiler."""


class TimelineRecord(Frozen):
    """The timeline of one arm, from the path stage."""

    kind: Literal["timeline"] = "timeline"
    session: str
    arm: Arm
    cell: str
    seen: Timeline | None
    """None where the engine cannot be profiled."""
    problem: str = ""


class TwinAnswer(Frozen):
    """An answer to a prompt that was asked twice."""

    token_ids: Sequence[int]
    logprobs: Sequence[float | None] = ()
    gaps: Sequence[float | None] = ()
    ranks: Sequence[int] = ()
    """Of an answer whose tokens were those of its twin, by force: their ranks."""


class TwinRecord(Frozen):
    """The same prompts answered twice in one session, the second time under a change.

    `watermark`: the entry's result is a constant. `alternation`: a short prompt arrives every other
    step, so that the step cannot be a pure decode; the tokens are forced to be those of before.
    """

    kind: Literal["twin"] = "twin"
    change: Literal["watermark", "alternation"]
    session: str
    arm: Arm
    cell: str
    plain: Sequence[TwinAnswer]
    changed: Sequence[TwinAnswer]
    entry_calls: int | None = None
    """Calls of the entry while the change was on."""


class StateStep(Frozen):
    """Cache blocks whose content differed before and after one engine step, as ranges.

    Owners are the requests of the step, by the engine's own block tables.
    """

    slots: str
    """Blocks of per-request state."""
    rows: str
    """Rows of paged caches, block * block size + offset."""
    foreign: str
    """Changed blocks that no request of the step owns."""
    foreign_rows: str
    """Changed rows of owned blocks at other positions than those the step computed."""
    null: bool
    """Whether the null block changed."""


class StateRecord(Frozen):
    """Every engine step of one call, with what it changed in the caches: compared bit by bit."""

    kind: Literal["state"] = "state"
    session: str
    arm: Arm
    cell: str
    watched_blocks: int
    blocks: int
    """The engine's; only the first `watched_blocks` were compared."""
    steps: Sequence[StateStep]
    problem: str = ""
    """Why nothing could be compared."""
    rank: int = 0
    """Of the engine; each of several has a record of its own."""


class ErrorStats(Frozen):
    """Error of one output against the fp64 reference, scaled per slice by the slice's RMS.

    All values are dimensionless; null means not finite.
    """

    rms: float | None
    q999: float | None
    max: float | None
    worst_slice_rms: float | None
    worst_slice: str
    """Coordinate of that slice, e.g. ``row=3,head=1``."""
    mean_signed: float | None
    nonfinite: int
    """Elements whose NaN/Inf class differs from the reference's."""
    first_bad: str = ""
    """Coordinate of the largest error."""


CaseStatus = Literal[
    "ok", "raised", "hung", "killed", "memory", "malformed", "unfit", "unjudged", "absent"
]
"""``unfit``: outputs that are no plain tensors; ``unjudged``: the case's own inputs, reference or
stock failed; ``absent``: there is no case, or none with usable regimes."""


class KernelRecord(Frozen):
    """One output of one op at one regime and seed.

    `control` names a planted fault; `probe` names other inputs than the seed's own, such as rows in
    another order. Neither is set for the seed's own result.
    """

    kind: Literal["kernel"] = "kernel"
    op: str
    cell: str
    regime: Mapping[str, int]
    seed: int
    output: str
    status: CaseStatus
    """Beside ``ok``: what the candidate did instead of answering, with `output` ``*``."""
    control: str | None = None
    probe: str | None = None
    """``permuted``, ``hostile``, ``nonce``, ``scalars`` or ``neighbours:CELL``."""
    stock: ErrorStats | None = None
    """The larger of stock's errors over two batch compositions, measure by measure."""
    candidate: ErrorStats | None = None
    rounding_rms: float = 0.0
    """RMS of rounding the reference to the output's dtype, scaled alike: a floor for ratios."""
    repeats: int = 0
    repeats_equal: int = 0
    spread: float | None = None
    """Largest RMS difference of a repeat from the first call, scaled alike; only for an op that is
    declared to be non-deterministic."""
    stock_spread: float | None = None
    """The same of stock, over its own repeats and compositions."""
    untouched_equal: bool | None = None
    """Whether rows the op does not own kept every bit; null where the op has no such output."""
    message: str = ""


class ConductRecord(Frozen):
    """How the candidate behaved in one cell, beside its numbers: over all its calls there."""

    kind: Literal["conduct"] = "conduct"
    op: str
    cell: str
    regime: Mapping[str, int]
    seed: int
    checks: Sequence[Check]
    """What must hold exactly; `fasttrack.rules.conduct` says which must be there."""
    places: Mapping[str, str] = Field(default_factory=dict)
    """For a check that does not hold: where, e.g. ``cache: 128 bytes``."""
    not_offered: Sequence[str] = ()
    """Checks and probes that need an ability the case lacks, or cannot apply in this cell."""
    calls: int
    times_s: Mapping[str, float] = Field(default_factory=dict)
    """The referee's clock around calls, the copy of outputs included: ``first``, ``fastest``, and
    medians ``fresh`` (content never seen) and ``again`` (the same content once more)."""
    device: Mapping[str, Scalar] = Field(default_factory=dict)
    """Numbers of the device's own, where it has any."""


class EarlyAccess(Frozen):
    """Accesses to global memory that some path makes before the grid-dependency wait.

    One entry per kind of access and set of parameters.
    """

    access: Literal["load", "store", "atomic", "unknown"]
    parameters: Sequence[int]
    """Kernel parameters that the addresses derive from, by position; those that hold a pointer."""
    unresolved: str = ""
    """Why the origin of the addresses cannot be told; empty where it can."""
    offsets: Sequence[int]
    """Of the instructions in the kernel's code, in bytes."""
    first: str
    """Text of the first of them."""


class CompiledRecord(Frozen):
    """What the disassembly of one compiled kernel says; `control` names a planted one."""

    kind: Literal["compiled"] = "compiled"
    cell: str
    kernel: str = ""
    arch: str = ""
    status: Literal["ok", "none", "undeclared", "raised", "unreadable", "unavailable"]
    """`none`: the optimization compiles no kernels; `undeclared`: its sources look as if it did;
    `raised`: it did not compile; `unreadable`: the disassembly cannot be followed; `unavailable`:
    no compiler or disassembler here."""
    control: str | None = None
    dependent: bool = True
    """Whether it is launched before the kernel ahead of it has ended."""
    function: str = ""
    functions: Sequence[str] = ()
    """All entry functions of the cubin."""
    cubin_sha256: str = ""
    tool: str = ""
    """Compiler and disassembler, with versions."""
    parameters: Sequence[str] = ()
    """Names of the kernel's parameters, in order."""
    static: Sequence[int] = ()
    """Parameters whose memory nothing writes during a step, as declared."""
    own: Sequence[int] = ()
    """Parameters whose memory no other kernel of the step touches, as declared."""
    instructions: int = 0
    waits: Sequence[int] = ()
    """Offsets of the waits that paths from the entry meet first."""
    guarded_waits: Sequence[int] = ()
    """Offsets of waits under a predicate: they do not count."""
    launches: Sequence[int] = ()
    """Offsets of launch_dependents ahead of the wait: for information."""
    early: Sequence[EarlyAccess] = ()
    message: str = ""


class SanitizerRecord(Frozen):
    """One tool of NVIDIA's compute-sanitizer over one call of an op, at its smallest regime."""

    kind: Literal["sanitizer"] = "sanitizer"
    op: str
    regime: Mapping[str, int]
    tool: Literal["memcheck", "racecheck", "synccheck", "initcheck"]
    status: Literal["clean", "errors", "not_installed", "failed"]
    errors: int = 0
    message: str = ""


class FeatureRecord(Frozen):
    """One preserved feature in one arm; `control` is stock against stock."""

    kind: Literal["feature"] = "feature"
    feature: str
    arm: Arm
    status: Literal["observed", "refused", "error"]
    checks: Sequence[Check] = ()
    message: str = ""


class IsolationFinding(Frozen):
    """One place, file or name that is not as stock has it."""

    code: str
    """Key of `REASONS`."""
    where: str
    """``path:line``, a path, or ``module:name`` of loaded code."""
    what: str
    why: str
    exempt: str = ""
    """The claim's sentence that declares it; empty where it declares none."""


class IsolationRecord(Frozen):
    """What the isolation stage saw of one subject."""

    kind: Literal["isolation"] = "isolation"
    subject: str
    checks: Sequence[Check]
    message: str = ""
    findings: Sequence[IsolationFinding] = ()


class ItemRecord(Frozen):
    """One answer of one arm to one eval item."""

    kind: Literal["item"] = "item"
    eval: str
    item: str
    prompt_sha256: str
    arm: Arm
    repeat: Literal["main", "control", "replay"] = "main"
    """`control`: once more, one request at a time. Base's is also stock against stock: the same
    question in another batch composition. `replay`: base's own answer (`main`) forced through the
    decode path, so that every position can be compared; base's is in another composition."""
    concurrency: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the engine found in its prefix cache."""
    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[float | None] = ()
    """Log-probability of each produced token, nats."""
    gaps: Sequence[float | None] = ()
    """Log-probability distance between the two likeliest tokens at each position, nats."""
    ranks: Sequence[int] = ()
    """Of a replay: rank of each forced token, 1 being the likeliest."""
    finish_reason: str
    score: float
    error: str = ""
    seed: int | None = None
    """Of a sampled answer: the request's own seed."""


class SampleRecord(Frozen):
    """One perf cell in one session: every engine step, untrimmed."""

    kind: Literal["sample"] = "sample"
    cell: str
    arm: Arm
    session: str
    block: int
    position: int
    """Position of the session within its block, 0-3."""
    planned_requests: int
    completed_requests: int
    prompt_tokens: int
    """Sum over requests."""
    cached_tokens: int
    output_tokens: int
    call_s: float | None = None
    """The harness's own clock around the calls, which the engine's process cannot reach."""
    marks: Sequence[tuple[int, float]] = ()
    """(steps so far, the harness's monotonic clock) when the engine told that its window began and
    ended."""
    steps: Sequence[EngineStep]
    emitted: Sequence[int] = ()
    """Tokens that each step handed out; its end is their time stamp."""
    contexts: Sequence[int] = ()
    """Tokens of context over the rows of each step, its own included."""
    device_s: Sequence[float | None] = ()
    """Seconds of the model's graph in each step, by the device's own clock; null in a step that
    replayed none, empty where nothing is known. Described, never judged."""
    prompts_sha256: str = ""
    """Of the token ids of all prompts, in order."""
    prompt_set_sha256: str = ""
    """Of the file their text came from."""
    token_evenness: float | None = None
    """Entropy of that text's token frequencies, as a share of what random tokens would have."""


class RoutingRecord(Frozen):
    """How often each expert was chosen while prompts were prefilled by base: one row per layer.

    Of prompts that the sweep sent, and of two sets of random tokens of the same lengths.
    """

    kind: Literal["routing"] = "routing"
    session: str
    context_tokens: int
    prompts: int
    experts: int
    """The model's, as it says itself; 0 where it has none."""
    sent: Sequence[Sequence[int]]
    random: Sequence[Sequence[int]]
    again: Sequence[Sequence[int]]
    problem: str = ""
    """Why routing could not be seen."""


class MonitorRecord(Frozen):
    """Machine state during one session."""

    kind: Literal["monitor"] = "monitor"
    stage: Stage
    session: str
    values: Mapping[str, Scalar]


class RefusalRecord(Frozen):
    """An engine that did not start in the shape that cells of the sweep need."""

    kind: Literal["refusal"] = "refusal"
    session: str
    arm: Arm
    shape: str
    """``tp2-dcp2-draft3``; see `Shape`."""
    code: str
    cause: str


class FailureRecord(Frozen):
    """A unit of work that ended in a coded error; kept even when a later attempt succeeds."""

    kind: Literal["failure"] = "failure"
    stage: Stage
    unit: str
    code: str
    cause: str
    next: str
    cell: str | None = None


Record = Annotated[
    SessionRecord
    | PathRecord
    | KernelRecord
    | ConductRecord
    | CompiledRecord
    | SanitizerRecord
    | FeatureRecord
    | IsolationRecord
    | ItemRecord
    | SampleRecord
    | MonitorRecord
    | RoutingRecord
    | CodeRecord
    | TraceRecord
    | TimelineRecord
    | TwinRecord
    | StateRecord
    | RefusalRecord
    | AgentRecord
    | FailureRecord,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Any] = TypeAdapter(Record)


def parse_record(line: bytes | str) -> Record:
    """One JSON line to a record.

    Raises `StrictJsonError` for bad JSON and pydantic's `ValidationError` for a wrong shape.
    """
    record: Record = _ADAPTER.validate_python(loads(line))
    return record

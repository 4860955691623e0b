"""Makes honest result files, and takes them apart again for those who want to spoil them.

`run_folder` writes records of a run that passes every rule: all stages, both arms, plausible
times. `honest` packs and signs it. `explode`, `assemble`, `reseal` and `redecide` are the
attacker's tools: each repairs one more layer (archive, manifest and statement, signatures, verdicts
and report), so a test can show which check is the one that notices.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from fasttrack import __version__, rules
from fasttrack import plan as planning
from fasttrack.bundle import archive, layout, manifest, statement
from fasttrack.bundle import sign as signing
from fasttrack.bundle.provenance import harness_digest
from fasttrack.bundle.reader import open_bundle
from fasttrack.bundle.writer import RunFolder
from fasttrack.engine._fake_evidence import timeline
from fasttrack.evals.task import prompt_room
from fasttrack.evals.tasks.long_chain import TASK
from fasttrack.plan import TIERS
from fasttrack.report import markdown
from fasttrack.report.build import build
from fasttrack.rules.isolation import UNITS
from fasttrack.rules.proof import kinds_of
from fasttrack.schema import (
    ARMS,
    Arm,
    Check,
    Claim,
    CodeRecord,
    CompiledRecord,
    ConductRecord,
    EngineStep,
    ErrorStats,
    FeatureRecord,
    IsolationRecord,
    ItemRecord,
    KernelRecord,
    MonitorRecord,
    MutantResult,
    Outcome,
    PathRecord,
    PathStep,
    PlantResult,
    Policy,
    Provenance,
    Record,
    RoutingRecord,
    RunInfo,
    SampleRecord,
    SelfTest,
    SessionRecord,
    StateRecord,
    StateStep,
    Tier,
    TimelineRecord,
    TraceRecord,
    TwinAnswer,
    TwinRecord,
    Verdict,
)
from fasttrack.schema._json import canonical_bytes, digest, loads
from fasttrack.schema.record import Stage
from fasttrack.selftest import catalogue

Members = dict[str, bytes]
PRINCIPAL = "ada@example.org"
CREATED = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
SEED = 0
"""Block 0 of its plan is base, candidate, candidate, base."""
WARM_AND_WINDOW = 20
CODE: dict[Arm, dict[str, str]] = {"base": {}, "candidate": {"d" * 64: "mix.so"}}
SOURCE = """\
schema = "fasttrack.claim/v1"
name = "demo"
title = "Demo: decode without detours"
summary = "A made-up claim for tests of the evidence tools."

[scope]
models = ["DemoForCausalLM"]
paths = ["optimizations/demo/**"]
ops = ["mix"]
falls_back_when = ["a step holds prefill tokens"]

[switch]
key = "additional_config.decode_backend"
base = "auto"
candidate = "latency_specialized"

[plugin]
distribution = "demo"
module = "demo"
entry = "demo.ops:mix"

[speed]
sentence = "faster_everywhere"

[targets.gpu-a]
engine = "vllm"
role = "evidence"
max_model_len = 512
baseline_note = "the engine's own decode"
grid = { batch = [1, 2], context_tokens = [64] }
checkpoint = { name = "tiny" }
trace = { shows = ["fast::*"], hides = ["stock::*"] }
"""


@dataclass
class Clock:
    """Times of sessions that run one after the other, on both of a host's clocks."""

    now_s: float = 1000.0
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def utc(self) -> str:
        """The wall clock at `now_s`."""
        return (CREATED + timedelta(seconds=self.now_s - 900)).isoformat()


def claim() -> Claim:
    """The claim of `SOURCE`."""
    return Claim.model_validate(tomllib.loads(SOURCE))


def session(
    clock: Clock, stage: Stage, name: str, arm: Arm, body: Callable[[], list[Record]]
) -> list[Record]:
    """Records of one boot: what `body` records, then the session itself."""
    start, started = clock.now_s, clock.utc()
    clock.now_s += 5
    ready = clock.now_s
    inside = body()
    clock.now_s += 1
    ended = SessionRecord(
        stage=stage, session=name, arm=arm, machine="5" * 12, started_utc=started, start_s=start,
        ready_s=ready, end_s=clock.now_s, switch="auto" if arm == "base" else "latency_specialized",
        fingerprint={"engine": "vllm", "vllm": "0.32.0", "checkpoint": "c" * 64, "timer": "t"},
        peak_rss_mib=900.5,
    )  # fmt: skip
    clock.now_s += 1
    return [*inside, ended]


def steps(clock: Clock, arm: Arm, batch: int, prompt_tokens: int) -> list[EngineStep]:
    """One prefill step, then decode steps of the whole batch."""
    pace = 2e-3 if arm == "base" else 1e-3
    made = []
    for index in range(WARM_AND_WINDOW + 1):
        prefill = index == 0
        duration = 0.01 if prefill else pace * (1 + 0.004 * clock.random.random())
        made.append(
            EngineStep(
                start_s=clock.now_s, duration_s=duration,
                decode_tokens=0 if prefill else batch,
                prefill_tokens=prompt_tokens if prefill else 0,
            )
        )  # fmt: skip
        clock.now_s += duration + 1e-5
    return made


def path(stage: Stage, name: str, arm: Arm, cell: str, ran: list[EngineStep]) -> PathRecord:
    """The step log that belongs to engine steps."""
    logged = []
    for index, step in enumerate(ran):
        fast = arm == "candidate" and not step.prefill_tokens
        logged.append(
            PathStep(
                step=index, path="specialised" if fast else "stock",
                reason="pure decode" if fast else "prefill" if step.prefill_tokens else "off",
                requests=max(1, step.decode_tokens),
                tokens=step.decode_tokens + step.prefill_tokens,
                prefill_tokens=step.prefill_tokens, wrote={"slots": "1"},
            )
        )  # fmt: skip
    return PathRecord(
        stage=stage, session=name, arm=arm, cell=cell, steps=tuple(logged),
        scheduled=tuple((s.decode_tokens, s.prefill_tokens) for s in ran),
    )  # fmt: skip


def isolation_records(check: str) -> list[Record]:
    """All subjects of a unit, nothing found."""
    found = Check(name="compared", relation="equal", observed=1, bound=1)
    return [IsolationRecord(subject=name, checks=(found,)) for name in UNITS[check]]


def errors(scale: float) -> ErrorStats:
    """Error statistics that grow with `scale`."""
    return ErrorStats(
        rms=1e-3 * scale, q999=3e-3 * scale, max=5e-3 * scale, worst_slice_rms=2e-3 * scale,
        worst_slice="row=0", mean_signed=1e-9 * scale, nonfinite=0, first_bad="row=0,col=3",
    )  # fmt: skip


def kernel_records(tier: Tier, first: int) -> list[Record]:
    """Two cells of one op, the planned seeds, one planted fault that is far off."""
    amounts = TIERS[tier]
    made: list[Record] = []
    for batch in (1, 2):
        for seed in range(amounts.seeds):
            for control, scale in ((None, 1.0 + 0.001 * seed), ("scaled_output", 500.0)):
                made.append(
                    KernelRecord(
                        op="mix", cell=f"mix/batch={batch}", regime={"batch": batch},
                        seed=first + seed, output="y", status="ok", control=control,
                        stock=errors(1.0), candidate=errors(scale), rounding_rms=1e-4,
                        repeats=0 if control or seed else amounts.repeats,
                        repeats_equal=0 if control or seed else amounts.repeats,
                    )
                )  # fmt: skip
        watched = ("inputs_changed", "guards_changed", "late_writes", "stale_answers")
        made.append(
            ConductRecord(
                op="mix", cell=f"mix/batch={batch}", regime={"batch": batch}, seed=first,
                checks=[Check(name=n, relation="equal", observed=0, bound=0) for n in watched],
                not_offered=("floor", "guards_of_outputs", "hostile", "neighbours", "nonce", "pace",
                             "padding", "permuted", "scalars", "skew", "unwritten"),
                calls=amounts.repeats + amounts.seeds, times_s={"first": 1e-3, "fastest": 1e-3},
            )
        )  # fmt: skip
    made += [CodeRecord(stage="kernels", source="mix", arm=a, files=CODE[a]) for a in ARMS]
    return made


def path_records(clock: Clock, arm: Arm, kinds: Sequence[str]) -> list[Record]:
    """Every proof of the path, for the kinds of work and batches of the claim."""
    name, fast = f"path-{arm}", arm == "candidate"
    names = {"fast::layer" if fast else "stock::layer": 4, "host::sample": 1}

    def logged(cell: str, late: bool = False) -> PathRecord:
        ran = steps(clock, arm, 2, 40)[:9]
        mixed = [
            step.model_copy(update={"prefill_tokens": late * (n % 2) or step.prefill_tokens})
            for n, step in enumerate(ran)
        ]
        return path("path", name, arm, cell, mixed)

    def answer(*tokens: int) -> TwinAnswer:
        return TwinAnswer(
            token_ids=tokens, logprobs=[-0.5 - t / 100 for t in tokens], gaps=[1.0 for _ in tokens]
        )

    def body() -> list[Record]:
        made: list[Record] = []
        plain, constant = answer(5, 6, 7), answer(5, 1, 1) if fast else answer(5, 6, 7)
        for kind in kinds:
            for what in ("trace", "watermark"):
                made.append(logged(f"path/{kind}/{what}"))
            made += [
                TraceRecord(
                    session=name, arm=arm, cell=f"path/{kind}/trace", decode_steps=8, least=names,
                    most=names, prefill={"stock::layer": 9}, entry_calls=8 * fast,
                ),
                TwinRecord(
                    change="watermark", session=name, arm=arm, cell=f"path/{kind}/watermark",
                    plain=[plain], changed=[constant], entry_calls=8 * fast,
                ),
            ]  # fmt: skip
        still = StateStep(slots="1", rows="", foreign="", foreign_rows="", null=False)
        made += [
            logged("path/state"),
            StateRecord(
                session=name, arm=arm, cell="path/state", watched_blocks=64, blocks=64,
                steps=[still] * 9,
            ),
            logged("path/alternation", late=True),
            TwinRecord(
                change="alternation", session=name, arm=arm, cell="path/alternation",
                plain=[plain], changed=[plain],
            ),
            logged("path/timeline"),
            TimelineRecord(session=name, arm=arm, cell="path/timeline", seen=timeline(fast)),
            CodeRecord(stage="path", source="engine", arm=arm, files=CODE[arm]),
        ]  # fmt: skip
        return made

    return session(clock, "path", name, arm, body)


def feature_records(clock: Clock, arm: Arm) -> list[Record]:
    """Every required feature observed, with path evidence."""
    name = f"features-{arm}"

    def body() -> list[Record]:
        ok = Check(name="works", relation="equal", observed=True, bound=True)
        ran = steps(clock, arm, 2, 40)
        return [
            record
            for feature in Policy().required_features
            for record in (
                path("features", name, arm, f"features/{feature}", ran),
                FeatureRecord(feature=feature, arm=arm, status="observed", checks=(ok,)),
            )
        ]

    return session(clock, "features", name, arm, body)


def eval_records(clock: Clock, arm: Arm, tier: Tier, seed: int) -> list[Record]:
    """Equal answers of both arms, also in other batches; every fourth answer is wrong."""
    name = f"evals-{arm}"
    amounts = TIERS[tier]
    room = prompt_room(claim().targets["gpu-a"].max_model_len, amounts.answer_tokens)
    items = TASK.items(seed, amounts.items, room)

    def body() -> list[Record]:
        made: list[Record] = [
            path("evals", name, arm, f"evals/{TASK.name}/{cell}", steps(clock, arm, rows, 90))
            for cell, rows in (
                ("main/concurrency=4", 4),
                ("control/concurrency=2", 2),
                ("replay/concurrency=4", 4),
            )
        ]
        for repeat in ("main", "control", "replay"):
            for index, item in enumerate(items):
                tokens = tuple(range(index, index + 6))
                text = f" {item.answer}" if index % 4 else " I do not know"
                made.append(
                    ItemRecord(
                        eval=TASK.name, item=item.id,
                        prompt_sha256=hashlib.sha256(item.prompt.encode()).hexdigest(), arm=arm,
                        repeat=repeat, concurrency=2 if repeat == "control" else 4,
                        token_ids=tokens, text=text,
                        logprobs=tuple(-0.25 - t / 100 for t in tokens),
                        gaps=tuple(1.5 for _ in tokens), finish_reason="length",
                        prompt_tokens=512, ranks=(1,) * 6 if repeat == "replay" else (),
                        score=TASK.score(item, text),
                    )
                )  # fmt: skip
        return made

    return session(clock, "evals", name, arm, body)


def marks(ran: list[EngineStep]) -> list[tuple[int, float]]:
    """The harness's clock around the window, behind one step and three of warm-up."""
    end = ran[-1].start_s + ran[-1].duration_s
    return [(4, ran[4].start_s), (len(ran), end + 1e-4)]


def perf_records(clock: Clock, block: int, position: int, arm: Arm) -> list[Record]:
    """One boot through both cells."""
    name = f"perf-b{block}-{position}-{arm}"

    def body() -> list[Record]:
        made: list[Record] = []
        for cell in claim().cells("gpu-a"):
            prompt = cell.batch * cell.context_tokens
            ran = steps(clock, arm, cell.batch, prompt)
            made.append(
                SampleRecord(
                    cell=cell.id, arm=arm, session=name, block=block, position=position,
                    planned_requests=cell.batch, completed_requests=cell.batch,
                    prompt_tokens=prompt, cached_tokens=0,
                    output_tokens=cell.batch * (WARM_AND_WINDOW + 1), steps=tuple(ran),
                    call_s=1.1 * sum(step.duration_s for step in ran),
                    emitted=[cell.batch] * len(ran), marks=marks(ran),
                    contexts=[prompt + cell.batch * index for index in range(len(ran))],
                    prompts_sha256=hashlib.sha256(cell.id.encode()).hexdigest(),
                    prompt_set_sha256="5" * 64, token_evenness=0.75,
                )
            )  # fmt: skip
            made.append(path("perf", name, arm, cell.id, ran))
        return made

    values = {"load_1min": 0.5, "steal_share": 0.0, "foreign_cpu_share": 0.01}
    even, uneven = [[50] * 4] * 2, [[100, 50, 30, 20]] * 2
    routed = [
        RoutingRecord(
            session=name, context_tokens=context, prompts=1, experts=4, sent=uneven, random=even,
            again=[[52, 49, 51, 48]] * 2,
        )
        for context in sorted({cell.context_tokens for cell in claim().cells("gpu-a")})
        if (arm, block) == ("base", 0)
    ]  # fmt: skip
    return [
        *session(clock, "perf", name, arm, body),
        *routed,
        MonitorRecord(stage="perf", session=name, values=values),
    ]


def paced(record: Record, factor: float) -> Record:
    """A candidate's sample whose steps, and the call around them, take `factor` times as long."""
    if not isinstance(record, SampleRecord) or record.arm != "candidate":
        return record
    steps = [s.model_copy(update={"duration_s": factor * s.duration_s}) for s in record.steps]
    call_s = factor * (record.call_s or 0.0)
    (first, began), (last, ended) = record.marks
    marks = [(first, began), (last, began + factor * (ended - began))]
    return record.model_copy(update={"steps": tuple(steps), "call_s": call_s, "marks": marks})


def units(frozen: Claim, info: RunInfo) -> Iterator[tuple[Stage, str, list[Record]]]:
    """(stage, unit, records) of the stages that run, in the order in which it happened."""
    clock = Clock()
    for unit in planning.make(frozen, "gpu-a", info.tier, info.seed).units:
        if unit.stage not in info.stages:
            continue
        if unit.stage == "isolation":
            records = isolation_records(unit.spec["check"])
        elif unit.spec.get("check") == "compiled":
            records = [CompiledRecord(cell="compiled", status="none")]
        elif unit.stage == "kernels":
            records = kernel_records(info.tier, info.seed)
        elif unit.stage == "path":
            records = path_records(clock, unit.spec["arm"], kinds_of(frozen.targets["gpu-a"]))
        elif unit.stage == "features":
            records = feature_records(clock, unit.spec["arm"])
        elif unit.stage == "evals":
            records = eval_records(clock, unit.spec["arm"], info.tier, info.seed)
        else:
            spec = unit.spec
            records = perf_records(clock, spec["block"], spec["position"], spec["arm"])
        yield unit.stage, unit.name, records


def unit_file(start: str) -> str:
    """The record file whose name begins so; the rest of the name is a digest of its inputs."""
    made = planning.make(claim(), "gpu-a", Tier.STANDARD, SEED).units
    names = [f"{unit.stage}/{unit.name}.jsonl" for unit in made]
    (name,) = [name for name in names if name.startswith(f"{start}-")]
    return name


def plan_value(frozen: Claim, tier: Tier, seed: int) -> dict[str, Any]:
    """The plan's frozen form."""
    return planning.make(frozen, "gpu-a", tier, seed).json_value()


def verdicts_value(decision: tuple[tuple[Verdict, ...], Outcome]) -> dict[str, Any]:
    """What `verdicts.json` holds."""
    return {
        "schema": "fasttrack.verdicts/v1",
        "outcome": decision[1].json_value(),
        "verdicts": [verdict.json_value() for verdict in decision[0]],
    }


def run_info(frozen: Claim, policy: Policy, **changes: Any) -> RunInfo:
    """The run's information, with fields changed for tests."""
    values: dict[str, Any] = {
        "run_id": "demo-gpu-a-standard-0001", "target": "gpu-a", "tier": Tier.STANDARD,
        "seed": SEED,
        "stages": ("isolation", "kernels", "path", "features", "evals", "perf"),
        "command": ("fasttrack", "validate", "optimizations/demo", "--tier", "standard"),
        "claim_sha256": frozen.digest(), "policy_sha256": policy.digest(),
        "harness_version": __version__, "created_utc": CREATED.isoformat(),
        "self_test": self_test(),
    } | changes  # fmt: skip
    return RunInfo(plan_sha256=digest(plan_value(frozen, values["tier"], values["seed"])), **values)


@cache
def self_test(harness_sha256: str = "") -> SelfTest:
    """Of this harness: every plant of its zoo judged right."""
    zoo = catalogue.find(None)
    return SelfTest(
        harness_sha256=harness_sha256 or harness_digest(),
        catalogue_sha256=catalogue.digest(zoo),
        plants=[
            PlantResult(group=group, name=name, row=row, code=code, state="right")
            for group, name, row, code in catalogue.keys(zoo)
        ],
        mutants=MutantResult(made=200, refused=200, seed=1),
    )


def provenance_value(**source: Any) -> Provenance:
    """Provenance of a clean checkout on an invented machine."""
    return Provenance(
        machine={"cpu": "Test CPU", "cores": 2, "gpus": [{"name": "Test GPU"}]},
        packages={"vllm": "0.32.0", "torch": "2.13.0"},
        package_records={"vllm": "d" * 64},
        checkpoint={"name": "tiny", "sha256": "c" * 64},
        source={
            "commit": "a" * 40, "tree": "b" * 40, "dirty": False, "changed_files": 0,
            "harness_sha256": harness_digest(),
        } | source,
        environment={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def run_folder(
    where: Path,
    *,
    edit: Callable[[Record], Record | None] = lambda record: record,
    source: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
) -> Path:
    """A finished run folder; `edit` changes or drops records before the rules see them."""
    frozen, policy = claim(), policy or Policy()
    tested = self_test(dict(source or {}).get("harness_sha256", ""))
    info = run_info(frozen, policy, **{"self_test": tested, **(run or {})})
    with RunFolder.open(where) as folder:
        folder.write_bytes(layout.CLAIM_TOML, SOURCE.encode())
        folder.write_json(layout.CLAIM, frozen.json_value())
        folder.write_json(layout.POLICY, policy.json_value())
        folder.write_json(layout.PLAN, plan_value(frozen, info.tier, info.seed))
        folder.write_json(layout.RUN, info.json_value())
        for stage, unit, records in units(frozen, info):
            kept = [new for old in records if (new := edit(old)) is not None]
            folder.write_unit(stage, unit, kept)
        decision = rules.decide(frozen, info, list(folder.records()), policy)
        folder.write_json(layout.VERDICTS, verdicts_value(decision))
        folder.write_json(layout.PROVENANCE, provenance_value(**(source or {})).json_value())
        with open_bundle(where) as bundle:
            folder.write_bytes(layout.REPORT, markdown.render(build(bundle)).encode())
    return where


def write_key(path: Path, kind: str = "ed25519") -> Path:
    """An unencrypted OpenSSH private key file, and its `.pub`."""
    makers: dict[str, Callable[[], Any]] = {
        "ed25519": ed25519.Ed25519PrivateKey.generate,
        "ecdsa": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ecdsa521": lambda: ec.generate_private_key(ec.SECP521R1()),
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "short-rsa": lambda: rsa.generate_private_key(65537, 1024),
    }
    key = makers[kind]()
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return path


def public_line(key: Path) -> str:
    """`type base64` of a key made by `write_key`."""
    return key.with_suffix(".pub").read_text().strip()


def honest(where: Path, key: Path, **changes: Any) -> Path:
    """A signed result file of a run that passes."""
    made = archive.pack(run_folder(where / "run", **changes), where / "out")
    signing.sign(made, key=key, principal=PRINCIPAL)
    return made


def explode(path: Path) -> Members:
    """All members, read by another program's eyes than the reader under test."""
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def assemble(members: Mapping[str, bytes], path: Path) -> Path:
    """A well-formed archive of any members: the first layer an attacker repairs."""

    def content(name: str) -> Iterator[bytes]:
        return iter((members[name],))

    with path.open("wb") as out:
        archive.write(out, {n: manifest.measure((d,)) for n, d in members.items()}, content)
    return path


def remanifest(members: Members) -> Members:
    """With manifest, statement and unsigned envelope made anew: the second layer."""
    kept = {n: d for n, d in members.items() if layout.signature_number(n) is None}
    covered = {n: manifest.measure((d,)) for n, d in kept.items() if layout.role(n) is not None}
    kept[layout.MANIFEST] = manifest.make(covered)
    outcome = Outcome.model_validate(loads(kept[layout.VERDICTS])["outcome"])
    run = RunInfo.model_validate(loads(kept[layout.RUN]))
    sha = hashlib.sha256(kept[layout.MANIFEST]).hexdigest()
    kept[layout.STATEMENT] = statement.make(sha, run, outcome)
    kept[layout.ENVELOPE] = statement.envelope(kept[layout.STATEMENT], ())
    return kept


def reseal(members: Members, path: Path, key: Path) -> Path:
    """Everything sealed and signed again with the attacker's own key: the third layer."""
    assemble(remanifest(members), path)
    signing.sign(path, key=key, principal=PRINCIPAL)
    return path


def redecide(members: Members, where: Path) -> Members:
    """With verdicts and report that follow from the edited records: the fourth layer."""
    where.mkdir(parents=True, exist_ok=True)
    for name, data in members.items():
        if layout.role(name) is not None:
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_bytes(data)
    with open_bundle(where) as bundle:
        decision = rules.decide(bundle.claim, bundle.run, list(bundle.records()), bundle.policy)
        data = canonical_bytes(verdicts_value(decision))
    (where / layout.VERDICTS).write_bytes(data)
    with open_bundle(where) as bundle:
        report = markdown.render(build(bundle)).encode()
    return members | {layout.VERDICTS: data, layout.REPORT: report}


def edit_json(data: bytes, change: Callable[[Any], Any]) -> bytes:
    """Canonical bytes of a changed document; `change` may alter in place or return a new value."""
    value = loads(data)
    changed = change(value)
    return canonical_bytes(value if changed is None else changed)


def edit_lines(
    data: bytes, kind: str, change: Callable[[dict[str, Any]], Iterable[dict[str, Any]] | None]
) -> bytes:
    """A record file in which `change` met each record of a kind; it may return replacements."""
    out: list[bytes] = []
    for line in data.splitlines():
        value = loads(line)
        replaced = change(value) if value["kind"] == kind else None
        out += [canonical_bytes(item) for item in ([value] if replaced is None else replaced)]
    return b"".join(line + b"\n" for line in out)

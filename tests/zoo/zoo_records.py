"""Builds records of invented runs: an honest one, and the pieces to spoil it with.

Two cells, one op, one eval, all five stages. Everything is seeded; a builder's defaults are honest,
and each test changes the one thing it is about. Nothing here runs an engine.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fasttrack import rules
from fasttrack.plan import orders
from fasttrack.rules.base import Case
from fasttrack.rules.hoist import CONTROLS as PLANTED_KERNELS
from fasttrack.schema import (
    STAGES,
    AgentRecord,
    AgentTurn,
    Arm,
    Cell,
    Check,
    Claim,
    CodeRecord,
    CompiledRecord,
    ConductRecord,
    EarlyAccess,
    EngineStep,
    ErrorStats,
    FeatureRecord,
    IsolationRecord,
    ItemRecord,
    KernelRecord,
    MonitorRecord,
    Outcome,
    PathRecord,
    PathStep,
    PlannedTree,
    PlantResult,
    Policy,
    Record,
    RoutingRecord,
    RunInfo,
    SampleRecord,
    SelfTest,
    SessionRecord,
    StateRecord,
    StateStep,
    Tier,
    TraceRecord,
    TwinAnswer,
    TwinRecord,
    Verdict,
)
from fasttrack.schema.record import IsolationFinding, Stage

ARMS: tuple[Arm, Arm] = ("base", "candidate")
SWITCH = {"base": "auto", "candidate": "latency_specialized"}
WINDOW = 12
"""Steady steps of a sample, after three of warm-up."""
CONTROLS = ("zeros", "first_slice_off", "tail_dropped", "lower_precision")
REPEATS = Policy().numerics.min_repeats
FEATURES = Policy().required_features


def claim(
    *,
    batch: Sequence[int] = (1, 8),
    speed: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    **changes: Any,
) -> Claim:
    """A claim on one target of the role `evidence`; `changes` replace top-level keys."""
    return Claim.model_validate(
        {
            "schema": "fasttrack.claim/v1",
            "name": "zoo",
            "title": "Zoo",
            "summary": "An invented claim.",
            "scope": {"models": ["ZooForCausalLM"], "paths": ["zoo/**"], "ops": ["mix"]},
            "switch": {"key": "additional_config.decode_backend", **SWITCH},
            "plugin": {"distribution": "zoo", "module": "zoo", "entry": "zoo.ops:mix"},
            "speed": speed or {"sentence": "faster_everywhere"},
            "targets": {
                "lab": {
                    "engine": "fake",
                    "role": "evidence",
                    "grid": {"batch": batch, "context_tokens": [64]},
                    "trace": {"shows": ["fast::*"], "hides": ["stock::*"]},
                    "agent": agent,
                }
            },
        }
        | changes
    )


def run_info(stages: Sequence[Stage] = STAGES, **changes: Any) -> RunInfo:
    """Run information of tier `standard`."""
    return RunInfo(
        **{
            "run_id": "zoo-lab-1",
            "target": "lab",
            "tier": Tier.STANDARD,
            "seed": 0,
            "stages": tuple(stages),
            "command": ("fasttrack", "validate", "zoo"),
            "claim_sha256": "0" * 64,
            "policy_sha256": "0" * 64,
            "plan_sha256": "0" * 64,
            "harness_version": "0",
            "created_utc": "2026-01-01T00:00:00+00:00",
            "self_test": self_test(),
        }
        | changes
    )


def self_test(**states: Any) -> SelfTest:
    """A cheat caught and honest work accepted, unless `states` says otherwise."""
    plants = {"cheats": "right", "honest": "right"} | states
    return SelfTest(
        harness_sha256="0" * 64,
        catalogue_sha256="0" * 64,
        plants=[
            PlantResult(group=group, name=f"a_{group}", row=None, code="", state=state)
            for group, state in plants.items()
        ],
    )


def case(
    records: Iterable[Record], the_claim: Claim | None = None, policy: Policy | None = None,
    **run: Any,
) -> Case:  # fmt: skip
    """What a rule is given."""
    return Case(the_claim or claim(), run_info(**run), policy or Policy(), tuple(records))


def decide(
    records: Iterable[Record], the_claim: Claim | None = None, policy: Policy | None = None,
    **run: Any,
) -> tuple[tuple[Verdict, ...], Outcome]:  # fmt: skip
    """Verdicts and outcome of a run."""
    return rules.decide(the_claim or claim(), run_info(**run), list(records), policy or Policy())


def found(verdicts: Iterable[Verdict], cell: str) -> Verdict:
    """The one verdict of that cell."""
    (verdict,) = [verdict for verdict in verdicts if verdict.cell == cell]
    return verdict


# Isolation, kernels, features


def isolation(**broken: Any) -> list[Record]:
    """All subjects; `broken` replaces what a check observed, by its name, and `found` adds
    (subject, finding) pairs."""
    found: Sequence[tuple[str, IsolationFinding]] = broken.pop("found", ())
    source = ("scope", "protected", "imports", "patches", "environment", "torch")
    bounds: dict[str, dict[str, Any]] = {name: {"files": 3} for name in source} | {
        "neighbour": {"tokens_equal": 4, "ops": "a1"},
        "code": {"code": "c0"},
        "switched-on": {"tokens_equal": 4, "code": "c0"},
        "model": {"code": "c0"},
    }
    return [
        IsolationRecord(
            subject=subject,
            checks=[
                Check(name=n, relation="equal", observed=broken.get(n, bound), bound=bound)
                for n, bound in named.items()
            ],
            findings=[finding for name, finding in found if name == subject],
        )
        for subject, named in bounds.items()
    ]


def finding(code: str, where: str = "zoo/ops.py:7", exempt: str = "") -> IsolationFinding:
    """Something the isolation stage found."""
    return IsolationFinding(code=code, where=where, what="planted", why="it is", exempt=exempt)


def errors(scale: float = 1.0, **changes: Any) -> ErrorStats:
    """Error statistics of a matrix whose RMS error is `scale` times 1e-6."""
    unit = 1e-6 * scale
    return ErrorStats(
        **{
            "rms": unit,
            "q999": 3 * unit,
            "max": 4 * unit,
            "worst_slice_rms": 1.5 * unit,
            "worst_slice": "row=1",
            "mean_signed": 1e-3 * unit,
            "nonfinite": 0,
            "first_bad": "row=1,column=7",
        }
        | changes
    )


def kernels(
    candidate: Sequence[ErrorStats] | None = None,
    *,
    seeds: int = 4,
    cell: str = "mix/batch=1",
    op: str = "mix",
    output: str = "y",
    controls: Sequence[str] = CONTROLS,
    accepted: Sequence[str] = (),
    **changes: Any,
) -> list[Record]:
    """One cell over seeds, with planted controls; those `accepted` look as good as stock.

    The last record is the cell's conduct: nothing to find, no ability offered.
    """
    rng = random.Random(f"{cell}/{output}")
    made: list[Record] = []
    for seed in range(seeds):
        mine = candidate[seed % len(candidate)] if candidate else errors(rng.uniform(0.97, 1.03))
        for control in (None, *controls):
            planted = errors(1.0 if control in accepted else 500.0, mean_signed=0.0)
            values: dict[str, Any] = {
                "repeats": REPEATS if control is None and seed == 0 else 0,
                "repeats_equal": REPEATS if control is None and seed == 0 else 0,
                **(changes if control is None else {}),
            }
            made.append(
                KernelRecord(
                    op=op, cell=cell, regime={"batch": 1}, seed=seed, output=output, status="ok",
                    control=control, stock=errors(), rounding_rms=2e-8,
                    candidate=mine if control is None else planted, **values,
                )
            )  # fmt: skip
    made.append(conduct(cell, op))
    return made


def conduct(cell: str = "mix/batch=1", op: str = "mix", **found: Any) -> ConductRecord:
    """What was watched in a cell; `found` replaces what a check observed, by its name.

    A check that needs an ability is there when it is found to be something.
    """
    always = ("inputs_changed", "guards_changed", "late_writes", "stale_answers")
    bounds = {"pace": ("at_most", 3.0), "floor": ("at_least", 1e-6)}
    seen = dict.fromkeys(always, 0) | found
    checks = []
    for name, value in seen.items():
        relation, bound = bounds.get(name, ("equal", 0))
        checks.append(Check(name=name, relation=relation, observed=value, bound=bound))
    needs = ("floor", "guards_of_outputs", "hostile", "neighbours", "nonce", "pace", "padding",
             "permuted", "scalars", "skew", "unwritten")  # fmt: skip
    return ConductRecord(
        op=op, cell=cell, regime={"batch": 1}, seed=0, checks=checks, calls=10,
        not_offered=[name for name in needs if name not in seen], places=dict.fromkeys(found, "x"),
    )  # fmt: skip


def too_fast(fastest_s: float, needed_s: float) -> list[Record]:
    """The honest run, but for a fastest kernel call beside the least time its work needs."""
    made: list[Record] = []
    for record in honest_run():
        if isinstance(record, ConductRecord):
            told = conduct(floor=fastest_s)
            checks = [
                check.model_copy(update={"bound": needed_s}) if check.name == "floor" else check
                for check in told.checks
            ]
            record = told.model_copy(update={"checks": tuple(checks)})
        made.append(record)
    return made


def probed(probe: str, candidate: ErrorStats, seeds: int = 2, **changes: Any) -> list[Record]:
    """The honest cell with a probe that gave these errors in every seed."""
    sent = [
        KernelRecord(
            op="mix", cell="mix/batch=1", regime={"batch": 1}, seed=seed, output="y", status="ok",
            probe=probe, stock=errors(), rounding_rms=2e-8, candidate=candidate, **changes,
        )
        for seed in range(seeds)
    ]  # fmt: skip
    return [*kernels(), *sent]


def failed_kernel(status: Any, message: str = "planted") -> list[Record]:
    """A case that gave no output."""
    return [
        KernelRecord(
            op="mix", cell="mix/batch=1", regime={"batch": 1}, seed=0, output="*", status=status,
            message=message,
        )
    ]  # fmt: skip


def absent_kernel(op: str) -> list[Record]:
    """An op without a case."""
    return [
        KernelRecord(
            op=op, cell=op, regime={}, seed=0, output="*", status="absent", message="CAS-001: none"
        )
    ]  # fmt: skip


def compiled(*records: Record, plants: Sequence[Record] | None = None) -> list[Record]:
    """The audit of compiled code: its planted kernels, and `records`."""
    return [*(planted_kernels() if plants is None else plants), *records]


def not_compiled() -> Record:
    """What an optimization without kernels of its own leaves."""
    return CompiledRecord(cell="compiled", status="none")


def compiled_kernel(kernel: str = "fuse", control: str | None = None, **changes: Any) -> Record:
    """A kernel of x, w, y that reads its weight `w` at 0x40, waits at 0x80 and goes on."""
    return CompiledRecord(
        **{
            "cell": f"compiled/{kernel}/sm_90a",
            "kernel": kernel,
            "arch": "sm_90a",
            "status": "ok",
            "control": control,
            "function": f"{kernel}_0",
            "functions": (f"{kernel}_0",),
            "cubin_sha256": hashlib.sha256(kernel.encode()).hexdigest(),
            "parameters": ("x", "w", "y"),
            "static": (1,),
            "instructions": 32,
            "waits": (0x80,),
            "early": (early_access(),),
        }
        | changes
    )


def early_access(access: Any = "load", parameters: Sequence[int] = (1,), why: str = "") -> Any:
    """One access before the wait."""
    return EarlyAccess(
        access=access, parameters=parameters, unresolved=why, offsets=(0x40, 0x50),
        first="LDG.E R2, desc[UR4][R2.64]",
    )  # fmt: skip


def planted_kernels() -> list[Record]:
    """Every control of the audit, judged as it must be."""
    found = {
        "OK": {},
        "HOIST-EARLY-LOAD": {"early": (early_access(parameters=(0,)),)},
        "HOIST-EARLY-STORE": {"early": (early_access("store", (2,)),)},
        "HOIST-UNREADABLE": {"early": (early_access(parameters=(), why="no kernel parameter"),)},
        "HOIST-NO-WAIT": {"waits": ()},
    }
    return [
        compiled_kernel(control, control, **found[reason])
        for control, reason in PLANTED_KERNELS.items()
    ]


def feature(
    name: str,
    arm: Arm,
    status: Any = "observed",
    *,
    works: bool = True,
    message: str = "",
    checks: bool = True,
) -> FeatureRecord:
    """One feature in one arm."""
    check = Check(name="works", relation="equal", observed=works, bound=True)
    held = (check,) if checks and status == "observed" else ()
    return FeatureRecord(feature=name, arm=arm, status=status, checks=held, message=message)


def features(names: Sequence[str] = FEATURES) -> list[Record]:
    """All features kept in both arms, with their path evidence."""
    made: list[Record] = []
    for arm in ("base", "candidate"):
        made += [feature(name, arm) for name in names]
        made += [path("features", arm, cell=f"features/{name}") for name in names]
        made.append(session("features", f"features-{arm}", arm))
    return made


# Sessions, paths


def session(stage: Stage, name: str, arm: Arm, **changes: Any) -> SessionRecord:
    """One boot."""
    return SessionRecord(
        **{
            "stage": stage,
            "session": name,
            "arm": arm,
            "started_utc": "2026-01-01T00:00:10+00:00",
            "start_s": 1.0,
            "ready_s": 2.0,
            "end_s": 3.0,
            "switch": SWITCH[arm],
            "fingerprint": {"engine": "fake-1", "max_model_len": 2048, "timer": "perf_counter"},
        }
        | changes
    )


def path_step(arm: Arm, decode: int, prefill: int, index: int = 0, **changes: Any) -> PathStep:
    """What an honest optimization logs of a step."""
    fast = arm == "candidate" and decode > 0 and prefill == 0
    reason = "pure decode" if fast else "prefill" if prefill else "switched off"
    return PathStep(
        **{
            "step": index,
            "path": "specialised" if fast else "stock",
            "reason": reason,
            "requests": max(1, decode),
            "tokens": decode + prefill,
            "prefill_tokens": prefill,
        }
        | changes
    )


Scheduled = Sequence[tuple[int, int]]
ROUND: Scheduled = ((0, 64), (0, 32), (1, 16), (2, 0), (2, 0), (1, 0))
"""(decode, prefill) tokens of a short round of work: prefill, a mixed step, decode."""


def path(
    stage: Stage,
    arm: Arm,
    scheduled: Scheduled = ROUND,
    *,
    name: str = "",
    cell: str = "features/x",
    steps: Sequence[PathStep] | None = None,
    drafted: Sequence[int] = (),
) -> PathRecord:
    """The step log of a call; `steps` replaces what the optimization tells."""
    honest = [path_step(arm, d, p, index) for index, (d, p) in enumerate(scheduled)]
    return PathRecord(
        stage=stage,
        session=name or f"{stage}-{arm}",
        arm=arm,
        cell=cell,
        steps=honest if steps is None else steps,
        scheduled=tuple(scheduled),
        drafted=drafted,
    )


# Proofs of the path

FAST = {"fast::layer": 2, "host::sample": 1}
STOCK = {"stock::layer": 8, "host::sample": 1}
CODE = {"a" * 64: "mix.so"}
TURNS: Scheduled = ((0, 40), *[(1, 0), (1, 1)] * 4)
"""Every other step also prefills."""


def answer(tokens: Sequence[int], shift: float = 0.0) -> TwinAnswer:
    """An answer whose log-probabilities are moved by `shift`."""
    logprobs = [-0.5 - token / 100 + shift for token in tokens]
    return TwinAnswer(token_ids=tokens, logprobs=logprobs, gaps=[2.0 for _ in tokens])


def proofs(the_claim: Claim | None = None) -> list[Record]:
    """The path stage of both arms, and the compiled code of the kernel cases."""
    batch = (the_claim or claim()).targets["lab"].grid.batch
    kinds = ["features", "evals", *(f"perf/batch={b}" for b in sorted({min(batch), max(batch)}))]
    made: list[Record] = []
    for arm in ("base", "candidate"):
        name, fast = f"path-{arm}", arm == "candidate"
        code = CODE if fast else {}
        made += [
            session("path", name, arm),
            CodeRecord(stage="path", source="engine", arm=arm, files=code),
            *(CodeRecord(stage="kernels", source=op, arm=arm, files=code) for op in ("mix",)),
        ]
        for kind in kinds:
            traced, marked = f"path/{kind}/trace", f"path/{kind}/watermark"
            scheduled = ((0, 64), (2, 0), (2, 0))
            names = FAST if fast else STOCK
            calls = 2 if fast else 0
            plain, constant = answer((5, 6, 7)), answer((5, 1, 1) if fast else (5, 6, 7))
            made += [
                path("path", arm, scheduled, name=name, cell=traced),
                TraceRecord(
                    session=name, arm=arm, cell=traced, decode_steps=2, least=names, most=names,
                    prefill=STOCK, entry_calls=calls,
                ),
                path("path", arm, scheduled, name=name, cell=marked),
                TwinRecord(
                    change="watermark", session=name, arm=arm, cell=marked, plain=[plain],
                    changed=[constant], entry_calls=calls,
                ),
            ]  # fmt: skip
        logged = path("path", arm, ((0, 64), (2, 0), (2, 0)), name=name, cell="path/state")
        told = [s.model_copy(update={"wrote": {"slots": "1-2", "rows": "9"}}) for s in logged.steps]
        still = StateStep(slots="1-2", rows="9", foreign="", foreign_rows="", null=False)
        made += [
            logged.model_copy(update={"steps": told}),
            StateRecord(
                session=name, arm=arm, cell="path/state", watched_blocks=64, blocks=64,
                steps=[still] * 3,
            ),
            path("path", arm, TURNS, name=name, cell="path/alternation"),
            TwinRecord(
                change="alternation", session=name, arm=arm, cell="path/alternation",
                plain=[answer((5, 6, 7))], changed=[answer((5, 6, 7), 1e-4)],
            ),
        ]  # fmt: skip
    return made


# Evals


def watched(values: Mapping[str, Any], sessions: str = "") -> list[Any]:
    """An honest run in which the watch saw `values` in sessions whose names end in `sessions`."""
    return [
        record.model_copy(update={"values": values})
        if isinstance(record, MonitorRecord) and record.session.endswith(sessions)
        else record
        for record in honest_run()
    ]


def item(
    index: int,
    arm: Arm,
    repeat: Any = "main",
    *,
    tokens: Sequence[int] = (),
    score: float = 1.0,
    gap: float = 2.0,
    shift: float = 0.0,
    **changes: Any,
) -> ItemRecord:
    """An answer of eight tokens; `shift` moves every log-probability, in nats."""
    ids = tuple(tokens) or tuple(range(index, index + 8))
    return ItemRecord(
        **{
            "eval": "recall",
            "item": f"recall-{index}",
            "prompt_sha256": hashlib.sha256(str(index).encode()).hexdigest(),
            "arm": arm,
            "repeat": repeat,
            "concurrency": 2 if repeat == "control" else 8,
            "prompt_tokens": 512,
            "token_ids": ids,
            "text": " ".join(map(str, ids)),
            "logprobs": tuple(-0.5 - token / 100 + shift for token in ids),
            "gaps": tuple(gap for _ in ids),
            "finish_reason": "length",
            "score": score,
        }
        | changes
    )


def answers(count: int = 20, noise: float = 0.0) -> list[ItemRecord]:
    """Equal answers of both arms, and their controls, which move by `noise` nats."""
    made = []
    for index in range(count):
        score = float(index % 5 != 0)
        made += [
            item(index, "base", score=score),
            item(index, "candidate", score=score),
            *(
                item(index, arm, "control", score=score, shift=noise, gap=2.0 + noise)
                for arm in ARMS
            ),
            *(
                item(
                    index, arm, "replay", score=score, shift=noise, gap=2.0 + noise, ranks=(1,) * 8
                )
                for arm in ARMS
            ),
        ]
    return made


def evals(records: Sequence[Record] | None = None) -> list[Record]:
    """The stage: answers, sessions and paths."""
    made: list[Record] = list(answers() if records is None else records)
    for arm in ARMS:
        made.append(session("evals", f"evals-{arm}", arm))
        for cell in ("main/concurrency=8", "control/concurrency=2", "replay/concurrency=8"):
            made.append(path("evals", arm, cell=f"evals/recall/{cell}"))
    return made


# Perf


def engine_steps(
    batch: int, prompt_tokens: int, seconds: Iterator[float], window: int = WINDOW
) -> list[EngineStep]:
    """One prefill step, three of warm-up and `window` steady ones."""
    made, clock = [], 0.0
    for index in range(1 + 3 + window):
        duration = next(seconds)
        made.append(
            EngineStep(
                start_s=clock,
                duration_s=duration,
                decode_tokens=batch if index else 0,
                prefill_tokens=0 if index else prompt_tokens,
            )
        )
        clock += duration
    return made


def marks(steps: Sequence[EngineStep]) -> list[tuple[int, float]]:
    """The harness's clock around the window, which starts behind one step and three of warm-up."""
    took = sum(step.duration_s for step in steps[4:])
    return [(4, 50.0), (len(steps), 50.0 + 1.05 * took)]


def sample(
    cell: Cell, arm: Arm, name: str, block: int, position: int, steps: Sequence[EngineStep],
    **changes: Any,
) -> SampleRecord:  # fmt: skip
    """One cell of one session."""
    prompt = cell.batch * cell.context_tokens
    return SampleRecord(
        **{
            "cell": cell.id,
            "arm": arm,
            "session": name,
            "block": block,
            "position": position,
            "planned_requests": cell.batch,
            "completed_requests": cell.batch,
            "prompt_tokens": prompt,
            "cached_tokens": 0,
            "output_tokens": cell.batch * len(steps),
            "call_s": 1.1 * sum(step.duration_s for step in steps),
            "marks": marks(steps),
            "steps": tuple(steps),
            "emitted": [step.decode_tokens or cell.batch for step in steps],
            "contexts": [prompt + cell.batch * index for index in range(len(steps))],
            "prompts_sha256": hashlib.sha256(cell.id.encode()).hexdigest(),
            "prompt_set_sha256": "5" * 64,
            "token_evenness": 0.75,
        }
        | changes
    )


def perf(
    speedup: float = 1.5,
    *,
    the_claim: Claim | None = None,
    blocks: int = 2,
    boot_noise: float = 0.002,
    step_noise: float = 0.002,
    drift: float = 0.0,
    seed: int = 0,
    window: int = WINDOW,
) -> list[Record]:
    """All sessions of a sweep: times are log-normal per boot and per step, with a linear drift."""
    rng = random.Random(f"perf/{seed}")
    made: list[Record] = []
    count = 0
    for block, order in enumerate(orders(blocks, seed)):
        for position, arm in enumerate(order):
            name = f"perf-b{block}-{position}-{arm}"
            pace = 2e-3 / (speedup if arm == "candidate" else 1.0)
            pace *= (1 + rng.gauss(0, boot_noise)) * (1 + drift * count)
            count += 1
            made.append(session("perf", name, arm))
            quiet = {"load_1min": 1.0, "steal_share": 0.0, "foreign_cpu_share": 0.01}
            made.append(MonitorRecord(stage="perf", session=name, values=quiet))
            for cell in (the_claim or claim()).cells("lab"):

                def seconds(pace: float = pace) -> Iterator[float]:
                    while True:
                        yield pace * (1 + abs(rng.gauss(0, step_noise)))

                prompt = cell.batch * cell.context_tokens
                steps = engine_steps(cell.batch, prompt, seconds(), window)
                made.append(sample(cell, arm, name, block, position, steps))
                scheduled = [(s.decode_tokens, s.prefill_tokens) for s in steps]
                made.append(path("perf", arm, scheduled, name=name, cell=cell.id))
    return made


def _chosen(weights: Sequence[float], seed: int) -> list[list[int]]:
    """Two layers, 2000 choices each."""
    rng = random.Random(f"routing/{seed}")
    made = []
    for _ in range(2):
        drawn = rng.choices(range(len(weights)), weights, k=2000)
        made.append([drawn.count(expert) for expert in range(len(weights))])
    return made


def evenly(seed: int) -> list[list[int]]:
    """How random tokens use eight experts."""
    return _chosen([1.0] * 8, seed)


def skewed(seed: int) -> list[list[int]]:
    """How text does."""
    return _chosen([8.0, 4.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0], seed)


def routing(**changes: Any) -> RoutingRecord:
    """Prompts that prefer some experts, beside random tokens, which do not."""
    return RoutingRecord(
        **{
            "session": "perf-b0-0-base",
            "context_tokens": 64,
            "prompts": 8,
            "experts": 8,
            "sent": skewed(0),
            "random": evenly(1),
            "again": evenly(2),
        }
        | changes
    )


# Agent traffic

TREES = (
    PlannedTree(
        trace="mend", input_tokens=(256, 256, 384, 512), output_tokens=(16, 12, 24, 20),
        subagents=1, stall_s=1.0,
    ),
    PlannedTree(
        trace="ask", input_tokens=(320, 448), output_tokens=(20, 12), subagents=0, stall_s=0.4
    ),
)  # fmt: skip
"""The second request of the first tree is its sub-agent's."""
TEMPLATE_TOKENS = 5
"""What the chat template adds to a prompt."""


def agent_turns(tpot_ms: float = 30.0, noise: float = 0.02, seed: int = 0) -> list[AgentTurn]:
    """The requests of one replay, one after the other; every prompt is half cached but the first of
    its conversation."""
    rng = random.Random(f"agent/{seed}")
    made: list[AgentTurn] = []
    clock = 0.0
    for tree in TREES:
        turns: dict[str, int] = {}
        for index, (given, produced) in enumerate(
            zip(tree.input_tokens, tree.output_tokens, strict=True)
        ):
            helper = bool(tree.subagents) and index == 1
            conversation = tree.trace + ("::sa:agent_001" if helper else "")
            turn = turns[conversation] = turns.get(conversation, -1) + 1
            pace = tpot_ms * (1 + abs(rng.gauss(0, noise)))
            ttft = 0.8 * given
            arrivals = [(ttft + pace * at, at + 1) for at in range(produced)]
            made.append(
                AgentTurn(
                    trace=tree.trace,
                    conversation=conversation,
                    turn=turn,
                    depth=int(helper),
                    prompt_sha256=hashlib.sha256(f"{conversation}/{turn}".encode()).hexdigest(),
                    start_ms=clock,
                    latency_ms=arrivals[-1][0],
                    ttft_ms=ttft,
                    itl_ms=pace,
                    arrivals=arrivals,
                    input_tokens=given + TEMPLATE_TOKENS,
                    output_tokens=produced,
                    cached_tokens=given // 2 if turn else 0,
                )
            )
            clock += arrivals[-1][0] + 100.0
    return made


def totals(turns: Sequence[AgentTurn]) -> dict[str, int]:
    """What a server counts of these requests."""
    return {
        "requests": sum(not turn.error for turn in turns),
        "prompt_tokens": sum(turn.input_tokens or 0 for turn in turns),
        "generated_tokens": sum(turn.output_tokens or 0 for turn in turns),
        "cached_tokens": sum(turn.cached_tokens or 0 for turn in turns),
    }


def replay(arm: Arm, name: str, block: int, position: int, turns: Sequence[AgentTurn],
           **changes: Any) -> AgentRecord:  # fmt: skip
    """One replay."""
    return AgentRecord(
        **{
            "session": name,
            "arm": arm,
            "cell": "agent/concurrency=1",
            "block": block,
            "position": position,
            "concurrency": 1,
            "traces": "shipped",
            "traces_sha256": "7" * 64,
            "planned": TREES,
            "status": "ok",
            "client": "aiperf 0.13.0",
            "exit_status": 0,
            "turns": turns,
            "counters": totals(turns),
            "call_s": 60.0,
        }
        | changes
    )


def agent(
    speedup: float = 1.2, *, blocks: int = 2, boot_noise: float = 0.002, seed: int = 0
) -> list[Record]:
    """Sessions that replay agent traffic, in blocks behind those of the sweep."""
    rng = random.Random(f"boots/{seed}")
    made: list[Record] = []
    for block, order in enumerate(orders(blocks, seed), 10):
        for position, arm in enumerate(order):
            name = f"perf-agent-b{block}-{position}-{arm}"
            pace = 30.0 / (speedup if arm == "candidate" else 1.0) * (1 + rng.gauss(0, boot_noise))
            cell = "agent/concurrency=1"
            quiet = {"load_1min": 1.0, "steal_share": 0.0, "foreign_cpu_share": 0.01}
            made += [
                session("perf", name, arm, variant="agent"),
                MonitorRecord(stage="perf", session=name, values=quiet),
                replay(arm, name, block, position, agent_turns(pace, seed=4 * block + position)),
                path("perf", arm, name=name, cell=cell),
            ]
    return made


def agent_run(**changes: Any) -> list[Record]:
    """The honest run with agent traffic; `changes` are of `agent`."""
    return [*honest_run(), *agent(**changes)]


def retold(
    where: Callable[[AgentRecord], bool], change: Callable[[AgentTurn], Any], **also: Any
) -> list[Record]:
    """The honest run with agent traffic, in which `change` gives fields of the turns of some
    replays; the server's counters go with the turns unless `also` replaces them."""
    made: list[Record] = []
    for record in agent_run():
        if isinstance(record, AgentRecord) and where(record):
            turns = [turn.model_copy(update=change(turn) or {}) for turn in record.turns]
            kept = {"turns": turns, "counters": totals(turns)} | also
            record = record.model_copy(update=kept)
        made.append(record)
    return made


def honest_run(**parts: Sequence[Record]) -> list[Record]:
    """A run that passes every rule; a stage's records may be given instead, or `compiled`, the
    audit's part of the stage kernels."""
    stages: dict[str, Sequence[Record]] = {
        "isolation": isolation(),
        "kernels": kernels(),
        "path": proofs(),
        "features": features(),
        "evals": evals(),
        "perf": [*perf(), routing()],
    }
    audited = parts.pop("compiled", [not_compiled()])
    stages |= parts
    stages["kernels"] = [*stages["kernels"], *audited]
    return [record for stage in STAGES for record in stages[stage]]


def changed(records: Iterable[Record], kind: type, where: Any = None, **changes: Any) -> list[Any]:
    """Records with fields replaced in those of a kind for which `where(record)` holds."""
    return [
        r.model_copy(update=changes) if isinstance(r, kind) and (where is None or where(r)) else r
        for r in records
    ]

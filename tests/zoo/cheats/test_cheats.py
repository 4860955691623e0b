"""Protects readers from records that show less than they seem to: none of these runs may pass.

Each cheat is the honest run of the zoo with one thing spoilt, and names the verdict that must find
it. Every rule's planted faults are here; the honest counterparts are next door, in `honest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.schema import (
    STAGES,
    CodeRecord,
    ConductRecord,
    FeatureRecord,
    ItemRecord,
    KernelRecord,
    PathRecord,
    Record,
    SampleRecord,
    SanitizerRecord,
    SessionRecord,
    State,
    StateRecord,
    StateStep,
    TraceRecord,
    TwinRecord,
)
from fasttrack.schema.verdict import REASONS
from fasttrack.selftest import catalogue

ZOO = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Cheat:
    """A spoilt run and the verdict that must find it."""

    name: str
    records: Sequence[Record]
    cell: str
    state: State
    reason: str
    says: str = ""
    claim: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)


def spoilt(kind: type, where: Any = None, **changes: Any) -> list[Record]:
    """The honest run with fields of some records replaced."""
    return zoo.changed(zoo.honest_run(), kind, where, **changes)


def without(condition: Any) -> list[Record]:
    """The honest run without some records."""
    return [record for record in zoo.honest_run() if not condition(record)]


# Numerics

CELL = "mix/batch=1"


def numeric(
    name: str, reason: str, records: Sequence[Record], says: str = "", state: State = State.FAIL
) -> Cheat:
    """A spoilt kernel stage."""
    return Cheat(name, zoo.honest_run(kernels=records), CELL, state, reason, says)


def worse(**changes: Any) -> list[Record]:
    """Every seed's error with some measures replaced, in units of 1e-6."""
    return zoo.kernels(
        [zoo.errors(1.0, **{key: value * 1e-6 for key, value in changes.items()})] * 4
    )


def watched(**found: Any) -> list[Record]:
    """The honest cell with something found in its conduct."""
    kept = [r for r in zoo.kernels() if not isinstance(r, ConductRecord)]
    return [*kept, zoo.conduct(**found)]


def sanitized(name: str, state: State, reason: str, **told: Any) -> Cheat:
    """The honest kernels, and what a sanitizer said."""
    record = SanitizerRecord(op="mix", regime={"batch": 1}, tool="memcheck", message="x", **told)
    kernels = [*zoo.kernels(), record]
    return Cheat(name, zoo.honest_run(kernels=kernels), "mix/memcheck", state, reason)


NUMERICS = (
    numeric("more_error_everywhere", "NUM-RATIO", zoo.kernels([zoo.errors(1.3)]), "mix.y: rms"),
    numeric("one_slice_hidden_in_the_mean", "NUM-RATIO", worse(worst_slice_rms=3.0), "row=1"),
    numeric("a_few_elements_off", "NUM-RATIO", worse(q999=6.0), "q999"),
    numeric("one_element_off", "NUM-RATIO", worse(max=10.0), "row=1,column=7"),
    numeric(
        "one_element_off_in_one_seed", "NUM-CAP",
        zoo.kernels([zoo.errors(), zoo.errors(), zoo.errors(), zoo.errors(), zoo.errors(),
                     zoo.errors(), zoo.errors(), zoo.errors(), zoo.errors(), zoo.errors(),
                     zoo.errors(), zoo.errors(max=40e-6)], seeds=12),
        "row=1,column=7",
    ),
    numeric("leans_one_way", "NUM-BIAS", worse(mean_signed=0.3), "mean signed error"),
    numeric("makes_nan", "NUM-NONFINITE", zoo.kernels([zoo.errors(nonfinite=2)]),
            "first at row=1,column=7"),
    numeric("beyond_measuring", "NUM-RATIO",
            zoo.kernels([zoo.errors(rms=None, q999=None, max=None, worst_slice_rms=None,
                                    mean_signed=None)])),
    numeric(
        "exact_stock_hides_overflow", "NUM-RATIO",
        zoo.changed(
            zoo.kernels([zoo.errors(rms=None, q999=None, max=None, worst_slice_rms=None)]),
            KernelRecord, stock=zoo.errors(0.0), rounding_rms=0.0,
        ),
    ),
    numeric("writes_foreign_rows", "NUM-TOUCHED", zoo.kernels(untouched_equal=False)),
    numeric("races", "NUM-REPEAT", zoo.kernels(repeats=300, repeats_equal=299),
            "1 of 300 repeats differ"),
    numeric("spreads_more_than_stock", "NUM-SPREAD",
            zoo.kernels(repeats_equal=0, spread=1.8e-6, stock_spread=1e-9), "allowed 1.77e-06"),
    numeric("changes_an_input", "NUM-MUTATED", watched(inputs_changed=4), "4 where none"),
    numeric("writes_beside_its_inputs", "NUM-GUARD", watched(guards_changed=1)),
    numeric("writes_beside_its_outputs", "NUM-GUARD", watched(guards_of_outputs=1)),
    numeric("leaves_poison", "NUM-UNWRITTEN", watched(unwritten=3), "first x"),
    numeric("writes_after_returning", "NUM-LATE", watched(late_writes=1)),
    numeric("answers_for_other_inputs", "NUM-STALE", watched(stale_answers=1)),
    numeric("reads_padding", "NUM-PADDING", watched(padding=2)),
    numeric("remembers_answers", "NUM-PACE", watched(pace=3.1), "3.1 x as long"),
    numeric("faster_than_light", "NUM-SPEED", watched(floor=1e-9), "at least 1e-06 s"),
    numeric("conduct_not_watched", "NUM-UNCHECKED",
            [r for r in zoo.kernels() if not isinstance(r, ConductRecord)],
            "no record of the candidate's conduct", State.INCONCLUSIVE),
    numeric("a_check_left_out", "NUM-UNCHECKED",
            zoo.changed(zoo.kernels(), ConductRecord, not_offered=("floor",)), "not watched",
            State.INCONCLUSIVE),
    numeric("no_measure_in_a_check", "NUM-LATE", watched(late_writes=None), "is no measure"),
    numeric("depends_on_its_neighbours", "NUM-ROWS", zoo.probed("permuted", zoo.errors(50.0))),
    numeric("wrong_on_hostile_rows", "NUM-HOSTILE", zoo.probed("hostile", zoo.errors(nonfinite=1))),
    numeric("misses_one_element", "NUM-STALE", zoo.probed("nonce", zoo.errors(1e4))),
    numeric("scalars_frozen", "NUM-FROZEN", zoo.probed("scalars", zoo.errors(1e3))),
    numeric("wrong_beside_the_cell", "NUM-SHAPE",
            zoo.probed("neighbours:batch=2", zoo.errors(1e3), seeds=1), "neighbours:batch=2"),
    numeric("writes_foreign_rows_in_a_probe", "NUM-ROWS",
            zoo.probed("permuted", zoo.errors(), untouched_equal=False)),
    numeric("depends_on_who_comes_first", "NUM-SKEW", zoo.probed("skew:0", zoo.errors(1e3))),
    numeric("frozen_in_a_graph", "NUM-GRAPH", zoo.probed("graph:scalars", zoo.errors(1e3))),
    numeric("works_on_after_its_stream", "NUM-ESCAPED", watched(escaped_us=50.0), "50 us longer"),
    numeric("launches_after_returning", "NUM-ESCAPED", watched(late_launches=1)),
    numeric("not_traced_on_cuda", "NUM-UNCHECKED",
            zoo.changed(zoo.kernels(), ConductRecord, device={"kind": "cuda"}), "escaped_us",
            State.INCONCLUSIVE),
    sanitized("reads_past_an_allocation", State.FAIL, "NUM-SANITIZER", status="errors", errors=3),
    sanitized("sanitizer_died", State.INCONCLUSIVE, "NUM-UNSANITIZED", status="failed"),
    numeric("too_few_repeats", "NUM-REPEATS", zoo.kernels(repeats=3, repeats_equal=3),
            "12 repeats of 300", State.INCONCLUSIVE),
    numeric("reference_of_something_else", "NUM-REFERENCE",
            zoo.changed(zoo.kernels(), KernelRecord, stock=zoo.errors(3e5)), "limit 0.25",
            State.INVALID),
    numeric("stock_makes_nan", "NUM-REFERENCE",
            zoo.changed(zoo.kernels(), KernelRecord, stock=zoo.errors(nonfinite=1)), "",
            State.INVALID),
    numeric("blind_to_one_control", "NUM-INSENSITIVE", zoo.kernels(accepted=["tail_dropped"]),
            "tail_dropped", State.INSENSITIVE),
    numeric("no_control_planted", "NUM-INSENSITIVE", zoo.kernels(controls=()), "none was planted",
            State.INSENSITIVE),
    numeric("seeds_contradict", "NUM-POWER",
            zoo.kernels([zoo.errors(rms=0.7e-6), zoo.errors(rms=1.5e-6)]), "up to",
            State.INCONCLUSIVE),
    numeric("too_few_seeds", "NUM-SEEDS", zoo.kernels(seeds=2), "2 seeds of 3",
            State.INCONCLUSIVE),
    numeric("raises", "NUM-CASE", zoo.failed_kernel("raised"), "mix raised: planted"),
    numeric("hangs", "NUM-HUNG", zoo.failed_kernel("hung"), "mix hung"),
    numeric("dies", "NUM-KILLED", zoo.failed_kernel("killed"), "mix killed"),
    numeric("malformed", "NUM-OUTPUT", zoo.failed_kernel("malformed"), "mix malformed"),
    numeric("unfit", "NUM-OUTPUT", zoo.failed_kernel("unfit"), "mix unfit"),
    numeric("exhausts_memory", "NUM-MEMORY", zoo.failed_kernel("memory"), "mix memory"),
    numeric("case_fails_itself", "NUM-UNJUDGED", zoo.failed_kernel("unjudged"), "planted",
            State.INVALID),
    Cheat("op_without_a_case", zoo.honest_run(kernels=[*zoo.kernels(), *zoo.absent_kernel("max")]),
          "max", State.MISSING, "NUM-ABSENT", "CAS-001"),
    numeric("raises_on_one_seed_only", "NUM-CASE", [*zoo.kernels(), *zoo.failed_kernel("raised")]),
    numeric("not_compared", "NUM-CASE", zoo.changed(zoo.kernels(), KernelRecord, candidate=None),
            "not compared"),
    Cheat(
        "op_without_records", zoo.honest_run(), "shuffle", State.MISSING, "NO-RECORDS",
        claim={"scope": {"models": ["ZooForCausalLM"], "paths": ["zoo/**"],
                         "ops": ["mix", "shuffle"]}},
    ),
)  # fmt: skip

# Path


def logged(name: str, stage: Any, arm: Any, steps: Sequence[Any], reason: str, says: str = "",
           state: State = State.FAIL, where: str = "") -> Cheat:  # fmt: skip
    """A step log that tells something else."""
    records = [
        zoo.path(stage, arm, name=r.session, cell=r.cell, steps=steps)
        if isinstance(r, PathRecord) and r.stage == stage and r.arm == arm
        else r
        for r in zoo.honest_run()
    ]
    return Cheat(name, records, f"{stage}/{arm}{where}", state, reason, says)


def steps(arm: Any, **changes: dict[str, Any]) -> list[Any]:
    """The honest log of a round; ``s3={"path": ...}`` changes its fourth step."""
    return [
        zoo.path_step(arm, decode, prefill, index, **changes.get(f"s{index}", {}))
        for index, (decode, prefill) in enumerate(zoo.ROUND)
    ]


STOCK = {"path": "stock", "reason": "dtype"}
FAST = {"path": "specialised"}
PATH = (
    logged("never_specialised", "evals", "candidate", steps("candidate", s3=STOCK, s4=STOCK,
           s5=STOCK), "PATH-NONE", "dtype", State.NOT_EXERCISED),
    logged("specialised_prefill", "features", "candidate", steps("candidate", s0=FAST),
           "PATH-PREFILL", "first at step 0"),
    logged("specialised_mixed_step", "features", "candidate", steps("candidate", s2=FAST),
           "PATH-PREFILL", "first at step 2"),
    logged("base_is_specialised_too", "evals", "base", steps("base", s4=FAST), "PATH-BASE"),
    logged("falls_back_now_and_then", "evals", "candidate", steps("candidate", s4=STOCK),
           "PATH-FALLBACK", "1 pure decode steps ran stock, 1 did not: 1x dtype",
           where="/recall/main/concurrency=8/rows=2-8"),
    logged("falls_back_for_more_than_one_row", "evals", "candidate",
           steps("candidate", s3=STOCK, s4=STOCK), "PATH-NONE",
           "2 decode steps, none specialised: 2x dtype", State.NOT_EXERCISED,
           where="/recall/main/concurrency=8/rows=2-8"),
    Cheat("feature_without_a_log",
          without(lambda r: isinstance(r, PathRecord) and r.cell == "features/sampling"),
          "features/candidate/sampling", State.NOT_EXERCISED, "PATH-NONE", "no path evidence"),
    logged("decode_told_as_prefill", "evals", "candidate",
           steps("candidate", s4=STOCK | {"prefill_tokens": 2}), "PATH-MISMATCH",
           "step 4 prefilled 0 tokens, the log says 2"),
    logged("log_of_fewer_tokens", "features", "candidate",
           steps("candidate", s1={"tokens": 31, "prefill_tokens": 31}), "PATH-MISMATCH",
           "scheduler ran 6 steps"),
    logged("log_of_fewer_steps", "features", "candidate", steps("candidate")[:-1],
           "PATH-MISMATCH", "6 steps of 118 tokens, the log has 5 of 117"),
    logged("prefill_told_as_decode", "features", "candidate",
           steps("candidate", s1={"path": "specialised", "prefill_tokens": 0}), "PATH-MISMATCH",
           "step 1 prefilled 32 tokens, the log says 0"),
    logged("log_padded_with_steps_nobody_ran", "features", "candidate",
           [*steps("candidate", s3=STOCK, s4=STOCK, s5=STOCK),
            *(zoo.path_step("candidate", 1, 0, n) for n in range(6, 40))],
           "PATH-NONE", "", State.NOT_EXERCISED),
    logged("empty_log", "features", "candidate", [], "NO-RECORDS", "", State.MISSING),
    Cheat("no_log_at_all",
          without(lambda r: isinstance(r, PathRecord) and r.stage == "perf" and r.arm == "base"),
          "perf/base", State.MISSING, "NO-RECORDS"),
)  # fmt: skip

# Proofs of the path


def unproved(name: str, cell: str, reason: str, kind: type, says: str = "",
             state: State = State.FAIL, arm: str = "candidate", claim: Any = None,
             **changes: Any) -> Cheat:  # fmt: skip
    """The proof of a cell, with something changed in what was seen of one arm."""
    records = zoo.changed(
        zoo.proofs(), kind, lambda r: r.arm == arm and getattr(r, "cell", cell) == cell, **changes
    )
    return Cheat(name, zoo.honest_run(path=records), cell, state, reason, says, claim or {})


def seen(**changes: Any) -> list[StateStep]:
    """Three steps, the last of which changed something else."""
    still = StateStep(slots="1-2", rows="9", foreign="", foreign_rows="", null=False)
    return [still, still, still.model_copy(update=changes)]


TRACED, MARKED, TURNED = "path/evals/trace", "path/evals/watermark", "path/alternation"
PLUGIN = {"distribution": "zoo", "module": "zoo"}
LAB = {"engine": "fake", "role": "evidence", "grid": {"batch": [1, 8], "context_tokens": [64]}}
PROOFS = (
    unproved("logs_specialised_runs_stock", TRACED, "PATH-TRACE", TraceRecord,
             "name by name and count by count", least=zoo.STOCK, most=zoo.STOCK),
    unproved("runs_stock_beside_a_show", TRACED, "PATH-TRACE", TraceRecord,
             "stock::layer of stock is seen 8x", most=zoo.FAST | zoo.STOCK),
    unproved("declared_name_in_some_steps_only", TRACED, "PATH-TRACE", TraceRecord,
             "fast::* is not seen in every", least={"host::sample": 1}),
    unproved("declared_name_in_prefill_too", TRACED, "PATH-TRACE", TraceRecord,
             "also seen in steps of stock", prefill=zoo.FAST),
    unproved("entry_called_once_for_show", TRACED, "PATH-TRACE", TraceRecord,
             "2 specialised steps, zoo.ops:mix was called 1x", entry_calls=1),
    unproved("base_calls_the_entry", TRACED, "PATH-TRACE", TraceRecord, "base called", arm="base",
             entry_calls=2),
    unproved("name_that_says_nothing", TRACED, "PATH-UNDECLARED", TraceRecord, "never show stock::",
             State.INSENSITIVE, "base", least={"host::sample": 1}),
    unproved("names_nothing", TRACED, "PATH-UNDECLARED", TraceRecord, "", State.INCONCLUSIVE,
             claim={"targets": {"lab": LAB}}),
    unproved("nothing_was_traced", TRACED, "PATH-NONE", TraceRecord, "no decode step",
             State.NOT_EXERCISED, decode_steps=0),
    unproved("ignores_the_watermark", MARKED, "PATH-WATERMARK", TwinRecord,
             "1 of 1 answers do not change", changed=[zoo.answer((5, 6, 7))]),
    unproved("watermark_in_prefill", MARKED, "PATH-WATERMARK", TwinRecord, "first token",
             changed=[zoo.answer((1, 1, 1))]),
    unproved("watermark_in_base", MARKED, "PATH-WATERMARK", TwinRecord, "answers of base",
             arm="base", changed=[zoo.answer((5, 1, 1))]),
    unproved("watermark_without_calls", MARKED, "PATH-WATERMARK", TwinRecord, "called 0x",
             entry_calls=0),
    unproved("names_no_entry", MARKED, "PATH-UNDECLARED", TwinRecord, "", State.INCONCLUSIVE,
             claim={"plugin": PLUGIN}),
    unproved("writes_the_null_block", "path/state", "PATH-NULL-SLOT", StateRecord,
             "step 2 (specialised) changed the null block", steps=seen(null=True)),
    unproved("writes_foreign_blocks", "path/state", "PATH-FOREIGN-WRITE", StateRecord,
             "blocks 40", steps=seen(foreign="40")),
    unproved("rewrites_computed_rows", "path/state", "PATH-FOREIGN-WRITE", StateRecord, "rows 3",
             steps=seen(foreign_rows="3")),
    unproved("writes_more_slots_than_it_logs", "path/state", "PATH-UNLOGGED-WRITE", StateRecord,
             "slots 3-5 unlogged", steps=seen(slots="1-5")),
    unproved("writes_other_rows_than_it_logs", "path/state", "PATH-UNLOGGED-WRITE", StateRecord,
             "rows 10", steps=seen(rows="9-10")),
    unproved("log_in_no_known_form", "path/state", "PATH-UNLOGGED-WRITE", StateRecord, "",
             steps=seen(slots="many")),
    unproved("fewer_steps_watched", "path/state", "PATH-MISMATCH", StateRecord, "2 steps",
             steps=seen()[:2]),
    unproved("caches_that_cannot_be_watched", "path/state", "PATH-UNWATCHED", StateRecord, "layout",
             State.INCONCLUSIVE, problem="layout"),
    unproved("nothing_seen_to_change", "path/state", "PATH-UNWATCHED", StateRecord, "",
             State.INSENSITIVE, steps=[s.model_copy(update={"slots": "", "rows": ""})
                                       for s in seen()]),
    unproved("drifts_when_alternating", TURNED, "PATH-DRIFT", TwinRecord, "moved 0.05 nats",
             changed=[zoo.answer((5, 6, 7), 0.05)]),
    unproved("parts_when_alternating", TURNED, "PATH-DRIFT", TwinRecord, "gap of 2 nats",
             changed=[zoo.answer((5, 6, 9))]),
    unproved("ends_early_when_alternating", TURNED, "PATH-DRIFT", TwinRecord, "",
             changed=[zoo.answer((5, 6))]),
    Cheat("engine_runs_untested_code",
          zoo.honest_run(path=zoo.changed(
              zoo.proofs(), CodeRecord, lambda r: r.arm == "candidate" and r.stage == "path",
              files=zoo.CODE | {"b" * 64: "other.so"})),
          "path/code", State.FAIL, "PATH-OTHER-CODE", "runs other.so, which no kernel case ran"),
    Cheat("case_runs_its_own_code",
          zoo.honest_run(path=[
              *zoo.proofs(),
              CodeRecord(stage="kernels", source="show", arm="candidate",
                         files={"c" * 64: "show.so"}),
          ]),
          "path/code", State.FAIL, "PATH-OTHER-CODE", "the case of show",
          {"scope": {"models": ["ZooForCausalLM"], "paths": ["zoo/**"], "ops": ["mix", "show"]}}),
    Cheat("no_code_recorded",
          zoo.honest_run(path=[r for r in zoo.proofs() if not isinstance(r, CodeRecord)]),
          "path/code", State.MISSING, "NO-RECORDS"),
    Cheat("path_stage_of_base_only",
          zoo.honest_run(path=[r for r in zoo.proofs() if getattr(r, "arm", "base") == "base"]),
          "path/state", State.MISSING, "NO-RECORDS"),
)  # fmt: skip

# Features


def featured(name: str, state: State, reason: str, base: Any, mine: Any, says: str = "") -> Cheat:
    """The feature `sampling`, as `base` and `mine` show it."""
    others = zoo.features([n for n in zoo.FEATURES if n != "sampling"])
    records = [*others, *(r for r in (base, mine) if r is not None)]
    return Cheat(name, zoo.honest_run(features=records), "sampling", state, reason, says)


KEPT = zoo.feature("sampling", "base")
FEATURES = (
    featured("lost", State.FAIL, "FEAT-LOST", KEPT,
             zoo.feature("sampling", "candidate", works=False), "works: False"),
    featured("error_in_candidate", State.FAIL, "FEAT-LOST", KEPT,
             zoo.feature("sampling", "candidate", "error", message="boom"), "error: boom"),
    featured("nothing_was_checked", State.FAIL, "FEAT-LOST", KEPT,
             zoo.feature("sampling", "candidate", checks=False), "nothing was checked"),
    featured("broken_in_base_too", State.INVALID, "FEAT-BASE",
             zoo.feature("sampling", "base", works=False),
             zoo.feature("sampling", "candidate", works=False), "base: works: False"),
    featured("undeclared_refusal", State.FAIL, "FEAT-UNDECLARED", KEPT,
             zoo.feature("sampling", "candidate", "refused", message="no top-p"), "no top-p"),
    featured("required_and_offered_by_neither_arm", State.INVALID, "FEAT-BASE",
             zoo.feature("sampling", "base", "refused", message="off"),
             zoo.feature("sampling", "candidate", "refused", message="off"), "base: refused"),
    featured("seen_in_one_arm_only", State.MISSING, "NO-RECORDS", KEPT, None),
)  # fmt: skip

# Quality


def quality(name: str, records: Sequence[Record], cell: str, state: State, reason: str,
            says: str = "") -> Cheat:  # fmt: skip
    """Spoilt answers."""
    return Cheat(name, zoo.honest_run(evals=zoo.evals(records)), cell, state, reason, says)


def answer(index: int, arm: str, repeat: str = "main") -> Any:
    """Whether a record is that answer."""
    return lambda r: r.item == f"recall-{index}" and r.arm == arm and r.repeat == repeat


def swap(index: int, position: int, gap: float | None, *, control_gap: float = 0.0) -> list[Any]:
    """Candidate's token at a position is another one; base's gap there is `gap`."""
    made = []
    for r in zoo.answers():
        if answer(index, "candidate")(r):
            ids = list(r.token_ids)
            ids[position] = 99
            r = r.model_copy(update={"token_ids": tuple(ids)})
        elif r.item == f"recall-{index}":
            gaps = list(r.gaps)
            gaps[position] = gap
            if r.repeat == "control" and gap is not None:
                gaps[position] = gap + control_gap
            r = r.model_copy(update={"gaps": tuple(gaps)})
        made.append(r)
    return made


def edited(where: Any, **changes: Any) -> list[Any]:
    """The honest answers with some changed."""
    return zoo.changed(zoo.answers(), ItemRecord, where, **changes)


def nulls(values: Sequence[float]) -> tuple[float | None, ...]:
    """The first value is not reported."""
    return (None, *values[1:])


DIVERGED = ("recall/divergence", State.FAIL, "EVAL-DIVERGED")
PARTED = ("recall/divergence", State.INCONCLUSIVE, "EVAL-PARTED")
OPEN = ("recall", State.INCOMPLETE, "EVAL-INCOMPLETE")
STOCK_NULLS = [
    r.model_copy(update={"logprobs": nulls(r.logprobs), "gaps": nulls(r.gaps)})
    if r.repeat == "control"
    else r
    for r in swap(4, 5, 1.0)
]
QUALITY = (
    quality("item_dropped_in_one_arm", [r for r in zoo.answers() if not answer(2, "candidate")(r)],
            *OPEN, "recall-2"),
    quality("different_prompts", edited(answer(2, "candidate"), prompt_sha256="f" * 64), *OPEN,
            "different prompts"),
    quality("control_of_another_prompt", edited(answer(2, "base", "control"),
            prompt_sha256="f" * 64), *OPEN, "different prompts"),
    quality("transport_error", edited(answer(2, "candidate"), error="reset"), *OPEN, "reset"),
    quality("answered_twice", [*zoo.answers(), zoo.item(2, "candidate")], *OPEN, "twice"),
    quality("one_arm_only", [r for r in zoo.answers() if r.arm == "base"], *OPEN, "one arm only"),
    quality("parts_in_many_answers", [r for i in range(20) for r in swap(i, 5, 1.0)
            if r.item == f"recall-{i}"], *DIVERGED, "20 of 20 answers part"),
    quality("parts_where_decided", swap(4, 5, 1.0), *PARTED, "recall-4 at token 5 (gap 1)"),
    quality("parts_beyond_a_tie", swap(4, 5, 0.2, control_gap=5e-4), *PARTED),
    quality("parts_where_nothing_is_known", swap(4, 5, None), *PARTED, "gap unknown"),
    quality("stock_reports_nulls", STOCK_NULLS, *PARTED, "recall-4"),
    quality("ends_early", edited(answer(4, "candidate"), token_ids=(4, 5, 6)), *PARTED,
            "recall-4 at token 3 (one ends)"),
    quality("drifts", edited(answer(4, "candidate"), logprobs=tuple(-0.8 for _ in range(8))),
            *DIVERGED, "log-probability moved"),
    quality("withholds_logprobs", edited(lambda r: r.arm == "candidate", logprobs=()), *DIVERGED,
            "160 log-probabilities that stock reports are missing"),
    quality("no_logprobs_in_either_arm", edited(lambda r: True, logprobs=()),
            "recall/divergence", State.INCOMPLETE, "EVAL-INCOMPLETE", "no log-probabilities"),
    quality("no_control", [r for r in zoo.answers() if r.repeat == "main"],
            "recall/divergence", State.INCOMPLETE, "EVAL-INCOMPLETE", "0 stock-stock controls"),
    quality("control_of_some", [r for r in zoo.answers() if not answer(7, "base", "control")(r)],
            "recall/divergence", State.INCOMPLETE, "EVAL-INCOMPLETE", "19 stock-stock controls"),
    quality("worse", edited(lambda r: r.arm == "candidate" and int(r.item[7:]) % 2 == 0, score=0.0),
            "recall/accuracy", State.INFERIOR, "EVAL-WORSE"),
    quality("loses_right_answers", edited(lambda r: r.arm == "candidate"
            and int(r.item[7:]) % 2 == 0, score=0.0), "recall/alarm", State.INCONCLUSIVE,
            "EVAL-ALARM", "8 right answers lost, 0 won"),
    quality("worse_alone_only", edited(lambda r: r.arm == "candidate" and r.repeat == "control"
            and int(r.item[7:]) % 2 == 0, score=0.0), "recall/accuracy/concurrency=1",
            State.INFERIOR, "EVAL-WORSE"),
    quality("worse_on_long_prompts", [
        r.model_copy(update={
            "prompt_tokens": 900 if int(r.item[7:]) >= 10 else 400,
            "score": 0.0 if r.arm == "candidate" and int(r.item[7:]) >= 12 else r.score,
        }) for r in zoo.answers()
    ], "recall/accuracy/prompt_tokens=900-900", State.INFERIOR, "EVAL-WORSE"),
    quality("never_asked_alone", [r for r in zoo.answers() if not (
            r.arm == "candidate" and r.repeat == "control")], "recall/accuracy/concurrency=1",
            State.INCOMPLETE, "EVAL-INCOMPLETE", "0 of 20 items"),
    quality("short_answers", edited(lambda r: r.arm == "candidate", token_ids=tuple(range(6)),
            finish_reason="stop"), "recall/length", State.FAIL, "EVAL-LENGTH", "stop 40"),
    quality("met_a_warm_cache", edited(answer(2, "candidate"), cached_tokens=64), *OPEN,
            "different caches"),
    quality("drifts_when_forced", edited(answer(4, "candidate", "replay"), gaps=(2.0, 1.5) * 4),
            "recall/replay", State.FAIL, "EVAL-DIVERGED", "p99.9 of the gap"),
    quality("withholds_replayed_numbers", edited(answer(4, "candidate", "replay"), logprobs=()),
            "recall/replay", State.FAIL, "EVAL-DIVERGED", "8 positions without"),
    quality("ignores_what_is_forced", edited(answer(4, "candidate", "replay"), token_ids=(1, 2)),
            "recall/replay", State.INCOMPLETE, "EVAL-INCOMPLETE", "did not go on"),
    quality("replays_some", [r for r in zoo.answers() if not answer(4, "candidate", "replay")(r)],
            "recall/replay", State.INCOMPLETE, "EVAL-INCOMPLETE", "1 of 20"),
    quality("maybe_worse", edited(answer(4, "candidate"), score=0.0), "recall/accuracy",
            State.INCONCLUSIVE, "EVAL-POWER"),
    quality("one_item", [r for r in zoo.answers() if r.item == "recall-1"], "recall/accuracy",
            State.INCONCLUSIVE, "EVAL-POWER"),
    quality("cannot_fail", edited(lambda r: True, score=0.0), "recall/accuracy",
            State.INSENSITIVE, "EVAL-FLOOR"),
    Cheat("no_answers", zoo.honest_run(evals=zoo.evals([])), "evals", State.MISSING, "NO-RECORDS"),
)  # fmt: skip

# Speed

SMALL = "decode/batch=1/context_tokens=64"
LARGE = "decode/batch=8/context_tokens=64"


def timed(name: str, records: Sequence[Record], cell: str, state: State, reason: str,
          says: str = "", **claim: Any) -> Cheat:  # fmt: skip
    """A spoilt sweep."""
    return Cheat(name, zoo.honest_run(perf=records), cell, state, reason, says, claim)


def measured(where: Any = None, **changes: Any) -> list[Any]:
    """The honest sweep with some samples changed."""
    return zoo.changed(zoo.perf(), SampleRecord, where, **changes)


def fallen_back(records: list[Any]) -> list[Any]:
    """One candidate session ran stock in one step of its window."""
    made = []
    for r in records:
        if isinstance(r, PathRecord) and r.session == "perf-b0-1-candidate" and "=8/" in r.cell:
            told = [*r.steps[:8], r.steps[8].model_copy(update=STOCK), *r.steps[9:]]
            r = r.model_copy(update={"steps": told})
        made.append(r)
    return made


def other_build(records: list[Any], name: str = "candidate") -> list[Any]:
    """Sessions of an arm ran another build."""
    told = {"engine": "fake-2", "max_model_len": 2048, "timer": "perf_counter"}
    return zoo.changed(records, SessionRecord, lambda r: r.arm == name, fingerprint=told)


EVERY_CANDIDATE = measured(lambda r: r.arm == "candidate", cached_tokens=64)
SENTENCE = {"speed": {"sentence": "slower_nowhere"}}
SPEED = (
    timed("equal_arms", zoo.perf(1.0), "sentence", State.FAIL, "SPD-SENTENCE", SMALL),
    timed("equal_arms_cell", zoo.perf(1.0), SMALL, State.EQUIVALENT, "SPD-EQUIVALENT"),
    timed("slower", zoo.perf(0.8), LARGE, State.SLOWER, "SPD-SLOWER"),
    timed("slower_somewhere", zoo.perf(0.8), "sentence", State.FAIL, "SPD-SENTENCE", LARGE,
          **SENTENCE),
    timed("slightly_slower_than_the_margin", zoo.perf(0.95), "sentence", State.FAIL,
          "SPD-SENTENCE", LARGE, **SENTENCE),
    timed("too_noisy_to_say", zoo.perf(1.05, boot_noise=0.2), SMALL, State.INCONCLUSIVE,
          "SPD-NOISE"),
    timed("from_the_prefix_cache", EVERY_CANDIDATE, SMALL, State.INVALID, "VAL-TOKENS",
          "64 prompt tokens came from the prefix cache"),
    timed("shed_load", measured(lambda r: r.arm == "candidate", completed_requests=0), SMALL,
          State.INVALID, "VAL-TOKENS", "0 of 1 requests ran"),
    timed("smaller_batch", measured(lambda r: "=8/" in r.cell, planned_requests=4,
          completed_requests=4), LARGE, State.INVALID, "VAL-TOKENS", "4 requests for batch 8"),
    timed("shorter_prompts", measured(lambda r: r.arm == "candidate", prompt_tokens=32), SMALL,
          State.INVALID, "VAL-TOKENS", "32 prompt tokens instead of the cell's"),
    timed("short_window", zoo.perf(window=7), SMALL, State.INVALID, "VAL-TOKENS",
          "only 7 steady decode steps"),
    timed("another_build", other_build(zoo.perf()), SMALL, State.INVALID, "VAL-ENGINE", "engine"),
    timed("another_build_sentence", other_build(zoo.perf()), "sentence", State.INCONCLUSIVE,
          "SPD-SENTENCE", "INVALID"),
    timed("switch_not_in_effect", zoo.changed(zoo.perf(), SessionRecord,
          lambda r: r.session == "perf-b0-1-candidate", switch="auto"), SMALL, State.INVALID,
          "VAL-ENGINE", "'auto'"),
    timed("stock_step_in_the_window", fallen_back(zoo.perf()), LARGE, State.NOT_EXERCISED,
          "PATH-NONE", "perf-b0-1-candidate"),
    timed("stock_step_in_the_window_sentence", fallen_back(zoo.perf()), "sentence", State.FAIL,
          "SPD-SENTENCE", "NOT_EXERCISED"),
    timed("cell_left_out", [r for r in zoo.perf() if getattr(r, "cell", "") != LARGE], LARGE,
          State.MISSING, "NO-RECORDS"),
    timed("cell_left_out_sentence", [r for r in zoo.perf() if getattr(r, "cell", "") != LARGE],
          "sentence", State.INCONCLUSIVE, "SPD-SENTENCE", "MISSING"),
    timed("one_block_only", zoo.perf(blocks=1), SMALL, State.INCONCLUSIVE, "SPD-PAIRS",
          "2 valid pairs of 4"),
    timed("candidate_without_base", [r for r in zoo.perf() if getattr(r, "arm", "") != "base"],
          SMALL, State.INCONCLUSIVE, "SPD-PAIRS"),
    Cheat("other_stage_of_another_build",
          [*zoo.honest_run(features=other_build(zoo.features()))], SMALL, State.INVALID,
          "VAL-ENGINE", "engine"),
)  # fmt: skip

# Isolation


def isolated(name: str, subject: str, code: str, where: str = "zoo/ops.py:7",
             exempt: str = "") -> Cheat:  # fmt: skip
    """A finding of the isolation stage."""
    found = [(subject, zoo.finding(code, where, exempt))]
    return Cheat(name, zoo.honest_run(isolation=zoo.isolation(found=found)), subject, State.FAIL,
                 code, f"{where}: planted")  # fmt: skip


ISOLATION = (
    isolated("scope_escape", "scope", "ISO-SCOPE", "other/x.py"),
    isolated("protected_component", "protected", "ISO-PROTECTED", "vllm/v1/sample/sampler.py"),
    isolated("import_side_effect", "imports", "ISO-IMPORT"),
    isolated("monkey_patches_sampler", "patches", "ISO-PATCH"),
    isolated("env_write", "environment", "ISO-ENV"),
    isolated("torch_flag", "torch", "ISO-TORCH"),
    isolated("declares_what_policy_does_not_let_be", "patches", "ISO-PATCH", exempt="It is so."),
    Cheat("no_file_read", zoo.honest_run(isolation=zoo.isolation(files=0)), "imports", State.FAIL,
          "ISO-IMPORT", "files: 0"),
    isolated("patched_before_the_switch", "code", "ISO-CODE", "vllm.v1.sample.sampler:Sampler"),
    isolated("patches_only_when_switched_on", "switched-on", "ISO-ON", "vllm.v1.core:f"),
    isolated("patches_around_its_model", "model", "ISO-SPREAD", "vllm.v1.core:f"),
    isolated("runs_other_files_than_were_judged", "model", "ISO-COPY", "zoo/ops.py"),
    Cheat("neighbour_changed", zoo.honest_run(isolation=zoo.isolation(tokens_equal=3)),
          "neighbour", State.FAIL, "ISO-DIFF", "tokens_equal: 3"),
    Cheat("op_registered", zoo.honest_run(isolation=zoo.isolation(ops="b2")), "neighbour",
          State.FAIL, "ISO-DIFF", "ops: 'b2'"),
    Cheat("value_gone", zoo.honest_run(isolation=zoo.isolation(ops=None)), "neighbour",
          State.FAIL, "ISO-DIFF", "ops: None"),
    Cheat("never_checked", zoo.honest_run(isolation=zoo.isolation()[:6]), "neighbour",
          State.MISSING, "NO-RECORDS"),
)  # fmt: skip

# Compiled kernels

AUDITED = "compiled/fuse/sm_90a"


def compiled(
    name: str, reason: str, says: str = "", state: State = State.FAIL, cell: str = AUDITED,
    plants: Sequence[Record] | None = None, **changes: Any,
) -> Cheat:  # fmt: skip
    """An audit of one kernel that differs from the honest one."""
    kernel = zoo.compiled_kernel(**{"cell": cell, **changes})
    records = zoo.honest_run(compiled=zoo.compiled(kernel, plants=plants))
    return Cheat(name, records, cell, state, reason, says)


def one_plant_gone(control: str) -> list[Record]:
    """The planted kernels without one."""
    return [record for record in zoo.planted_kernels() if record.control != control]


COMPILED = (
    compiled("activation_before_the_wait", "HOIST-EARLY-LOAD", "from parameter x",
             early=(zoo.early_access(parameters=(0,)),)),
    compiled("weight_or_activation", "HOIST-EARLY-LOAD", "from parameter x, w",
             early=(zoo.early_access(parameters=(0, 1)),)),
    compiled("weight_not_declared_static", "HOIST-EARLY-LOAD", "and 1 more", static=()),
    compiled("weight_written_early", "HOIST-EARLY-STORE", early=(zoo.early_access("store"),)),
    compiled("weight_counted_up_early", "HOIST-EARLY-STORE", early=(zoo.early_access("atomic"),)),
    compiled("output_before_the_wait", "HOIST-EARLY-STORE", "from parameter y",
             early=(zoo.early_access("store", (2,)),)),
    compiled("never_waits", "HOIST-NO-WAIT", waits=(), early=()),
    compiled("waits_under_a_predicate_only", "HOIST-NO-WAIT", "under a predicate", waits=(),
             guarded_waits=(0x80,), early=()),
    compiled("waits_although_not_dependent", "HOIST-EARLY-LOAD", dependent=False, static=()),
    compiled("address_of_nobody", "HOIST-UNREADABLE", "no kernel parameter",
             early=(zoo.early_access(parameters=(), why="no kernel parameter"),)),
    compiled("weight_through_an_unknown_value", "HOIST-UNREADABLE",
             early=(zoo.early_access(why="the value made at 0x30"),)),
    compiled("unknown_instruction", "HOIST-UNREADABLE", early=(zoo.early_access("unknown"),)),
    compiled("does_not_compile", "HOIST-UNREADABLE", "raised: planted", status="raised",
             message="planted"),
    compiled("cannot_be_followed", "HOIST-UNREADABLE", "unknown target", status="unreadable",
             message="unknown target: BRX R8"),
    compiled("kernel_beside_the_declared_one", "HOIST-UNREADABLE", "the cubin also holds other_1",
             functions=("fuse_0", "other_1")),
    compiled("kernels_not_declared", "HOIST-UNDECLARED", "ops.py", cell="compiled",
             status="undeclared", message="1 source file: ops.py"),
    compiled("no_compiler_here", "HOIST-TOOLS", "no nvdisasm", State.MISSING, cell="compiled",
             status="unavailable", message="there is no nvdisasm here"),
    compiled("no_kernel_planted", "HOIST-INSENSITIVE", "late_load was not planted",
             State.INSENSITIVE, plants=()),
    compiled("one_kernel_not_planted", "HOIST-INSENSITIVE", "early_tma was not planted",
             State.INSENSITIVE, plants=one_plant_gone("early_tma")),
    compiled("blind_to_a_planted_kernel", "HOIST-INSENSITIVE", "early_load was judged OK",
             State.INSENSITIVE,
             plants=[*one_plant_gone("early_load"),
                     zoo.compiled_kernel("early_load", "early_load")]),
    compiled("refuses_an_honest_plant", "HOIST-INSENSITIVE", "late_load was judged HOIST-NO-WAIT",
             State.INSENSITIVE,
             plants=[*one_plant_gone("late_load"),
                     zoo.compiled_kernel("late_load", "late_load", waits=())]),
    Cheat("compiled_code_without_records", zoo.honest_run(compiled=[]), "compiled",
          State.MISSING, "NO-RECORDS"),
)  # fmt: skip

# Agent traffic


def replays(
    name: str, reason: str, says: str = "", state: State = State.INVALID, change: Any = None,
    **also: Any,
) -> Cheat:  # fmt: skip
    """The candidate's replays spoilt: `change` gives fields of their turns, `also` of the rest."""
    records = zoo.retold(lambda r: r.arm == "candidate", change or (lambda turn: {}), **also)
    return Cheat(name, records, "agent/concurrency=1", state, reason, says, {"agent": {}})


def failed(turn: Any) -> dict[str, Any]:
    """The longest prompt is refused."""
    refused = {"error": "HTTP 400: too long", "output_tokens": None, "arrivals": ()}
    return refused if (turn.trace, turn.turn) == ("mend", 2) else {}


AGENT = (
    replays("no_client_no_replay", "AGT-CLIENT", "pip install", State.MISSING,
            status="no_client", message="pip install aiperf", turns=()),
    replays("no_server_no_replay", "AGT-SERVER", "no server", State.MISSING,
            status="no_server", message="the engine has no server", turns=()),
    replays("server_died", "AGT-FAILED", "ENG-003", status="died", message="ENG-003: killed"),
    replays("replays_other_traces", "AGT-TRACES", traces_sha256="8" * 64),
    replays("refuses_long_prompts", "AGT-REQUESTS", "5 of 6 requests", change=failed),
    replays("counts_tokens_nobody_made", "AGT-COUNTS", "generated_tokens",
            counters={"requests": 6, "prompt_tokens": 2206, "generated_tokens": 200,
                      "cached_tokens": 672}),
    replays("remembers_prefixes_of_others", "AGT-CACHE", "the candidate's",
            change=lambda turn: {"cached_tokens": (turn.cached_tokens or 0) + 8 * turn.turn * 8}),
    replays("hands_out_answers_at_once", "AGT-TIMES", "at once",
            change=lambda turn: {"arrivals": ((9.0, 1), (9.0, turn.output_tokens))}),
    Cheat("slower_agents", zoo.agent_run(speedup=0.8), "agent/concurrency=1/interactivity",
          State.SLOWER, "SPD-SLOWER", "slow tail", {"agent": {}}),
    Cheat("agents_left_out", zoo.honest_run(), "agent/concurrency=1", State.MISSING, "NO-RECORDS",
          claim={"agent": {}}),
)  # fmt: skip

CHEATS = (*COMPILED, *NUMERICS, *PATH, *PROOFS, *FEATURES, *QUALITY, *SPEED, *ISOLATION, *AGENT)
BY_THE_SENTENCE = (State.EQUIVALENT, State.SLOWER)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_is_found_and_does_not_pass(cheat: Cheat) -> None:
    verdicts, outcome = zoo.decide(cheat.records, zoo.claim(**cheat.claim), **cheat.run)
    verdict = zoo.found(verdicts, cheat.cell)
    assert (verdict.state, verdict.reason) == (cheat.state, cheat.reason), verdict.detail
    assert cheat.says in verdict.detail
    assert outcome.state is not State.PASS
    # Whoever reads the verdict is told how to go on, and what its code means.
    assert verdict.next.startswith("fasttrack validate FOLDER")
    assert verdict.reason in REASONS


def test_names_are_unique() -> None:
    assert len({cheat.name for cheat in CHEATS}) == len(CHEATS)


def test_every_reason_of_the_rules_has_a_cheat() -> None:
    folders = [plant.expect for plant in catalogue.load(ZOO) if plant.group == "cheats"]
    planted = {cheat.reason for cheat in CHEATS} | {wanted.code for wanted in folders}
    by_stages = {"RUN-PARTIAL"}
    good = {
        *("OK", "FEAT-DECLARED", "HOIST-NONE", "ISO-DECLARED", "ISO-REFUSED", "SPD-FASTER"),
        "SPD-UNSUPPORTED",
        "PATH-NO-CODE",
        "VAL-UNROUTED",
        "AGT-FEW",
    }
    assert set(REASONS) - planted - by_stages - good == set()


def test_zero_records_never_pass() -> None:
    verdicts, outcome = zoo.decide([])
    assert outcome.state is State.INCONCLUSIVE
    assert verdicts
    assert not any(v.state in (State.PASS, State.FASTER, State.NON_INFERIOR) for v in verdicts)


def test_only_failures_never_pass() -> None:
    records = [r for r in zoo.honest_run() if isinstance(r, FeatureRecord)]
    assert zoo.decide(records)[1].state is not State.PASS


@pytest.mark.parametrize("stage", list(STAGES))
def test_a_stage_left_out_is_never_admissible(stage: Any) -> None:
    stages = tuple(s for s in STAGES if s != stage)
    verdicts, outcome = zoo.decide(zoo.honest_run(), stages=stages)
    assert zoo.found(verdicts, stage).reason == "RUN-PARTIAL"
    assert not outcome.admissible
    assert outcome.not_admissible_because == (f"stages left out: {stage}",)


def test_a_stage_without_records_does_not_pass() -> None:
    for stage in STAGES:
        _, outcome = zoo.decide(zoo.honest_run(**{stage: []}))
        assert outcome.state is not State.PASS, stage


def test_chosen_cells_are_judged_and_never_admissible() -> None:
    verdicts, outcome = zoo.decide(zoo.honest_run(), cell="decode/batch=1/*", stages=("perf",))
    assert zoo.found(verdicts, SMALL).state is State.FASTER
    assert not [v for v in verdicts if v.cell == LARGE]
    assert zoo.found(verdicts, "sentence").state is State.PASS
    assert not outcome.admissible
    assert "only cells like decode/batch=1/* were measured" in outcome.not_admissible_because


def test_a_choice_of_no_cell_does_not_pass() -> None:
    for stage in ("kernels", "features", "perf"):
        _, outcome = zoo.decide([], cell="nothing/like/it", stages=(stage,))
        assert outcome.state is State.INCONCLUSIVE, stage


def test_lower_tiers_and_development_targets_are_not_admissible() -> None:
    _, outcome = zoo.decide(zoo.honest_run(), tier="smoke")
    assert outcome.state is State.PASS
    assert outcome.not_admissible_because == ("tier smoke is below standard",)
    target = zoo.claim().targets["lab"].model_copy(update={"role": "development"})
    claim = zoo.claim().model_copy(update={"targets": {"lab": target}})
    _, outcome = zoo.decide(zoo.honest_run(), claim)
    assert outcome.not_admissible_because == ("target lab has the role development",)


@pytest.mark.parametrize(
    ("tested", "says"),
    [
        (None, "was not tested"),
        (zoo.self_test(cheats="wrong"), "0/1 cheats caught, 1/1 honest accepted; wrong: a_cheats"),
        (zoo.self_test(honest="wrong"), "1/1 cheats caught, 0/1 honest accepted; wrong: a_honest"),
        (zoo.self_test(cheats="not run"), "was not tested"),
        (zoo.self_test(honest="not run"), "was not tested"),
    ],
)
def test_a_harness_that_was_not_tested_is_not_admissible(tested: Any, says: str) -> None:
    _, outcome = zoo.decide(zoo.honest_run(), self_test=tested)
    assert outcome.state is State.PASS
    assert not outcome.admissible
    (because,) = outcome.not_admissible_because
    assert says in because

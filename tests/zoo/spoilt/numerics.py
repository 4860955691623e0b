"""Kernels that are wrong, or do what a case forbids, as records tell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    ConductRecord,
    KernelRecord,
    Record,
    SanitizerRecord,
    State,
)
from spoilt.cheat import Cheat

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

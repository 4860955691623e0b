"""Proofs of the path that do not hold: traces, watermarks, caches, alternation, code."""

from __future__ import annotations

from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    CodeRecord,
    State,
    StateRecord,
    StateStep,
    TraceRecord,
    TwinRecord,
)
from spoilt.cheat import Cheat


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
    Cheat("parts_wider_than_stock_when_alternating",
          zoo.honest_run(path=zoo.changed(
              zoo.parted((5, 6, 9)), TwinRecord,
              lambda r: (r.arm, r.change) == ("candidate", "alternation"),
              plain=[zoo.answer((5, 6, 7), gap=2.5)])),
          TURNED, State.FAIL, "PATH-DRIFT", "gap of 2.5 nats, undecided below 2.1"),
    Cheat("alternates_on_a_model_that_parts_at_once", zoo.honest_run(path=zoo.parted((5, 9, 9))),
          TURNED, State.INCONCLUSIVE, "PATH-NOISE", "part after 1 tokens"),
    unproved("would_part_when_alternating", TURNED, "PATH-DRIFT", TwinRecord, "gap of 2 nats",
             changed=[zoo.answer((5, 6, 7), ranks=(1, 2, 1))]),
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
    Cheat("second_rank_runs_stock",
          zoo.honest_run(path=zoo.changed(
              zoo.of_ranks(2), TraceRecord,
              lambda r: (r.arm, r.cell, r.rank) == ("candidate", TRACED, 1),
              least=zoo.STOCK, most=zoo.STOCK)),
          TRACED, State.FAIL, "PATH-TRACE", "rank 1: "),
    Cheat("second_rank_writes_the_null_block",
          zoo.honest_run(path=zoo.changed(
              zoo.of_ranks(2), StateRecord, lambda r: (r.arm, r.rank) == ("candidate", 1),
              steps=seen(null=True))),
          "path/state", State.FAIL, "PATH-NULL-SLOT", "rank 1: "),
    Cheat("first_rank_of_two_hides_behind_a_blind_one",
          zoo.honest_run(path=zoo.changed(
              zoo.changed(zoo.of_ranks(2), StateRecord, lambda r: r.rank == 0, problem="layout"),
              StateRecord, lambda r: (r.arm, r.rank) == ("candidate", 1), steps=seen(null=True))),
          "path/state", State.FAIL, "PATH-NULL-SLOT", "rank 1: "),
    Cheat("second_rank_of_one_arm_only",
          zoo.honest_run(path=[r for r in zoo.of_ranks(2)
                               if (getattr(r, "arm", ""), getattr(r, "rank", 0)) != ("base", 1)]),
          "path/state", State.MISSING, "NO-RECORDS"),
    Cheat("path_stage_of_base_only",
          zoo.honest_run(path=[r for r in zoo.proofs() if getattr(r, "arm", "base") == "base"]),
          "path/state", State.MISSING, "NO-RECORDS"),
)  # fmt: skip

"""Record files, and verdicts that do not follow from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bundle_maker as maker

from defects.lab import EVALS, EXTRA, ISOLATION, KERNELS, PERF, Lab, defect, once, put
from fasttrack.bundle import layout


@defect("VER-060", PERF)
def last_line_cut(lab: Lab) -> Path:
    return lab.resealed(**{PERF: lab.members[PERF][:-9]})


@defect("VER-060", PERF)
def last_newline_cut(lab: Lab) -> Path:
    return lab.resealed(**{PERF: lab.members[PERF][:-1]})


@defect("VER-060", PERF)
def record_with_unknown_field(lab: Lab) -> Path:
    return lab.resealed(**{PERF: lab.lines(PERF, "sample", once(put(note="fine")))})


@defect("VER-060", ISOLATION)
def record_of_unknown_kind(lab: Lab) -> Path:
    return lab.resealed(**{ISOLATION: lab.lines(ISOLATION, "isolation", put(kind="isolated"))})


@defect("VER-061", ISOLATION)
def record_in_wrong_stage(lab: Lab) -> Path:
    return lab.resealed(**{ISOLATION: lab.members[KERNELS]})


@defect("VER-062", EXTRA)
def records_of_no_planned_unit(lab: Lab) -> Path:
    return lab.resealed(**{EXTRA: lab.members[PERF]})


@defect("VER-063")
def block_left_out(lab: Lab) -> Path:
    """The four sessions of a block that the author did not like, gone before deciding."""
    gone = {name: None for name in lab.members if name.startswith("perf/block1-")}
    return lab.redecided(**gone)


@defect("VER-070", layout.VERDICTS)
def number_edited(lab: Lab) -> Path:
    def better(value: Any) -> None:
        speed = next(v for v in value["verdicts"] if v["state"] == "FASTER")
        speed["estimate"] *= 1 + 1e-6

    return lab.resealed(**{layout.VERDICTS: lab.edited(layout.VERDICTS, better)})


@defect("VER-070", layout.VERDICTS)
def verdict_flipped(lab: Lab) -> Path:
    """Records of a broken kernel under a verdict that still says PASS."""
    worse = lab.lines(KERNELS, "kernel", lambda v: v["candidate"].update(rms=0.9, max=0.9))
    return lab.resealed(**{KERNELS: worse})


@defect("VER-071", layout.VERDICTS)
def records_dropped_verdicts_kept(lab: Lab) -> Path:
    data = lab.lines(EVALS, "item", lambda v: [] if v["item"] == "chain-8-0-3" else None)
    return lab.resealed(**{EVALS: data})


@defect("VER-070", layout.VERDICTS)
def arms_swapped_in_records(lab: Lab) -> Path:
    """Samples of both arms trade places, so the slow path looks fast."""
    other = {"base": "candidate", "candidate": "base"}
    changed = {
        name: maker.edit_lines(data, "sample", lambda v: v.update(arm=other[v["arm"]]))
        for name, data in lab.members.items()
        if name.startswith("perf/")
    }
    return lab.resealed(**changed)


@defect("VER-071", layout.VERDICTS)
def verdict_removed(lab: Lab) -> Path:
    return lab.resealed(
        **{layout.VERDICTS: lab.edited(layout.VERDICTS, lambda v: v["verdicts"].pop(0) and None)}
    )


@defect("VER-071", layout.VERDICTS)
def verdict_added(lab: Lab) -> Path:
    def add(value: Any) -> None:
        value["verdicts"].append({**value["verdicts"][0], "cell": "everything"})

    return lab.resealed(**{layout.VERDICTS: lab.edited(layout.VERDICTS, add)})


@defect("VER-072", layout.VERDICTS)
def outcome_typed_in(lab: Lab) -> Path:
    """Failing records with honest verdicts under a typed PASS."""
    worse = lab.lines(KERNELS, "kernel", lambda v: v["candidate"].update(rms=0.9, max=0.9))
    members = maker.redecide({**lab.members, KERNELS: worse}, lab.scratch / "forged")
    members[layout.VERDICTS] = maker.edit_json(
        members[layout.VERDICTS], lambda v: v["outcome"].update(state="PASS")
    )
    return maker.reseal(members, lab.out, lab.key)


@defect("VER-072", layout.VERDICTS)
def untested_list_emptied(lab: Lab) -> Path:
    data = lab.edited(layout.VERDICTS, lambda v: v["outcome"].update(untested=[]))
    return lab.resealed(**{layout.VERDICTS: data})


@defect("VER-074", layout.REPORT)
def report_edited(lab: Lab) -> Path:
    data = lab.members[layout.REPORT].replace(b"2.00x", b"9.00x")
    return lab.resealed(**{layout.REPORT: data})

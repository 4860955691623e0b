"""Records that contradict each other: sessions, samples, steps."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import bundle_maker as maker

from defects.lab import EVALS, FEATURES, PERF, PERF_OTHER, PERF_THIRD, Lab, defect, put
from fasttrack.schema._json import loads


@defect("VER-080", PERF)
def session_name_reused(lab: Lab) -> Path:
    data = lab.members[PERF]
    ended = next(line for line in data.splitlines() if b'"kind":"session"' in line)
    return lab.redecided(**{PERF: data + ended + b"\n"})


@defect("VER-081", PERF)
def switch_contradicts_arm(lab: Lab) -> Path:
    data = lab.lines(PERF, "session", put(switch="latency_specialized"))
    return lab.redecided(**{PERF: data})


@defect("VER-082", PERF)
def other_build_in_one_session(lab: Lab) -> Path:
    data = lab.lines(PERF, "session", lambda v: v["fingerprint"].update(vllm="0.33.0"))
    return lab.redecided(**{PERF: data})


@defect("VER-082", EVALS)
def other_checkpoint_in_evals(lab: Lab) -> Path:
    data = lab.lines(EVALS, "session", lambda v: v["fingerprint"].update(checkpoint="d" * 64))
    return lab.redecided(**{EVALS: data})


@defect("VER-083", FEATURES)
def session_ends_before_it_starts(lab: Lab) -> Path:
    data = lab.lines(FEATURES, "session", put(end_s=1.0))
    return lab.redecided(**{FEATURES: data})


@defect("VER-083", FEATURES)
def session_older_than_the_run(lab: Lab) -> Path:
    early = (maker.CREATED - timedelta(days=1)).isoformat()
    return lab.redecided(**{FEATURES: lab.lines(FEATURES, "session", put(started_utc=early))})


@defect("VER-084", PERF_OTHER)
def sessions_overlap(lab: Lab) -> Path:
    """One session is stretched over its successor."""
    data = lab.lines(PERF, "session", lambda v: v.update(end_s=v["end_s"] + 30))
    return lab.redecided(**{PERF: data})


@defect("VER-085", PERF)
def sample_without_session(lab: Lab) -> Path:
    data = lab.lines(PERF, "session", lambda v: [])
    return lab.redecided(**{PERF: data})


@defect("VER-086", PERF)
def cell_outside_the_grid(lab: Lab) -> Path:
    def move(value: dict[str, Any]) -> None:
        value["cell"] = value["cell"].replace("batch=1", "batch=3")

    return lab.redecided(**{PERF: lab.lines(PERF, "sample", move)})


@defect("VER-087")
def block_out_of_order(lab: Lab) -> Path:
    """A block that would be A B B A says A B A A: its third session came from the other arm."""
    name = PERF_THIRD
    swap = {"arm": "base"}
    data = lab.members[name]
    for kind in ("sample", "path", "session"):
        data = maker.edit_lines(data, kind, put(**swap))
    data = maker.edit_lines(data, "session", put(switch="auto"))
    return lab.redecided(**{name: data})


@defect("VER-087", PERF_OTHER)
def one_place_measured_twice(lab: Lab) -> Path:
    data = lab.lines(PERF_OTHER, "sample", put(position=0))
    return lab.redecided(**{PERF_OTHER: data})


@defect("VER-088", PERF)
def steps_outside_their_session(lab: Lab) -> Path:
    def early(value: dict[str, Any]) -> None:
        for step in value["steps"]:
            step["start_s"] -= 500

    return lab.redecided(**{PERF: lab.lines(PERF, "sample", early)})


@defect("VER-088", PERF)
def steps_overlap(lab: Lab) -> Path:
    def stretch(value: dict[str, Any]) -> None:
        value["steps"][3]["duration_s"] *= 50

    return lab.redecided(**{PERF: lab.lines(PERF, "sample", stretch)})


@defect("VER-088", PERF_OTHER)
def step_without_duration(lab: Lab) -> Path:
    def vanish(value: dict[str, Any]) -> None:
        value["steps"][5]["duration_s"] = 0

    return lab.redecided(**{PERF_OTHER: lab.lines(PERF_OTHER, "sample", vanish)})


@defect("VER-089", PERF)
def tokens_from_nowhere(lab: Lab) -> Path:
    data = lab.lines(PERF, "sample", lambda v: v.update(output_tokens=v["output_tokens"] * 10))
    return lab.redecided(**{PERF: data})


@defect("VER-089", PERF)
def prefill_not_accounted_for(lab: Lab) -> Path:
    def hide(value: dict[str, Any]) -> None:
        value["steps"] = [s for s in value["steps"] if not s["prefill_tokens"]]

    return lab.redecided(**{PERF: lab.lines(PERF, "sample", hide)})


@defect("VER-090")
def sample_vector_copied(lab: Lab) -> Path:
    """The fast first candidate session is copied over a later one."""
    source = [loads(line) for line in lab.members[PERF_OTHER].splitlines()]
    steps = {r["cell"]: r["steps"] for r in source if r["kind"] == "sample"}
    name = PERF_THIRD
    target = [loads(line) for line in lab.members[name].splitlines()]
    start = {r["cell"]: r["steps"][0]["start_s"] for r in target if r["kind"] == "sample"}

    def copy(value: dict[str, Any]) -> None:
        copied = steps[value["cell"]]
        shift = start[value["cell"]] - copied[0]["start_s"]
        value["steps"] = [{**s, "start_s": s["start_s"] + shift} for s in copied]

    return lab.redecided(**{name: lab.lines(name, "sample", copy)})

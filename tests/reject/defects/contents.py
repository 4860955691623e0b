"""Records that contradict the plan or themselves: proofs, kernel cases, answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bundle_maker as maker

from defects.lab import EVALS, KERNELS, PERF_OTHER, PROOFS, Lab, defect, put


@defect("VER-098")
def fewer_proofs_than_planned(lab: Lab) -> Path:
    return lab.redecided(**{PROOFS: lab.lines(PROOFS, "state", lambda v: [])})


@defect("VER-098", PROOFS)
def proof_made_twice(lab: Lab) -> Path:
    return lab.redecided(**{PROOFS: lab.lines(PROOFS, "state", lambda v: [v, v])})


@defect("VER-098", PROOFS)
def proof_of_another_call(lab: Lab) -> Path:
    data = lab.lines(PROOFS, "twin", put(cell="path/sampling/watermark"))
    return lab.redecided(**{PROOFS: data})


@defect("VER-098", PROOFS)
def more_decode_steps_traced_than_ran(lab: Lab) -> Path:
    return lab.redecided(**{PROOFS: lab.lines(PROOFS, "trace", put(decode_steps=9))})


@defect("VER-098", PROOFS)
def more_tokens_than_the_steps_made(lab: Lab) -> Path:
    long = {"token_ids": list(range(40)), "logprobs": [], "gaps": []}
    return lab.redecided(**{PROOFS: lab.lines(PROOFS, "twin", put(changed=[long]))})


@defect("VER-098", PERF_OTHER)
def step_log_of_another_sample(lab: Lab) -> Path:
    def shift(value: dict[str, Any]) -> None:
        value["scheduled"][0][1] += 1
        value["steps"][0]["tokens"] += 1
        value["steps"][0]["prefill_tokens"] += 1

    return lab.redecided(**{PERF_OTHER: lab.lines(PERF_OTHER, "path", shift)})


@defect("VER-091", EVALS)
def item_answered_twice(lab: Lab) -> Path:
    data = lab.lines(EVALS, "item", lambda v: [v, v] if v["item"] == "chain-8-0-0" else None)
    return lab.redecided(**{EVALS: data})


@defect("VER-091", KERNELS)
def kernel_case_recorded_twice(lab: Lab) -> Path:
    data = lab.lines(KERNELS, "kernel", lambda v: [v, v] if v["seed"] == 0 else None)
    return lab.redecided(**{KERNELS: data})


@defect("VER-091", KERNELS)
def conduct_recorded_twice(lab: Lab) -> Path:
    """A second record of the same cell, so that one of them looks better."""
    return lab.redecided(**{KERNELS: lab.lines(KERNELS, "conduct", lambda v: [v, v])})


@defect("VER-092", KERNELS)
def more_repeats_agree_than_ran(lab: Lab) -> Path:
    return lab.redecided(**{KERNELS: lab.lines(KERNELS, "kernel", put(repeats_equal=301))})


@defect("VER-092", EVALS)
def score_above_one(lab: Lab) -> Path:
    return lab.redecided(**{EVALS: lab.lines(EVALS, "item", put(score=2.0))})


@defect("VER-096", KERNELS)
def seeds_that_went_badly_left_out(lab: Lab) -> Path:
    data = lab.lines(KERNELS, "kernel", lambda v: [] if v["seed"] > 6 else None)
    return lab.redecided(**{KERNELS: data})


@defect("VER-096", KERNELS)
def seeds_chosen_after_looking(lab: Lab) -> Path:
    data = lab.lines(KERNELS, "kernel", lambda v: v.update(seed=v["seed"] + 1000))
    return lab.redecided(**{KERNELS: data})


@defect("VER-096", KERNELS)
def fewer_repeats_than_planned(lab: Lab) -> Path:
    def fewer(value: dict[str, Any]) -> None:
        if value["control"] is None:
            value.update(repeats=3, repeats_equal=3)

    return lab.redecided(**{KERNELS: lab.lines(KERNELS, "kernel", fewer)})


@defect("VER-096", KERNELS)
def kernel_cell_of_another_regime(lab: Lab) -> Path:
    """The easy batch, measured again under the hard one's name."""
    data = lab.lines(KERNELS, "kernel", put(regime={"batch": 1}))
    return lab.redecided(**{KERNELS: data})


@defect("VER-093")
def wrong_answer_scored_right(lab: Lab) -> Path:
    """Scores are raised in both arms, so that no difference shows."""
    changed = {
        name: maker.edit_lines(data, "item", put(score=1))
        for name, data in lab.members.items()
        if name.startswith("evals/")
    }
    return lab.redecided(**changed)


@defect("VER-093", EVALS)
def lost_answer_scored_right(lab: Lab) -> Path:
    data = lab.lines(
        EVALS, "item", lambda v: v.update(finish_reason="lost") if v["score"] else None
    )
    return lab.redecided(**{EVALS: data})


@defect("VER-094")
def items_of_another_seed(lab: Lab) -> Path:
    """Items chosen after looking at their answers."""
    changed = {
        name: maker.edit_lines(
            data, "item", lambda v: v.update(item=v["item"].replace("chain-8-0-", "chain-8-7-"))
        )
        for name, data in lab.members.items()
        if name.startswith("evals/")
    }
    return lab.redecided(**changed)


@defect("VER-094")
def fewer_items_than_planned(lab: Lab) -> Path:
    """The items that went badly are left out of both arms."""
    changed = {
        name: maker.edit_lines(data, "item", lambda v: None if v["score"] else [])
        for name, data in lab.members.items()
        if name.startswith("evals/")
    }
    return lab.redecided(**changed)


@defect("VER-094", EVALS)
def one_prompt_for_two_items(lab: Lab) -> Path:
    prompts: list[str] = []

    def copy(value: dict[str, Any]) -> None:
        prompts.append(value["prompt_sha256"])
        value["prompt_sha256"] = prompts[0]

    return lab.redecided(**{EVALS: lab.lines(EVALS, "item", copy)})


@defect("VER-094", EVALS)
def answer_longer_than_asked(lab: Lab) -> Path:
    data = lab.lines(EVALS, "item", lambda v: v.update(token_ids=list(range(1000))))
    return lab.redecided(**{EVALS: data})


@defect("VER-095")
def eval_nobody_knows(lab: Lab) -> Path:
    """An eval of the author's own, with scores of the author's own."""
    changed = {
        name: maker.edit_lines(data, "item", put(eval="trust-me", score=1))
        for name, data in lab.members.items()
        if name.startswith("evals/")
    }
    return lab.redecided(**changed)

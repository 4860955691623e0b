"""What was frozen before anything was measured: claim, policy, plan, self-test."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from defects.lab import Lab, defect, put
from fasttrack.bundle import layout
from fasttrack.schema import Claim
from fasttrack.schema._json import canonical_bytes, digest, loads


@defect("VER-050", layout.CLAIM_TOML)
def claim_toml_edited(lab: Lab) -> Path:
    data = lab.members[layout.CLAIM_TOML].replace(b"faster_everywhere", b"slower_nowhere")
    return lab.resealed(**{layout.CLAIM_TOML: data})


@defect("VER-051", layout.CLAIM)
def claim_changed_after_freezing(lab: Lab) -> Path:
    toml = lab.members[layout.CLAIM_TOML].replace(b"faster_everywhere", b"slower_nowhere")
    claim = lab.edited(layout.CLAIM, lambda v: v["speed"].update(sentence="slower_nowhere"))
    return lab.resealed(**{layout.CLAIM_TOML: toml, layout.CLAIM: claim})


@defect("VER-052", layout.POLICY)
def policy_loosened(lab: Lab) -> Path:
    data = lab.edited(layout.POLICY, lambda v: v["numerics"].update(ratio_rms=99))
    return lab.resealed(**{layout.POLICY: data})


@defect("VER-053", layout.PLAN)
def plan_changed_after_freezing(lab: Lab) -> Path:
    data = lab.edited(layout.PLAN, lambda v: v["units"].pop() and None)
    return lab.resealed(**{layout.PLAN: data})


@defect("VER-054", layout.PLAN)
def plan_of_another_target(lab: Lab) -> Path:
    plan = lab.edited(layout.PLAN, put(target="gpu-b"))
    run = lab.edited(layout.RUN, put(plan_sha256=digest(loads(plan))))
    return lab.resealed(**{layout.PLAN: plan, layout.RUN: run})


@defect("VER-054", layout.PLAN)
def plan_with_fewer_items(lab: Lab) -> Path:
    """A tier's name with less measured than the tier means."""
    plan = lab.edited(layout.PLAN, lambda v: v["amounts"].update(items=2))
    run = lab.edited(layout.RUN, put(plan_sha256=digest(loads(plan))))
    return lab.resealed(**{layout.PLAN: plan, layout.RUN: run})


@defect("VER-054", layout.PLAN)
def plan_without_a_block(lab: Lab) -> Path:
    def drop(value: Any) -> None:
        value["units"] = [unit for unit in value["units"] if "block3" not in unit]

    plan = lab.edited(layout.PLAN, drop)
    run = lab.edited(layout.RUN, put(plan_sha256=digest(loads(plan))))
    return lab.resealed(**{layout.PLAN: plan, layout.RUN: run})


@defect("VER-055", layout.RUN)
def self_test_of_another_harness(lab: Lab) -> Path:
    def change(value: Any) -> None:
        value["self_test"]["harness_sha256"] = "0" * 64

    return lab.resealed(**{layout.RUN: lab.edited(layout.RUN, change)})


@defect("VER-055", layout.RUN)
def self_test_of_another_zoo(lab: Lab) -> Path:
    def change(value: Any) -> None:
        value["self_test"]["catalogue_sha256"] = "0" * 64

    return lab.resealed(**{layout.RUN: lab.edited(layout.RUN, change)})


@defect("VER-055", layout.RUN)
def self_test_without_the_plant_that_was_missed(lab: Lab) -> Path:
    def change(value: Any) -> None:
        del value["self_test"]["plants"][0]

    return lab.resealed(**{layout.RUN: lab.edited(layout.RUN, change)})


@defect("VER-002", layout.CLAIM)
def claim_with_too_many_cells(lab: Lab) -> Path:
    """A grid that would exhaust whoever lists its cells."""
    many = ", ".join(map(str, range(1, 300)))
    toml = lab.members[layout.CLAIM_TOML].decode()
    toml = toml.replace("[1, 2]", f"[{many}]").replace("[64]", f"[{many}]")
    toml = toml.replace("max_model_len = 512", "max_model_len = 4096\nmax_num_seqs = 400")
    claim = Claim.model_validate(tomllib.loads(toml))
    run = lab.edited(layout.RUN, put(claim_sha256=claim.digest()))
    data = canonical_bytes(claim.json_value())
    return lab.resealed(**{layout.CLAIM_TOML: toml.encode(), layout.CLAIM: data, layout.RUN: run})


@defect("VER-054", layout.PLAN)
def plan_without_a_cell(lab: Lab) -> Path:
    plan = lab.edited(layout.PLAN, lambda v: v["cells"].pop() and None)
    run = lab.edited(layout.RUN, put(plan_sha256=digest(loads(plan))))
    return lab.resealed(**{layout.PLAN: plan, layout.RUN: run})

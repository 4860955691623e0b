"""Protects the audit's word: every planted kernel is judged as it must be, on three architectures.

Runs from committed disassembly, so without a compiler and without a GPU. `tests/integration/
test_audit.py` compiles the same kernels again where that is possible.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrack.audit.facts import facts_of
from fasttrack.audit.listing import Kernel, read
from fasttrack.rules.hoist import CONTROLS, finding
from fasttrack.schema import CompiledRecord, State

LISTINGS = Path(__file__).parent / "listings"
ARCHS = ("sm_90a", "sm_100a", "sm_103a")
XWY, XWYN = ("x", "w", "y"), ("x", "w", "y", "n")
PLANTS = {
    "late_load": ("late_load", XWY, "w"),
    "static_weight": ("static_weight", XWY, "w"),
    "static_weight_by_tma": ("tma", ("w", "y"), "w"),
    "early_load": ("early_load", XWY, "w"),
    "weight_not_declared": ("static_weight", XWY, ""),
    "early_tma": ("tma", ("x", "y"), ""),
    "moved_by_the_compiler": ("moved_by_the_compiler", XWYN, "w"),
    "wait_in_one_branch": ("wait_in_one_branch", XWY, "w"),
    "wait_at_the_end_of_a_loop": ("wait_at_the_end_of_a_loop", XWYN, "w"),
    "pointer_from_memory": ("pointer_from_memory", ("w", "y"), "w"),
    "early_store": ("early_store", XWY, "w"),
    "no_wait": ("no_wait", XWY, "w"),
}


def kernel(arch: str, function: str) -> Kernel:
    """One committed kernel."""
    (found,) = [
        each
        for each in read((LISTINGS / f"{arch}.sass").read_text())
        if f"cutlass__{function}_" in each.name
    ]
    return found


def record(arch: str, plant: str) -> CompiledRecord:
    """Its record, with the parameters its declaration names."""
    function, names, static = PLANTS[plant]
    facts = facts_of(kernel(arch, function), names, tuple(static.split()))
    return CompiledRecord(cell=f"compiled/{plant}/{arch}", kernel=plant, arch=arch, **facts)


def test_every_control_is_committed() -> None:
    assert set(PLANTS) == set(CONTROLS)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_plant_is_judged_as_it_must_be(arch: str, plant: str) -> None:
    state, reason, detail = finding(record(arch, plant))
    assert reason == CONTROLS[plant], detail
    assert state is (State.PASS if reason == "OK" else State.FAIL)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_finding_names_instruction_and_parameter(arch: str) -> None:
    _, _, detail = finding(record(arch, "early_load"))
    assert "LDG.E R2, desc[UR4][R2.64] at 0xa0, from parameter x" in detail
    _, _, detail = finding(record(arch, "early_tma"))
    assert "UTMALDG.2D" in detail
    assert "parameter x" in detail


@pytest.mark.parametrize("arch", ARCHS)
def test_what_stands_before_the_wait_is_all_there(arch: str) -> None:
    assert kernel(arch, "late_load").arch == arch
    honest = record(arch, "late_load")
    assert len(honest.waits) == 1
    assert not honest.early
    assert not honest.guarded_waits
    assert [tuple(a.parameters) for a in record(arch, "static_weight").early] == [(1,)]
    # Its author may write "w" where the kernel reads x: the audit then says so of every name.
    swapped = facts_of(kernel(arch, "early_load"), ("w", "x", "y"), ("w",))
    assert finding(CompiledRecord(cell="c", **swapped))[1] == "OK"

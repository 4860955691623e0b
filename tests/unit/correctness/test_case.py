"""Protects the case protocol: abilities are found by what a case has, and only in full."""

from __future__ import annotations

from typing import Any

import pytest

from fasttrack.correctness import case as cases
from fasttrack.correctness.cell import skews


class Plain:
    """The whole duty and nothing else."""

    op = "mix"
    outputs = {"y": ("row", "column")}  # noqa: RUF012 - part of the protocol

    def regimes(self) -> Any:
        return [{"batch": 1}]

    def inputs(self, regime: Any, seed: int) -> Any:
        return {}

    def reference(self, inputs: Any) -> Any:
        return {}

    stock = stock_variant = candidate = reference


def test_a_plain_case_offers_nothing() -> None:
    assert isinstance(Plain(), cases.KernelCase)
    assert cases.offered(Plain()) == []
    assert cases.in_place(Plain()) == []
    assert not cases.nondeterministic(Plain())


@pytest.mark.parametrize(
    ("ability", "members"),
    [
        ("rows", {"input_rows": {}, "output_rows": {}}),
        ("padding", {"other_padding": print}),
        ("scalars", {"other_scalars": print}),
        ("neighbours", {"neighbours": print}),
        ("faults", {"faults": print, "planted": print}),
        ("into", {"candidate_into": print}),
        ("work", {"work": print}),
    ],
)
def test_an_ability_needs_all_its_members(ability: str, members: dict[str, Any]) -> None:
    assert cases.offered(type("Able", (Plain,), members)()) == [ability]
    for name in members:
        part = {key: value for key, value in members.items() if key != name}
        assert cases.offered(type("Unable", (Plain,), part)()) == []


def test_liberties_are_declared() -> None:
    free = type("Free", (Plain,), {"in_place": ("cache",), "nondeterministic": True})()
    assert cases.in_place(free) == ["cache"]
    assert cases.nondeterministic(free)


def test_every_rank_is_late_alone_once() -> None:
    delays = skews(3, seed=5)
    alone = [[delay > 0 for delay in row] for row in delays[:3]]
    assert alone == [[rank == late for rank in range(3)] for late in range(3)]
    assert skews(3, seed=5) == delays != skews(3, seed=6)

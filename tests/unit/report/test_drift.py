"""Protects the picture of replayed answers: what is drawn and tabled is the mean change of the gap
per context, stock's beside the candidate's, and odd records draw nothing wrong."""

from __future__ import annotations

import pytest
import zoo_records as zoo

from fasttrack.report import evidence, figures
from fasttrack.report.model import Curves
from fasttrack.report.tally import count

GAPS = {
    ("base", "main"): (4.0, 4.0, None),
    ("base", "replay"): (4.25, 4.0, 4.0),
    ("candidate", "replay"): (5.0, 3.0, 3.0),
}


def replayed(**changes: object) -> list[object]:
    """Two answers behind prompts of 100 and 1000 tokens in three rounds."""
    return [
        zoo.item(index, arm, repeat, tokens=(1, 2, 3), gaps=gaps, prompt_tokens=prompt, **changes)
        for index, prompt in enumerate((100, 1000))
        for (arm, repeat), gaps in GAPS.items()
    ]


def test_changes_are_averaged_per_context_and_arm() -> None:
    ((_, points),) = evidence._drifts(count(replayed()))
    assert points == ((91, 0.125, 1.0), (1024, 0.125, 1.0))


def test_an_answer_without_a_base_or_an_arm_draws_nothing() -> None:
    only_mine = [r for r in replayed() if (r.arm, r.repeat) != ("base", "replay")]
    without_base = [r for r in replayed() if r.repeat == "replay"]
    assert evidence._drifts(count(only_mine)) == evidence._drifts(count(without_base)) == ()


@pytest.mark.parametrize("points", [((64, 0.0, 0.0),), ((64, 0.0, 1e-3), (128, 1e-6, 2.0))])
def test_every_number_of_a_panel_is_told_and_lines_join_neighbours(
    points: tuple[tuple[int, float, float], ...],
) -> None:
    drawn = figures.curves(Curves("Changes", "nats", (("<chain>", points),)), "f")
    for at, stock, mine in points:
        assert f"at {at} {stock:.2g} and {mine:.2g}" in drawn
    assert drawn.count('class="mine"') == drawn.count('class="stock"') == len(points) - 1
    assert "<chain>" not in drawn

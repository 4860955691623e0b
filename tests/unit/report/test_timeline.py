"""Protects the layer timeline: layers are told apart by what was seen, and numbers are its own."""

from __future__ import annotations

import pytest

from fasttrack.engine._fake_evidence import timeline as simulated
from fasttrack.report import figures, html, layers, timeline
from fasttrack.report.model import Span
from fasttrack.report.model import Timeline as Drawn
from fasttrack.report.tally import Tally, count
from fasttrack.schema import Timeline, TimelineRecord


def seen(names: str, kinds: str, layer: str = "", took: float = 3.0) -> Timeline:
    """One span of 3 us per letter, one every 4 us; `layer` has a digit per span, or a blank."""
    known = list(dict.fromkeys(names))
    marks = layer or " " * len(names)
    spans = [
        (known.index(name), 4.0 * at, took, 0, int(mark) if mark.strip() else None)
        for at, (name, mark) in enumerate(zip(names, marks, strict=True))
    ]
    return Timeline(
        device="cpu", kinds=list(kinds), names=known, spans=spans, steps=[(len(spans), 50.0)],
        plain_us=[40.0],
    )  # fmt: skip


def shapes(found: tuple[layers.Part, ...]) -> list[str]:
    return ["".join(span.name for span in part.spans) for part in found]


def test_marked_layers_are_taken_as_marked() -> None:
    parts, how = layers.cut(seen("eabcabch", "kk", " 000111 "))
    assert shapes(parts) == ["abc", "abc"]
    assert how == "the model's modules"


def test_one_marked_layer_does_not_stand_for_all() -> None:
    assert layers.cut(seen("xxyy", "kkk", "00  "))[0] == ()


@pytest.mark.parametrize(
    ("names", "kinds", "wanted"),
    [
        ("ekmkmkmh", "kkk", ["km", "km", "km"]),
        ("ekdkmamkmh", "kkak", ["kd", "km", "am", "km"]),
        ("kmam", "ka", ["km", "am"]),
    ],
)
def test_a_path_past_the_modules_is_cut_at_names_of_once_per_layer(
    names: str, kinds: str, wanted: list[str]
) -> None:
    parts, how = layers.cut(seen(names, kinds))
    assert shapes(parts)[:-1] == wanted[:-1]
    assert shapes(parts)[-1].startswith(wanted[-1])
    assert how.endswith("once per layer")


@pytest.mark.parametrize(("names", "kinds"), [("uuuuuuu", "kkk"), ("akk", "kka"), ("", "kk")])
def test_what_cannot_be_told_apart_is_not(names: str, kinds: str) -> None:
    assert layers.cut(seen(names, kinds))[0] == ()


def test_overlap_and_gaps_add_up() -> None:
    part = layers.cut(simulated(True))[0][1]
    assert [span.name for span in part.spans] == ["fuse", "mix", "expert"]
    assert (part.us, part.busy_us, part.gaps_us, part.overlap_us) == (45, 40, 5, 20)
    stock = layers.cut(simulated(False))[0][0]
    assert (stock.us, stock.busy_us, stock.gaps_us, stock.overlap_us) == (145, 120, 25, 0)
    assert part.from_its_start()[0].start_us == 0


def tally(base: Timeline | None, mine: Timeline | None) -> Tally:
    return count(
        TimelineRecord(session=arm, arm=arm, cell="path/timeline", seen=one, problem="planted")
        for arm, one in (("base", base), ("candidate", mine))
    )


def test_the_picture_shows_both_arms_on_one_scale() -> None:
    section = timeline.section(tally(simulated(False), simulated(True)))
    said = "FullAttention layer: 6 operators 145 us against 3 operators 45 us."
    assert section.paragraphs[0] == said
    assert isinstance(section.figure, Drawn)
    svg = figures.timeline(section.figure, "t")
    assert svg.count('class="span') == 9
    assert svg.index("stock") < svg.index("specialised")
    steps = [row for row in section.tables[0].rows if row[0] == "whole step"]
    assert [row[3] for row in steps] == ["12", "6"]
    assert html._figure(section.figure, "t") == svg


def test_layers_that_cannot_be_told_apart_are_said_to_be() -> None:
    section = timeline.section(tally(simulated(False), seen("uuuu", "kk")))
    assert "could not be told apart" in section.paragraphs[-1]
    assert "2.0 operators and 25 us a layer" in section.paragraphs[-1]
    assert isinstance(section.figure, Drawn)
    assert [len(spans) for _, spans in section.figure.lanes] == [12, 4]


def test_a_step_of_too_many_spans_is_not_drawn() -> None:
    many = seen("u" * (timeline.MOST_DRAWN + 1), "kk")
    assert timeline.section(tally(many, many)).figure is None


def test_what_was_not_profiled_is_said() -> None:
    said = timeline.section(tally(simulated(False), None)).paragraphs
    assert said == ("No timeline of specialised: planted.",)
    assert "left none" in timeline.section(Tally()).paragraphs[0]


def test_spans_that_overlap_are_drawn_apart_and_streams_below_each_other() -> None:
    spans = [
        Span("a", 0, 4, 0), Span("b", 3, 6, 0), Span("c", 4, 5, 0), Span("d", 5.5, 7, 0),
        Span("e", 0, 9, 1),
    ]  # fmt: skip
    found = {span.name: span.track for span in timeline.apart(spans)}
    assert found == {"a": 0, "b": 1, "c": 0, "d": 0, "e": 2}


def test_what_ran_is_listed_arm_beside_arm() -> None:
    pair = {
        arm: layers.whole(seen(names, "k"))
        for arm, names in (("base", "abc"), ("candidate", "d"))
    }  # fmt: skip
    listed = timeline._names("k", pair)  # type: ignore[arg-type]
    assert listed.columns == ("", "k layer, stock", "us", "k layer, specialised", "us")
    assert listed.rows[0] == ("1", "a", "3", "d", "3")
    assert listed.rows[2] == ("3", "c", "3", "-", "-")


def test_a_name_is_drawn_where_it_has_room() -> None:
    spans = Span("wide", 0, 90, 0), Span("narrow", 90, 91, 0), Span("rest", 91, 100, 0)
    drawn = figures.timeline(Drawn("", (("lane", spans),)), "f")
    assert ">wide</text>" in drawn and ">rest</text>" in drawn
    assert ">narrow</text>" not in drawn and "<title>narrow: 1 us</title>" in drawn

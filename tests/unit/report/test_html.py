"""Protects the HTML page: complete, in order, self-contained, and inert whatever a bundle says.

What a browser makes of it is tested in `tests/browser`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import bundle_maker as maker
import pytest
from hostile import HOSTILE
from reader import ATTRIBUTES, TAGS, Reader

from fasttrack.bundle.reader import open_bundle
from fasttrack.report import figures, html, page, style
from fasttrack.report.build import build
from fasttrack.report.model import (
    Forest,
    Mark,
    Report,
    Section,
    Span,
    Timeline,
    clean,
    table,
    times,
)
from fasttrack.schema import Outcome, State, Verdict

TYPICAL_BYTES = 300_000


def made(path: Path) -> Report:
    with open_bundle(path) as bundle:
        return build(bundle)


@pytest.fixture(scope="module")
def report(run_folder: Path) -> Report:
    return made(run_folder)


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return html.render(report)


def test_order_and_content_of_the_page(text: str) -> None:
    parts = re.split(r"<(?:h1|h2|summary)[^>]*>([^<]+)", text)
    assert [title.strip() for title in parts[1::2]] == [
        "Demo: decode without detours", "Not tested by this run", "Outcome", "What is claimed",
        "What needs attention", "Verdicts", "Speed", "Agent traffic", "Isolation", "Path evidence",
        "Path proofs", "Layer timeline",
        "Kernels", "Features", "Evals", "Exclusions and failures", "Run it again", "Provenance",
        "Every verdict",
    ]  # fmt: skip
    inside = dict(zip((title.strip() for title in parts[1::2]), parts[2::2], strict=True))
    for title, words in {
        "Not tested by this run": "tensor parallelism",
        "Outcome": "PASS",
        "What is claimed": "additional_config.decode_backend",
        "Verdicts": "Is decoding as fast as claimed?",
        "Speed": "<svg role",
        "Path evidence": ">candidate<",
        "Kernels": ">mix<",
        "Run it again": "--only perf --cell",
        "Provenance": "source commit",
        "Every verdict": "SPD-FASTER",
    }.items():
        assert words in inside[title], title


def test_every_number_has_its_interval(text: str, report: Report) -> None:
    told = Reader(text).text
    for verdict in report.verdicts:
        if verdict.rule == "speed" and verdict.estimate is not None:
            assert f"{times(verdict.estimate)} [" in told
            assert f"{times(verdict.lower)} to" in told


def test_nothing_is_loaded_and_nothing_runs(text: str) -> None:
    found = Reader(text)
    assert found.tags <= TAGS
    assert {name for _, name, _ in found.attributes} <= ATTRIBUTES
    assert all(value.startswith("#") for _, name, value in found.attributes if name == "href")
    assert not re.search(r"url\(|@import|expression\(", style.CSS)
    policy = next(v for _, n, v in found.attributes if n == "content" and "default-src" in v)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "script-src" not in policy


def test_ids_are_unique_and_links_lead_somewhere(text: str) -> None:
    attributes = Reader(text).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert {v[1:] for _, n, v in attributes if n == "href"} <= set(ids)
    for _, name, value in attributes:
        if name == "aria-labelledby":
            assert set(value.split()) <= set(ids)


def test_same_report_gives_same_bytes(run_folder: Path, honest: Path, text: str) -> None:
    assert html.render(made(run_folder)) == text
    assert html.render(made(honest)) == text


def test_typical_size(text: str) -> None:
    assert len(text.encode()) < TYPICAL_BYTES


def test_a_huge_bundle_is_cut_and_counted(report: Report) -> None:
    many = html.render(replace(report, verdicts=report.verdicts[:1] * 20_000))
    assert "19400 more rows" in many
    assert len(many.encode()) < 1_000_000


def hostile(text: str, base: Report) -> Report:
    """A report that says `text` wherever a bundle can speak."""
    verdict = Verdict(
        rule=text, cell=text, state=State.FAIL, reason=text, detail=text, unit=text, next=text
    )
    said = clean(text)
    forest = Forest(said, said, said, said, (Mark(said, "FASTER", 1.5, 1.4, 1.6, 1.01),))
    spans = (Span(said, 0.0, 2.0), Span(said, 2.0, 3.0, track=1))
    sections = [
        Section(said, (said,), (table((said, "Command"), [(text, text)], 5),), figure, folded=fold)
        for figure, fold in ((forest, False), (Timeline(said, ((said, spans),)), True))
    ]
    return Report(
        title=said, summary=said, facts=((said, said),), untested=(said,),
        outcome=Outcome(state=State.FAIL, admissible=False), headline=said,
        not_admissible_because=(said,), sections=tuple(sections), verdicts=(verdict,),
    )  # fmt: skip


@pytest.mark.parametrize("text", [*HOSTILE, '" onload="alert(1)', "' style='x", "]]></style>"])
def test_a_hostile_text_is_shown_and_does_nothing(text: str, report: Report) -> None:
    found = Reader(html.render(hostile(text, report)))
    assert found.tags <= TAGS
    assert {name for _, name, _ in found.attributes} <= ATTRIBUTES
    assert all(value.startswith("#") for _, name, value in found.attributes if name == "href")
    assert clean(text) in found.text.replace("/ ", "/") or clean(text) in "".join(found.texts)
    assert not set(found.text) & {"\u202e", "\u200b", "\x1b", "\x07"}


def test_planted_markup_is_noticed() -> None:
    assert not Reader("<p><script>x</script></p>").tags <= TAGS
    with pytest.raises(AssertionError):
        Reader("<section><p></section></p>")


def test_states_become_chips_and_other_words_do_not() -> None:
    shown = page.grid(table(("A",), [("2 FAIL, 1 PASS",), ("PASS me",), ("FAIL",)], 5), "x")
    assert '<span class="chip bad">2 FAIL</span> <span class="chip good">1 PASS</span>' in shown
    assert '<span class="chip bad">FAIL</span>' in shown
    assert ">PASS me<" in shown


def places(svg: str) -> list[float]:
    return [float(value) for value in re.findall(r'\bx[12]?="(-?[\d.]+)%"', svg)]


def test_forest_shows_estimate_interval_floor_and_stock() -> None:
    marks = (Mark("1 x 64", "FASTER", 2.0, 1.9, 2.1, 1.05), Mark("2 x 64", "MISSING"))
    svg = figures.forest(Forest("Speed-up", "batch", "faster", "slower", marks), "f")
    assert svg.count('class="band"') == 1
    assert svg.count('class="reach good"') == 3
    assert 'class="unit"' in svg
    assert "1 x 64: 2.00x [1.900x, 2.10x] FASTER; 2 x 64: MISSING" in svg
    lower, estimate, upper = (figures._place(v, 1.0, 4.0) for v in (1.9, 2.0, 2.1))
    assert figures.LEFT < lower < estimate < upper < figures.RIGHT
    assert figures._place(2.0, 1.0, 4.0) == (figures.LEFT + figures.RIGHT) / 2


@pytest.mark.parametrize("value", [0.0, -5.0, 1e-300, 1e300, 1.0])
def test_impossible_ratios_stay_inside_the_plot(value: float) -> None:
    marks = (Mark("a", "FASTER", value, value, value, value), Mark("b", "FASTER", value))
    svg = figures.forest(Forest("t", "l", "b", "w", marks), "f")
    assert all(0 <= place <= 100 for place in places(svg))


def test_an_empty_plot_is_drawn() -> None:
    assert "<svg" in figures.forest(Forest("t", "l", "b", "w", ()), "f")
    assert "<svg" in figures.timeline(Timeline("t", ()), "f")


def test_ticks_are_few_round_and_hold_one() -> None:
    ends = (0.02, 0.5, 0.9, 0.98, 0.995, 1.0)
    for low, up in itertools.product(ends, (1.001, 1.02, 1.3, 1.9, 3.3, 9.0, 60.0)):
        found = figures.ticks(low, up)
        assert found == sorted(found)
        assert 1.0 in found
        assert len(found) <= 13
        assert all(low <= tick <= up for tick in found)


def test_timeline_draws_one_bar_per_kernel() -> None:
    lanes = (
        ("stock: 2 kernels, 130 us", (Span("gemm", 0, 100), Span("norm", 100, 130))),
        ("specialised: 1 kernel, 69 us", (Span("fused", 0, 69, track=1),)),
    )
    svg = figures.timeline(Timeline("One layer", lanes), "t")
    assert svg.count('class="span') == 3
    assert "gemm: 100 us" in svg and "fused: 69 us" in svg
    assert svg.index("stock") < svg.index("specialised")
    assert 'width="76.923%"' in svg


def test_failed_page_says_fail(tmp_path: Path) -> None:
    folder = maker.run_folder(tmp_path / "run", edit=lambda r: None if r.kind == "sample" else r)
    text = html.render(made(folder))
    assert '<div class="answer open">' in text
    assert "INCONCLUSIVE" in text


def luminance(colour: str) -> float:
    """Relative luminance as in WCAG 2.2."""
    digits = colour.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", range(3), ids=["light", "dark", "print"])
def test_colours_can_be_told_apart(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", style.CSS, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", blocks[scheme]))
    pairs = [("ink", "bg"), ("ink", "card"), ("soft", "bg"), ("soft", "card")]
    pairs += [(s, f"{s}-bg") for s in ("good", "bad", "open")]
    pairs += [(s, "card") for s in ("good", "bad", "open")]
    for front, back in pairs:
        high, low = sorted((luminance(colours[front]), luminance(colours[back])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (front, back)

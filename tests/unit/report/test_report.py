"""Protects the page a maintainer reads: right order, bounded, and unable to be abused by names."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import bundle_maker as maker
import pytest
from hostile import HOSTILE
from rich.console import Console

from fasttrack.bundle.reader import open_bundle
from fasttrack.report import junit, markdown, terminal
from fasttrack.report.build import build
from fasttrack.report.model import Report, Section, clean, table, times
from fasttrack.schema import FailureRecord, Outcome, Record, State, Verdict


def shown(report: Report) -> str:
    out = io.StringIO()
    terminal.show(report, Console(file=out, width=100, force_terminal=False))
    return out.getvalue()


def made(path: Path) -> Report:
    with open_bundle(path) as bundle:
        return build(bundle)


def test_untested_scope_comes_first(run_folder: Path) -> None:
    for text in (markdown.render(made(run_folder)), shown(made(run_folder))):
        assert 0 < text.index("Not tested by this run") < text.index("PASS")
        assert text.index("PASS") < text.index("Speed") < text.index("Run it again")


def test_every_part_is_there(run_folder: Path) -> None:
    report = made(run_folder)
    titles = [section.title for section in report.sections]
    assert titles == [
        "What needs attention", "Verdicts", "Speed", "Agent traffic", "Isolation", "Path evidence",
        "Path proofs", "Layer timeline",
        "Kernels", "Features", "Evals", "Exclusions and failures", "Run it again", "Provenance",
    ]  # fmt: skip
    text = markdown.render(report)
    speed = next(v for v in report.verdicts if v.rule == "speed" and "batch=1/" in v.cell)
    assert f"| 1 | 64 | {times(speed.estimate)} |" in text
    assert re.search(r"\| perf \| candidate \| \d{2,} \| 0 \| \d+ \| 0 \| PASS \| none \|", text)
    assert re.search(r"\| abort \| 1 checks hold \| 1 checks hold \| PASS \| \d+ \|", text)
    assert "the engine's own decode" in text
    assert "fasttrack verify FILE" in text


def test_same_page_before_and_after_packing_and_signing(run_folder: Path, honest: Path) -> None:
    inside = maker.explode(honest)["report/report.md"].decode()
    assert markdown.render(made(honest)) == inside


def test_failures_name_op_cell_and_slice(tmp_path: Path) -> None:
    def worse(record: Record) -> Record:
        if record.kind == "kernel" and record.control is None:
            return record.model_copy(update={"candidate": maker.errors(5.0)})
        return record

    report = made(maker.run_folder(tmp_path / "run", edit=worse))
    assert report.outcome.state is State.FAIL
    for text in (markdown.render(report), shown(report)):
        for word in ("mix", "batch=1", "row=0"):
            assert word in text
    attention = report.sections[0].tables[0].rows
    assert all(row[0] == "FAIL" for row in attention[:2])


def test_failed_units_stay_visible(run_folder: Path, tmp_path: Path) -> None:
    from fasttrack.bundle.writer import RunFolder

    maker.run_folder(tmp_path / "run")
    with RunFolder.open(tmp_path / "run") as run:
        run.append_failure(
            FailureRecord(
                stage="perf", unit="block0-0-base-01", code="ENG-003", cause="killed by signal 9",
                next="repeat",
            )
        )  # fmt: skip
    text = markdown.render(made(tmp_path / "run"))
    assert "ENG-003" in text and "killed by signal 9" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_text_and_does_nothing(text: str) -> None:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    page = f"{markdown.escape(clean(text))}\n\n| {markdown.escape(clean(text))} | x |\n| - | - |\n"
    tokens = parser.parse(page)
    inline = [child.type for token in tokens for child in token.children or ()]
    assert set(inline) <= {"text", "text_special"}
    assert [t.type for t in tokens if "open" in t.type].count("table_open") == 1
    cells = [t.content for t in tokens if t.type == "inline"]
    assert len(cells) == 3
    kinds = {t.type for t in tokens}
    assert not kinds & {"html_block", "heading_open", "bullet_list_open", "ordered_list_open",
                        "blockquote_open", "fence", "code_block", "hr"}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_names_nobody(text: str) -> None:
    safe = markdown.escape(clean(text))
    for trigger in ("@maintainer", "#1", "GH-2", "https://", "www.", "<"):
        assert trigger not in safe


@pytest.mark.parametrize("text", HOSTILE)
def test_terminal_and_xml_show_text_and_do_nothing(text: str, run_folder: Path) -> None:
    base = made(run_folder)
    verdict = base.verdicts[0].model_copy(
        update={"cell": text, "detail": f"[red]{text}[/red]", "state": State.FAIL}
    )
    report = Report(
        title=clean(text), summary=clean(text), facts=((clean(text), clean(text)),),
        untested=(clean(text),), outcome=base.outcome, headline=clean(f"[bold]{text}"),
        not_admissible_because=(clean(text),),
        sections=(Section(clean(text), (clean(text),), (table(("A",), [(text,)], 5),)),),
        verdicts=(verdict,),
    )  # fmt: skip
    out = shown(report)
    assert "\x1b" not in out and "\u202e" not in out and "\x07" not in out
    assert "[bold]" in out
    suite = ElementTree.fromstring(junit.render(report))
    assert suite.get("failures") == "1"


def test_clean_is_one_bounded_visible_line() -> None:
    assert clean("a\nb\tc\r\n d") == "a b c d"
    assert clean("x\u202ey") == "x\\u202ey"
    assert len(clean("y" * 10_000)) == 400
    assert clean("z" * 400) == "z" * 400


def huge(run_folder: Path) -> Report:
    base = made(run_folder)
    verdict = Verdict(
        rule="numerics", cell="c" * 300, state=State.FAIL, reason="NUM-RATIO", detail="|" * 400
    )
    rows = [("|" * 400,) * 6] * 200
    return Report(
        title=base.title, summary="*" * 2000, facts=base.facts, untested=("_" * 400,) * 60,
        outcome=Outcome(state=State.FAIL, admissible=False), headline="x",
        not_admissible_because=(), verdicts=(verdict,) * 5000,
        sections=tuple(Section(str(n), ("`" * 400,) * 8, (table("abcdef", rows, 120),))
                       for n in range(12)),
    )  # fmt: skip


def test_the_short_form_fits_two_screens(run_folder: Path, tmp_path: Path) -> None:
    lines = shown(made(run_folder)).splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 100

    def spoilt(record: Record) -> Record | None:
        return None if record.kind in ("feature", "sample") else record

    lines = shown(made(maker.run_folder(tmp_path / "run", edit=spoilt))).splitlines()
    assert len(lines) <= 90
    assert any(line.startswith("MISSING") for line in lines)


def test_the_short_form_says_where_the_rest_is(run_folder: Path) -> None:
    text = shown(made(run_folder))
    assert "Features, Evals" in text
    assert "fasttrack report FILE --html report.html" in text


def test_every_op_is_one_row(run_folder: Path) -> None:
    kernels = next(s for s in made(run_folder).sections if s.title == "Kernels")
    (row,) = kernels.tables[0].rows
    assert row[0] == "mix" and row[-1] == "2 PASS"


def test_what_decides_is_named_first(tmp_path: Path) -> None:
    run = maker.run_folder(tmp_path / "run", edit=lambda record: maker.paced(record, 3))
    attention = made(run).sections[0].tables[0].rows
    assert [row[0] for row in attention] == ["FAIL", "SLOWER", "SLOWER"]


def test_commands_cover_every_open_rule_before_they_repeat_one(tmp_path: Path) -> None:
    def spoilt(record: Record) -> Record | None:
        if record.kind == "kernel" and record.control is None:
            return record.model_copy(update={"candidate": maker.errors(5.0)})
        return None if record.kind == "feature" else record

    report = made(maker.run_folder(tmp_path / "run", edit=spoilt))
    again = next(section for section in report.sections if section.title == "Run it again")
    rules = [row[0].split()[0] for row in again.tables[0].rows]
    assert rules[:4] == ["the", "numerics", "features", "numerics"]


def test_page_is_bounded(run_folder: Path) -> None:
    assert len(markdown.render(huge(run_folder)).encode()) <= markdown.LIMIT
    assert len(shown(huge(run_folder))) < 2_000_000


def test_page_of_ordinary_size_is_not_cut(run_folder: Path) -> None:
    assert "more rows" not in markdown.render(made(run_folder))


def test_omitted_rows_are_counted() -> None:
    assert table(("A",), [(1,), (2,), (3,)], 2).omitted == 1


def test_junit_never_shows_open_as_green(tmp_path: Path) -> None:
    edit: Any = lambda r: None if r.kind == "feature" else r  # noqa: E731
    suite = ElementTree.fromstring(junit.render(made(maker.run_folder(tmp_path / "r", edit=edit))))
    assert int(suite.get("errors", "0")) >= 5
    assert suite.get("failures") == "0"
    total = int(suite.get("tests", "0"))
    assert total == len(suite.findall("testcase"))


def test_energy_is_told_per_token_where_the_machine_tells_it(tmp_path: Path) -> None:
    def metered(record: Record) -> Record:
        if record.kind != "monitor":
            return record
        joules = 10.0 if record.session.endswith("base") else 5.0
        return record.model_copy(update={"values": {**record.values, "gpu_joules": joules}})

    text = markdown.render(made(maker.run_folder(tmp_path / "run", edit=metered)))
    told = re.search(r"Energy of GPUs: (\S+) J per token in stock, (\S+) J specialised", text)
    assert told is not None
    assert float(told[1]) == pytest.approx(2 * float(told[2]), rel=0.02)


def test_nothing_is_said_of_energy_that_nobody_told(run_folder: Path) -> None:
    assert "Energy of" not in markdown.render(made(run_folder))

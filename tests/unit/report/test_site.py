"""Protects the index: every file is listed, refused ones first and mute, always the same bytes."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path

import bundle_maker as maker
import pytest
from hostile import HOSTILE
from reader import ATTRIBUTES, TAGS, Reader

from fasttrack.cli.site import site
from fasttrack.errors import UsageError
from fasttrack.report import site as room
from fasttrack.report.site import Entry

MORE_TAGS = {"script", "form", "label", "select", "option", "button", "output", "br"}
MORE_ATTRIBUTES = {
    "hidden", "value", "type", "colspan", "data-model", "data-target", "data-machine", "data-state",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, honest: Path) -> Path:
    """One file that verifies and one that does not."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    shutil.copy(honest, tmp_path / "in" / "deep")
    data = bytearray(honest.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "in" / "spoilt.ftb").write_bytes(data)
    return tmp_path / "in"


def make(folder: Path, out: Path, signers: Path | None = None) -> str:
    """The index page that the command writes."""
    assert site(folder, out=out, allowed_signers=signers) == 0
    return (out / "index.html").read_text()


def test_every_file_is_listed(folder: Path, honest: Path, tmp_path: Path) -> None:
    text = make(folder, tmp_path / "out")
    told = Reader(text).text
    assert "1 of 2 files refused" in told
    assert f"deep/{honest.name}" in told
    assert "DemoForCausalLM" in told and "ada@example.org" in told and "gpu-a" in told
    (page,) = (tmp_path / "out" / "reports").iterdir()
    assert f'href="reports/{page.name}"' in text
    assert "Demo: decode without detours" in page.read_text()


def test_a_refused_file_stands_first_with_its_code_alone(folder: Path, tmp_path: Path) -> None:
    text = make(folder, tmp_path / "out")
    first = text.split("<tbody", 1)[1].split("</tr>", 1)[0]
    assert "REFUSED" in first and "VER-007" in first and "spoilt.ftb" in first
    assert "decode without detours" not in first and "href" not in first


def test_signers_that_are_not_listed_are_refused(folder: Path, tmp_path: Path, key: Path) -> None:
    other = maker.write_key(tmp_path / "other")
    listed = tmp_path / "allowed"
    listed.write_text(f"ada@example.org {maker.public_line(other)}\n")
    assert "2 of 2 files refused" in make(folder, tmp_path / "out", listed)
    listed.write_text(f"ada@example.org {maker.public_line(key)}\n")
    assert "1 of 2 files refused" in make(folder, tmp_path / "out", listed)


def test_same_files_give_same_bytes(folder: Path, tmp_path: Path) -> None:
    one, two = make(folder, tmp_path / "one"), make(folder, tmp_path / "two")
    assert one == two
    pages = [sorted((tmp_path / name / "reports").iterdir()) for name in ("one", "two")]
    assert [p.name for p in pages[0]] == [p.name for p in pages[1]]
    assert [p.read_bytes() for p in pages[0]] == [p.read_bytes() for p in pages[1]]


def test_order_of_entries_does_not_matter() -> None:
    entries = [
        Entry("b.ftb", "PASS", "", created="2026-01-01"), room.refused("a.ftb", "VER-001", "x"),
        Entry("c.ftb", "FAIL", "", created="2026-02-01"), Entry("a.ftb", "PASS", "", created=""),
    ]  # fmt: skip
    text = room.render(entries)
    assert text == room.render(entries[::-1])
    assert re.findall(r"<code>(\w\.ftb)", text) == ["a.ftb", "c.ftb", "b.ftb", "a.ftb"]


def test_pages_of_files_that_are_gone_go_too(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(folder, out)
    (out / "reports" / "stale.html").write_text("old")
    (out / "CNAME").write_text("kept")
    make(folder, out)
    assert len(list((out / "reports").iterdir())) == 1
    assert (out / "CNAME").read_text() == "kept"


def test_does_not_write_among_other_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(UsageError, match="USE-002"):
        make(folder, tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


def test_an_empty_folder_gives_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert "0 of 0 files" in make(tmp_path / "in", tmp_path / "out")
    with pytest.raises(UsageError, match="USE-001"):
        make(tmp_path / "nowhere", tmp_path / "out")


def test_policy_allows_exactly_the_script(folder: Path, tmp_path: Path) -> None:
    text = make(folder, tmp_path / "out")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "unsafe-inline" not in text.split("script-src", 1)[1].split('"', 1)[0]
    assert "<form hidden>" in text


@pytest.mark.parametrize("text", [*HOSTILE, '" onclick="alert(1)', "</script><script>x"])
def test_a_hostile_text_is_shown_and_does_nothing(text: str) -> None:
    said = " ".join(text.split())
    entries = [
        room.refused(text, text, text),
        Entry(
            said, "PASS", said, page="reports/x.html", title=said, models=(said, "B"), target=said,
            machine=said, tier=said, speed=said, created=said, signers=(said,),
        ),
    ]  # fmt: skip
    page = room.render(entries)
    found = Reader(page)
    assert found.tags <= TAGS | MORE_TAGS
    assert {name for _, name, _ in found.attributes} <= ATTRIBUTES | MORE_ATTRIBUTES
    assert page.count("<script>") == 1
    assert [v for _, n, v in found.attributes if n == "href"] == ["reports/x.html"]
    assert not set(found.text) & {"\u202e", "\u200b", "\x1b", "\x07"}

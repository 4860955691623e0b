"""Protects what a reader sees: pages in a real browser, on a phone and on a desk.

Screenshots are left in `.cache/screenshots`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium, Seen

WIDTHS = (390, 1280)
# What sticks out of the window although its box does not scroll.
STICKING_OUT = """
[...document.querySelectorAll("body *")].filter((e) => {
  const r = e.getBoundingClientRect();
  return r.width && r.right > document.documentElement.clientWidth + 1 && !e.closest(".box");
}).map((e) => e.outerHTML.slice(0, 200))
"""
# Texts of a plot that lie on each other.
OVERLAPS = """
[...document.querySelectorAll("svg[role=img]")].flatMap((svg) => {
  const texts = [...svg.querySelectorAll("text")].filter((t) => t.getBoundingClientRect().width);
  return texts.flatMap((a, i) => texts.slice(i + 1).filter((b) => {
    const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
    return p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom;
  }).map((b) => a.textContent + " | " + b.textContent));
})
"""


def quiet(seen: Seen, page: Path) -> None:
    """The page asked for nothing but itself, and nobody complained."""
    assert seen.requests == [page.resolve().as_uri()]
    assert seen.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["good", "bad", "site"])
def test_a_page_fits_and_keeps_to_itself(
    browser: Chromium, pages: dict[str, Path], screenshots: Path, name: str, width: int, dark: bool
) -> None:
    seen = browser.open(pages[name], width=width, dark=dark)
    browser.screenshot(screenshots / f"{name}-{width}-{'dark' if dark else 'light'}.png")
    page = "document.documentElement"
    assert browser.evaluate(f"{page}.clientWidth") == width
    assert browser.evaluate(f"{page}.scrollWidth") <= width
    assert browser.evaluate(STICKING_OUT) == []
    assert browser.evaluate(OVERLAPS) == []
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
    quiet(seen, pages[name])


@pytest.mark.parametrize("width", WIDTHS)
def test_every_detail_fits_when_it_is_opened(
    browser: Chromium, pages: dict[str, Path], width: int
) -> None:
    browser.open(pages["bad"], width=width)
    browser.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(STICKING_OUT) == []


def test_the_answer_is_on_the_first_screen(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["bad"], width=1280)
    bottom = browser.evaluate("document.querySelector('.head').getBoundingClientRect().bottom")
    assert 0 < bottom < 700
    first = "[...document.querySelectorAll('.head h2')].map((h) => h.textContent)"
    assert browser.evaluate(first) == ["Not tested by this run", "Outcome"]


def test_a_report_needs_no_script(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["bad"], width=390, script=False)
    assert browser.evaluate("document.scripts.length") == 0
    words = browser.evaluate("document.body.innerText")
    for word in ("Not tested by this run", "FAIL", "SLOWER", "batch \u00d7 context", "NUM-RATIO"):
        assert word in words


def test_details_are_printed(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["good"], width=800)
    height = "document.querySelector('details').getBoundingClientRect().height"
    closed = browser.evaluate(height)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(height) > 5 * closed
    assert browser.printed().startswith(b"%PDF")


def rows(browser: Chromium) -> list[Any]:
    """State of every row of the index that is shown."""
    found: list[Any] = browser.evaluate(
        "[...document.querySelectorAll('tbody tr')].filter((r) => r.offsetHeight)"
        ".map((r) => r.dataset.state)"
    )
    return found


def choose(browser: Chromium, name: str, value: str) -> None:
    """Pick an option of a filter as a user does."""
    browser.evaluate(
        f"(() => {{ const s = document.querySelector('select[name={name}]'); "
        f"s.value = '{value}'; s.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
    )


def test_the_index_can_be_filtered(browser: Chromium, pages: dict[str, Path]) -> None:
    seen = browser.open(pages["site"], width=1280)
    assert rows(browser)[0] == "REFUSED" and sorted(rows(browser)[1:]) == ["FAIL", "PASS"]
    assert browser.evaluate("document.querySelector('output').value") == "3 of 3 files"
    choose(browser, "state", "FAIL")
    assert rows(browser) == ["FAIL"]
    assert browser.evaluate("document.querySelector('output').value") == "1 of 3 files"
    choose(browser, "state", "")
    choose(browser, "model", "DemoForCausalLM")
    assert sorted(rows(browser)) == ["FAIL", "PASS"]
    choose(browser, "target", "-")
    assert rows(browser) == []
    browser.evaluate("document.querySelector('button').click()")
    browser.evaluate("new Promise((done) => setTimeout(done, 20))")
    assert len(rows(browser)) == 3
    quiet(seen, pages["site"])


def test_without_script_the_index_is_a_table(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["site"], width=390, script=False)
    assert len(rows(browser)) == 3
    assert browser.evaluate("document.querySelector('form').offsetHeight") == 0


def test_the_index_leads_to_the_reports(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["site"], width=1280)
    links = browser.evaluate("[...document.querySelectorAll('tbody a')].map((a) => a.href)")
    assert len(links) == 2
    for link in links:
        assert Path(link.removeprefix("file://")).is_file()


def test_planted_faults_are_noticed(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
        "<div style='width:900px'>wide</div><script>console.log(1)</script>"
        f"<img src='{(tmp_path / 'x.png').as_uri()}'>"
    )
    seen = browser.open(page, width=390)
    assert any("Content Security Policy" in text for text in seen.complaints)
    page.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'>"
        "<div style='width:900px'>wide</div><script>console.log(1)</script>"
        f"<img src='{(tmp_path / 'x.png').as_uri()}'>"
    )
    seen = browser.open(page, width=390)
    assert len(seen.requests) == 2
    assert seen.complaints
    assert browser.evaluate("document.documentElement.scrollWidth") > 390
    assert browser.evaluate(STICKING_OUT) != []

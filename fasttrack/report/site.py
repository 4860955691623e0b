"""A static index of result files: one table, refused files first, and filters where scripts run.

Owns what an entry says and the index page; each accepted file has a page of its own, made by
`html`. Without its script the index is a plain table. Verifies nothing: the caller says which files
were accepted. Read by the CLI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fasttrack.bundle.reader import Bundle
from fasttrack.report import origin, page
from fasttrack.report.model import clean, times
from fasttrack.schema import State

REFUSED = "REFUSED"
NONE = "-"
FILTERS = ("Model", "Target", "Machine", "State")
"""Columns that can be filtered by."""
SCRIPT = """\
"use strict";
const form = document.querySelector("form");
const rows = [...document.querySelectorAll("tbody tr")];
const told = document.querySelector("output");
function show() {
  let left = 0;
  for (const row of rows) {
    row.hidden = [...form.querySelectorAll("select")].some((choice) =>
      choice.value && !row.dataset[choice.name].split("\\n").includes(choice.value));
    left += row.hidden ? 0 : 1;
  }
  told.value = left + " of " + rows.length + " files";
}
form.addEventListener("change", show);
form.addEventListener("reset", () => setTimeout(show));
form.hidden = false;
show();
"""


@dataclass(frozen=True)
class Entry:
    """One file below the folder: what an accepted one says, or why one was refused."""

    file: str
    """Path relative to the folder, POSIX."""
    state: str
    """State of the outcome, or `REFUSED`."""
    told: str
    """Headline of an accepted file; code and cause of a refused one."""
    page: str = ""
    """Path of its own page, relative to the index."""
    title: str = ""
    models: tuple[str, ...] = ()
    target: str = NONE
    machine: str = NONE
    tier: str = NONE
    speed: str = NONE
    created: str = ""
    signers: tuple[str, ...] = ()
    admissible: bool = False


def accepted(
    file: str, bundle: Bundle, headline: str, page_path: str, signers: Sequence[str]
) -> Entry:
    """The entry of a file that verified."""
    claim, run, outcome = bundle.claim, bundle.run, bundle.outcome
    found = [v.estimate for v in bundle.verdicts if v.rule == "speed" and v.estimate is not None]
    speed = f"{times(min(found))} to {times(max(found))}, {len(found)} cells" if found else NONE
    return Entry(
        file=clean(file),
        state=outcome.state.value,
        told=headline,
        page=page_path,
        title=clean(claim.title),
        models=tuple(clean(model) for model in claim.scope.models),
        target=clean(run.target),
        machine=clean(origin.machine_line(bundle.provenance)),
        tier=run.tier.value,
        speed=speed,
        created=clean(run.created_utc),
        signers=tuple(clean(signer) for signer in signers),
        admissible=outcome.admissible,
    )


def refused(file: str, code: str, cause: str) -> Entry:
    """The entry of a file that did not: nothing of what it says is shown."""
    return Entry(file=clean(file), state=REFUSED, told=clean(f"{code}: {cause}"))


def render(entries: Sequence[Entry]) -> str:
    """The index page: refused files first, then the newest; any order of entries gives the same."""
    by_file = sorted(entries, key=lambda entry: entry.file)
    newest = sorted(by_file, key=lambda entry: entry.created, reverse=True)
    ordered = sorted(newest, key=lambda entry: entry.state != REFUSED)
    return page.document("Result files", "".join(_body(ordered)), SCRIPT)


def _body(entries: Sequence[Entry]) -> Iterator[str]:
    bad = sum(entry.state == REFUSED for entry in entries)
    yield '<p class="brow">fasttrack</p>\n<h1>Result files</h1>\n'
    yield (
        f"<p>{bad} of {len(entries)} files refused. Every other one was verified before it was "
        "listed: its verdicts follow from the raw records inside it. Whether an honest machine "
        "made those records, only a second measurement can tell.</p>\n"
    )
    yield from _form(entries)
    yield '<section aria-label="Files">\n<div class="box" role="region" tabindex="0" '
    yield 'aria-label="Files">\n<table role="table" class="stack">\n'
    yield '<thead role="rowgroup"><tr role="row">'
    for name in ("Result", "State", "Model", "Hardware", "Speed-up", "Run", "Signed by"):
        yield f'<th role="columnheader" scope="col">{name}</th>'
    yield '</tr></thead>\n<tbody role="rowgroup">\n'
    for entry in entries:
        yield from _row(entry)
    yield "</tbody>\n</table>\n</div>\n</section>\n"


def _form(entries: Sequence[Entry]) -> Iterator[str]:
    yield "<form hidden>\n"
    for name in FILTERS:
        values = sorted({value for entry in entries for value in _values(entry)[name]})
        yield f'<label>{name}<select name="{name.lower()}"><option value="">all</option>'
        yield "".join(f"<option>{page.text(value)}</option>" for value in values)
        yield "</select></label>\n"
    yield '<button type="reset">Show all</button>\n<output></output>\n</form>\n'


def _values(entry: Entry) -> dict[str, tuple[str, ...]]:
    return {
        "Model": entry.models or (NONE,),
        "Target": (entry.target,),
        "Machine": (entry.machine,),
        "State": (entry.state,),
    }


def _row(entry: Entry) -> Iterator[str]:
    marks = "".join(
        f' data-{name.lower()}="{"&#10;".join(page.text(value) for value in values)}"'
        for name, values in _values(entry).items()
    )
    yield f'<tr role="row"{marks}>'
    file = f"<code>{page.text(entry.file).replace('/', '/<wbr>')}</code>"
    if entry.page:
        link = f'<a href="{page.text(entry.page)}">{page.text(entry.title)}</a>'
        file = f"{link}<br>{file}"
    yield f'<th role="rowheader" scope="row" class="say">{file}</th>'
    if entry.state == REFUSED:
        chip = f'<span class="chip bad">{REFUSED}</span>'
        yield _cell("State", f"{chip} {page.text(entry.told)}", ' colspan="6"')
    else:
        chip = page.chip(State(entry.state))
        if not entry.admissible:
            chip += '<span class="chip open">not admissible</span>'
        yield _cell("State", chip)
        yield _cell("Model", _lines(entry.models))
        yield _cell("Hardware", _lines((entry.target, entry.machine)))
        yield _cell("Speed-up", page.text(entry.speed))
        yield _cell("Run", _lines((entry.tier, entry.created[:10])), ' class="one"')
        yield _cell("Signed by", _lines(entry.signers))
    yield "</tr>\n"


def _lines(values: Sequence[str]) -> str:
    return "<br>".join(page.text(value) for value in values)


def _cell(name: str, markup: str, extra: str = "") -> str:
    return f'<td role="cell" data-name="{name}"{extra}><div>{markup}</div></td>'

"""`fasttrack site`: a static index of all result files below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasttrack.bundle.archive import SUFFIX
from fasttrack.bundle.atomic import write_bytes
from fasttrack.bundle.reader import open_bundle
from fasttrack.cli.common import JsonOption, emit, talk
from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.report import html
from fasttrack.report import site as room
from fasttrack.report.build import build
from fasttrack.verify import steps

INDEX = "index.html"
REPORTS = "reports"
DIGITS = 16


def site(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that holds .ftb files, at any depth.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the site; its own pages are replaced.")],
    allowed_signers: Annotated[
        Path | None,
        typer.Option(help="OpenSSH allowed_signers file: refuse files that nobody in it signed."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write index.html and one report per result file; open it from disk or from any web server.

    Every file is verified first. A refused one is listed with its code and without what it says.
    The site is written either way, so the exit status is 0; --json tells how many were refused.
    """
    if not folder.is_dir():
        raise UsageError("USE-001", f"{folder} is not a folder", next_step="fasttrack site --help")
    _check_own(out)
    entries: list[room.Entry] = []
    pages: dict[str, bytes] = {}
    console = talk()
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        entry = _entry(path, path.relative_to(folder).as_posix(), allowed_signers, pages)
        entries.append(entry)
        console.print(f"{entry.state:<12} {entry.file}", markup=False, soft_wrap=True)
    for stale in (out / REPORTS).glob("*.html"):
        if f"{REPORTS}/{stale.name}" not in pages:
            stale.unlink()
    (out / REPORTS).mkdir(parents=True, exist_ok=True)
    for name, data in pages.items():
        write_bytes(out / name, data)
    write_bytes(out / INDEX, room.render(entries).encode("utf-8"))
    refused = [entry for entry in entries if entry.state == room.REFUSED]
    if as_json:
        told = [
            {"file": entry.file, "state": entry.state, "told": entry.told, "page": entry.page}
            for entry in entries
        ]
        emit({"index": str(out / INDEX), "refused": len(refused), "files": told}, as_json=True)
    else:
        console.print(f"{len(refused)} of {len(entries)} files refused", markup=False)
        emit(str(out / INDEX), as_json=False)
    return 0


def _check_own(out: Path) -> None:
    """Refuse to write among somebody else's files."""
    if out.is_dir() and any(out.iterdir()) and not (out / REPORTS).is_dir():
        raise UsageError(
            "USE-002", f"{out} holds other files than a site of this command",
            next_step="choose an empty folder",
        )  # fmt: skip


def _entry(
    path: Path, name: str, allowed_signers: Path | None, pages: dict[str, bytes]
) -> room.Entry:
    """Verify one file; add its page to `pages`, or say why it was refused."""
    try:
        found = steps.verify(path, allowed_signers=allowed_signers)
        with open_bundle(path) as bundle:
            report = build(bundle)
            page = f"{REPORTS}/{bundle.claim.name}-{bundle.run.target}-"
            page += f"{bundle.manifest_sha256[:DIGITS]}.html"
            signers = [signer.principal for signer in found.signers]
            entry = room.accepted(name, bundle, report.headline, page, signers)
    except VerificationFailed as error:
        where = f"{error.cell}: " if error.cell else ""
        return room.refused(name, error.code, f"{where}{error.cause}")
    except OSError as error:
        return room.refused(name, "VER-001", f"cannot be read: {error.strerror}")
    pages[page] = html.render(report).encode("utf-8")
    return entry

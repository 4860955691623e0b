"""Runs the command line in this process, as a shell would, and keeps what it said.

Also makes small optimizations to run it on: the scaffold of `fasttrack init` with one or two cells.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1] / "reject"))

import bundle_maker as maker

from fasttrack import scaffold
from fasttrack.bundle import provenance
from fasttrack.cli.main import main
from fasttrack.schema import Record, parse_record
from fasttrack.selftest import run as selftest

HOME = tempfile.TemporaryDirectory(prefix="fasttrack-home-")
"""Where the development key of these tests is made."""


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of `--json`."""
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def codes(self) -> set[str]:
        """Codes of everything that `validate --json` leaves open."""
        return {item["code"] for item in self.json["open"]}


def fasttrack(folder: Path, *arguments: object, packages: bool = False) -> Ran:
    """`fasttrack ARGUMENTS` in a folder. Keys and settings of the user stay out of it.

    The list of installed packages takes a second where there are hundreds: without `packages`,
    provenance holds an invented one. The self-test is invented too: `tests/zoo` makes the real one.
    """
    words = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    home = {"XDG_CONFIG_HOME": HOME.name, "COLUMNS": "200", "NO_COLOR": "1"}
    listed = provenance._packages if packages else lambda: ({"fasttrack": "0"}, {})
    with (
        contextlib.chdir(folder),
        mock.patch.object(provenance, "_packages", listed),
        mock.patch.object(selftest, "kept", lambda cache: maker.self_test()),
        mock.patch.dict(os.environ, home),
        mock.patch.object(sys, "argv", ["fasttrack", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main(words)
    return Ran(status, out.getvalue(), err.getvalue())


def optimization(folder: Path, *edits: tuple[str, str], **fake: Any) -> Path:
    """`folder/demo`: one cell of batch 2; keywords go to the fake engine, edits to claim.toml."""
    scaffold.create("demo", folder)
    path = folder / "demo" / "claim.toml"
    options = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fake.items())
    changes = [
        ("batch = [1, 2, 8]", "batch = [2]"),
        ("context_tokens = [128, 512]", "context_tokens = [128]"),
        ("noise_percent = 0.5\n", f"noise_percent = 0.5\n{options}"),
        *edits,
    ]
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    return folder / "demo"


def run_folders(folder: Path) -> list[Path]:
    """Run folders below `folder/runs`, sorted."""
    return sorted(path for path in (folder / "runs").iterdir() if path.is_dir())


def unit_files(run: Path) -> dict[str, tuple[int, int]]:
    """Record files of finished units, with what changes when one is written again."""
    return {
        path.relative_to(run).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in run.glob("*/*.jsonl")
        if path.stem != "failures"
    }


def records(run: Path, name: str) -> list[Record]:
    """Records of a stage's files matching a name, e.g. `features/failures`."""
    return [
        parse_record(line)
        for path in sorted(run.glob(f"{name}*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]

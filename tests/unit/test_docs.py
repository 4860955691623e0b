"""Protects: generated pages agree with the program, and the README names only what exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import typer

from fasttrack.cli.main import app

REPO = Path(__file__).resolve().parents[2]


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "docs" / "build.py"), "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_readme_shows_only_commands_that_exist() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    shown = set(re.findall(r"^fasttrack ([a-z-]+)", (REPO / "README.md").read_text(), re.M))
    assert shown, "README shows no command"
    assert shown <= commands, shown - commands


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (REPO / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z]+)", (REPO / "README.md").read_text())):
        assert re.search(rf"^{target}:", makefile, re.M), target

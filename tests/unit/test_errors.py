"""Protects the promise behind every failure: a code with an explanation, a cause, a next step, and
the exit status of its kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fasttrack import errors
from fasttrack.engine.channel import ERRORS
from fasttrack.errors import EXPLANATIONS, FasttrackError
from fasttrack.schema.verdict import REASONS

CODE = re.compile(r"(USE|CLM|EVL|PRF|ENV|ENG|CAS|RAY|RUN|ZOO|INT)-\d{3}\Z")


def constants(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """(module, string constant) for constants of a form, outside the tables that define them."""
    for path in folder.rglob("*.py"):
        if "templates" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and pattern.fullmatch(node.value)
                and path.name != "errors.py"
            ):
                yield path.name, node.value


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.FasttrackError, 5),
        (errors.UsageError, 2),
        (errors.EnvironmentUnmet, 4),
        (errors.RunError, 5),
        (errors.Interrupted, 130),
        (errors.VerificationFailed, 6),
    ],
)
def test_exit_statuses(kind: type[FasttrackError], status: int) -> None:
    assert kind("INT-001", "x").exit_status == status


def test_diagnostics_are_complete() -> None:
    error = errors.UsageError("CLM-003", "bad key", cell="claim.toml")
    assert error.diagnostics() == {
        "code": "CLM-003",
        "cell": "claim.toml",
        "cause": "bad key",
        "next": "fasttrack explain CLM-003",
        "exit_status": 2,
    }
    assert str(error) == "CLM-003: bad key"


def test_every_code_raised_is_explained_and_every_explanation_is_used(repo: Path) -> None:
    used = {code for _, code in constants(repo / "fasttrack", CODE)}
    assert used == set(EXPLANATIONS)


def test_every_verdict_reason_is_used(repo: Path) -> None:
    family = "NO|ISO|NUM|PATH|FEAT|EVAL|SPD|VAL|RUN|AGT"
    shape = re.compile(rf"OK|({family})-[A-Z]+(-[A-Z]+)?|HOIST-[A-Z-]+")
    counted: dict[str, set[str]] = {}
    for module, code in constants(repo / "fasttrack", shape):
        counted.setdefault(code, set()).add(module)
    used = {code for code, modules in counted.items() if modules - {"verdict.py"}}
    assert used == set(REASONS)


def test_explanations_say_something() -> None:
    for code, item in {**EXPLANATIONS, **REASONS}.items():
        assert item.meaning.endswith("."), code
        assert item.investigate, code


def test_codes_a_child_reports_keep_their_kind() -> None:
    for code, kind in ERRORS.items():
        assert code in EXPLANATIONS
        prefix = {"CLM": errors.UsageError, "ENV": errors.EnvironmentUnmet}[code[:3]]
        assert kind is prefix

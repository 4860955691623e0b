"""Data files of external evals in their official forms: JSON lines, or Parquet.

Owns what a row must have. A file is never replaced by another set and no row is left out: the
first row that cannot be asked refuses the file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fasttrack.errors import UsageError
from fasttrack.schema._json import loads

ROLES = ("system", "user", "assistant")


def rows(name: str, path: Path) -> list[dict[str, Any]]:
    """Rows in file order, each with what its eval needs.

    Raises `UsageError` EVL-001 for an unreadable file, EVL-003 for one that is not in the form.
    """
    try:
        found = _parquet(path) if path.suffix == ".parquet" else _lines(path)
        for number, row in enumerate(found, 1):
            try:
                CHECKS[name](row)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"row {number}: {type(error).__name__}: {error}") from error
    except OSError as error:
        raise UsageError("EVL-001", f"{path}: {error}", cell=name) from error
    except ValueError as error:
        raise UsageError(
            "EVL-003", f"{path}: {str(error)[:400]}", next_step=FORMS[name], cell=name
        ) from error
    if not found:
        raise UsageError("EVL-003", f"{path} has no rows", next_step=FORMS[name], cell=name)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                found.append(dict(loads(line)))
            except (ValueError, TypeError) as error:
                raise ValueError(f"line {number}: {error}") from error
    return found


def _parquet(path: Path) -> list[dict[str, Any]]:
    # Not through `datasets`, which may answer from a copy that it keeps.
    from pyarrow import ArrowException, parquet

    try:
        return [dict(row) for row in parquet.read_table(path).to_pylist()]
    except ArrowException as error:
        raise ValueError(f"not Parquet: {error}") from error


def _aime(row: dict[str, Any]) -> None:
    row["answer"] = str(row["answer"]).strip()
    if not isinstance(row["problem"], str) or not row["problem"].strip():
        raise ValueError("problem is not a text")
    if not re.fullmatch(r"[0-9]{1,3}", row["answer"]):
        raise ValueError(f"answer {row['answer']!r} is not an integer from 0 to 999")


def _mrcr(row: dict[str, Any]) -> None:
    messages = json.loads(row["prompt"]) if isinstance(row["prompt"], str) else row["prompt"]
    if not messages or messages[-1]["role"] != "user":
        raise ValueError("prompt does not end with a user's message")
    for message in messages:
        if message["role"] not in ROLES or not isinstance(message["content"], str):
            raise ValueError("a message without role and text")
    prefix = row["random_string_to_prepend"]
    if not prefix or not str(row["answer"]).startswith(prefix):
        raise ValueError("answer does not begin with random_string_to_prepend")
    if int(row["n_needles"]) < 1:
        raise ValueError("n_needles is below 1")
    row["messages"] = messages


def _gsm_symbolic(row: dict[str, Any]) -> None:
    if "id" not in row or "instance" not in row:
        raise ValueError("no instance of a template; rows of openai/gsm8k are another set")
    int(row["id"]), int(row["instance"])
    if not isinstance(row["question"], str) or not row["question"].strip():
        raise ValueError("question is not a text")
    wanted = re.search(r"#### (-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\Z", str(row["answer"]))
    if not wanted:
        raise ValueError("answer does not end with `#### NUMBER`")
    row["answer"] = wanted[1]


CHECKS = {"aime25": _aime, "gsm-symbolic": _gsm_symbolic, "mrcr": _mrcr}
FORMS = {
    "aime25": "rows need `problem` and `answer`, as in Hugging Face math-ai/aime25",
    "gsm-symbolic": "rows need `id`, `instance`, `question` and `answer`, as in Hugging Face "
    "apple/GSM-Symbolic; `fasttrack evals make gsm-symbolic` writes such a file",
    "mrcr": "rows need `prompt` (JSON messages), `answer`, `random_string_to_prepend` and "
    "`n_needles`, as in Hugging Face openai/mrcr",
}

"""Stage 1: read claim.toml, name every problem at once, freeze, digest.

Owns the way from an author's file to a `Claim`. Measures nothing and looks at no hardware.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from fasttrack.errors import UsageError
from fasttrack.schema import Claim, Policy
from fasttrack.schema import claim as nouns
from fasttrack.schema import policy as demands

Model = TypeVar("Model", bound=BaseModel)
FILE = "claim.toml"
MAX_BYTES = 256 * 1024


@dataclass(frozen=True)
class Frozen:
    """A claim with the exact bytes it was read from."""

    claim: Claim
    source: bytes
    folder: Path


def load(folder: Path) -> Frozen:
    """The claim of an optimization's folder (or of a claim.toml itself).

    Raises `UsageError` CLM-001 (no file), CLM-002 (not TOML), CLM-003 (unknown key or bad value;
    all of them listed) or CLM-005 (impossible grid).
    """
    path = folder if folder.is_file() else folder / FILE
    try:
        with path.open("rb") as file:
            source = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            "CLM-001",
            f"cannot read {path}: {error.strerror}",
            next_step="fasttrack init NAME, or pass the folder that holds claim.toml",
        ) from error
    if len(source) > MAX_BYTES:
        raise UsageError("CLM-002", f"{path} is larger than {MAX_BYTES} bytes")
    return Frozen(claim=parse_source(source, str(path)), source=source, folder=path.parent)


def parse_source(source: bytes, where: str) -> Claim:
    """A `Claim` from the bytes of a file that messages call `where`; see `load` for errors."""
    return parse(_toml(source, where), where)


def parse(data: dict[str, Any], where: str) -> Claim:
    """A `Claim` from TOML data; see `load` for errors."""
    return _validated(Claim, data, where)


def load_policy(path: Path | None) -> Policy:
    """A policy from a TOML file, or the built-in one; raises `UsageError` as `load` does."""
    if path is None:
        return Policy()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(
            "CLM-001",
            f"cannot read {path}: {error.strerror}",
            next_step="pass a policy file, or leave --policy out for the built-in policy",
        ) from error
    return parse_policy(source, str(path))


def parse_policy(source: bytes, where: str) -> Policy:
    """A policy from the bytes of a file that messages call `where`; raises as `load` does."""
    return _validated(Policy, _toml(source, where), where)


def _toml(source: bytes, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(source.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError("CLM-002", f"{where}: {error}", next_step=f"edit {where}") from error


def _validated(model: type[Model], data: dict[str, Any], where: str) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = error.errors()
        problems = "; ".join(_sentence(item) for item in found)
        code = "CLM-005" if all(_impossible(item) for item in found) else "CLM-003"
        raise UsageError(code, f"{where}: {problems}", next_step=f"edit {where}") from error


def _impossible(item: Any) -> bool:
    """Whether a problem is that of a grid which is well written and cannot be run."""
    axis = "grid" in item["loc"] and item["type"] in ("too_short", "greater_than", "value_error")
    return axis or "impossible grid" in item["msg"]


def _sentence(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "claim"
    if item["type"] == "extra_forbidden":
        key = str(item["loc"][-1])
        near = difflib.get_close_matches(key, _known_keys(), n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        return f"{path}: unknown key{hint}"
    if item["type"] == "missing":
        return f"{path}: required"
    return f"{path}: {item['msg']}"


def _known_keys() -> list[str]:
    """Every key that may stand anywhere in a claim or policy."""
    keys: set[str] = set()
    for model in (*vars(nouns).values(), *vars(demands).values()):
        if isinstance(model, type) and issubclass(model, BaseModel):
            keys |= {field.alias or key for key, field in model.model_fields.items()}
    return sorted(keys - set(get_args(nouns.Arm)))

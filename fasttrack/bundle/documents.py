"""The single JSON documents of a bundle: strict parse, canonical form, known schema, right shape.

Owns the four refusals every document shares. Read by `manifest`, `statement`, `sign` and `reader`.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fasttrack.bundle.layout import MAX_DOCUMENT_BYTES, first_line
from fasttrack.errors import VerificationFailed
from fasttrack.schema._json import StrictJsonError, canonical_bytes, loads

Model = TypeVar("Model", bound=BaseModel)
_SCHEMA = re.compile(r"(fasttrack\.[a-z]+)/v([1-9][0-9]{0,5})\Z")


def strict_json(data: bytes, name: str, *, schema: str | None = None) -> dict[str, Any]:
    """A JSON object from the exact bytes of a document.

    Raises `VerificationFailed`: VER-002 too large, VER-017 not strict or not canonical JSON (two
    readers could disagree on it), VER-019 a `schema` newer than this version knows.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise VerificationFailed("VER-002", f"{len(data)} bytes are too many", cell=name)
    try:
        value = loads(data)
        canonical = canonical_bytes(value)
    except StrictJsonError as error:
        raise VerificationFailed("VER-017", first_line(error), cell=name) from error
    if not isinstance(value, dict):
        raise VerificationFailed("VER-017", "not a JSON object", cell=name)
    if canonical != data:
        raise VerificationFailed("VER-017", "not in canonical form (RFC 8785)", cell=name)
    if schema is not None:
        _known_schema(value.get("schema"), schema, name)
    return value


def model(kind: type[Model], value: Any, name: str, *, code: str = "VER-018") -> Model:
    """A document's value as its model; raises `VerificationFailed` with `code` for a bad shape."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise VerificationFailed(code, f"{where}: {first['msg']}"[:300], cell=name) from error


def _known_schema(found: Any, known: str, name: str) -> None:
    if found == known:
        return
    ours = _SCHEMA.match(known)
    theirs = _SCHEMA.match(found) if isinstance(found, str) else None
    if ours and theirs and ours[1] == theirs[1] and int(theirs[2]) > int(ours[2]):
        raise VerificationFailed(
            "VER-019",
            f"its format {found} is newer than {known}: unknown, and unknown is not a pass",
            next_step="pip install --upgrade fasttrack",
            cell=name,
        )
    raise VerificationFailed("VER-018", f"its schema is not {known}", cell=name)

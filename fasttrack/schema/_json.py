"""Strict JSON in, canonical JSON out.

Owns: the two functions through which every JSON text of a bundle passes. Duplicate keys, NaN,
infinities, integers a double cannot hold and deep nesting are refused, because two readers could
disagree on what such a text says.

Format history: ``v1`` (0.1.0) first form of claim, plan, records, verdicts, manifest, statement.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

import rfc8785

MAX_DEPTH = 32
MAX_SAFE_INTEGER = 2**53 - 1
MAX_INTEGER_TEXT = 22


class StrictJsonError(ValueError):
    """A JSON text that a careful reader must refuse; the message says why."""


def canonical_bytes(value: Any) -> bytes:
    """RFC 8785 (JCS) bytes of a JSON value; raises `StrictJsonError` for NaN or big integers."""
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise StrictJsonError(str(error)) from error


def digest(value: Any) -> str:
    """Hex SHA-256 of the canonical bytes of a JSON value."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise StrictJsonError(f"duplicate key {key!r}")
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise StrictJsonError(f"{name} is not JSON")


def _safe_integer(text: str) -> int | float:
    """The integer; or the double whose canonical form, below 1e21 without a point, this is."""
    if len(text) <= MAX_INTEGER_TEXT:
        value = int(text)
        if abs(value) <= MAX_SAFE_INTEGER:
            return value
        if canonical_bytes(float(value)) == text.encode():
            return float(value)
    raise StrictJsonError(f"integer {text[:24]} is beyond 2^53")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise StrictJsonError(f"number {text[:24]} overflows a double")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise StrictJsonError(f"nested deeper than {MAX_DEPTH} levels")


def loads(text: bytes | str) -> Any:
    """Parse JSON strictly.

    Raises `StrictJsonError` for anything malformed, ambiguous or beyond the limits.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_int=_safe_integer,
            parse_float=_finite,
        )
    except StrictJsonError:
        raise
    except RecursionError as error:
        raise StrictJsonError(f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise StrictJsonError(str(error)) from error
    _check_depth(value)
    return value

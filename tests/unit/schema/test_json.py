"""Protects against texts that two readers could understand differently."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack.schema._json import (
    MAX_DEPTH,
    MAX_SAFE_INTEGER,
    StrictJsonError,
    canonical_bytes,
    digest,
    loads,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé😀"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_canonical_text_reads_back_as_the_same_value(value: Any) -> None:
    data = canonical_bytes(value)
    assert loads(data) == value
    assert canonical_bytes(loads(data)) == data


@given(st.dictionaries(st.text("abc", max_size=3), st.integers(0, 9)))
def test_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    turned = dict(reversed(value.items()))
    assert digest(turned) == digest(value)


def test_canonical_form_is_rfc_8785() -> None:
    value = {"b": [1.0, 1e21, -0.0], "a": "é\n", "é": None}
    expected = '{"a":"é\\n","b":[1,1e+21,0],"é":null}'
    assert canonical_bytes(value) == expected.encode()


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"x": {"a": 1, "a": 1}}',
        "NaN",
        '{"a": Infinity}',
        "-Infinity",
        "9007199254740993",
        "-9007199254740993",
        "1152921504606846976",
        "1" * 30,
        "1e400",
        "",
        "{",
        "[1] 2",
        "{'a': 1}",
        "[1,]",
        '"\\x"',
        "// x\n1",
        "\ufeff1",
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "[" * 200_000,
    ],
    ids=lambda text: text[:12] or "empty",
)
def test_ambiguous_or_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(StrictJsonError):
        loads(text)


@pytest.mark.parametrize("data", [b"\xff", b'"\xc3"', b'"\xed\xa0\x80"', b"\xe9"])
def test_bytes_must_be_utf_8(data: bytes) -> None:
    with pytest.raises(StrictJsonError):
        loads(data)


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, {"a": -math.inf}, "\ud800"])
def test_values_without_one_meaning_are_not_written(value: Any) -> None:
    with pytest.raises(StrictJsonError):
        canonical_bytes(value)


def test_a_large_measure_is_read_as_the_double_it_was() -> None:
    # Canonical JSON writes doubles below 1e21 without a point or exponent.
    for value in (2.0**53, 1e17, -3e20, 123456789012345680000.0):
        assert loads(canonical_bytes(value)) == value


def test_limits_are_inside() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(loads(deep)) == deep
    assert loads(str(MAX_SAFE_INTEGER)) == MAX_SAFE_INTEGER
    assert loads(str(-MAX_SAFE_INTEGER)) == -MAX_SAFE_INTEGER

"""Protects the nouns: records survive writing and reading, and impossible values are refused."""

from __future__ import annotations

from typing import Any

import pytest
import zoo_records as zoo
from pydantic import ValidationError

from fasttrack.schema import (
    Check,
    ErrorStats,
    FailureRecord,
    MonitorRecord,
    PathStep,
    Record,
    Verdict,
    parse_record,
)
from fasttrack.schema._json import StrictJsonError, canonical_bytes

FAILURE = FailureRecord(stage="perf", unit="u", code="ENG-003", cause="killed", next="again")
MONITOR = MonitorRecord(stage="perf", session="s", values={"load_1min": 0.5, "note": None})
ONE_OF_EACH = list({r.kind: r for r in [*zoo.honest_run(), FAILURE, MONITOR]}.values())


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: record.kind)
def test_a_record_survives_writing_and_reading(record: Record) -> None:
    line = canonical_bytes(record.json_value())
    again = parse_record(line)
    assert type(again) is type(record)
    assert canonical_bytes(again.json_value()) == line


def test_all_kinds_were_tried() -> None:
    assert len(ONE_OF_EACH) == 16


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: record.kind)
def test_records_are_closed_and_immutable(record: Record) -> None:
    with pytest.raises(ValidationError):
        parse_record(canonical_bytes(record.json_value() | {"surprise": 1}))
    with pytest.raises(ValidationError):
        record.kind = "other"  # type: ignore[assignment]


@pytest.mark.parametrize(
    "line",
    ["{}", '{"kind": "sessions"}', '{"kind": null}', "[]", "7", '{"kind": "failure"}'],
)
def test_lines_of_another_shape_are_refused(line: str) -> None:
    with pytest.raises(ValidationError):
        parse_record(line)


def test_a_line_that_is_not_strict_json_is_refused() -> None:
    with pytest.raises(StrictJsonError):
        parse_record('{"kind": "failure", "kind": "failure"}')


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_value_is_nan(value: float) -> None:
    with pytest.raises(ValidationError):
        ErrorStats(**zoo.errors().model_dump() | {"rms": value})
    with pytest.raises(ValidationError):
        Verdict(rule="x", cell="x", state="PASS", reason="OK", detail="", estimate=value)


@pytest.mark.parametrize(
    ("relation", "observed", "bound", "holds"),
    [
        ("equal", 1, 1, True),
        ("equal", "a", "a", True),
        ("equal", None, None, True),
        ("equal", 1, 2, False),
        ("equal", None, 0, False),
        ("equal", True, True, True),
        ("equal", True, 1, False),
        ("equal", 0, False, False),
        ("at_least", 2, 2, True),
        ("at_least", 1.9, 2, False),
        ("at_least", None, 0, False),
        ("at_least", "9", 1, False),
        ("at_most", 2, 2, True),
        ("at_most", 2.1, 2, False),
        ("at_most", None, 0, False),
        ("at_most", 1, None, False),
    ],
)
def test_checks(relation: Any, observed: Any, bound: Any, holds: bool) -> None:
    assert Check(name="x", relation=relation, observed=observed, bound=bound).holds is holds


def test_a_path_is_one_of_three() -> None:
    with pytest.raises(ValidationError):
        PathStep(step=0, path="fast", reason="", requests=1, tokens=1, prefill_tokens=0)

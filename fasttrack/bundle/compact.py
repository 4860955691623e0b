"""Records in little memory: engine steps and tokens as columns instead of objects.

A perf record is a list of thousands of small objects; as Python objects they take ten times their
text, as columns a quarter. Rules read the same attributes of the same sequences and cannot tell the
difference. Owns `parse`, which reads a line into that form: by a short way for the one spelling
that the writer uses, by `parse_record` for any other, so it never accepts what that refuses. Used
by the run folder and by `recompute`.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar, overload

from pydantic_core import from_json

from fasttrack.schema import (
    EngineStep,
    ItemRecord,
    KernelRecord,
    PathRecord,
    PathStep,
    Record,
    SampleRecord,
    parse_record,
)
from fasttrack.schema._json import MAX_SAFE_INTEGER

T = TypeVar("T")
_ENGINE = tuple(EngineStep.model_fields)
_PATH = tuple(PathStep.model_fields)
_PATHS = frozenset({"specialised", "stock", "profile"})
_SEPARATORS = (b" :", b"\t:", b"\n:", b"\r:")
_INTEGERS = ((255, "B"), (2**16 - 1, "H"), (2**32 - 1, "I"))


class _Unusual(Exception):
    """A line that the short way does not read; it may be good or bad."""


class Rows(Sequence[T]):
    """A sequence whose elements are made when asked for."""

    def __len__(self) -> int:
        raise NotImplementedError

    def _row(self, at: int) -> T:
        raise NotImplementedError

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        if isinstance(at, slice):
            return self._rows(at)
        return self._row(at)

    def _rows(self, at: slice) -> Sequence[T]:
        return [self._row(index) for index in range(*at.indices(len(self)))]

    def __iter__(self) -> Iterator[T]:
        return map(self._row, range(len(self)))


class Step(NamedTuple):
    """What `EngineStep` tells."""

    start_s: float
    duration_s: float
    decode_tokens: int
    prefill_tokens: int


class Steps(Rows[Step]):
    """Engine steps."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        start, duration, decode, prefill = _columns(rows, _ENGINE)
        self._columns = (_floats(start), _floats(duration), _integers(decode), _integers(prefill))

    def __len__(self) -> int:
        return len(self._columns[0])

    def _row(self, at: int) -> Step:
        start, duration, decode, prefill = self._columns
        return Step(start[at], duration[at], decode[at], prefill[at])

    def _rows(self, at: slice) -> list[Step]:
        return list(map(Step, *(column[at] for column in self._columns)))

    def __iter__(self) -> Iterator[Step]:
        return map(Step, *self._columns)


class Logged:
    """What `PathStep` tells."""

    __slots__ = ("_at", "_steps")

    def __init__(self, steps: PathSteps, at: int) -> None:
        self._steps, self._at = steps, at

    @property
    def step(self) -> int:
        """See `PathStep`."""
        return self._steps.numbers[self._at]

    @property
    def path(self) -> str:
        """See `PathStep`."""
        return self._steps.kinds[self._steps.kind[self._at]][0]

    @property
    def reason(self) -> str:
        """See `PathStep`."""
        return self._steps.kinds[self._steps.kind[self._at]][1]

    @property
    def requests(self) -> int:
        """See `PathStep`."""
        return self._steps.requests[self._at]

    @property
    def tokens(self) -> int:
        """See `PathStep`."""
        return self._steps.tokens[self._at]

    @property
    def prefill_tokens(self) -> int:
        """See `PathStep`."""
        return self._steps.prefill[self._at]

    @property
    def wrote(self) -> dict[str, str]:
        """See `PathStep`."""
        words = self._steps.wrote(self._at)
        return dict(zip(words[::2], words[1::2], strict=True))


class PathSteps(Rows[Logged]):
    """Path steps. `kinds` are the distinct (path, reason); written rows stay packed."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        told = dict(zip(_PATH, _columns(rows, _PATH), strict=True))
        paths, reasons = told["path"], told["reason"]
        _check(_types(reasons) <= {str} and _types(told["wrote"]) <= {dict})
        pairs = list(zip(paths, reasons, strict=True))
        numbered = {pair: index for index, pair in enumerate(dict.fromkeys(pairs))}
        _check({path for path, _ in numbered} <= _PATHS)
        self.kinds: tuple[tuple[str, str], ...] = tuple(numbered)
        self.kind = _integers([numbered[pair] for pair in pairs])
        self.numbers = _integers(told["step"])
        self.requests = _integers(told["requests"])
        self.tokens = _integers(told["tokens"])
        self.prefill = _integers(told["prefill_tokens"])
        # No string of a line without escapes holds a tab or a line feed.
        lines = ["\t".join(chain.from_iterable(item.items())) for item in told["wrote"]]
        self._packed = zlib.compress("\n".join(lines).encode(), 1)

    def __len__(self) -> int:
        return len(self.numbers)

    def _row(self, at: int) -> Logged:
        self.numbers[at]  # raises where there is no such row
        return Logged(self, at)

    def __iter__(self) -> Iterator[Logged]:
        return map(Logged, repeat(self), range(len(self)))

    def wrote(self, at: int) -> list[str]:
        """Keys and values of what a step wrote, in turn."""
        line = _unpacked(self._packed)[at]
        return line.split("\t") if line else []


@lru_cache(maxsize=2)
def _unpacked(packed: bytes) -> list[str]:
    return zlib.decompress(packed).decode().split("\n")


class Pairs(Rows[tuple[int, int]]):
    """Pairs of integers."""

    def __init__(self, rows: list[list[int]]) -> None:
        _check(_types(rows) <= {list} and set(map(len, rows)) <= {2})
        self._columns = _integers([row[0] for row in rows]), _integers([row[1] for row in rows])

    def __len__(self) -> int:
        return len(self._columns[0])

    def _row(self, at: int) -> tuple[int, int]:
        return self._columns[0][at], self._columns[1][at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(*self._columns, strict=True)


class Optionals(Rows[float | None]):
    """Numbers that may be missing; a stored one is never NaN."""

    def __init__(self, values: Sequence[float | None]) -> None:
        self._values = array("d", [math.nan if value is None else value for value in values])

    def __len__(self) -> int:
        return len(self._values)

    def _row(self, at: int) -> float | None:
        value = self._values[at]
        return None if math.isnan(value) else value


def parse(line: bytes) -> Record:
    """A record in little memory; raises as `parse_record` does."""
    try:
        return _parse(line)
    except _Unusual:
        record = parse_record(line)
    if isinstance(record, ItemRecord):
        return record.model_copy(
            update={
                "token_ids": array("q", record.token_ids),
                "logprobs": Optionals(record.logprobs),
                "gaps": Optionals(record.gaps),
            }
        )
    return record


def _parse(line: bytes) -> Record:
    """The short way. Equal keys, of which a quick parser keeps the last, show in their number."""
    kernel = b'"kind":"kernel"' in line
    _check(kernel or b'"kind":"sample"' in line or b'"kind":"path"' in line)
    _check(b"\\" not in line and not any(separator in line for separator in _SEPARATORS))
    if kernel:
        return _kernel(line)
    try:
        value = from_json(line, allow_inf_nan=False)
        keys = len(value) + sum(map(len, value["steps"]))
        steps: Steps | PathSteps
        kind: type[SampleRecord | PathRecord]
        lists: dict[str, Any] = {}
        if value["kind"] == "sample":
            kind, steps = SampleRecord, Steps(value.pop("steps"))
            for name in ("emitted", "contexts"):
                counts = value.pop(name, [])
                _check(type(counts) is list)
                lists[name] = _integers(counts)
            times = value.pop("device_s", [])
            _check(type(times) is list)
            _floats([time for time in times if time is not None])
            lists["device_s"] = Optionals(times)
            lists["marks"] = _marks(value.pop("marks", []))
        else:
            keys += sum([len(step["wrote"]) for step in value["steps"]])
            lists["scheduled"] = Pairs(value.pop("scheduled"))
            drafted = value.pop("drafted", [])
            _check(type(drafted) is list)
            lists["drafted"] = _integers(drafted)
            kind, steps = PathRecord, PathSteps(value.pop("steps"))
        _check(keys == line.count(b'":') and all(map(_modest, value.values())))
        lists["steps"] = steps
        record = kind.model_validate({**value, **dict.fromkeys(lists, ())})
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise _Unusual from error
    return record.model_copy(update=lists)


def _marks(rows: list[list[Any]]) -> tuple[tuple[int, float], ...]:
    _check(type(rows) is list and _types(rows) <= {list} and set(map(len, rows)) <= {2})
    at = _integers([row[0] for row in rows])
    return tuple(zip(at, _floats([row[1] for row in rows]), strict=True))


def _kernel(line: bytes) -> KernelRecord:
    """Kernel records are small but many: the quick parser, under the same checks."""
    try:
        value = from_json(line, allow_inf_nan=False)
        inner = [part for part in value.values() if isinstance(part, dict)]
        leaves = [part for part in value.values() if not isinstance(part, dict)]
        leaves += [leaf for part in inner for leaf in part.values()]
        _check(len(value) + sum(map(len, inner)) == line.count(b'":'))
        _check(all(map(_modest, leaves)))
        return KernelRecord.model_validate(value)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise _Unusual from error


def _check(holds: bool) -> None:
    if not holds:
        raise _Unusual


def _modest(value: object) -> bool:
    """Whether a field that is no list is one that every reader understands alike."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= MAX_SAFE_INTEGER
    return value is None or isinstance(value, str)


def _columns(rows: list[dict[str, Any]], names: Sequence[str]) -> list[list[Any]]:
    """One list per name; each row must have exactly these names."""
    _check(sum(map(len, rows)) == len(names) * len(rows))
    return [[row[name] for row in rows] for name in names]


def _types(values: Sequence[object]) -> set[type]:
    return set(map(type, values))


def _integers(values: list[int]) -> array[int]:
    if not values:
        return array("B")
    _check(_types(values) == {int})
    low, high = min(values), max(values)
    _check(low >= -MAX_SAFE_INTEGER and high <= MAX_SAFE_INTEGER)
    code = next((code for most, code in _INTEGERS if low >= 0 and high <= most), "q")
    return array(code, values)


def _floats(values: list[float]) -> array[float]:
    if not values:
        return array("d")
    _check(_types(values) <= {int, float})
    low, high = min(values), max(values)
    _check(math.isfinite(low) and math.isfinite(high))
    if int in _types(values):
        _check(low >= -MAX_SAFE_INTEGER and high <= MAX_SAFE_INTEGER)
    return array("d", values)

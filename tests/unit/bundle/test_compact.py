"""Protects the short way of reading: what it accepts the careful parser accepts, and alike."""

from __future__ import annotations

import json
import random
from typing import Any

import bundle_maker as maker
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fasttrack.bundle import compact
from fasttrack.schema import ItemRecord, PathRecord, Record, SampleRecord, Tier, parse_record
from fasttrack.schema._json import canonical_bytes


def lines() -> list[bytes]:
    """One line of each kind, as the writer writes it."""
    info = maker.run_info(maker.claim(), maker.Policy(), tier=Tier.SMOKE)
    found: dict[str, bytes] = {}
    for _, _, records in maker.units(maker.claim(), info):
        for record in records:
            found.setdefault(record.kind, canonical_bytes(record.json_value()))
    return list(found.values())


LINES = lines()
SAMPLE, PATH, ITEM, KERNEL = (
    next(line for line in LINES if b'"kind":"%s"' % kind in line)
    for kind in (b"sample", b"path", b"item", b"kernel")
)


def plain(record: Record) -> Any:
    """A record's value, whatever form its sequences have."""
    value = dict(record)
    if isinstance(record, SampleRecord):
        names = ("start_s", "duration_s", "decode_tokens", "prefill_tokens")
        value["steps"] = [tuple(getattr(step, name) for name in names) for step in record.steps]
        for name in ("emitted", "contexts", "marks", "device_s"):
            value[name] = list(getattr(record, name))
    elif isinstance(record, PathRecord):
        names = ("step", "path", "reason", "requests", "tokens", "prefill_tokens", "wrote")
        value["steps"] = [[getattr(step, name) for name in names] for step in record.steps]
        value["scheduled"] = [tuple(pair) for pair in record.scheduled]
        value["drafted"] = list(record.drafted)
    elif isinstance(record, ItemRecord):
        for name in ("token_ids", "logprobs", "gaps"):
            value[name] = list(getattr(record, name))
    return value


def alike(line: bytes) -> None:
    """Both parsers say the same, be it a value or a refusal."""
    try:
        careful: Any = plain(parse_record(line))
    except ValueError:
        careful = None
    try:
        quick: Any = plain(compact.parse(line))
    except ValueError:
        quick = None
    assert quick == careful, line


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.loads(line)["kind"])
def test_every_kind_reads_alike(line: bytes) -> None:
    alike(line)


@pytest.mark.parametrize("line", [SAMPLE, PATH, KERNEL], ids=["sample", "path", "kernel"])
def test_the_writers_form_takes_the_short_way(line: bytes) -> None:
    compact._parse(line)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"block":0', b'"block":0,"block":0'),
        (b'"block":0', b'"block":0,"block" :1'),
        (b'"block":0', b'"block":9007199254740993'),
        (b'"block":0', b'"block":1e400'),
        (b'"block":0', b'"block":NaN'),
        (b'"block":0', b'"block":0.0'),
        (b'"block":0', b'"block":"0"'),
        (b'"block":0', b'"block":true'),
        (b'"block":0', b'"block":null'),
        (b'"block":0', b'"block":[0]'),
        (b'"block":0', b'"bl\\u006fck":0'),
        (b'"decode_tokens":0,', b'"decode_tokens":0,"decode_tokens":0,'),
        (b'"decode_tokens":0,', b'"decode_tokens":0,"decode_tokens" :7,'),
        (b'"decode_tokens":0,', b'"decode_tokens":9007199254740993,'),
        (b'"decode_tokens":0,', b'"decode_tokens":99999999999999999999999999,'),
        (b'"decode_tokens":0,', b'"decode_tokens":-3,'),
        (b'"decode_tokens":0,', b'"decode_tokens":0.5,'),
        (b'"decode_tokens":0,', b'"decode_tokens":true,'),
        (b'"decode_tokens":0,', b'"decode_tokens":"1",'),
        (b'"decode_tokens":0,', b""),
        (b'"decode_tokens":0,', b'"decode_tokens":0,"note":1,'),
        (b'"duration_s":0.01', b'"duration_s":1e999'),
        (b'"duration_s":0.01', b'"duration_s":NaN'),
        (b'"duration_s":0.01', b'"duration_s":null'),
        (b'"duration_s":0.01', b'"duration_s":1'),
        (b'"duration_s":0.01', b'"duration_s":9007199254740993'),
        (b'"duration_s":0.01', b'"duration_s":false'),
        (b'"kind":"sample"', b'"kind":"path"'),
        (b'"steps":[', b'"steps":[7,'),
        (b'"steps":[', b'"steps":[[],'),
        (b'"steps":[', b'"steps":[{},'),
        (b'"session":"', b'"session":":'),
        (b'"session":"', b'"session":"\x01'),
        (b'"session":"', b'"session":"\xff'),
        (b'"arm":"base"', b'"arm":"both"'),
        (b"}", b"}}"),
        (b"0.75}", b"0.75} "),
        (b"0.75}", b"0.75}x"),
    ],
)
def test_unusual_samples_read_alike(old: bytes, new: bytes) -> None:
    assert old in SAMPLE
    alike(SAMPLE.replace(old, new, 1))


@pytest.mark.parametrize(
    "times",
    [b"[null,0.25,1]", b"[null,null]", b"[0.5]", b"[true]", b'["1"]', b"[NaN]", b"[1e999]", b"{}",
     b"null", b"[[1]]", b"[9007199254740993]"],
)  # fmt: skip
def test_device_times_read_alike(times: bytes) -> None:
    assert b'"device_s":[]' in SAMPLE
    alike(SAMPLE.replace(b'"device_s":[]', b'"device_s":' + times, 1))


def test_steps_without_a_time_are_kept() -> None:
    line = SAMPLE.replace(b'"device_s":[]', b'"device_s":[null,0.25]', 1)
    assert list(compact._parse(line).device_s) == [None, 0.25]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"seed":', b'"seed":0,"seed":'),
        (b'"seed":', b'"seed" :0,"seed":'),
        (b'"rms":', b'"rms":1,"rms":'),
        (b'"nonfinite":0', b'"nonfinite":9007199254740993'),
        (b'"nonfinite":0', b'"nonfinite":1e999'),
        (b'"nonfinite":0', b'"nonfinite":NaN'),
        (b'"nonfinite":0', b'"nonfinite":{}'),
        (b'"nonfinite":0', b'"nonfinite":[0]'),
        (b'"nonfinite":0', b'"nonfinite":"0"'),
        (b'"regime":{', b'"regime":{"":1,'),
        (b'"regime":{', b'"regime":{"a":{"b":1},'),
        (b'"op":"', b'"op":":'),
        (b'"op":"', b'"op":"\\u0041'),
        (b'"op":"', b'"op":"\xff'),
        (b'"kind":"kernel"', b'"kind":"conduct"'),
        (b'"status":"ok"', b'"status":"fine"'),
        (b"}", b"}}"),
    ],
)
def test_unusual_kernels_read_alike(old: bytes, new: bytes) -> None:
    assert old in KERNEL
    alike(KERNEL.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"path":"stock"', b'"path":"warp"'),
        (b'"path":"stock"', b'"path":7'),
        (b'"reason":"', b'"reason":7,"x":"'),
        (b'"wrote":{"slots":"1"}', b'"wrote":{}'),
        (b',"wrote":{"slots":"1"}', b""),
        (b'"wrote":{"slots":"1"}', b'"wrote":{"slots":1}'),
        (b'"wrote":{"slots":"1"}', b'"wrote":[]'),
        (b'"wrote":{"slots":"1"}', b'"wrote":null'),
        (b'"wrote":{"slots":"1"}', b'"wrote":{"slots":"1","slots":"2"}'),
        (b'"wrote":{"slots":"1"}', b'"wrote":{"":"","kv":"3-4,9"}'),
        (b'"wrote":{"slots":"1"}', b'"wrote":{"slots":"a\\tb\\nc"}'),
        (b'"scheduled":[', b'"scheduled":[[1],'),
        (b'"scheduled":[', b'"scheduled":[[1,2,3],'),
        (b'"scheduled":[', b'"scheduled":[[1,"2"],'),
        (b'"scheduled":[', b'"scheduled":[[1,2.0],'),
        (b'"scheduled":[', b'"scheduled":[{"a":1,"b":2},'),
        (b'"drafted":[]', b'"drafted":[1,300]'),
        (b'"drafted":[]', b'"drafted":[1,"2"]'),
        (b'"drafted":[]', b'"drafted":""'),
        (b'"drafted":[]', b'"drafted":null'),
        (b'"drafted":[],', b""),
    ],
)
def test_unusual_paths_read_alike(old: bytes, new: bytes) -> None:
    assert old in PATH
    alike(PATH.replace(old, new, 1))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_damaged_lines_read_alike(seed: int) -> None:
    rng = random.Random(seed)
    line = bytearray(rng.choice([SAMPLE, PATH, ITEM])[:4000])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(line))
        kind = rng.randrange(3)
        if kind == 0:
            line[at] = rng.randrange(256)
        elif kind == 1:
            del line[at : at + rng.randrange(1, 9)]
        else:
            other = rng.randrange(len(line))
            line[at:at] = line[other : other + rng.randrange(1, 30)]
    alike(bytes(line))


def test_sequences_behave_as_sequences() -> None:
    sample, careful = compact.parse(SAMPLE), parse_record(SAMPLE)
    assert isinstance(sample, SampleRecord) and isinstance(careful, SampleRecord)
    steps, count = sample.steps, len(careful.steps)
    assert len(steps) == count
    assert steps[-1].start_s == careful.steps[-1].start_s
    assert [s.start_s for s in steps[2:5]] == [s.start_s for s in careful.steps[2:5]]
    assert [s.start_s for s in steps[::-3]] == [s.start_s for s in careful.steps[::-3]]
    path = compact.parse(PATH)
    assert isinstance(path, PathRecord)
    for rows in (steps, path.steps, path.scheduled):
        with pytest.raises(IndexError):
            rows[len(rows)]
        assert len(list(rows)) == len(rows)
    item, told = compact.parse(ITEM), parse_record(ITEM)
    assert isinstance(item, ItemRecord) and isinstance(told, ItemRecord)
    assert list(item.token_ids[:3]) == list(told.token_ids[:3])
    assert list(item.gaps[1:]) == list(told.gaps[1:])
    missing = compact.Optionals((None, -0.5, None))
    assert list(missing) == [None, -0.5, None] and missing[0] is None


def test_empty_sequences() -> None:
    for name, line in (("steps", SAMPLE), ("steps", PATH)):
        value = json.loads(line)
        value[name] = []
        value.pop("scheduled", None)
        if line is PATH:
            value["scheduled"] = []
        alike(canonical_bytes(value))

"""Protects the one way to boot a session: arms differ by the switch alone, and a session says under
which build, weights and sources it ran."""

from __future__ import annotations

import dataclasses
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import zoo_records as zoo
from local_engine import setting

from fasttrack.engine.setting import AS_TARGETED, Variant
from fasttrack.errors import UsageError
from fasttrack.rules.validity import engine_problem
from fasttrack.schema import SessionRecord


def boot(chosen: Any, arm: Any) -> SessionRecord:
    """The record of one session in which nothing happens."""
    records: list[Any] = []
    with chosen.session("perf", f"perf-{arm}", arm, records) as session:
        assert session.info.switch == getattr(chosen.claim.switch, arm)
        assert not records
    (record,) = records
    return record


def test_the_arms_differ_by_the_switch_alone(tmp_path: Path) -> None:
    chosen = setting(tmp_path)
    base, candidate = (
        dataclasses.asdict(chosen.launch("name", arm)) for arm in ("base", "candidate")
    )
    different = {key for key in base if base[key] != candidate[key]}
    assert different == {"arm", "additional_config"}
    assert base["additional_config"] == {"decode_backend": "auto"}
    assert candidate["additional_config"] == {"decode_backend": "latency_specialized"}


def test_a_session_is_on_record_when_it_ended(tmp_path: Path) -> None:
    record = boot(setting(tmp_path), "candidate")
    assert record.start_s <= record.ready_s <= record.end_s
    assert record.started_utc.endswith("+00:00")
    assert record.switch == "latency_specialized"
    assert record.fingerprint["checkpoint"] == "none"
    assert record.fingerprint["engine"] == "fake-1"
    assert record.peak_rss_mib == 1.0


def test_sources_edited_during_a_run_show_in_the_fingerprint(tmp_path: Path) -> None:
    versions = count()
    steady = setting(tmp_path)
    edited = dataclasses.replace(steady, source_sha256=lambda: f"{next(versions):064d}")
    for chosen, says in ((steady, ""), (edited, "differs in source")):
        records = [boot(chosen, "base"), boot(chosen, "candidate")]
        assert says in engine_problem(zoo.case(records))
        assert bool(says) is bool(engine_problem(zoo.case(records)))


def test_a_switch_without_effect_stops_the_session(tmp_path: Path) -> None:
    chosen = setting(tmp_path, fault="ignore_switch")
    records: list[Any] = []
    with pytest.raises(UsageError) as caught, chosen.session("perf", "x", "candidate", records):
        raise AssertionError("not reached")
    assert caught.value.code == "CLM-006"
    assert not records


def test_an_error_in_a_session_leaves_no_record_of_it(tmp_path: Path) -> None:
    records: list[Any] = []
    with (
        pytest.raises(ZeroDivisionError),
        setting(tmp_path).session("perf", "x", "base", records),
    ):
        raise ZeroDivisionError
    assert not records


def test_a_variant_changes_engine_arguments_and_is_compared_with_itself(tmp_path: Path) -> None:
    small = Variant("small", {"max_num_batched_tokens": 64})
    chosen = setting(tmp_path)
    target = chosen.launch("name", "base", small).target
    assert target.engine_args["max_num_batched_tokens"] == 64
    assert target.model_copy(update={"engine_args": chosen.target.engine_args}) == chosen.target

    records: list[Any] = []
    for variant in (AS_TARGETED, small):
        for arm in ("base", "candidate"):
            with chosen.session("features", f"f-{arm}-{variant.name}", arm, records, variant):
                pass
    assert [record.variant for record in records] == ["", "", "small", "small"]
    assert engine_problem(zoo.case(records)) == ""
    mixed = [record.model_copy(update={"variant": ""}) for record in records]
    assert "differs in max_num_batched_tokens" in engine_problem(zoo.case(mixed))

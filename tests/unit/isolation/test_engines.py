"""Protects the isolation stage at run time: what changes with the plugin, or with its switch, is
named; what is the optimization's own is let be."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import local_engine
import pytest
import zoo_records as zoo

from fasttrack import isolation, rules
from fasttrack.engine import _fake_child
from fasttrack.engine.serve import Coded
from fasttrack.errors import RunError
from fasttrack.isolation import engines
from fasttrack.schema import IsolationRecord, State


class Refusing(local_engine.LocalEngine):
    """Errors of a start-up reach the harness as those of a child do."""

    def start(self, launch: Any) -> Any:
        """A local session, or a coded error."""
        try:
            return super().start(launch)
        except Coded as error:
            raise RunError(error.code, str(error)) from error


def observed(folder: Path, **fake: Any) -> dict[str, IsolationRecord]:
    """Records of the units that boot engines, by subject."""
    chosen = dataclasses.replace(
        local_engine.setting(folder, **fake), engine=Refusing("fake", "none")
    )
    made = [r for unit in ("neighbour", "model") for r in isolation.run(chosen, {"check": unit})]
    return {r.subject: r for r in made if isinstance(r, IsolationRecord)}


def failed(records: dict[str, IsolationRecord]) -> dict[str, str]:
    """Subject -> code of what the rule holds against these records."""
    verdicts, _ = zoo.decide(
        [*zoo.isolation()[: len(isolation.SUBJECTS) + 2], *records.values()], stages=("isolation",)
    )
    judged = {v.cell: v for v in verdicts if v.rule == "isolation"}
    assert set(records) <= set(judged)
    return {cell: v.reason for cell, v in judged.items() if v.state is not State.PASS}


def test_an_honest_plugin_changes_nothing(tmp_path: Path) -> None:
    records = observed(tmp_path)
    assert set(records) == {"neighbour", "code", "switched-on", "model"}
    assert failed(records) == {}
    assert not any(record.findings for record in records.values())
    named = {check.name for record in records.values() for check in record.checks}
    assert {"tokens_equal", *engines.STATE, *engines.CODE} <= named


def test_the_boots_differ_by_plugin_and_switch_only(tmp_path: Path) -> None:
    chosen = local_engine.setting(tmp_path)
    for unit in ("neighbour", "model"):
        isolation.run(chosen, {"check": unit})
    stock, off, on, model_off, model_on = chosen.engine.launches  # type: ignore[attr-defined]
    assert stock.plugin is None and off.plugin is not None and on.plugin is not None
    # The unrelated model keeps no step log, so that it is not asked for one.
    assert off.plugin.worker_extension is None and {stock.checkpoint, on.checkpoint} == {None}
    assert (dict(stock.additional_config), dict(off.additional_config)) == ({}, {})
    assert dict(on.additional_config) == {"decode_backend": "latency_specialized"}
    assert dict(model_off.additional_config) == {"decode_backend": "auto"}
    assert dict(model_on.additional_config) == {"decode_backend": "latency_specialized"}


PLANTED = {
    "patched_at_import": {"code": "ISO-CODE", "switched-on": "ISO-ON"},
    "registers_op": {"neighbour": "ISO-DIFF", "switched-on": "ISO-ON"},
    "takes_architecture": {"neighbour": "ISO-DIFF", "switched-on": "ISO-ON"},
    "sets_variable": {"neighbour": "ISO-DIFF", "switched-on": "ISO-ON"},
    "sets_flag": {"neighbour": "ISO-DIFF", "switched-on": "ISO-ON"},
    "leaves_hook": {"neighbour": "ISO-DIFF", "switched-on": "ISO-ON"},
    "changes_neighbour": {"neighbour": "ISO-DIFF", "switched-on": "ISO-ON"},
    "patched_when_on": {"switched-on": "ISO-ON", "model": "ISO-SPREAD"},
    "patched_model": {"model": "ISO-SPREAD"},
    "loads_a_test": {"model": "ISO-COPY"},
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_by_the_subjects_it_concerns(tmp_path: Path, fault: str) -> None:
    records = observed(tmp_path, fault=fault)
    assert failed(records) == PLANTED[fault]
    for subject in PLANTED[fault]:
        named = {finding.where for finding in records[subject].findings}
        if fault in _fake_child.ISOLATION_FAULTS:
            group, name, _ = _fake_child.ISOLATION_FAULTS[fault]
            assert named == {name}
            assert records[subject].findings[0].what.startswith(group)


def test_every_fault_of_the_fake_engine_is_here() -> None:
    assert set(_fake_child.ISOLATION_FAULTS) < set(PLANTED)


def test_a_refusal_of_unrelated_models_is_told_and_passes(tmp_path: Path) -> None:
    chosen = dataclasses.replace(
        local_engine.setting(tmp_path, fault="refuses_neighbours"), engine=Refusing("fake", "none")
    )
    made = isolation.run(chosen, {"check": "neighbour"})
    (record,) = [r for r in made if isinstance(r, IsolationRecord) and r.subject == "switched-on"]
    assert "planted refusal" in record.message
    verdicts, _ = rules.decide(zoo.claim(), zoo.run_info(("isolation",)), made, zoo.case([]).policy)
    verdict = zoo.found(verdicts, "switched-on")
    assert (verdict.state, verdict.reason) == (State.PASS, "ISO-REFUSED")
    assert "planted refusal" in verdict.detail


def test_a_start_that_fails_otherwise_is_a_failure(tmp_path: Path) -> None:
    chosen = dataclasses.replace(
        local_engine.setting(tmp_path, fault="raise_at_import"), engine=Refusing("fake", "none")
    )
    made = isolation.run(chosen, {"check": "neighbour"})
    (record,) = [r for r in made if isinstance(r, IsolationRecord) and r.subject == "switched-on"]
    assert "planted: raised at import" in record.message
    assert failed({"switched-on": record})["switched-on"] == "ISO-ON"


# What must be equal


def kept(before: dict[str, str], after: dict[str, str], tmp_path: Path) -> list[str]:
    """Names that differ."""
    one, two = engines.comparable(before, after, local_engine.setting(tmp_path))
    return [finding.where for finding in engines.differences("ISO-CODE", "code", one, two)]


STOCK = {"vllm.a:f": "1", "vllm.a:T[x]": "1", "vllm.b:g": "1"}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (STOCK, []),
        (STOCK | {"vllm.new:f": "1"}, []),
        ({k: v for k, v in STOCK.items() if "b:" not in k}, []),
        (STOCK | {"vllm.a:T[ZooForCausalLM]": "mine"}, []),
        (STOCK | {"zoo.ops:f": "mine"}, []),
        (STOCK | {"vllm.a:f": "2"}, ["vllm.a:f"]),
        (STOCK | {"vllm.a:T[x]": "2"}, ["vllm.a:T[x]"]),
        (STOCK | {"vllm.a:T[LlamaForCausalLM]": "mine"}, ["vllm.a:T[LlamaForCausalLM]"]),
        (STOCK | {"vllm.a:added": "1"}, ["vllm.a:added"]),
        ({k: v for k, v in STOCK.items() if k != "vllm.a:f"}, ["vllm.a:f"]),
    ],
)
def test_what_must_be_equal(after: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    assert kept(STOCK, after, tmp_path) == expected


ONE, TWO = "alias of vllm.u:h2d 1", "alias of vllm.cpu:h2d 2"
OTHER = "alias of vllm.u:argmax 3"
BOTH = {"vllm.a:h2d": ONE, "vllm.b:h2d": ONE, "vllm.c:h2d": TWO, "vllm.d:argmax": OTHER}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TWO, []),
        ("alias of vllm.u:h2d 9", ["vllm.a:h2d"]),
        ("alias of mine:h2d 2", ["vllm.a:h2d"]),
        (OTHER, ["vllm.a:h2d"]),
        ("function 2", ["vllm.a:h2d"]),
    ],
)
def test_the_order_of_imports_chooses_between_stock_s_own_functions_only(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    """vLLM replaces a helper of its own while it starts; who imported it before keeps the old."""
    assert kept(BOTH, BOTH | {"vllm.a:h2d": text}, tmp_path) == expected


def test_the_claimed_architecture_may_be_added_but_not_replaced(tmp_path: Path) -> None:
    mine = {"ZooForCausalLM": "zoo.model"}
    assert kept({"Llama": "a"}, {"Llama": "a", **mine}, tmp_path) == []
    assert kept({"Llama": "a", "ZooForCausalLM": "vllm"}, {"Llama": "a", **mine}, tmp_path) == [
        "ZooForCausalLM"
    ]


def test_operators_are_one_group_whatever_their_namespace(tmp_path: Path) -> None:
    before = {"aten::mm": "1"}
    assert kept(before, before | {"mine::mix": "1"}, tmp_path) == ["mine::mix"]

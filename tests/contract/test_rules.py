"""Protects the verifier, which runs the same rules elsewhere: what each rule of the registry must
be. A new rule is tested by being registered."""

from __future__ import annotations

import random

import pytest
import zoo_records as zoo

from fasttrack import rules
from fasttrack.rules.base import Case, Rule
from fasttrack.schema import STAGES, Record, State, Verdict, parse_record
from fasttrack.schema._json import canonical_bytes
from fasttrack.schema.verdict import REASONS

HONEST = zoo.agent_run()
CLAIM = zoo.claim(agent={})
"""It asks for everything that a claim may ask for."""


def case_of(records: list[Record]) -> Case:
    """What a rule is given."""
    return zoo.case(records, CLAIM)


@pytest.fixture(params=rules.RULES, ids=lambda rule: f"{rule.stage}-{rule.name}")
def rule(request: pytest.FixtureRequest) -> Rule:
    """Each rule in turn."""
    found: Rule = request.param
    return found


def test_every_stage_has_a_rule() -> None:
    assert {rule.stage for rule in rules.RULES} == set(STAGES)


def test_a_rule_answers_and_explains_itself(rule: Rule) -> None:
    for records in (HONEST, []):
        verdicts = list(rule.judge(case_of(records)))
        assert verdicts
        for verdict in verdicts:
            assert verdict.reason in REASONS
            assert verdict.detail
            assert verdict.json_value()
        cells = [verdict.cell for verdict in verdicts]
        assert len(set(cells)) == len(cells)


def test_a_rule_never_passes_without_records(rule: Rule) -> None:
    good = {State.PASS, State.FASTER, State.EQUIVALENT, State.NON_INFERIOR, State.UNSUPPORTED}
    verdicts = list(rule.judge(case_of([])))
    assert not [verdict for verdict in verdicts if verdict.state in good]


def test_a_rule_is_a_function_of_the_records(rule: Rule) -> None:
    def judge(case: Case) -> list[bytes]:
        return [canonical_bytes(verdict.json_value()) for verdict in rule.judge(case)]

    first = judge(case_of(HONEST))
    assert judge(case_of(HONEST)) == first
    # What a verifier reads back from the file gives the same digits.
    again = [parse_record(canonical_bytes(record.json_value())) for record in HONEST]
    assert judge(case_of(again)) == first


def test_a_rule_survives_any_selection_of_records(rule: Rule) -> None:
    rng = random.Random(rule.name)
    for share in (0.1, 0.5, 0.9):
        for _ in range(20):
            chosen = [record for record in HONEST if rng.random() < share]
            verdicts = list(rule.judge(case_of(chosen)))
            assert all(isinstance(verdict, Verdict) for verdict in verdicts)

"""Protects the fake engine's honesty: deterministic tokens, a steady simulated clock, and faults
that plant exactly what their names say. That validation finds each is shown in
`tests/integration/test_faults.py`."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from fasttrack.engine import _fake_child as fake
from fasttrack.engine.serve import Coded

ON = {"decode_backend": "latency_specialized"}
PLUGIN = {"distribution": "demo", "module": "demo"}


def backend(
    arm: str = "candidate", switch: dict[str, Any] | None = None, **options: Any
) -> tuple[fake.Backend, dict[str, Any]]:
    """A started backend and what it says about itself."""
    target = {
        "engine": "fake",
        "role": "development",
        "max_model_len": 1024,
        "grid": {"batch": [1], "context_tokens": [8]},
        "engine_args": {"fake": options},
    }
    made = fake.Backend()
    return made, made.start(f"s-{arm}", arm, target, ON if switch is None else switch, PLUGIN, None)


def generate(made: fake.Backend, *prompts: Any, **sampling: Any) -> dict[str, Any]:
    """One call."""
    asked = [{"prompt": p, "sampling": {"max_tokens": 20, **sampling}} for p in prompts]
    return made.generate(asked, None)


def test_tokens_are_those_of_the_prompt_alone() -> None:
    one = generate(backend()[0], [1, 2, 3], [4, 5])
    other = generate(backend("base", {"decode_backend": "auto"})[0], [4, 5], [1, 2, 3])
    assert one["answers"][0]["token_ids"] == other["answers"][1]["token_ids"]
    assert one["answers"][0]["token_ids"] != one["answers"][1]["token_ids"]


def test_the_path_follows_the_switch() -> None:
    made, info = backend()
    assert info["switch"] == "latency_specialized"
    paths = [s["path"] for s in generate(made, list(range(9)))["path"]]
    assert paths == ["stock"] + ["specialised"] * 19
    made, info = backend(switch={"decode_backend": "auto"})
    assert info["switch"] == "auto"
    assert {s["path"] for s in generate(made, list(range(9)))["path"]} == {"stock"}


def test_a_switch_it_does_not_know_has_no_effect_and_is_not_reported() -> None:
    made, info = backend(switch={"decode_mode": "latency_specialized"})
    assert info["switch"] == "auto"
    assert {s["path"] for s in generate(made, list(range(9)))["path"]} == {"stock"}


def step_s(**options: Any) -> float:
    """Median simulated decode step."""
    made, _ = backend(noise_percent=0.0, **options)
    steps = generate(made, list(range(9)))["steps"]
    return statistics.median(s["duration_s"] for s in steps if s["decode_tokens"])


def test_speed_up_is_what_was_asked_for() -> None:
    assert step_s() / step_s(speedup=1.5) == pytest.approx(1.5)
    assert step_s() / step_s(fault="slow") == pytest.approx(0.8)


def test_boots_of_one_name_repeat_and_others_differ() -> None:
    def times(arm: str) -> list[float]:
        return [s["duration_s"] for s in generate(backend(arm)[0], [1, 2])["steps"]]

    assert times("base") == times("base")
    assert times("base") != times("candidate")


def test_a_repeated_prompt_comes_from_the_cache() -> None:
    made, _ = backend()
    prompt = [*list(range(200)), 1]
    cold, warm = generate(made, prompt), generate(made, prompt)
    assert cold["answers"][0]["cached_tokens"] == 0
    assert warm["answers"][0]["cached_tokens"] == 128
    assert sum(s["prefill_tokens"] for s in warm["steps"]) == len(prompt) - 128


def test_faults_belong_to_one_arm() -> None:
    honest = generate(backend("base", fault="wrong_token")[0], [1])
    assert honest == generate(backend("base")[0], [1])
    assert generate(backend(fault="wrong_token")[0], [1]) != generate(backend()[0], [1])
    both = generate(backend("base", fault="wrong_token", fault_arm="base")[0], [1])
    assert both != honest


def test_an_unknown_fault_is_not_planted_in_silence() -> None:
    with pytest.raises(Coded, match="no fault 'hnag'") as caught:
        backend(fault="hnag")
    assert caught.value.code == "ENG-001"


@pytest.mark.parametrize(("fault", "code"), [("raise_at_import", "ENG-002"), ("refuse", "ENG-007")])
def test_faults_at_the_start_are_coded(fault: str, code: str) -> None:
    with pytest.raises(Coded) as caught:
        backend(fault=fault)
    assert caught.value.code == code


def test_structured_answers_obey_their_constraint() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}, "c": {"type": "boolean"}},
    }
    made, _ = backend()
    assert generate(made, [1], structured={"json": schema})["answers"][0]["text"] == (
        '{"a": 1, "b": "x", "c": true}'
    )
    assert generate(made, [1], structured={"choice": ["p", "q"]})["answers"][0]["text"] == "p"
    broken, _ = backend(fault="broken_json")
    assert generate(broken, [1], structured={"json": schema})["answers"][0]["text"][0] != "{"

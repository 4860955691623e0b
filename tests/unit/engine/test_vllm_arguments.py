"""What vLLM is started with: a target may add to its options and never takes the switch away.

Protects the one difference between the arms.
"""

from __future__ import annotations

from typing import Any

import pytest

from fasttrack.engine.vllm_arguments import flags, of_neighbour, of_target
from fasttrack.schema import Target

SWITCH = {"ours": {"path": "fast"}}


def _target(**engine_args: Any) -> Target:
    return Target.model_validate(
        {
            "engine": "vllm",
            "role": "development",
            "dtype": "bfloat16",
            "baseline_note": "as shipped",
            "max_num_seqs": 4,
            "grid": {"batch": [1], "context_tokens": [64]},
            "engine_args": engine_args,
        }
    )


def _made(**engine_args: Any) -> dict[str, Any]:
    return of_target(_target(**engine_args), None, SWITCH, "weights")


def test_a_targets_own_arguments_win() -> None:
    assert _made()["enforce_eager"] is True
    assert _made(enforce_eager=False)["enforce_eager"] is False


@pytest.mark.parametrize(
    ("own", "both"),
    [
        ({}, SWITCH),
        ({"other": 1}, {"other": 1, **SWITCH}),
        ({"ours": {"table": "all"}}, {"ours": {"table": "all", "path": "fast"}}),
        ({"ours": {"path": "slow"}}, SWITCH),
        ({"ours": "slow"}, SWITCH),
    ],
    ids=["none", "beside", "beside, deeper", "the switch itself", "above the switch"],
)
def test_options_stand_beside_the_switch_and_not_in_its_place(
    own: dict[str, Any], both: dict[str, Any]
) -> None:
    assert _made(additional_config=own)["additional_config"] == both


def test_the_unrelated_model_takes_no_more_memory_than_the_target() -> None:
    memory = {"gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": 2**30}
    made = of_neighbour(_target(**memory, enable_prefix_caching=True), SWITCH, "folder")
    assert made | memory == made
    assert (made["dtype"], made["additional_config"]) == ("bfloat16", SWITCH)
    assert "enable_prefix_caching" not in made
    assert not set(memory) & set(of_neighbour(_target(), SWITCH, "folder"))


def test_flags_spell_what_keywords_say() -> None:
    told = list(flags({"enforce_eager": False, "seed": 0, "additional_config": SWITCH}))
    assert told == [
        "--no-enforce-eager", "--seed", "0", "--additional-config", '{"ours": {"path": "fast"}}',
    ]  # fmt: skip

"""Protects runs from traces that cannot be replayed: the format is checked, and counted, before an
engine is started; the shipped ones have what agent traffic is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.errors import UsageError
from fasttrack.perf.agent import traces
from fasttrack.schema.claim import AgentTraffic

CALL = {"t": 0.0, "type": "s", "model": "m", "in": 64, "out": 8, "hash_ids": [1]}


def load(folder: Path, traffic: AgentTraffic | None = None) -> traces.Traces:
    """The traces of the zoo's target."""
    return traces.load(zoo.claim(), "lab", folder, traffic)


def written(folder: Path, *requests: dict[str, Any], name: str = "one") -> AgentTraffic:
    """A trace of these requests."""
    (folder / "mine").mkdir(exist_ok=True)
    tree = {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local"}
    (folder / "mine" / f"{name}.json").write_text(json.dumps(tree | {"requests": requests}))
    return AgentTraffic(traces="mine")


def test_the_shipped_traces_are_agent_traffic(tmp_path: Path) -> None:
    found = load(tmp_path)
    trees = {tree.trace: tree for tree in found.trees}
    assert {name: tree.subagents for name, tree in trees.items()} == {
        "ask-two-helpers": 2,
        "fix-a-test": 1,
        "review-a-change": 1,
    }
    assert found.requests == 19
    assert all(tree.stall_s > 0.5 for tree in found.trees)
    # Short enough for two cores and the context of the bundled target.
    assert max(map(max, (tree.input_tokens for tree in found.trees))) < 1100
    assert all(8 <= out <= 32 for tree in found.trees for out in tree.output_tokens)


def test_one_shipped_helper_blocks_its_parent_and_one_does_not(tmp_path: Path) -> None:
    def next_turn_waits(name: str) -> bool:
        requests = json.loads(load(tmp_path).files[f"{name}.json"])["requests"]
        at = next(at for at, one in enumerate(requests) if one["type"] == "subagent")
        helper = requests[at]
        return bool(requests[at + 1]["t"] >= helper["t"] + helper["duration_ms"] / 1000)

    assert next_turn_waits("fix-a-test")
    assert not next_turn_waits("review-a-change")


def test_prefixes_grow_and_are_shared(tmp_path: Path) -> None:
    for content in load(tmp_path).files.values():
        tree = json.loads(content)
        system = tree["requests"][0]["hash_ids"][:4]
        before: list[int] = []
        for one in tree["requests"]:
            for call in one.get("requests", [one]):
                assert call["hash_ids"][:4] == system
                assert call["in"] == 64 * len(call["hash_ids"])
            if one["type"] != "subagent":
                assert one["hash_ids"][: len(before)] == before
                before = one["hash_ids"]


def test_a_set_of_ones_own_is_counted_and_pinned(tmp_path: Path) -> None:
    helper = {"t": 1.0, "type": "subagent", "requests": [{**CALL, "out": 0}]}
    traffic = written(tmp_path, {**CALL, "think_time": 0.5}, helper)
    found = load(tmp_path, traffic)
    (tree,) = found.trees
    assert (tree.trace, tree.subagents, tree.stall_s) == ("one", 1, 0.5)
    # A client asks for one token at least.
    assert list(tree.output_tokens) == [8, 1]
    pinned = AgentTraffic(traces="mine", sha256=found.sha256)
    assert load(tmp_path, pinned).sha256 == found.sha256
    alone = AgentTraffic(traces="mine/one.json", sha256=found.sha256)
    assert load(tmp_path, alone).requests == 2


def test_another_digest_than_the_claims_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, CALL)
    with pytest.raises(UsageError) as caught:
        load(tmp_path, AgentTraffic(traces="mine", sha256="0" * 64))
    assert caught.value.code == "PRF-002"


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([{**CALL, "in": 2040}], "asks for 2048"),
        ([{**CALL, "in": 2044}], "asks for 2052 tokens of context, max_model_len is 2048"),
        ([{**CALL, "in": -1}], "-1 is no number of tokens"),
        ([{**CALL, "out": True}], "true is no number of tokens"),
        ([{**CALL, "type": "chat"}], "type 'chat'"),
        ([{"t": 0.0}], "KeyError"),
    ],
)
def test_what_cannot_be_replayed_is_an_error(
    tmp_path: Path, requests: list[dict[str, Any]], says: str
) -> None:
    traffic = written(tmp_path, *requests)
    if says == "asks for 2048":
        assert load(tmp_path, traffic).requests == 1  # to the last token
        return
    with pytest.raises(UsageError) as caught:
        load(tmp_path, traffic)
    assert caught.value.code == "PRF-003"
    assert says in caught.value.cause


def test_more_trees_at_once_than_there_are_is_an_error(tmp_path: Path) -> None:
    traffic = written(tmp_path, CALL).model_copy(update={"concurrency": (2,)})
    with pytest.raises(UsageError, match="concurrency 2 is above 1 traces"):
        load(tmp_path, traffic)


def test_no_traces_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \.json file"):
        load(tmp_path, AgentTraffic(traces="nowhere"))


def test_two_traces_of_one_name_are_an_error(tmp_path: Path) -> None:
    traffic = written(tmp_path, CALL)
    (tmp_path / "mine" / "copy.json").write_bytes((tmp_path / "mine" / "one.json").read_bytes())
    with pytest.raises(UsageError, match="two traces have one id"):
        load(tmp_path, traffic)

"""The KDA metadata builder: which slot each row starts from and writes.

Protects: with drafts, a request resumes from the state after the last token that was kept, whatever
the engine scheduled in between; without drafts nothing is remembered; states of new requests start
from zero; the facts that choose the path are right.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

Row = tuple[int, int, bool]
"""Query tokens, tokens including them, prompt tokens left."""


def builder(drafts: int) -> Any:
    from kimi_k3.backend import KDABuilder

    speculative = SimpleNamespace(num_speculative_tokens=drafts) if drafts else None
    config = SimpleNamespace(
        speculative_config=speculative, cache_config=SimpleNamespace(mamba_cache_mode="none")
    )
    spec = SimpleNamespace(shapes=((3, 12), (2, 4, 4)))
    return KDABuilder(spec, ["model.layers.0.self_attn"], config, torch.device("cpu"))


def step(made: Any, rows: list[Row], tables: list[list[int]]) -> Any:
    """Metadata of a step with these rows, whose state slots are `tables`."""
    lengths = torch.tensor([length for length, _, _ in rows])
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    common = SimpleNamespace(
        num_reqs=len(rows),
        query_start_loc_cpu=bounds,
        seq_lens=torch.tensor([context for _, context, _ in rows], dtype=torch.int32),
        is_prefilling=torch.tensor([left for _, _, left in rows]),
        block_table_tensor=torch.tensor(tables, dtype=torch.int32),
    )
    return made.build(0, common)


def test_pure_decode_uses_every_row_in_order() -> None:
    found = step(builder(0), [(1, 9, False), (1, 30, False)], [[5], [7]])
    assert found.live.tolist() == [5, 7]
    assert found.written().tolist() == [5, 7]
    assert (found.rounds[0].rows, found.rounds[0].tokens) == (None, None)
    assert found.chunks is None and found.fresh is None
    assert found.facts.decode_rows == 2 and found.facts.prefill_rows == 0


def test_mixed_rows_in_any_order() -> None:
    rows = [(20, 20, True), (1, 9, False), (30, 90, True), (1, 1, True)]
    found = step(builder(0), rows, [[5], [7], [8], [9]])
    assert found.short.tolist() == [1, 3] and found.long.tolist() == [0, 2]
    assert found.fresh.tolist() == [False, True]
    assert found.rounds[0].tokens.tolist() == [20, 51]
    assert found.long_tokens.tolist() == [*range(20), *range(21, 51)]
    assert sorted(found.written().tolist()) == [5, 7, 8, 9]
    assert found.facts.decode_rows == 1 and found.facts.prefill_rows == 3
    assert found.facts.prefill_tokens == 51


def test_a_one_token_prompt_chunk_with_context_is_prefill() -> None:
    found = step(builder(0), [(1, 9, True)], [[5]])
    assert found.facts.prefill_rows == 1 and found.fresh is None


SLOTS = [[10, 11, 12, 13]]


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_a_verification_resumes_after_the_kept_tokens(kept: int) -> None:
    made = builder(3)
    step(made, [(20, 20, True)], SLOTS)
    verify = step(made, [(4, 24, False)], SLOTS)
    assert verify.live.tolist() == [10]
    assert [target.tolist() for target in verify.targets] == [[10], [11], [12], [13]]
    assert verify.facts.verify_rows == 1 and verify.facts.verify_tokens == 4
    assert verify.slots.tolist() == SLOTS
    after = step(made, [(4, 20 + kept + 4, False)], SLOTS)
    assert after.live.tolist() == [10 + kept - 1]


def test_a_lone_token_stays_in_the_live_column() -> None:
    made = builder(3)
    step(made, [(20, 20, True)], SLOTS)
    step(made, [(4, 24, False)], SLOTS)
    for length in (24, 25, 26):  # three of four kept, then one token a step
        lone = step(made, [(1, length, False)], SLOTS)
        assert lone.live.tolist() == [12] and lone.written().tolist() == [12]
        assert lone.facts.decode_rows == 1
    assert step(made, [(4, 30, False)], SLOTS).live.tolist() == [12]


def test_a_one_token_prompt_padded_with_rejected_drafts_keeps_its_first_state() -> None:
    made = builder(3)
    padded = step(made, [(4, 4, True)], SLOTS)
    assert padded.fresh.tolist() == [True]
    assert padded.facts.prefill_rows == 1
    after = step(made, [(4, 5, False)], SLOTS)  # one token kept
    assert after.live.tolist() == [10]


def test_a_short_prompt_is_kept_whole() -> None:
    made = builder(3)
    step(made, [(4, 4, True)], SLOTS)
    assert step(made, [(1, 5, False)], SLOTS).live.tolist() == [13]


def test_a_slot_given_to_a_new_request_remembers_nothing() -> None:
    made = builder(3)
    step(made, [(20, 20, True)], SLOTS)
    step(made, [(4, 24, False)], SLOTS)
    assert step(made, [(2, 2, True)], SLOTS).live.tolist() == [10]
    made = builder(3)
    step(made, [(20, 20, True)], SLOTS)
    step(made, [(4, 24, False)], SLOTS)
    step(made, [(30, 30, True)], SLOTS)
    assert step(made, [(1, 31, False)], SLOTS).live.tolist() == [10]


def test_rows_of_different_lengths_share_rounds() -> None:
    made, tables = builder(2), [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    step(made, [(20, 20, True), (30, 30, True), (40, 40, True)], tables)
    found = step(made, [(3, 23, False), (1, 31, False), (2, 42, False)], tables)
    assert [r.tokens.tolist() for r in found.rounds] == [[0, 3, 4], [1, 5], [2]]
    assert [t.tolist() for t in found.targets] == [[1, 4, 7], [2, 8], [3]]
    assert found.facts.decode_rows == 1 and found.facts.verify_rows == 2
    assert found.facts.verify_tokens == 0


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [
        ([(3, 23, False), (3, 33, False)], 3),
        ([(2, 22, False), (2, 32, False)], 2),
        ([(3, 23, False), (2, 32, False)], 0),
        ([(3, 23, False), (1, 31, False)], 0),
        ([(1, 21, False), (1, 31, False)], 0),
        ([(3, 23, False), (3, 33, True)], 0),  # the end of a prompt
        ([(3, 23, False), (3, 3, False)], 0),  # a new request
    ],
)
def test_only_rows_that_verify_alike_are_a_uniform_verification(
    rows: list[Row], tokens: int
) -> None:
    made, tables = builder(2), [[1, 2, 3], [4, 5, 6]]
    step(made, [(20, 20, True), (30, 30, True)], tables)
    assert step(made, rows, tables).facts.verify_tokens == tokens


def test_an_impossible_history_stops_instead_of_reading_a_wrong_state() -> None:
    made = builder(3)
    step(made, [(20, 20, True)], SLOTS)
    step(made, [(4, 24, False)], SLOTS)
    with pytest.raises(RuntimeError, match="5 of 4 tokens kept"):
        step(made, [(1, 26, False)], SLOTS)


def test_another_cache_group_swaps_only_slots() -> None:
    made, other = builder(3), [[20, 21, 22, 23]]
    step(made, [(20, 20, True)], SLOTS)
    step(made, [(4, 24, False)], SLOTS)
    first = step(made, [(2, 25, False)], SLOTS)
    second = builder(3).update_block_table(first, torch.tensor(other), torch.empty(0))
    assert first.live.tolist() == [12] and second.live.tolist() == [22]
    assert [t.tolist() for t in second.targets] == [[20], [21]]
    assert second.slots.tolist() == other
    assert second.facts is first.facts and second.rounds is first.rounds

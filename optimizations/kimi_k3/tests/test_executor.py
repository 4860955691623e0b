"""The executor as an engine uses it: many steps, changing batches, shared caches, several ranks.

Protects: agreement with the reference over whole generations, whatever the batch; state handed
back and forth between stock and specialised steps; inert padding; the engine's null block; equal
results on several ranks; refusals. One model of five layers serves all of it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.cases.serving import (
    DIMS,
    NAN,
    PAGE,
    Caches,
    Engine,
    Threads,
    cut_states,
    in_threads,
    raw,
    shard,
)
from kimi_k3.reference import decoder
from kimi_k3.reference.decoder import State
from kimi_k3.reference.weights import MODEL, Weights
from kimi_k3.runtime.collective import SingleRank
from kimi_k3.runtime.executor import MOST_TOKENS, PREPARED_BATCHES, Executor

BATCHES = [*range(1, 10), 16, 17, 33, 64]


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return dict(common.weights(0))


@pytest.fixture(scope="module")
def exact(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return common.doubled(weights)


@pytest.fixture(scope="module")
def executor(weights: dict[str, Tensor]) -> Executor:
    return Executor(DIMS, raw(weights), SingleRank())


def _bytes(caches: Caches) -> list[Tensor]:
    held = [
        one
        for cache in caches.values()
        for one in (cache if isinstance(cache, tuple) else (cache,))
    ]
    return [one.contiguous().view(torch.int32).clone() for one in held]


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).abs().max())


def _ready(executor: Executor, engine: Engine) -> Executor:
    executor.bind(engine.caches)
    executor.prepare()
    executor.poison()
    return executor


def _decode(weights: Weights, states: list[State], hidden: Tensor, rows: Sequence[int]) -> Tensor:
    return decoder.decode(weights, DIMS, [states[row] for row in rows], hidden)


# ---- agreement --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES)
def test_generation_equals_the_reference(
    batch: int, executor: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(batch, room=48)
    prompts = [1 + (7 * n) % 33 for n in range(batch)]
    truth = engine.fill(exact, prompts)
    stock = [engine.fetch(n) for n in range(batch)]
    _ready(executor, engine)
    rows = range(batch)
    for _ in range(6):
        hidden = decoder.embed(weights, engine.tokens(batch))
        wanted = _decode(exact, truth, hidden.double(), rows)
        plain = _decode(weights, stock, hidden, rows)
        found = executor.run(hidden, engine.step(rows))
        # Errors feed back through states and grow with depth, so stock's own is the measure.
        assert _error(found, wanted) < 10 * _error(plain, wanted) + 1e-6
        assert _error(found, wanted) < 1e-3


def test_requests_come_and_go_between_steps(
    executor: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(12, room=64)
    truth = engine.fill(exact, [3, 1, 40, 17, 5, 16, 15, 2, 9, 30, 4, 1])
    _ready(executor, engine)
    for turn in range(20):
        rows = [n for n in range(12) if (n * 5 + turn) % 4 < 1 + turn % 3]
        hidden = decoder.embed(weights, engine.tokens(len(rows)))
        wanted = _decode(exact, truth, hidden.double(), rows)
        assert _error(executor.run(hidden, engine.step(rows)), wanted) < 1e-3


def test_result_of_a_row_depends_on_no_other_row(
    executor: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    # The same four requests beside others in other rows of a batch of the same size.
    engine = Engine(8, room=32)
    engine.fill(exact, [3, 4, 5, 6, 7, 8, 9, 10])
    hidden = decoder.embed(weights, engine.tokens(8))
    _ready(executor, engine)
    before = [engine.fetch(n) for n in range(8)]
    outputs = []
    for scale in (1.0, NAN):
        for request, state in enumerate(before):
            engine.lengths[request] = 0
            engine.store(request, state)
        changed = hidden.clone()
        changed[4:] *= scale
        outputs.append(executor.run(changed, engine.step(range(8))))
    assert torch.equal(outputs[0][:4], outputs[1][:4])
    assert torch.isnan(outputs[1][4:]).all()


def test_stock_and_specialised_steps_alternate_on_the_same_caches(
    executor: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(5, room=48)
    truth = engine.fill(exact, [1, 12, 16, 17, 20])
    _ready(executor, engine)
    for turn in range(10):
        hidden = decoder.embed(weights, engine.tokens(5))
        wanted = _decode(exact, truth, hidden.double(), range(5))
        if turn % 2:
            found = executor.run(hidden, engine.step(range(5)))
        else:
            states = [engine.fetch(n) for n in range(5)]
            found = _decode(weights, states, hidden, range(5))
            engine.step(range(5))
            for request, state in enumerate(states):
                engine.store(request, state)
        assert _error(found, wanted) < 1e-3, turn


# ---- what must not change ---------------------------------------------------------------------


@pytest.mark.parametrize("batches", [PREPARED_BATCHES, (8,), (1, 4, 64)])
def test_only_rows_of_the_step_are_written(
    batches: Sequence[int], exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(6, room=32)
    engine.fill(exact, [4, 5, 6, 15, 16, 2])
    executor = _ready(Executor(DIMS, raw(weights), SingleRank(), batches), engine)
    before = _bytes(engine.caches)
    rows = [1, 3, 4]
    step = engine.step(rows)
    output = executor.run(decoder.embed(weights, engine.tokens(3)), step)
    assert torch.isfinite(output).all()
    index = 0
    for layer, kind in enumerate(DIMS.layer_kinds):
        ordinal = [*DIMS.kda_layers].index(layer) if kind == "kda" else 0
        cache = engine.caches[layer]
        for held in cache if kind == "kda" else (cache,):
            after = held.contiguous().view(torch.int32)
            flat = (0, 1) if kind == "mla" else (0, 0)
            one, other = before[index].flatten(*flat), after.flatten(*flat)
            written = set(
                (step.slots[ordinal, :, 0] if kind == "kda" else step.slot_mapping).tolist()
            )
            changed = (one != other).flatten(1).any(1).nonzero().flatten().tolist()
            assert set(changed) == written and 0 not in changed, layer
            index += 1


def test_padding_changes_no_bit_whatever_it_holds(
    exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    results = []
    for poison in (False, True):
        engine = Engine(3, room=32)
        engine.fill(exact, [4, 9, 16])
        executor = Executor(DIMS, raw(weights), SingleRank(), [8])
        executor.bind(engine.caches)
        executor.prepare()
        if poison:
            executor.poison()
        hidden = decoder.embed(weights, torch.tensor([1, 2, 3]))
        output = executor.run(hidden, engine.step(range(3)))
        results.append((output, *_bytes(engine.caches)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_request_in_the_null_slot_is_inert(
    executor: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(2, room=32)
    engine.fill(exact, [4, 9])
    _ready(executor, engine)
    step = engine.step([0, 1])
    slots, mapping = step.slots.clone(), step.slot_mapping.clone()
    slots[:, 1], mapping[1] = 0, -1
    before = _bytes(engine.caches)
    hidden = decoder.embed(weights, torch.tensor([5, 6]))
    output = executor.run(hidden, replace(step, slots=slots, slot_mapping=mapping))
    assert torch.isfinite(output[0]).all()
    for one, other in zip(before, _bytes(engine.caches), strict=True):
        assert torch.equal(one[0], other[0])


# ---- verification of several tokens -----------------------------------------------------------


class Follower:
    """The reference of some requests, told after each step how many tokens were kept."""

    def __init__(self, weights: Weights, states: list[State]) -> None:
        self.weights, self.states = weights, states

    def verify(self, hidden: Tensor, kept: Sequence[int]) -> Tensor:
        """hidden [B * q, D] token by token; the states go on after `kept` tokens of each."""
        tokens = len(hidden) // len(kept)
        outputs = []
        for row, count in enumerate(kept):
            state = copy.deepcopy(self.states[row])
            for token in range(tokens):
                one = hidden[row * tokens + token][None]
                outputs.append(decoder.decode(self.weights, DIMS, [state], one))
                if token == count - 1:
                    self.states[row] = copy.deepcopy(state)
        return torch.cat(outputs)


@pytest.fixture(scope="module")
def verifier(weights: dict[str, Tensor]) -> Executor:
    return Executor(DIMS, raw(weights), SingleRank(), range(1, 10), MOST_TOKENS)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 8), (3, 4), (9, 4), (2, 8), (5, 2)])
def test_generation_goes_on_from_the_last_kept_token(
    batch: int,
    tokens: int,
    verifier: Executor,
    exact: dict[str, Tensor],
    weights: dict[str, Tensor],
) -> None:
    engine = Engine(batch, room=96, columns=tokens)
    truth = Follower(exact, engine.fill(exact, [1 + (7 * n) % 33 for n in range(batch)]))
    stock = Follower(weights, [engine.fetch(n) for n in range(batch)])
    _ready(verifier, engine)
    for turn in range(tokens + 2):
        # Every number of kept tokens comes up; single tokens come between verifications.
        count = 1 if turn % 3 == 2 else tokens
        kept = [1 + (turn + row) % count for row in range(batch)]
        hidden = decoder.embed(weights, engine.tokens(batch * count))
        found = verifier.run(hidden, engine.step(range(batch), count))
        wanted, plain = truth.verify(hidden.double(), kept), stock.verify(hidden, kept)
        assert _error(found, wanted) < 10 * _error(plain, wanted) + 1e-6
        assert _error(found, wanted) < 1e-3
        if count > 1:
            for row, number in enumerate(kept):
                engine.keep(row, number, count)
    for row in range(batch):
        for held, right in zip(engine.fetch(row).layers, truth.states[row].layers, strict=True):
            for one, other in zip(vars(held).values(), vars(right).values(), strict=True):
                assert _error(one, other) < 1e-3


def test_a_verification_equals_single_steps(
    verifier: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    one, other = (Engine(3, room=64, columns=4) for _ in range(2))
    for engine in (one, other):
        engine.fill(exact, [4, 9, 16])
    hidden = decoder.embed(weights, one.tokens(12))
    _ready(verifier, one)
    found = verifier.run(hidden, one.step(range(3), 4)).view(3, 4, -1)
    _ready(verifier, other)
    for token in range(4):
        alone = verifier.run(hidden.view(3, 4, -1)[:, token], other.step(range(3)))
        assert _error(found[:, token], alone) < 1e-4
    for row in range(3):
        one.keep(row, 4, 4)
        for held, right in zip(one.fetch(row).layers, other.fetch(row).layers, strict=True):
            for left, alone in zip(vars(held).values(), vars(right).values(), strict=True):
                assert _error(left, alone) < 1e-4


def test_a_token_depends_on_no_later_one(
    verifier: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    results = []
    for scale in (1.0, 3.0):
        engine = Engine(2, room=64, columns=4)
        engine.fill(exact, [4, 16])
        _ready(verifier, engine)
        hidden = decoder.embed(weights, torch.arange(8)).view(2, 4, -1).clone()
        hidden[:, 2:] *= scale
        output = verifier.run(hidden.flatten(0, 1), engine.step(range(2), 4)).view(2, 4, -1)
        for row in range(2):
            engine.keep(row, 2, 4)
        kept = [one for row in range(2) for held in engine.fetch(row).layers
                for one in vars(held).values()]  # fmt: skip
        results.append((output[:, :2], *kept, output[:, 2:]))
    for one, other in zip(*(result[:-1] for result in results), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(results[0][-1], results[1][-1])


@pytest.mark.parametrize("batches", [(3,), (8,)])
def test_a_verification_writes_its_own_slots_and_rows_only(
    batches: Sequence[int], exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(5, room=64, columns=6)
    engine.fill(exact, [4, 5, 15, 16, 2])
    executor = _ready(Executor(DIMS, raw(weights), SingleRank(), batches, 4), engine)
    executor.run(decoder.embed(weights, torch.arange(12)), engine.step([0, 2, 3], 4))
    for row in (0, 2, 3):
        engine.keep(row, 3, 4)
    before = _bytes(engine.caches)
    step = engine.step([0, 3], 4)
    output = executor.run(decoder.embed(weights, torch.arange(50, 58)), step)
    assert torch.isfinite(output).all()
    held = iter(zip(before, _bytes(engine.caches), strict=True))
    for layer, kind in enumerate(DIMS.layer_kinds):
        for _ in engine.caches[layer] if kind == "kda" else (0,):
            one, other = next(held)
            if kind == "mla":
                one, other = one.flatten(0, 1), other.flatten(0, 1)
                written = set(step.slot_mapping.tolist())
            else:
                ordinal = DIMS.kda_layers.index(layer)
                written = set(step.slots[ordinal, :, :4].flatten().tolist())
            changed = (one != other).flatten(1).any(1).nonzero().flatten().tolist()
            assert set(changed) == written and 0 not in changed, layer


def test_padding_and_null_slots_are_inert_in_a_verification(
    verifier: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(3, room=64, columns=4)
    engine.fill(exact, [4, 9, 16])
    _ready(verifier, engine)
    step = engine.step(range(3), 4)
    slots, mapping, accepted = step.slots.clone(), step.slot_mapping.clone(), step.accepted
    assert accepted is not None
    slots[:, 1], mapping[4:8], accepted[1] = 0, -1, 1000  # an engine's padding, counts and all
    hidden, before = decoder.embed(weights, torch.arange(12)), _bytes(engine.caches)
    output = verifier.run(hidden, replace(step, slots=slots, slot_mapping=mapping))
    assert torch.isfinite(output.view(3, 4, -1)[[0, 2]]).all()
    for one, other in zip(before, _bytes(engine.caches), strict=True):
        assert torch.equal(one[0], other[0])


@pytest.mark.parametrize("count", [0, 5])
def test_a_count_no_request_can_have_stops_the_step(
    count: int, verifier: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(2, room=64, columns=4)
    engine.fill(exact, [4, 9])
    _ready(verifier, engine)
    step, before = engine.step([0, 1], 4), _bytes(engine.caches)
    wrong = replace(step, accepted=torch.tensor([1, count]))
    with pytest.raises(ValueError, match=f"request 1: {count} of 4 tokens kept"):
        verifier.run(decoder.embed(weights, torch.arange(8)), wrong)
    for one, other in zip(before, _bytes(engine.caches), strict=True):
        assert torch.equal(one, other)


# ---- several ranks ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)  # compiles the units of two ranks where the cache folder has none
def test_two_ranks_equal_one(
    verifier: Executor, exact: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    engine = Engine(5, room=48, columns=4)
    engine.fill(exact, [1, 4, 9, 16, 17])
    cut = [cut_states(engine, rank, 2, 48) for rank in range(2)]
    steps = [(range(5), 1), ([2], 4), ([0, 4], 1), (range(5), 4)]
    hidden = [decoder.embed(weights, engine.tokens(len(rows) * q)) for rows, q in steps]

    def work(ranks: Threads) -> list[Tensor]:
        own = Executor(DIMS, shard(weights, ranks.rank, 2), ranks, range(1, 10), 4)
        _ready(own, cut[ranks.rank])
        return [
            own.run(x, cut[ranks.rank].step(*step)) for x, step in zip(hidden, steps, strict=True)
        ]

    outputs = in_threads(2, work)
    _ready(verifier, engine)
    for n, (x, step) in enumerate(zip(hidden, steps, strict=True)):
        one = verifier.run(x, engine.step(*step))
        assert torch.equal(outputs[0][n], outputs[1][n]), "ranks disagree"
        assert _error(outputs[0][n], one) < 1e-4


# ---- refusals ---------------------------------------------------------------------------------


def test_refuses_weights_it_cannot_pack(weights: dict[str, Tensor]) -> None:
    given = raw(weights)
    name = MODEL.removeprefix("language_model.") + "layers.2.self_attn.q_proj.weight"
    with pytest.raises(ValueError, match=f"missing weight: {name}"):
        Executor(DIMS, {n: t for n, t in given.items() if n != name}, SingleRank())
    with pytest.raises(ValueError, match=r"must be torch\.float32"):
        Executor(DIMS, given | {name: given[name].bfloat16()}, SingleRank())
    with pytest.raises(ValueError, match="packed weights are"):
        Executor(DIMS, given | {name: given[name][:64]}, SingleRank())


@pytest.mark.parametrize("batches", [(), (0, 4)])
def test_refuses_batches_that_are_none(batches: Any, weights: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match="positive numbers of rows"):
        Executor(DIMS, raw(weights), SingleRank(), batches)


@pytest.mark.parametrize("tokens", [0, MOST_TOKENS + 1])
def test_refuses_numbers_of_tokens_it_cannot_prepare(
    tokens: int, weights: dict[str, Tensor]
) -> None:
    with pytest.raises(ValueError, match="tokens per request must be 1 to 8"):
        Executor(DIMS, raw(weights), SingleRank(), [1], tokens)


def test_refuses_caches_of_another_shape(executor: Executor) -> None:
    def changed(layer: int, cache: Any) -> Caches:
        return Engine(2, room=32).caches | {layer: cache}

    conv, recurrent = Engine(2, room=32).caches[0]
    wide = torch.zeros(4, 2 * PAGE, DIMS.mla_row)
    for layer, cache, message in (
        (0, None, "cache of layer 0"),
        (0, (conv,), "cache of layer 0"),
        (0, (conv.double(), recurrent), "cache of layer 0"),
        (3, torch.zeros(4, PAGE, 8), "cache of layer 3"),
        (4, wide, "cache of layer 4"),
        (3, wide[:, :PAGE], "do not follow each other"),
    ):
        caches = changed(layer, cache)
        if cache is None:
            del caches[layer]
        with pytest.raises(ValueError, match=message):
            executor.bind(caches)


def test_refuses_steps_it_is_not_prepared_for(weights: dict[str, Tensor]) -> None:
    executor = Executor(DIMS, raw(weights), SingleRank(), [2])
    engine = Engine(3, room=32)
    engine.lengths += 3
    hidden = torch.zeros(3, DIMS.hidden)
    with pytest.raises(RuntimeError, match="bind caches"):
        executor.prepare()
    with pytest.raises(RuntimeError, match="prepare before running"):
        executor.run(hidden, engine.step(range(3)))
    _ready(executor, engine)
    with pytest.raises(ValueError, match="prepared for 1 to 2 rows"):
        executor.run(hidden, engine.step(range(3)))
    with pytest.raises(ValueError, match="float32"):
        executor.run(hidden[:1].double(), engine.step([0]))
    with pytest.raises(ValueError, match="of 1 to 1 tokens"):
        executor.run(hidden[:2], Engine(2, room=32, columns=2).step([0], 2))
    executor.bind(engine.caches)
    with pytest.raises(RuntimeError, match="after binding"):
        executor.run(hidden[:1], engine.step([0]))


def test_counts_the_memory_it_holds(executor: Executor, weights: dict[str, Tensor]) -> None:
    packed = sum(one.nbytes for one in weights.values())
    assert 0.5 * packed < executor.extra_bytes < 1.5 * packed

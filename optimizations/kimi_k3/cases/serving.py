"""An engine in miniature for the executor's tests: requests, caches, ranks.

Owns: allotting slots and pages, moving states between the reference and caches, ranks as threads.
Does not own: anything a real engine uses. Read by: the executor's tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.reference import decoder
from kimi_k3.reference.decoder import KdaState, MlaState, State
from kimi_k3.reference.weights import Weights
from kimi_k3.runtime.step import DecodeStep

DIMS = common.DIMS
NAN = float("nan")
PAGE = 16
Caches = dict[int, Any]


def raw(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("language_model."): one for name, one in weights.items()}


class Engine:
    """Slots, pages and caches of up to `most` requests, allotted in scattered order.

    Everything starts as NaN and the null slot and page stay so; every KDA layer gives a request
    other slots, as an engine with several cache groups does, one per column: `columns` is the most
    tokens a request may verify at once.
    """

    def __init__(self, most: int, room: int, tp: int = 1, columns: int = 1) -> None:
        self.random = torch.Generator().manual_seed(most)
        count = most * columns
        slots = [self._order(count + 3)[:count].view(most, columns) for _ in DIMS.kda_layers]
        self.slots = torch.stack(slots)
        self.column = torch.zeros(most, dtype=torch.int64)
        each = -(-room // PAGE)
        self.table = self._order(most * each).view(most, each)
        self.lengths = torch.zeros(most, dtype=torch.int64)
        self.caches: Caches = {}
        for layer, kind in enumerate(DIMS.layer_kinds):
            if kind == "mla":
                pages = torch.full((most * each + 1, PAGE, DIMS.mla_row), NAN)
                self.caches[layer] = pages
                continue
            shapes = DIMS.conv_state_shape(tp), DIMS.recurrent_state_shape(tp)
            conv, recurrent = (torch.full((count + 4, *shape), NAN) for shape in shapes)
            self.caches[layer] = common.paged(conv), common.paged(recurrent)

    def _order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.random) + 1

    def place(self, layer: int, request: int) -> Tensor | int:
        """Live slot of a KDA layer, or cache rows of an MLA layer up to the request's length."""
        if layer in DIMS.kda_layers:
            own = self.slots[DIMS.kda_layers.index(layer), request]
            return int(own[self.column[request]])
        token = torch.arange(int(self.lengths[request]))
        return self.table[request][token // PAGE] * PAGE + token % PAGE

    def store(self, request: int, state: State) -> None:
        """Put a request's states where the engine keeps them."""
        first_mla = DIMS.mla_layers[0]
        self.lengths[request] = len(state.layers[first_mla].rows)  # type: ignore[union-attr]
        for layer, held in enumerate(state.layers):
            at, cache = self.place(layer, request), self.caches[layer]
            if isinstance(held, MlaState):
                cache.flatten(0, 1)[at] = held.rows.float()
            else:
                cache[0][at], cache[1][at] = held.conv.float(), held.recurrent.float()

    def fetch(self, request: int) -> State:
        """A request's states as the reference holds them."""
        layers: list[KdaState | MlaState] = []
        for layer in range(DIMS.layers):
            at, cache = self.place(layer, request), self.caches[layer]
            if layer in DIMS.mla_layers:
                layers.append(MlaState(cache.flatten(0, 1)[at].clone()))
            else:
                layers.append(KdaState(cache[0][at].clone(), cache[1][at].clone()))
        return State(layers)

    def step(self, requests: Sequence[int], tokens: int = 1) -> DecodeStep:
        """`tokens` more tokens for each of `requests`."""
        rows = torch.tensor(requests)
        self.lengths[rows] += tokens
        new = self.lengths[rows][:, None] + torch.arange(-tokens, 0)
        mapping = self.table[rows].gather(1, new // PAGE) * PAGE + new % PAGE
        return DecodeStep(
            slots=self.slots[:, rows],
            block_table=self.table[rows],
            slot_mapping=mapping.flatten(),
            seq_lens=self.lengths[rows],
            max_seq_len=int(self.lengths[rows].max()),
            tokens=tokens,
            accepted=self.column[rows] + 1 if self.slots.shape[2] > 1 else None,
        )

    def keep(self, request: int, kept: int, tokens: int) -> None:
        """Keep the first `kept` of the `tokens` a request has just verified."""
        self.lengths[request] -= tokens - kept
        self.column[request] = kept - 1

    def fill(self, weights: Weights, prompts: Sequence[int]) -> list[State]:
        """Prefill a request per prompt length with the reference; the states it ended in."""
        states = []
        for request, length in enumerate(prompts):
            state = State.empty(DIMS, torch.float64)
            decoder.extend(weights, DIMS, state, self.tokens(length))
            self.store(request, state)
            states.append(state)
        return states

    def tokens(self, count: int) -> Tensor:
        return torch.randint(DIMS.vocab, (count,), generator=self.random)


class Threads:
    """Ranks that are threads of this process and meet at a barrier."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, desk: dict[int, Tensor]):
        self.rank, self.size = rank, size
        self._barrier, self._desk = barrier, desk

    def _meet(self, tensor: Tensor) -> list[Tensor]:
        self._desk[self.rank] = tensor.clone()
        self._barrier.wait(60)
        met = [self._desk[rank] for rank in range(self.size)]
        self._barrier.wait(60)
        return met

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._meet(tensor)).sum(0)

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        return torch.cat(self._meet(tensor), dim)


def in_threads(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    barrier, desk = threading.Barrier(size), dict[int, Tensor]()
    results: dict[int, Any] = {}

    def target(rank: int) -> None:
        try:
            with torch.no_grad():
                results[rank] = work(Threads(rank, size, barrier, desk))
        except BaseException as error:
            results[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=target, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    for found in results.values():
        if isinstance(found, BaseException):
            raise found
    return [results[rank] for rank in range(size)]


_ROWS = (
    "q_proj", "k_proj", "v_proj", "self_attn.g_proj", "f_b_proj", "b_proj", "conv1d", "A_log",
    "dt_bias", "q_b_proj", "kv_b_proj", "w1", "w3", "gate_proj", "shared_experts.up_proj",
    "mlp.up_proj",
)  # fmt: skip
_COLUMNS = ("o_proj", "w2", "down_proj.weight")


def shard(weights: dict[str, Tensor], rank: int, tp: int) -> dict[str, Tensor]:
    """Weights of one rank as the engine's loaders cut them."""
    cut = {}
    for name, tensor in weights.items():
        if name.endswith("A_log"):
            tensor = tensor[: DIMS.kda_heads]
        if name.endswith("routed_expert_down_proj.weight"):
            axis = None
        elif any(part in name for part in _ROWS):
            axis = 0
        elif any(part in name for part in _COLUMNS):
            axis = 1
        else:
            axis = None
        cut[name] = tensor if axis is None else tensor.chunk(tp, axis)[rank]
    return raw(cut)


def cut_states(whole: Engine, rank: int, tp: int, room: int) -> Engine:
    """The same requests on one rank: states of its heads, the latent cache in full."""
    own = Engine(len(whole.lengths), room, tp, whole.slots.shape[2])
    own.slots, own.table, own.lengths = whole.slots, whole.table, whole.lengths.clone()
    for layer in DIMS.kda_layers:
        conv, recurrent = whole.caches[layer]
        parts = [channels.chunk(tp, -1)[rank] for channels in conv.chunk(3, -1)]
        own.caches[layer][0].copy_(torch.cat(parts, -1))
        own.caches[layer][1].copy_(recurrent.chunk(tp, 1)[rank])
    for layer in DIMS.mla_layers:
        own.caches[layer].copy_(whole.caches[layer])
    return own

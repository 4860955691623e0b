"""vLLM's model state as this path hooks into it: which steps are noted, and with which graph.

Protects: that a step with requests is noted once, with the graph that will run it, and that dummy
runs and captures are not; that vLLM's own work is done as ever.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

from vllm.config import CUDAGraphMode  # noqa: E402

from kimi_k3.intree.evidence import writes_of  # noqa: E402

BASE = "vllm.models.kimi_k3.nvidia.model_state"


def _batch(padded: int) -> Any:
    return SimpleNamespace(
        num_reqs=3,
        num_scheduled_tokens=np.ones(3, dtype=np.int32),
        is_prefilling_np=np.zeros(3, dtype=bool),
        num_tokens_after_padding=padded,
    )


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model state whose base class, in vLLM's place, only writes down that it was called. The
    engine for CPUs has no such class."""
    calls: list[Any] = []
    notes: list[Any] = []

    def called(name: str) -> Any:
        return lambda self, *a, **k: calls.append((name, len(a), sorted(k)))

    names = ("preprocess_state", "prepare_attn", "initialize_kv_cache")
    base = type("KimiK3ModelState", (), {name: called(name) for name in names})
    monkeypatch.setitem(sys.modules, BASE, SimpleNamespace(KimiK3ModelState=base))
    monkeypatch.delitem(sys.modules, "kimi_k3.intree.state", raising=False)
    module = importlib.import_module("kimi_k3.intree.state")
    monkeypatch.delitem(sys.modules, "kimi_k3.intree.state")
    made = module.ModelState.__new__(module.ModelState)
    made._step, made._asked = None, False
    made.language_model = SimpleNamespace(
        note=lambda facts, graph, *wrote: notes.append((facts.decode_rows, graph, *wrote)),
        prepare=lambda widths: calls.append(widths),
    )
    return SimpleNamespace(state=made, calls=calls, notes=notes)


def test_a_step_is_noted_once_with_the_graph_that_runs_it(hooked: Any) -> None:
    batch = _batch(4)
    hooked.state.preprocess_state(batch, 1, 2)
    for _ in range(2):
        hooked.state.prepare_attn(batch, CUDAGraphMode.FULL, 3, for_capture=False)
    assert hooked.notes == [(3, 4, [], [])]
    prepared = ("prepare_attn", 3, ["for_capture"])
    assert hooked.calls == [("preprocess_state", 3, []), prepared, prepared]


def test_a_step_outside_full_graphs_has_none(hooked: Any) -> None:
    for mode in (CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE):
        batch = _batch(8)
        hooked.state.preprocess_state(batch)
        hooked.state.prepare_attn(batch, mode)
    assert hooked.notes == [(3, None, [], [])] * 2


def test_dummy_runs_and_captures_are_not_noted(hooked: Any) -> None:
    real = _batch(4)
    hooked.state.preprocess_state(real)
    hooked.state.prepare_attn(_batch(4), CUDAGraphMode.FULL)
    assert hooked.notes == []
    hooked.state.prepare_attn(real, CUDAGraphMode.FULL)
    assert hooked.notes == [(3, 4, [], [])]


def test_launches_are_prepared_once_caches_are_bound(hooked: Any) -> None:
    groups = [SimpleNamespace(layer_names=names) for names in (["a", "b"], ["c"])]
    tables = [torch.zeros(4, width, dtype=torch.int32) for width in (3, 7)]
    hooked.state.initialize_kv_cache(
        SimpleNamespace(kv_cache_groups=groups), SimpleNamespace(input_block_tables=tables)
    )
    widths = {"a": 3, "b": 3, "c": 7}
    assert hooked.calls == [("initialize_kv_cache", 2, []), widths]


def test_what_a_step_writes_is_noted_where_somebody_can_ask(hooked: Any) -> None:
    hooked.state._asked = True
    kda = SimpleNamespace(
        num_spec_decodes=0, non_spec_state_indices_tensor=torch.tensor([5, 6, 7, 0])
    )
    slots = torch.tensor([[-1] * 4, [768, 769, 1536, -1]])
    groups = [SimpleNamespace(layer_names=[name]) for name in ("kda", "mla")]
    told = {"kda": kda, "mla": SimpleNamespace()}
    type(hooked.state).__mro__[1].prepare_attn = lambda *_, **__: told
    batch = _batch(4)
    hooked.state.preprocess_state(batch)
    config = SimpleNamespace(kv_cache_groups=groups)
    assert hooked.state.prepare_attn(batch, CUDAGraphMode.FULL, (), slots, [], config) is told
    ((rows, graph, (states,), (written,)),) = hooked.notes
    kda.non_spec_state_indices_tensor.zero_()
    slots.zero_()
    assert (rows, graph) == (3, 4)
    assert states.tolist() == [5, 6, 7] and written.tolist() == [768, 769, 1536]


KDA, MLA = (SimpleNamespace(layer_names=[name]) for name in ("kda", "mla"))


@pytest.mark.parametrize(
    ("drafted", "plain", "requests", "tokens", "states"),
    [
        # Two requests verify three rows each in a graph for three: every row has its own state.
        (2, None, 2, 6, [5, 6, 7, 8, 9, 10]),
        # Beside them two that do not, as vLLM tells them apart outside graphs.
        (2, [11, 12], 4, 8, [5, 6, 7, 8, 9, 10, 11, 12]),
        (0, [11, 12, 0], 2, 2, [11, 12]),
    ],
    ids=["verifications", "both", "decodes"],
)
def test_a_verification_writes_a_state_of_every_row(
    drafted: int, plain: list[int] | None, requests: int, tokens: int, states: list[int]
) -> None:
    kda = SimpleNamespace(
        num_spec_decodes=drafted,
        spec_state_indices_tensor=torch.tensor([[5, 6, 7], [8, 9, 10], [0, 0, 0]]),
        non_spec_state_indices_tensor=None if plain is None else torch.tensor(plain),
    )
    slots = torch.stack([torch.full((9,), -1), torch.arange(100, 109)])
    told = {"kda": kda, "mla": SimpleNamespace()}
    (wrote,), (rows,) = writes_of([KDA, MLA], told, slots, requests, tokens)
    assert wrote.tolist() == states
    assert rows.tolist() == list(range(100, 100 + tokens))


def test_a_verification_is_noted_with_the_rows_of_its_graph(hooked: Any) -> None:
    """Three requests of four rows each in a graph for four of them: sixteen rows."""
    seen: list[Any] = []
    hooked.state.language_model.note = lambda facts, graph, *_: seen.append((facts, graph))
    batch = _batch(16)
    batch.num_scheduled_tokens *= 4
    hooked.state.preprocess_state(batch)
    hooked.state.prepare_attn(batch, CUDAGraphMode.FULL)
    ((facts, graph),) = seen
    assert graph == 16 and facts.verify_tokens == 4 and facts.verify_rows == facts.requests == 3

"""Protects the timeline of a step: every operator once, in its layer, and compiled units by name.

The runner is a stand-in with a real model of two layers; what is timed are real operators.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
observe = pytest.importorskip("fasttrack.engine._vllm_timeline")


class StateSpec:
    pass


class PagedSpec:
    pass


class Model(torch.nn.Module):
    """Two layers of two operators, called through the modules or past them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Any, past: bool) -> Any:
        for layer in self.layers:
            x = layer.forward(x) if past else layer(x)
        return x.sigmoid()


def runner() -> Any:
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_num_layers=lambda _: 2), parallel_config=None
    )
    groups = [
        SimpleNamespace(layer_names=["m.0.a"], kv_cache_spec=StateSpec()),
        SimpleNamespace(layer_names=["m.1.a"], kv_cache_spec=PagedSpec()),
    ]
    cache = SimpleNamespace(kv_cache_groups=groups)
    return SimpleNamespace(vllm_config=config, kv_cache_config=cache, model=Model())


def recorded(past: bool = False, prefills: int = 1, steps: int = 20) -> Any:
    """The timeline of a call with its first steps prefilling."""
    made = runner()
    scheduled: list[tuple[int, int]] = []
    given = torch.ones(1, 4)
    recorder = observe.Recorder(made, scheduled)

    def step() -> str:
        scheduled.append((0, 4) if len(scheduled) < prefills else (1, 0))
        with torch.inference_mode():
            made.model(given, past)
        return "result"

    with recorder.watching():
        assert {recorder.step(step) for _ in range(steps)} == {"result"}
    assert not any(layer._forward_hooks for layer in made.model.layers)
    return recorder.seen()


def test_operators_are_told_once_and_in_their_layer() -> None:
    seen = recorded()
    told = [(seen.names[name], layer) for name, _, _, _, layer in seen.spans]
    assert told == [("aten::linear", 0), ("aten::linear", 1), ("aten::sigmoid", None)]
    assert list(seen.kinds) == ["State", "Paged"]
    assert seen.spans[0][1] == 0 and all(took > 0 for _, _, took, _, _ in seen.spans)
    assert len(seen.plain_us) == observe.PLAIN_STEPS
    assert [count for count, _ in seen.steps] == [3] * observe.PROFILED_STEPS


def test_a_path_past_the_modules_has_spans_without_a_layer() -> None:
    seen = recorded(past=True)
    assert [layer for *_, layer in seen.spans if layer is not None] == []
    assert sum(seen.names[name] == "aten::linear" for name, *_ in seen.spans) == 2


def test_steps_that_prefill_are_not_timed() -> None:
    assert recorded(prefills=20) is None
    assert recorded(steps=8) is None


def test_without_layers_of_that_number_nothing_is_marked() -> None:
    assert observe.decoder_layers(Model(), 3) == []


def test_compiled_units_show_by_name_and_hide_what_they_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Loader:
        def __init__(self, path: str) -> None:
            self.path = path

        def run(self, x: Any) -> Any:
            return x + 1

        boxed_run = run

    namespace = SimpleNamespace(AOTIModelPackageLoader=Loader)
    monkeypatch.setattr(observe.torch._C, "_aoti", namespace)
    observe.name_units()
    units = [Loader(f"/cache/{name}-0f.pt2").run for name in ("kda", "moe")]

    def work() -> None:
        for unit in units:
            unit(torch.ones(2))

    quiet = observe.profiled(work)[1]
    assert {name for name, *_ in quiet} == {"aten::ones", "aten::add"}
    monkeypatch.setattr(observe, "_naming", True)
    names = [name for name, *_ in observe.profiled(work)[1]]
    assert names == ["aten::ones", "compiled::kda", "aten::ones", "compiled::moe"]


def event(name: str, start: float, end: float, stream: int, mark: bool = False) -> Any:
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), device_resource_id=stream,
        is_user_annotation=mark, device_type=SimpleNamespace(name="CUDA"),
    )  # fmt: skip


def test_kernels_belong_to_the_mark_they_start_in() -> None:
    events = [
        event("late", 30, 31, 7), event(f"{observe.LAYER}1", 10, 20, 7, mark=True),
        event("gemm", 10, 14, 7), event("beside", 12, 19, 9), event("first", 1, 2, 7),
        event(f"{observe.LAYER}0", 1, 9, 7, mark=True), event("other", 0, 40, 7, mark=True),
    ]  # fmt: skip
    kernels: Callable[[Any], Any] = observe._kernels
    assert list(kernels(events)) == [
        ("first", 1, 1, 0, 0), ("gemm", 10, 4, 0, 1), ("beside", 12, 7, 1, 1),
        ("late", 30, 1, 0, None),
    ]  # fmt: skip

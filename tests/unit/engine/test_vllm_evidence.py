"""Protects what the harness sees of a step for itself: names, cache changes, the entry's result.

The runner is a stand-in with real tensors, laid out as vLLM lays them out: pages that caches of
several groups share, and one storage for several runs of pages.
"""

from __future__ import annotations

import functools
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
observe = pytest.importorskip("fasttrack.engine._vllm_evidence")

BLOCKS, PAGE, SIZE = 12, 64, 4
"""Blocks, floats of a page, rows of a paged block."""


class MambaSpec:
    block_size = SIZE


class PagedSpec:
    block_size = SIZE


class Runner:
    """One state layer and one paged layer that share pages, and a second run of pages."""

    def __init__(self) -> None:
        self.storage = torch.zeros(2 * BLOCKS * PAGE)
        self.state = self.storage.as_strided((BLOCKS, 10), (PAGE, 1), BLOCKS * PAGE)
        self.paged = self.storage.as_strided((BLOCKS, SIZE, 8), (PAGE, 8, 1), BLOCKS * PAGE)
        groups = [
            SimpleNamespace(layer_names=["s"], kv_cache_spec=MambaSpec()),
            SimpleNamespace(layer_names=["p"], kv_cache_spec=PagedSpec()),
        ]
        self.kv_cache_config = SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=groups)
        layers = {
            "s": SimpleNamespace(kv_cache=(self.state,)), "p": SimpleNamespace(kv_cache=self.paged)
        }  # fmt: skip
        self.vllm_config = SimpleNamespace(
            compilation_config=SimpleNamespace(static_forward_context=layers)
        )
        tables = [self._table([3]), self._table([5, 6])]
        self.input_batch = SimpleNamespace(block_table=tables, req_ids=["a"])
        self.work: Any = None

    @staticmethod
    def _table(blocks: list[int]) -> Any:
        array = torch.tensor([[*blocks, 0, 0]]).numpy()
        return SimpleNamespace(num_blocks_per_row=[len(blocks)], get_numpy_array=lambda: array)

    def execute_model(self, scheduled: Any) -> None:
        """What a test made it do."""
        self.work()


class SecondRunner(Runner):
    """The same, with tables of all requests, as vLLM's second runner has them."""

    def __init__(self) -> None:
        super().__init__()
        del self.input_batch
        # Request `a` in the third row; the others hold what ended requests left.
        rows = [[9, 9, 9, 9], [9, 9, 9, 9]]
        tables = [torch.tensor([*rows, blocks]) for blocks in ([3, 9, 9, 9], [5, 6, 9, 9])]
        counts = torch.tensor([[4, 4, 1], [4, 4, 2]]).numpy()
        self.req_states = SimpleNamespace(req_id_to_index={"a": 2})
        self.block_tables = SimpleNamespace(
            block_tables=[SimpleNamespace(gpu=table) for table in tables],
            num_blocks=SimpleNamespace(np=counts),
        )


def scheduled(computed: int, tokens: int = 1) -> Any:
    """The scheduler's output of a step of request `a`."""
    return SimpleNamespace(
        total_num_scheduled_tokens=tokens,
        num_scheduled_tokens={"a": tokens},
        scheduled_cached_reqs=SimpleNamespace(req_ids=["a"], num_computed_tokens=[computed]),
        scheduled_new_reqs=[],
    )


def seen(work: Any, computed: int = 4) -> Any:
    """The one step in which `work(runner)` happens to the caches; alike with both runners."""
    found = []
    for runner in (Runner(), SecondRunner()):
        runner.paged[5] = 7.0
        runner.work = functools.partial(work, runner)
        watch = observe.StateWatch(runner)
        with watch.watching():
            runner.execute_model(scheduled(computed))
        found += watch.steps
    step, other = found
    assert step == other
    return step


def test_an_honest_step_writes_its_slot_and_its_row() -> None:
    def work(runner: Runner) -> None:
        runner.state[3] += 1
        runner.paged[6, 0] = 2.0

    step = seen(work)
    assert (step.slots, step.rows, step.foreign, step.foreign_rows) == ("3", "24", "", "")
    assert not step.null


def test_the_null_block_and_foreign_blocks_show() -> None:
    def work(runner: Runner) -> None:
        runner.state[0, 2] = 1.0
        runner.state[9, 2] = 1.0

    step = seen(work)
    assert (step.null, step.foreign, step.slots) == (True, "9", "")


def test_rows_computed_before_are_foreign() -> None:
    def work(runner: Runner) -> None:
        runner.paged[5, 1] = 2.0
        runner.paged[6, 0] = 2.0

    step = seen(work)
    assert (step.rows, step.foreign_rows) == ("21,24", "21")


def test_bits_are_compared() -> None:
    def work(runner: Runner) -> None:
        runner.state[3, 0] = float("nan")
        runner.paged[6, 0, 0] = -0.0

    step = seen(work)
    assert (step.slots, step.rows) == ("3", "24")

    def again(runner: Runner) -> None:
        runner.state[3, 0] = runner.state[3, 0]

    assert seen(again).slots == ""


def test_the_runner_is_left_as_it_was() -> None:
    runner = Runner()
    runner.work = lambda: None
    with observe.StateWatch(runner).watching():
        assert "execute_model" in vars(runner)
    runner.execute_model(scheduled(4))


def test_other_layouts_are_refused_with_a_reason() -> None:
    runner = Runner()
    layers = runner.vllm_config.compilation_config.static_forward_context
    layers["p"] = SimpleNamespace(kv_cache=torch.zeros(2, BLOCKS, SIZE, 8))
    with pytest.raises(observe.CannotWatch, match="not one page for each of 12 blocks"):
        observe.StateWatch(runner)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A plugin's module with an entry."""
    made = types.ModuleType("planted_entry")

    class Executor:
        def run(self, x: Any) -> Any:
            return x * 2

    made.Executor = Executor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "planted_entry", made)
    return made


def test_the_entry_is_counted_and_replaced_only_when_asked(module: Any) -> None:
    entry = observe.Entry("planted_entry:Executor.run")
    x = torch.tensor([1.0, float("nan"), -0.0])
    executor = module.Executor()
    plain = executor.run(x)
    assert plain.view(torch.int32).equal((x * 2).view(torch.int32))
    with torch.inference_mode():
        executor.run(x)
    with entry.constant():
        assert executor.run(x).tolist() == [1.0, 1.0, 1.0]
    assert executor.run(x)[0] == 2.0
    assert entry.calls == 4


def test_a_runner_that_tells_no_batch_cannot_be_watched() -> None:
    with pytest.raises(observe.CannotWatch, match="block tables"):
        observe.StateWatch(SimpleNamespace())


def test_an_entry_that_does_not_exist() -> None:
    with pytest.raises(ImportError):
        observe.Entry("no_such_module:run")


def test_names_of_a_step() -> None:
    result, names = observe.names(lambda: torch.ones(3, 3) @ torch.ones(3, 3))
    assert result.shape == (3, 3)
    assert names["aten::mm"] == 1

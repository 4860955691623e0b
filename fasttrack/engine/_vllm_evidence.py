"""What the harness itself sees of a vLLM engine's steps: names, cache changes, calls of the entry.

Owns the profiler around a step, the bitwise comparison of the KV caches around one, and the wrapper
of the claim's entry. Asks the optimization nothing. Used by the vLLM child in the path stage only,
because all of it is slow, in the process where the model runs (`_vllm_rank` for several ranks).
Works with both of vLLM's model runners.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fasttrack import ranges
from fasttrack.schema import StateStep

WATCHED_BLOCKS = 256
"""Blocks are given out in order, so the first ones are those in use and their neighbours."""
CONSTANT = 1.0
NAMES = 400
"""Names kept of a step; honest steps have a quarter of that."""


class Entry:
    """The claim's entry, wrapped: calls are counted, and its result can be a constant.

    The wrapper must be in place before a graph is captured. The choice between result and constant
    is made on the device, so that it also acts in a graph's replays; calls are counted in eager
    mode only. Of a GPU the flag is made here: made in a capture, each replay would clear it.
    """

    def __init__(self, name: str, flag: bool = True) -> None:
        """`flag`: make that of the current GPU, if there is one; else `prepare` must."""
        module, _, path = name.partition(":")
        *outer, attribute = path.split(".")
        owner: Any = functools.reduce(getattr, outer, import_module(module))
        original: Callable[..., Any] = getattr(owner, attribute)
        self.calls = 0
        self._flags: dict[torch.device, torch.Tensor] = {}
        if flag and torch.cuda.is_available():
            self.prepare(torch.device("cuda", torch.cuda.current_device()))

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self._marked(original(*args, **kwargs))

        setattr(owner, attribute, wrapped)

    def _marked(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            if value.device not in self._flags:
                self.prepare(value.device)
            flag = self._flags[value.device]
            return torch.where(flag, torch.full_like(value, CONSTANT), value)
        if isinstance(value, tuple | list):
            return type(value)(self._marked(item) for item in value)
        return value

    @torch.inference_mode()
    def prepare(self, device: torch.device) -> None:
        """Make the flag of a device."""
        self._flags[device] = torch.zeros((), dtype=torch.bool, device=device)

    @contextmanager
    def constant(self) -> Iterator[None]:
        """Results are a constant inside."""
        self._set(True)
        try:
            yield
        finally:
            self._set(False)

    @torch.inference_mode()
    def _set(self, on: bool) -> None:
        """Flags are made in steps, which run in this mode."""
        for flag in self._flags.values():
            flag.fill_(on)


def names(step: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What `step` returns, and how often the profiler saw which name meanwhile."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as seen:
        result = step()
    counted = Counter(event.name for event in seen.events())
    return result, dict(counted.most_common(NAMES))


Region = tuple[int, int]


class CannotWatch(Exception):
    """The caches of this engine are not laid out so that blocks can be compared."""


class StateWatch:
    """Compares the caches around every step of a model runner, block by block and bit by bit."""

    def __init__(self, runner: Any) -> None:
        """Raises `CannotWatch` for caches whose first axis is not the engine's blocks, and for a
        runner that does not tell whose they are."""
        if not (hasattr(runner, "input_batch") or hasattr(runner, "req_states")):
            raise CannotWatch(
                f"{type(runner).__module__}.{type(runner).__qualname__} keeps no batch whose block "
                "tables could be read"
            )
        config = runner.kv_cache_config
        self.blocks: int = config.num_blocks
        self.watched = min(WATCHED_BLOCKS, self.blocks)
        self.steps: list[StateStep] = []
        self._runner = runner
        self._groups = config.kv_cache_groups
        layers = runner.vllm_config.compilation_config.static_forward_context
        self._tensors: dict[str, list[torch.Tensor]] = {}
        self._pages: dict[Region, torch.Tensor] = {}
        for group in self._groups:
            for name in group.layer_names:
                held = layers[name].kv_cache
                tensors = list(held) if isinstance(held, tuple | list) else [held]
                self._tensors[name] = tensors
                for tensor in tensors:
                    self._add(name, tensor)
        self._before: dict[Region, torch.Tensor] = {}

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        page = tensor.stride(0) * tensor.element_size()
        region = _region(tensor)
        storage = tensor.untyped_storage()
        fits = region[1] + page * self.blocks <= storage.nbytes()
        if tensor.shape[0] != self.blocks or page % 4 or not fits:
            raise CannotWatch(
                f"{name}: {tuple(tensor.shape)} of strides {tensor.stride()} in {storage.nbytes()} "
                f"bytes is not one page for each of {self.blocks} blocks"
            )
        words = torch.empty(0, dtype=torch.int32, device=tensor.device)
        shape, strides = (self.watched, page // 4), (page // 4, 1)
        self._pages[region] = words.set_(storage, region[1] // 4, shape, strides)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Every step inside is compared."""
        runner, original = self._runner, self._runner.execute_model
        self._before = {key: pages.clone() for key, pages in self._pages.items()}

        def execute(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scheduled, *args, **kwargs)
            if scheduled.total_num_scheduled_tokens:
                self.steps.append(self._compare(scheduled))
            return result

        runner.execute_model = execute
        try:
            yield
        finally:
            runner.execute_model = original
            self._before = {}

    def _compare(self, scheduled: Any) -> StateStep:
        changed: set[int] = set()
        for key, pages in self._pages.items():
            differ = (pages != self._before[key]).any(1).nonzero()[:, 0]
            changed |= set(differ.tolist())
        state, paged, computed = self._owners(scheduled)
        rows: set[int] = set()
        foreign_rows: set[int] = set()
        for block in sorted(changed & paged.keys()):
            size = self._groups[paged[block]].kv_cache_spec.block_size
            for row in self._rows(block, paged[block], size):
                number = block * size + row
                (rows if number in computed else foreign_rows).add(number)
        for key, pages in self._pages.items():
            at = sorted(changed)
            self._before[key][at] = pages[at]
        return StateStep(
            slots=ranges.text(changed & state),
            rows=ranges.text(rows | foreign_rows),
            foreign=ranges.text(changed - state - paged.keys() - {0}),
            foreign_rows=ranges.text(foreign_rows),
            null=0 in changed,
        )

    def _owners(self, scheduled: Any) -> tuple[set[int], dict[int, int], set[int]]:
        """State blocks, group of each paged block, and the rows this step computes."""
        cached = scheduled.scheduled_cached_reqs
        start: dict[str, int] = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        start |= {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        state: set[int] = set()
        paged: dict[int, int] = {}
        computed: set[int] = set()
        for number, group in enumerate(self._groups):
            for request, blocks in self._tables(number, scheduled):
                if "Mamba" in type(group.kv_cache_spec).__name__:
                    state |= set(blocks) - {0}
                    continue
                size = group.kv_cache_spec.block_size
                paged |= {block: number for block in blocks if block}
                first, tokens = start[request], scheduled.num_scheduled_tokens[request]
                computed |= {
                    blocks[at // size] * size + at % size for at in range(first, first + tokens)
                }
        return state, paged, computed

    def _tables(self, group: int, scheduled: Any) -> Iterator[tuple[str, list[int]]]:
        """Requests of the step with their blocks of one group, as the runner has them: vLLM's first
        keeps a batch on the host, its second a table of all requests on the device."""
        batch = getattr(self._runner, "input_batch", None)
        if batch is not None:
            table = batch.block_table[group]
            for row, request in enumerate(batch.req_ids):
                count = int(table.num_blocks_per_row[row])
                yield request, table.get_numpy_array()[row, :count].tolist()
            return
        tables, rows = self._runner.block_tables, self._runner.req_states.req_id_to_index
        held = tables.block_tables[group].gpu.cpu()
        for request in scheduled.num_scheduled_tokens:
            row = rows[request]
            yield request, held[row, : int(tables.num_blocks.np[group, row])].tolist()

    def _rows(self, block: int, group: int, size: int) -> Iterator[int]:
        """Rows of a paged block that changed in any layer of its group."""
        found: set[int] = set()
        for name in self._groups[group].layer_names:
            for tensor in self._tensors[name]:
                region = _region(tensor)
                before = self._before[region][block].view(tensor.dtype)
                page = tensor[block]
                start = tensor.storage_offset() - region[1] // tensor.element_size()
                old = before.as_strided(page.shape, page.stride(), before.storage_offset() + start)
                axis = list(page.shape).index(size)
                differ = _bits(page.movedim(axis, 0)) != _bits(old.movedim(axis, 0))
                found |= set(differ.any(1).nonzero()[:, 0].tolist())
        yield from sorted(found)


class Observation:
    """At one rank, for one call of the engine; `names` is for who can say when its steps run."""

    def __init__(
        self, runner: Any, entry: Entry | None, *, trace: bool, state: bool, watermark: bool
    ) -> None:
        """`runner`: the rank's model runner; `entry`: the claim's, as wrapped in its process."""
        self.trace = trace
        self.names: list[dict[str, int]] = []
        """What a profiler saw in each step."""
        self._entry = entry
        self._eager = bool(runner.vllm_config.model_config.enforce_eager)
        self._watermark = watermark
        self._calls = entry.calls if entry else 0
        self._watch: StateWatch | None = None
        self._problem = ""
        if state:
            try:
                self._watch = StateWatch(runner)
            except CannotWatch as error:
                self._problem = str(error)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Compare caches around steps inside, and give the entry's constant for its result."""
        with ExitStack() as stack:
            if self._watch:
                stack.enter_context(self._watch.watching())
            if self._watermark and self._entry:
                stack.enter_context(self._entry.constant())
            yield

    def told(self) -> dict[str, Any]:
        """What was seen, as `RankEvidence` has it."""
        watch, entry = self._watch, self._entry
        return {
            "entry_calls": entry.calls - self._calls if entry and self._eager else None,
            "trace": self.names,
            "state": [one.json_value() for one in watch.steps] if watch else [],
            "watched_blocks": watch.watched if watch else 0,
            "blocks": watch.blocks if watch else 0,
            "problem": self._problem,
        }


def _region(tensor: torch.Tensor) -> Region:
    """(address of the storage, offset in bytes of the pages that hold this cache).

    Several caches may share pages, and several runs of pages one storage.
    """
    size = tensor.shape[0] * tensor.stride(0) * tensor.element_size()
    start = tensor.storage_offset() * tensor.element_size() // size * size
    return tensor.untyped_storage().data_ptr(), start


def _bits(rows: torch.Tensor) -> torch.Tensor:
    """[rows, bytes] as they lie in memory: NaN equals itself and -0 differs from 0."""
    return rows.contiguous().flatten(1).view(torch.uint8)

"""vLLM attention back ends of the two kinds of layer: what each step's metadata holds.

Owns: the row split of a step, the live column of every request's KDA states, and the metadata that
all layers of a cache group share. Does not own: index arithmetic (`layers.layout`), the maths
(`layers`), the choice of path (`runtime.plan`). Read by: the layers and the model's forward.

A row is one request of a step; rows may come in any order. Index tensors are int64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor

from kimi_k3.layers.layout import AttentionTile, ChunkLayout, attention_tiles, chunk_layout
from kimi_k3.runtime.plan import StepFacts

_DTYPES = [torch.float32, torch.bfloat16]


@dataclass(frozen=True)
class Rows:
    """The rows of one step, as NumPy arrays [requests]."""

    lengths: np.ndarray
    """Query tokens of this step, drafts included."""
    contexts: np.ndarray
    """Tokens including this step's."""
    starts: np.ndarray
    """First token in the step's batch."""
    prefilling: np.ndarray
    """bool: prompt tokens are left to compute."""

    @classmethod
    def of(cls, common: CommonAttentionMetadata) -> Rows:
        """Read one step's metadata."""
        count = common.num_reqs
        bounds = common.query_start_loc_cpu[: count + 1].numpy().astype(np.int64)
        prefilling = np.zeros(count, dtype=bool)
        if common.is_prefilling is not None:
            prefilling = common.is_prefilling[:count].numpy()
        contexts = common.seq_lens[:count].cpu().numpy().astype(np.int64)
        return cls(bounds[1:] - bounds[:-1], contexts, bounds[:-1], prefilling)

    def facts(self, drafts: int) -> StepFacts:
        """The step as the choice of path sees it; up to `drafts` draft tokens per decode.

        A one-token first prompt is prefill: its state slot still holds another request's state.
        """
        decode = (self.contexts > self.lengths) & (self.lengths <= 1 + drafts) & ~self.prefilling
        single = decode & (self.lengths == 1)
        verify = self.lengths[decode & ~single]
        uniform = len(verify) == len(self.lengths) > 0 and verify.min() == verify.max()
        return StepFacts(
            requests=len(self.lengths),
            tokens=int(self.lengths.sum()),
            decode_rows=int(single.sum()),
            verify_rows=len(verify),
            verify_tokens=int(verify[0]) if uniform else 0,
        )


@dataclass(frozen=True)
class Round:
    """One token of some of the short rows."""

    rows: Tensor | None
    """Which of the short rows; None: all of them."""
    tokens: Tensor | None
    """Their tokens in the batch; None: all tokens of the step, in order."""


@dataclass(frozen=True)
class KDAMetadata:
    """One step of one group of KDA layers.

    A row is short if it may hold draft tokens: one token, or as many as a verification has. Short
    rows advance token by token, each token leaving its state in a column of its own, so that
    whatever the engine keeps of them can be resumed; a lone token stays in the live column. Long
    rows are prompts: they advance in chunks and leave their state in the first column.

    All short rows are treated so, not only verifications: the engine pads a new one-token prompt
    with drafts that it then rejects, and its metadata does not tell it from a short prompt.
    """

    facts: StepFacts
    seq_lens: Tensor
    short: Tensor
    """[S] short rows."""
    fresh: Tensor | None
    """[S] bool: short rows that start from a zero state; None: no such row."""
    columns: Tensor
    """[S] column each short row starts from."""
    single: Tensor
    """[S] bool: short rows of one token."""
    rounds: tuple[Round, ...]
    """Round t handles token t of the short rows that have one."""
    slots: Tensor
    """[S, 1 + drafts] slots of the short rows, one per column."""
    long: Tensor
    """Long rows."""
    long_tokens: Tensor | None
    """Tokens of the long rows; None: all tokens of the step, in order."""
    chunks: ChunkLayout | None
    """Layout of the long rows, None if there are none."""
    live: Tensor
    """[S] slots the short rows start from."""
    targets: tuple[Tensor, ...]
    """Per round, the slots it writes."""
    ends: Tensor
    """Slots the long rows end in, which are also the ones they start from."""

    def written(self) -> Tensor:
        """Every slot this step writes, in any order."""
        return torch.cat([*self.targets, self.ends])


class KDABackend(AttentionBackend):
    """Recurrent state of Kimi delta attention, kept where vLLM keeps Mamba states."""

    supported_dtypes: ClassVar[list[torch.dtype]] = _DTYPES

    @staticmethod
    def get_name() -> str:
        """Name in logs."""
        return "KIMI_K3_KDA"

    @staticmethod
    def get_impl_cls() -> Any:
        """The layer computes by itself; there is no separate implementation object."""
        raise NotImplementedError("KDA layers compute by themselves")

    @staticmethod
    def get_builder_cls() -> type[KDABuilder]:
        """Builder of `KDAMetadata`."""
        return KDABuilder

    @classmethod
    def is_ssm(cls) -> bool:
        """State-space style: one slot per request instead of pages."""
        return True


class KDABuilder(AttentionMetadataBuilder[KDAMetadata]):
    """Builds `KDAMetadata` once per step; further groups of the same kind only swap slots."""

    supports_update_block_table = True

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        """As vLLM calls it."""
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        speculative = vllm_config.speculative_config
        self.drafts: int = speculative.num_speculative_tokens if speculative else 0
        self.history: int = kv_cache_spec.shapes[0][0]
        # First slot of a request -> its last step: tokens before it, tokens in it if the row was
        # short (else 0), and the column it started from.
        self._last: dict[int, tuple[int, int, int]] = {}

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        **_: Any,
    ) -> KDAMetadata:
        """Metadata of one step."""
        common = common_attn_metadata
        rows = Rows.of(common)
        is_short = rows.lengths <= 1 + self.drafts
        short, long = np.flatnonzero(is_short), np.flatnonzero(~is_short)
        fresh = (rows.contexts == rows.lengths)[short]
        slots = self._slots(common.block_table_tensor, common.seq_lens, len(rows.lengths))
        step = KDAMetadata(
            facts=rows.facts(self.drafts),
            seq_lens=common.seq_lens,
            short=torch.from_numpy(short),
            fresh=torch.from_numpy(fresh) if fresh.any() else None,
            columns=torch.from_numpy(self._columns(rows, is_short, slots)[short]),
            single=torch.from_numpy(rows.lengths[short] == 1),
            rounds=rounds(rows.lengths[short], rows.starts[short], alone=not len(long)),
            slots=slots,
            long=torch.from_numpy(long),
            long_tokens=_tokens(rows, long) if len(short) else None,
            chunks=chunk_layout(rows.lengths[long], rows.contexts[long], self.history),
            live=slots,
            targets=(),
            ends=slots,
        )
        return _with_slots(step, slots)

    def update_block_table(
        self, metadata: KDAMetadata, blk_table: Tensor, slot_mapping: Tensor
    ) -> KDAMetadata:
        """The same step for another group: other slots, everything else shared."""
        slots = self._slots(blk_table, metadata.seq_lens, metadata.facts.requests)
        return _with_slots(metadata, slots)

    def _slots(self, block_table: Tensor, seq_lens: Tensor, count: int) -> Tensor:
        """[requests, 1 + drafts] state slots."""
        mode = self.vllm_config.cache_config.mamba_cache_mode
        table = mamba_get_block_table_tensor(block_table, seq_lens, self.kv_cache_spec, mode)
        return table[:count, : 1 + self.drafts].long()

    def _columns(self, rows: Rows, is_short: np.ndarray, slots: Tensor) -> np.ndarray:
        """Column each row starts from, by our own record of the previous step.

        After several tokens it is (tokens kept of them) - 1; a lone token keeps the column; a long
        row ends in the first. The engine's own accepted-token counts are not used: some releases
        pass them only in steps that carry drafts.
        """
        columns = np.zeros(len(rows.lengths), dtype=np.int64)
        if self.drafts:
            computed = rows.contexts - rows.lengths
            for row, first in enumerate(slots[:, 0].tolist()):
                now, length = int(computed[row]), int(rows.lengths[row])
                before, taken, column = self._last.get(first, (now, 0, 0)) if now else (0, 0, 0)
                if taken > 1:
                    column = now - before - 1
                    if not 0 <= column < taken:
                        raise RuntimeError(f"slot {first}: {column + 1} of {taken} tokens kept")
                columns[row] = column
                self._last[first] = (now, length, column) if is_short[row] else (now, 0, 0)
        return columns


def rounds(lengths: np.ndarray, starts: np.ndarray, alone: bool) -> tuple[Round, ...]:
    """Token by token over rows of `lengths` >= 1 whose tokens begin at `starts`.

    `alone`: these are all rows of the step. Empty for no rows.
    """
    longest = int(lengths.max(initial=0))
    if longest == 1 and alone:
        return (Round(None, None),)
    found = []
    for token in range(longest):
        rows = np.flatnonzero(lengths > token)
        which = None if len(rows) == len(lengths) else torch.from_numpy(rows)
        found.append(Round(which, torch.from_numpy(starts[rows] + token)))
    return tuple(found)


def _tokens(rows: Rows, some: np.ndarray) -> Tensor:
    spans = [np.arange(rows.starts[row], rows.starts[row] + rows.lengths[row]) for row in some]
    return torch.from_numpy(np.concatenate(spans) if spans else np.empty(0, dtype=np.int64))


def _with_slots(step: KDAMetadata, slots: Tensor) -> KDAMetadata:
    mine = slots[step.short]
    live = mine.gather(1, step.columns.unsqueeze(1)).squeeze(1)
    targets = []
    for token, round_ in enumerate(step.rounds):
        target = mine[:, token] if token else torch.where(step.single, live, mine[:, 0])
        targets.append(target if round_.rows is None else target[round_.rows])
    return replace(step, slots=mine, live=live, targets=tuple(targets), ends=slots[step.long, 0])


@dataclass(frozen=True)
class MLAMetadata:
    """One step of the group of MLA layers."""

    slot_mapping: Tensor
    """[tokens] flat cache row each token is written to."""
    block_table: Tensor
    """[requests, pages]."""
    seq_lens: Tensor
    """[requests] tokens including this step's."""
    longest: int
    tiles: tuple[AttentionTile, ...]


class MLABackend(AttentionBackend):
    """Paged cache of latent rows: normalised latent, then the raw shared key."""

    supported_dtypes: ClassVar[list[torch.dtype]] = _DTYPES
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        """Name in logs."""
        return "KIMI_K3_MLA"

    @staticmethod
    def get_impl_cls() -> Any:
        """The layer computes by itself; there is no separate implementation object."""
        raise NotImplementedError("MLA layers compute by themselves")

    @staticmethod
    def get_builder_cls() -> type[MLABuilder]:
        """Builder of `MLAMetadata`."""
        return MLABuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Any page the hybrid cache's alignment may choose."""
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *_: Any, **__: Any
    ) -> tuple[int, ...]:
        """[blocks, block_size, row]. Older engine releases ask the back end for it."""
        return (num_blocks, block_size, head_size)


class MLABuilder(AttentionMetadataBuilder[MLAMetadata]):
    """Builds `MLAMetadata` once per step."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        """As vLLM calls it."""
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        **_: Any,
    ) -> MLAMetadata:
        """Metadata of one step."""
        common = common_attn_metadata
        count = common.num_reqs
        bounds = common.query_start_loc_cpu[: count + 1].numpy().astype(np.int64)
        contexts = common.seq_lens[:count].cpu().numpy().astype(np.int64)
        table = common.block_table_tensor[:count]
        tiles = attention_tiles(
            bounds, contexts, table.cpu().numpy(), self.kv_cache_spec.block_size
        )
        return MLAMetadata(
            # The engine reuses its buffer in the next step; the path log reads this one later.
            slot_mapping=common.slot_mapping[: bounds[-1]].to(torch.int64, copy=True),
            block_table=table.long(),
            seq_lens=torch.from_numpy(contexts),
            longest=int(contexts.max(initial=0)),
            tiles=tiles,
        )

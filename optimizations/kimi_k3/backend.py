"""vLLM attention back ends of the two kinds of layer: what each step's metadata holds.

Owns: the row split of a step, the live column of every request's KDA states, and the metadata that
all layers of a cache group share. Does not own: index arithmetic (`layers.layout`), the maths
(`layers`), the choice of path (`runtime.plan`). Read by: the layers and the model's forward.

Rows arrive sorted: decodes (verifications included), then prefill. The builders ask the engine for
that order and refuse any other. Index tensors are int64.
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

_DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Rows:
    """The rows of one step, as NumPy arrays [requests]; decodes come first."""

    lengths: np.ndarray
    """Query tokens of this step."""
    contexts: np.ndarray
    """Tokens including this step's."""
    starts: np.ndarray
    """First token in the step's batch."""
    decodes: int
    """How many rows continue a request: one token, or one token and its drafts."""

    @property
    def decode_tokens(self) -> int:
        """Tokens of the decode rows, which come first."""
        return int(self.lengths[: self.decodes].sum())

    @property
    def facts(self) -> StepFacts:
        """The step as the choice of path sees it."""
        single = int((self.lengths[: self.decodes] == 1).sum())
        return StepFacts(
            requests=len(self.lengths),
            tokens=int(self.lengths.sum()),
            decode_rows=single,
            verify_rows=self.decodes - single,
        )


def split_rows(common: CommonAttentionMetadata, most: int) -> Rows:
    """Classify rows: a decode has context, at most `most` tokens and no prompt token left.

    A one-token first prompt is prefill: its cache slot still holds another request's state.
    Raises RuntimeError if the engine did not sort decodes to the front.
    """
    count = common.num_reqs
    bounds = common.query_start_loc_cpu[: count + 1].numpy().astype(np.int64)
    lengths = bounds[1:] - bounds[:-1]
    contexts = common.seq_lens[:count].cpu().numpy().astype(np.int64)
    decode = (contexts > lengths) & (lengths <= most)
    if common.is_prefilling is not None:
        decode &= ~common.is_prefilling[:count].numpy()
    decodes = int(decode.sum())
    if not decode[:decodes].all():
        raise RuntimeError("decode rows are not sorted before prefill rows")
    return Rows(lengths, contexts, bounds[:-1], decodes)


@dataclass(frozen=True)
class Round:
    """One recurrence step of a verification: the rows that have a further token."""

    rows: Tensor
    tokens: Tensor
    column: int


@dataclass(frozen=True)
class KDAMetadata:
    """One step of one group of KDA layers."""

    facts: StepFacts
    decodes: int
    decode_tokens: int
    columns: Tensor
    """[decodes] column of each decode row's live state."""
    single: Tensor
    """[decodes] bool: rows with exactly one token."""
    rounds: tuple[Round, ...]
    """Empty if every decode row has one token."""
    chunks: ChunkLayout | None
    """Layout of the prefill rows, None if there are none."""
    seq_lens: Tensor
    slots: Tensor
    """[requests, 1 + drafts] state slots. A row that verifies tokens leaves its state after token
    t in column t; every other row updates its live column (prefill: the first) in place."""
    live: Tensor
    """[decodes] slots the decode rows start from."""

    @property
    def prefill_slots(self) -> Tensor:
        """[prefill rows] slots the prefill rows end in."""
        return self.slots[self.decodes :, 0]

    def written(self) -> Tensor:
        """Every slot this step writes, in any order."""
        if not self.rounds:
            return torch.cat([self.live, self.prefill_slots])
        parts = [self.target(round_) for round_ in self.rounds]
        return torch.cat([*parts, self.prefill_slots])

    def target(self, round_: Round) -> Tensor:
        """Slots one round of a verification writes."""
        first = self.slots[round_.rows, round_.column]
        if round_.column:
            return first
        single = self.single[round_.rows]
        return torch.where(single, self.live[round_.rows], first)


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
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        # First slot of a request -> tokens it had at the start of its last step, that step's
        # length if it was a decode (else 0), and the live column during it.
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
        rows = split_rows(common, 1 + self.drafts)
        slots = self._slots(common.block_table_tensor, common.seq_lens, len(rows.lengths))
        columns = self._columns(rows, slots)
        count = rows.decodes
        return KDAMetadata(
            facts=rows.facts,
            decodes=count,
            decode_tokens=rows.decode_tokens,
            columns=columns,
            single=torch.from_numpy(rows.lengths[:count] == 1),
            rounds=_rounds(rows),
            chunks=chunk_layout(rows.lengths[count:], rows.contexts[count:], self.history),
            seq_lens=common.seq_lens,
            slots=slots,
            live=_live(slots, columns),
        )

    def update_block_table(
        self, metadata: KDAMetadata, blk_table: Tensor, slot_mapping: Tensor
    ) -> KDAMetadata:
        """The same step for another group: other slots, everything else shared."""
        slots = self._slots(blk_table, metadata.seq_lens, metadata.facts.requests)
        return replace(metadata, slots=slots, live=_live(slots, metadata.columns))

    def _slots(self, block_table: Tensor, seq_lens: Tensor, count: int) -> Tensor:
        table = mamba_get_block_table_tensor(
            block_table, seq_lens, self.kv_cache_spec, self.vllm_config.cache_config.mamba_cache_mode
        )
        return table[:count, : 1 + self.drafts].long()

    def _columns(self, rows: Rows, slots: Tensor) -> Tensor:
        """Live column of each decode row, from our own record of the previous step.

        After a verification it is (tokens kept since its start) - 1; a one-token decode keeps the
        column; prefill ends in the first. The engine's own accepted-token counts are not used:
        some releases pass them only in steps that carry drafts.
        """
        columns = np.zeros(rows.decodes, dtype=np.int64)
        if self.drafts:
            computed = rows.contexts - rows.lengths
            for row, first in enumerate(slots[:, 0].tolist()):
                now, length = int(computed[row]), int(rows.lengths[row])
                if row >= rows.decodes:
                    self._last[first] = (now, 0, 0)
                    continue
                before, verified, column = self._last.get(first, (now, 0, 0))
                if verified > 1:
                    column = now - before - 1
                    if not 0 <= column < verified:
                        raise RuntimeError(f"slot {first}: kept {column + 1} of {verified} tokens")
                columns[row] = column
                self._last[first] = (now, length, column)
        return torch.from_numpy(columns)


def _live(slots: Tensor, columns: Tensor) -> Tensor:
    return slots[: len(columns)].gather(1, columns.unsqueeze(1)).squeeze(1)


def _rounds(rows: Rows) -> tuple[Round, ...]:
    lengths, starts = rows.lengths[: rows.decodes], rows.starts[: rows.decodes]
    longest = int(lengths.max(initial=0))
    if longest <= 1:
        return ()
    alive = [np.flatnonzero(lengths > column) for column in range(longest)]
    return tuple(
        Round(torch.from_numpy(some), torch.from_numpy(starts[some] + column), column)
        for column, some in enumerate(alive)
    )


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
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

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

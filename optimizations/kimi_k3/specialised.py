"""Between vLLM and the executor of specialised steps.

Owns: handing over raw weights, caches as the engine binds them, each step's metadata, the tensor
parallel group. Does not own: the choice of path (`runtime.plan`) or the step (`runtime.executor`,
which knows no engine). Read by: the model, and only if the option asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)

from kimi_k3.backend import KDAMetadata, MLAMetadata
from kimi_k3.dims import Dims
from kimi_k3.layers.kda import KDA
from kimi_k3.layers.mla import MLA
from kimi_k3.runtime.collective import Collective, SingleRank
from kimi_k3.runtime.evidence import Recorder
from kimi_k3.runtime.executor import MOST_TOKENS, DecodeStep, Executor


class TensorParallel:
    """vLLM's tensor-parallel group in the executor's words."""

    def __init__(self) -> None:
        """Read rank and size once."""
        self.rank: int = get_tensor_model_parallel_rank()
        self.size: int = get_tensor_model_parallel_world_size()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over ranks."""
        out: Tensor = tensor_model_parallel_all_reduce(tensor)
        return out

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Ranks' tensors concatenated along `dim`."""
        out: Tensor = tensor_model_parallel_all_gather(tensor, dim)
        return out


class Specialised:
    """The executor of one rank, kept in step with the engine's caches."""

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, Tensor],
        attentions: Sequence[KDA | MLA],
        recorder: Recorder,
        drafts: int,
    ) -> None:
        """Pack this rank's raw `weights`, by full checkpoint name; `attentions` in layer order.

        `drafts`: the most draft tokens a request may bring. `recorder` learns which batches are
        prepared once the engine has allocated its caches.
        """
        size = get_tensor_model_parallel_world_size()
        collective: Collective = TensorParallel() if size > 1 else SingleRank()
        raw = {name.removeprefix("language_model."): one for name, one in weights.items()}
        self.tokens = min(1 + drafts, MOST_TOKENS)
        """The most tokens per request that are prepared."""
        self._executor = Executor(dims, raw, collective, tokens=self.tokens)
        self._recorder = recorder
        recorder.extra_bytes = self._executor.extra_bytes
        self._attentions = attentions
        self._kda = [one.prefix for one in attentions if isinstance(one, KDA)]
        self._mla = [one.prefix for one in attentions if isinstance(one, MLA)]
        self._unbound = set(range(len(attentions)))
        for layer, attention in enumerate(attentions):
            attention.on_bind = partial(self._bound, layer)

    def _bound(self, layer: int) -> None:
        """Note that the engine gave `layer` its cache; after the last one, prepare every batch.

        This is start-up: the engine binds caches after loading and before the first request.
        """
        self._unbound.discard(layer)
        if not self._unbound:
            caches: dict[int, tuple[Tensor, Tensor] | Tensor] = {}
            for number, one in enumerate(self._attentions):
                caches[number] = one.states if isinstance(one, KDA) else one.pages
            self._executor.bind(caches)
            self._executor.prepare()
            self._recorder.prepared = self._executor.batches

    def run(self, embedded: Tensor, steps: Mapping[str, Any]) -> Tensor:
        """Run one step of decode or uniform verification: embeddings [T, hidden] to normalised
        hidden states [T, hidden]."""
        mla: MLAMetadata = steps[self._mla[0]]
        kda: list[KDAMetadata] = [steps[name] for name in self._kda]
        step = DecodeStep(
            slots=torch.stack([one.slots for one in kda]),
            block_table=mla.block_table,
            slot_mapping=mla.slot_mapping,
            seq_lens=mla.seq_lens,
            max_seq_len=mla.longest,
            tokens=max(1, kda[0].facts.verify_tokens),
            accepted=kda[0].columns + 1 if kda[0].slots.shape[1] > 1 else None,
        )
        return self._executor.run(embedded, step)

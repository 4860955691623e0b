"""The MLA kernels as cut for a batch. Read by: `kernels.compiled`, cases, the benchmark."""

from __future__ import annotations

from kimi_k3.kernels.mla.form import Attend, Finish, Prepare
from kimi_k3.kernels.mla.form import splits as cut
from kimi_k3.kernels.mla.kernel.core import Core
from kimi_k3.kernels.mla.kernel.query import Query
from kimi_k3.kernels.mla.kernel.value import Value


def queries(heads: int, rows: int, cache_rows: int, fp8: bool, eps: float) -> Query:
    """The kernel for `rows` tokens."""
    return Query(Prepare(heads, rows, cache_rows, fp8, eps))


def core(
    heads: int, batch: int, tokens: int, cache_rows: int, page: int, width: int, fp8: bool,
    splits: int | None = None,
) -> Core:  # fmt: skip
    """The kernel for `batch` requests of `tokens` tokens, up to `width` pages each."""
    parts = cut(batch, heads * tokens) if splits is None else splits
    return Core(Attend(heads, batch, tokens, cache_rows, page, width, fp8, parts))


def values(heads: int, rows: int, parts: int) -> Value:
    """The kernel for `rows` tokens with `parts` partial results each."""
    return Value(Finish(heads, rows, parts))

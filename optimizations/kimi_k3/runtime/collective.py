"""What the specialised step asks of the other tensor-parallel ranks.

Owns: the interface, and its trivial form for one rank. Does not own: any transport; the engine's
group is adapted to this interface elsewhere. Read by: the executor.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Collective(Protocol):
    """The ranks of one tensor-parallel group. Every rank must make the same calls in order."""

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, equal on all of them. May reuse the memory of `tensor`."""
        ...

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The ranks' tensors of one shape, concatenated along `dim` in rank order."""
        ...


class SingleRank:
    """A group of one: nothing to exchange."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """`tensor` itself."""
        return tensor

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """`tensor` itself."""
        return tensor

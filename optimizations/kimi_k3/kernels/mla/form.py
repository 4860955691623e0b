"""How the kernels of an MLA layer are cut for a GPU.

Owns: widths, what each kernel is made for, tiles, splits and shared memory. Does not own: device
code. Read by: the kernels of this folder and `mla.launch`; arithmetic, tested without a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

QUERY, LATENT, SHARED, NOPE, VALUE = 1536, 512, 64, 128, 128
"""Query latent, key-value latent, shared key, and per head: plain query part, values."""
ROW = LATENT + SHARED
"""Numbers of a cache row and of an absorbed query."""
HEAD = NOPE + SHARED
"""Numbers of a query before absorption."""
PARTS = 8
"""Blocks that share a head, a cluster."""
WARPS = 8
GROUP = 16
"""Rows of one matrix instruction."""


def pitch(heads: int) -> int:
    """Numbers per row of the packed input projection: see `mla.prepared`."""
    return QUERY + ROW + heads * VALUE


class Prepare(NamedTuple):
    """What the query kernel is made for."""

    heads: int
    """Of this rank."""
    rows: int
    """Tokens of all requests."""
    cache_rows: int
    fp8: bool
    """Whether cache rows are FP8 (E4M3) bytes or BF16."""
    eps: float

    @property
    def blocks(self) -> int:
        """Thread blocks."""
        return PARTS * self.heads


class Attend(NamedTuple):
    """What the core is made for."""

    heads: int
    batch: int
    tokens: int
    """Per request: 1 for plain decode, more for a verification."""
    cache_rows: int
    page: int
    """Rows of a cache page."""
    width: int
    """Pages a request may have."""
    fp8: bool
    splits: int
    """Blocks that share the context of a request."""

    @property
    def rows(self) -> int:
        """Queries of a request: they share its cache rows."""
        return self.tokens * self.heads

    @property
    def groups(self) -> int:
        """Blocks that share the queries of a request; each reads all of the context."""
        return -(-self.rows // MOST_QUERIES)

    @property
    def tiles(self) -> int:
        """Matrix instructions that cover a block's queries: 16 each."""
        return -(-self.rows // (self.groups * GROUP))

    @property
    def held(self) -> int:
        """Queries of one block, padding included."""
        return self.tiles * GROUP

    @property
    def tile(self) -> int:
        """Cache rows of a stage: about the same bytes of either type."""
        return 64 if self.fp8 else 32

    @property
    def sections(self) -> int:
        """Warps that share the product of 16 cache rows with the queries, each some columns."""
        return WARPS * GROUP // self.tile

    @property
    def row_bytes(self) -> int:
        """Bytes of a cache row."""
        return ROW if self.fp8 else 2 * ROW

    @property
    def pitch(self) -> int:
        """Bytes from cache row to cache row in shared memory: 16 more, or eight rows' equal places
        would lie in the same banks."""
        return self.row_bytes + 16

    @property
    def query_pitch(self) -> int:
        """The same for queries, always of 2 bytes a number."""
        return 2 * ROW + 16

    @property
    def score_pitch(self) -> int:
        """Floats from query to query of the scores: eight rows in eight places of the banks."""
        return self.tile + 8

    @property
    def weight_pitch(self) -> int:
        """Bytes from query to query of the weights."""
        return 2 * self.tile + 16

    @property
    def fixed_bytes(self) -> int:
        """Shared memory besides the stages: queries, scores, weights, factors, barriers."""
        scores = 4 * self.sections * self.score_pitch
        return self.held * (self.query_pitch + scores + self.weight_pitch + 8) + 2048

    @property
    def stages(self) -> int:
        """Tiles held at once: what fits, but no more than hide the way from memory."""
        room = SHARED_BYTES // together(self.batch, self.rows) - self.fixed_bytes
        return min(MOST_STAGES, room // (self.tile * self.pitch))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block."""
        return self.fixed_bytes + self.stages * self.tile * self.pitch


class Finish(NamedTuple):
    """What the value kernel is made for."""

    heads: int
    rows: int
    """Tokens of all requests."""
    parts: int
    """Partial results per token and head: of splits, of ranks, or of both."""

    @property
    def spread(self) -> int:
        """Tokens of a block that are merged at once: a power of two, up to 16."""
        return min(GROUP, 1 << (self.rows - 1).bit_length())

    @property
    def groups(self) -> int:
        """Blocks that share the tokens of one part of one head."""
        return -(-self.rows // GROUP)


MOST_QUERIES = 48
"""Queries of a block: their latent sums stay in registers."""
MOST_STAGES = 4
SHARED_BYTES = 226 * 1024
"""Of a multiprocessor, for blocks of the core and what the driver keeps for each."""
PRODUCERS = 4
"""Warps that bring rows: starting one row's copy takes a warp about 60 cycles."""
MANY = 16
"""Requests from which on two blocks share a multiprocessor."""
BLOCKS = 128
"""Of the core, at most, for each that a multiprocessor of an H200 takes; a power of two, so that
the value kernel's threads have equally many parts to merge."""


def together(batch: int, rows: int) -> int:
    """Blocks of the core that share a multiprocessor. Two compute while the other waits, where
    there is enough to do and a request's `rows` queries fill one matrix instruction only. With few
    requests, two would meet on one multiprocessor while others have none."""
    return 2 if batch >= MANY and rows <= GROUP else 1


def splits(batch: int, rows: int) -> int:
    """Blocks per request of `rows` queries and group of them."""
    groups = -(-rows // MOST_QUERIES)
    return max(1, BLOCKS * together(batch, rows) // (batch * groups))

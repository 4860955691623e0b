"""How the routed experts of a latent mixture are cut for a GPU.

Owns: what the kernels are made for, which rows a block has, stages and shared memory. Does not own:
device code. Read by: `moe.kernel`, `moe.launch`, cases; arithmetic, tested without a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

PARTS = 8
"""Blocks that share an expert, a crew. Not a cluster: a device with SMs for sixteen crews may lack
processing clusters with SMs for sixteen clusters (measured: the last had to wait for the first)."""
WARPS = 8
"""That multiply, each with one group of a stage's columns; one more feeds them."""
RESIDENT = 2
"""Blocks of a multiprocessor where there are more units than crews of one each: what a block does
between its products, a third of its time, happens beside the other's products."""
GROUP = 32
"""Weights that share a scale: 16 bytes."""
LINE = 128
"""Bytes of a row of a TMA box: 8 groups, one for every warp."""
FOLD = 2
"""Rows of w2 that make one of whole lines: 2 x 192 bytes are 3 x 128."""
DOWN_ROWS = 64
"""Rows of w2 of one stage."""
COLUMNS = 8
"""Tokens of one matrix instruction, so of one unit of work."""
AHEAD = 4
"""Hidden vectors kept at once. A block sends those of unit i + 4 after it has seen those of unit
i + 2, which every block of its crew sends after it has read, and emptied, those of unit i."""
LOOKS = 1 << 24
"""How often a block looks for hidden numbers before it gives up: some 10 s."""
PIECE, PIECE_BYTES, STEP = 64, 512, 16
"""Rows, bytes and columns of what lies together in repacked weights, see `mxfp4.repacked`."""
REPACKED_PARTS = 6
"""Blocks of a crew that reads repacked weights: as many as gate rows have pieces."""
REPACKED_ALONE = {1: 11, 4: 12}
"""Rows at which each of them has a multiprocessor to itself, and the most stages it then has. The
62 units of four rows take three rounds of 22 crews, the last nearly full, or two of 44, the last
not half full."""
REPACKED_STAGES = 4
"""At other rows. Two rows have room for more, but so do the kernels ahead and behind, whose blocks
lie beside these: with six stages the op is as fast and a layer takes 2.7 us longer."""
INTER = 384
"""Hidden width of a rank of eight, the only one there is code for."""


class Routed(NamedTuple):
    """What code is made for: E experts, latent width L, hidden width I of this rank."""

    experts: int
    latent: int
    inter: int
    top_k: int
    batch: int
    beta: float
    linear_beta: float
    crews: int
    """Each takes one unit, an expert and up to eight of its tokens, after the other."""
    stages: int
    resident: int
    """Blocks of a multiprocessor."""

    @property
    def parts(self) -> int:
        """Blocks of a crew."""
        return PARTS

    @property
    def pairs(self) -> int:
        """Of token and expert."""
        return self.batch * self.top_k

    @property
    def columns(self) -> int:
        """Most tokens of a unit."""
        return min(self.batch, COLUMNS)

    @property
    def units(self) -> int:
        """Most units of one crew."""
        return -(-self.pairs // self.crews)

    @property
    def hidden(self) -> int:
        """Hidden numbers of a block."""
        return self.inter // self.parts

    @property
    def rows(self) -> int:
        """Rows of w13 of a block: as many gate rows and as many up rows."""
        return 2 * self.hidden

    @property
    def outs(self) -> int:
        """Rows of w2 of a block."""
        return self.latent // self.parts

    @property
    def up_chunks(self) -> int:
        """Stages that hold a block's share of w13."""
        return self.latent // 2 // LINE

    @property
    def down_chunks(self) -> int:
        """Stages that hold a block's share of w2."""
        return self.outs // DOWN_ROWS

    @property
    def lines(self) -> int:
        """TMA boxes across the folded rows of w2."""
        return FOLD * self.inter // 2 // LINE

    @property
    def scales(self) -> int:
        """Bytes of a block's scales of w13, which come all at once."""
        return self.rows * self.latent // GROUP

    @property
    def down_scales(self) -> int:
        """Bytes of the scales of one stage of w2, behind its weights."""
        return DOWN_ROWS * self.inter // GROUP

    @property
    def weight_bytes(self) -> int:
        """Of one stage, of w13 and of w2."""
        return self.rows * LINE

    @property
    def stage_bytes(self) -> int:
        """Of one stage, in whole patterns of the swizzle."""
        return -(-(self.weight_bytes + self.down_scales) // 1024) * 1024

    @property
    def inbox(self) -> tuple[int, int, int, int]:
        """Shape of the memory through which blocks tell each other hidden numbers, two per word:
        for every block, of every unit and token, those of its crew."""
        return self.crews * self.parts, AHEAD, self.columns, self.inter // 2

    @property
    def scratch(self) -> int:
        """Words in which the warps' sums meet: of the first product, then of the second."""
        return max(WARPS * self.rows * COLUMNS, self.down_chunks * WARPS * 32 * 4)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block, without its few barriers."""
        plan = 4 * (2 * self.units + self.pairs)
        return self.stages * self.stage_bytes + 4 * self.scratch + plan + self.scales

    @property
    def bytes_per_expert(self) -> int:
        """Weights and scales."""
        numbers = 3 * self.inter * self.latent
        return numbers // 2 + numbers // GROUP


class Repacked(Routed):
    """The same for weights as vLLM's back end repacks them, see `mxfp4.repacked`."""

    __slots__ = ()

    @property
    def parts(self) -> int:
        """Blocks of a crew."""
        return REPACKED_PARTS

    @property
    def up_steps(self) -> int:
        """Rows of pieces of one stage of w13: those of a group of columns for every warp."""
        return WARPS * GROUP // STEP

    @property
    def scales(self) -> int:
        """Scales come with their stage."""
        return 0

    @property
    def weight_bytes(self) -> int:
        """Of one stage of w13, gate and up."""
        return 2 * self.up_steps * PIECE_BYTES

    @property
    def up_bytes(self) -> int:
        """Of one stage of w13 and its scales."""
        return self.weight_bytes + 2 * WARPS * PIECE

    @property
    def down_bytes(self) -> int:
        """Of one stage of w2, a piece, and its scales."""
        return self.inter // STEP * PIECE_BYTES + self.inter // GROUP * PIECE

    @property
    def stage_bytes(self) -> int:
        """Of one stage: weights, behind them scales."""
        return -(-self.up_bytes // 1024) * 1024

    @property
    def pitch(self) -> int:
        """Words of a row of the scratch. A lane has two columns."""
        return next(one for one in (2, 4, COLUMNS) if one >= self.columns)

    @property
    def scratch(self) -> int:
        """Words in which the warps' sums of the first product meet; the second needs fewer."""
        return WARPS * self.rows * self.pitch


class Choice(NamedTuple):
    """What the choice of experts is made for: all ranks' experts and latent numbers."""

    experts: int
    latent: int
    top_k: int
    batch: int
    scaling: float = 1.0

    @property
    def warps(self) -> int:
        """Of a block: each takes 128 experts."""
        return -(-self.experts // 128)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps


RESERVED = 1024
"""Bytes of shared memory the driver keeps per block."""
BARRIERS = 2048
"""Bytes kept for barriers and for what alignment leaves unused."""


def cut(
    experts: int, latent: int, inter: int, top_k: int, batch: int, multiprocessors: int,
    shared_bytes: int, beta: float = 4.0, linear_beta: float = 25.0, kind: type[Routed] = Routed,
) -> Routed:  # fmt: skip
    """As many crews as fit the device, or there are units; as many stages as fit `shared_bytes` of
    a multiprocessor, or are of use. `kind`: for weights of which layout.

    Raises ValueError for shapes there is no code for.
    """
    if inter != INTER or latent % (PARTS * DOWN_ROWS) or latent % (2 * LINE):
        raise ValueError(f"no code for experts of {latent} x {inter}")
    if not 1 <= batch <= 64 or experts > 1024:
        raise ValueError(f"no code for {batch} rows and {experts} experts")
    alone, most, parts = {1: 32}, 32, PARTS
    if kind is Repacked:
        alone, most, parts = REPACKED_ALONE, REPACKED_STAGES, REPACKED_PARTS
    resident, most = (1, alone[batch]) if batch in alone else (RESIDENT, most)
    crews = min(resident * multiprocessors // parts, batch * top_k)
    if batch == 1 and crews < top_k:
        raise ValueError(
            f"no code for {top_k} experts of a row on {multiprocessors} multiprocessors"
        )
    shared_bytes = (shared_bytes + RESERVED) // resident - RESERVED
    form = kind(experts, latent, inter, top_k, batch, beta, linear_beta, crews, most, resident)
    while form.shared_bytes + BARRIERS > shared_bytes and form.stages > 2:
        form = form._replace(stages=form.stages - 1)
    if form.shared_bytes + BARRIERS > shared_bytes:
        raise ValueError(f"{form} needs {form.shared_bytes} bytes")
    return form

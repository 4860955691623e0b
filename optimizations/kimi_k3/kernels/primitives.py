"""Device-side pieces that the GPU kernels share.

Owns: memory instructions with the cache behaviour a decode step wants, BF16 unpacking, sums over a
warp. Does not own: launch shapes. Read by: the `kernel` modules; needs CuTe DSL and nothing else.

Two kinds of global loads, and which one is used is a matter of correctness. `load_static` is for
memory that nothing writes during a step: the compiler may move it across the grid-dependency wait.
`load` is for everything else: plain, never cached as read-only, so it stays where it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, Uint32
from cutlass.cute.arch import inline_ptx

EVICT_FIRST = 0x12F0000000000000
"""L2 cache policy: a weight is read once per step, so it should leave before anything else."""
ALL_SHARED = 100
"""Per cent of a multiprocessor's cache a kernel wants as shared memory. The split changes only on
an idle multiprocessor: were it smaller for kernels that need little, the projection behind them
could not start, and stream its weights, before they have ended."""
WARP = 32
LOG2_E = 1.4426950408889634


def address(tensor: cute.Tensor, offset: Any) -> Int64:
    """Address of element `offset` of a contiguous tensor."""
    return (tensor.iterator + offset).toint()


def shared_address(pointer: cute.Pointer) -> Int32:
    """Address of shared memory as instructions of the shared state space take it."""
    return Int32(pointer.toint())


def load_static(at: Int64) -> tuple[Uint32, ...]:
    """16 bytes of memory that nothing writes during a step."""
    text = "ld.global.nc.L1::no_allocate.v4.u32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];"
    return inline_ptx(text, write_only_types=[Uint32] * 4, read_only_args=[at])


def load_early(at: Int64) -> tuple[Uint32, ...]:
    """The same, read where it is written: `load_static` may move to where its value is used, which
    behind the grid-dependency wait is too late for a weight."""
    text = "ld.global.L1::no_allocate.v4.u32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];"
    return inline_ptx(text, write_only_types=[Uint32] * 4, read_only_args=[at])


def load(at: Int64) -> tuple[Uint32, ...]:
    """16 bytes of step data."""
    text = "ld.global.v4.u32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];"
    return inline_ptx(text, write_only_types=[Uint32] * 4, read_only_args=[at])


def load_word(at: Int64) -> Uint32:
    """4 bytes of step data."""
    text = "ld.global.u32 {$w0}, [{$r0}];"
    return inline_ptx(text, write_only_types=[Uint32], read_only_args=[at])


def load_static_word(at: Int64) -> Int64:
    """8 bytes, an address for one, of memory that nothing writes during a step."""
    text = "ld.global.nc.u64 {$w0}, [{$r0}];"
    return inline_ptx(text, write_only_types=[Int64], read_only_args=[at])


def load_half(at: Int64) -> Float32:
    """One BF16 number of step data."""
    text = "{ .reg .b16 low; ld.global.b16 low, [{$r0}]; mov.b32 {$w0}, {0, low}; }"
    return inline_ptx(text, write_only_types=[Float32], read_only_args=[at])


def store_half(at: Int64, value: Float32) -> None:
    """One number, rounded to BF16."""
    text = "{ .reg .b16 low; cvt.rn.bf16.f32 low, {$r1}; st.global.b16 [{$r0}], low; }"
    inline_ptx(text, read_only_args=[at, value])


def store(at: Int64, words: Any) -> None:
    """16 bytes."""
    text = "st.global.v4.u32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};"
    inline_ptx(text, read_only_args=[at, *words])


def store_words(at: Int64, words: Sequence[Uint32]) -> None:
    """One, two or four words: 4, 8 or 16 bytes."""
    width = {1: "", 2: ".v2", 4: ".v4"}[len(words)]
    names = ", ".join(f"{{$r{i + 1}}}" for i in range(len(words)))
    text = f"st.global{width}.u32 [{{$r0}}], " + (f"{{{names}}};" if width else f"{names};")
    inline_ptx(text, read_only_args=[at, *words])


def store_floats(at: Int64, values: Sequence[Float32]) -> None:
    """Four FP32 numbers."""
    text = "st.global.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};"
    inline_ptx(text, read_only_args=[at, *values])


def floats(words: tuple[Uint32, ...]) -> list[Float32]:
    """Words that hold FP32 numbers."""
    return [word.bitcast(Float32) for word in words]


def unpacked(words: tuple[Uint32, ...]) -> list[Float32]:
    """Two BF16 numbers of every word, in memory order. A BF16 is the upper half of an FP32."""
    pairs = [(word << 16, word & Uint32(0xFFFF0000)) for word in words]
    return [half.bitcast(Float32) for pair in pairs for half in pair]


def packed(values: Sequence[Float32], kind: str = "bf16") -> list[Uint32]:
    """The inverse of `unpacked`, rounding to nearest even; `kind` f16 for FP16 words."""
    text = "cvt.rn." + kind + "x2.f32 {$w0}, {$r1}, {$r0};"
    return [
        inline_ptx(text, write_only_types=[Uint32], read_only_args=[low, high])
        for low, high in zip(values[::2], values[1::2], strict=True)
    ]


def packed_bytes(values: Sequence[Float32]) -> list[Uint32]:
    """Four numbers per word as FP8 (E4M3), nearest even, beyond 448 in magnitude 448."""
    text = (
        "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, {$r1}, {$r0}; "
        "cvt.rn.satfinite.e4m3x2.f32 high, {$r3}, {$r2}; mov.b32 {$w0}, {low, high}; }"
    )
    return [
        inline_ptx(text, write_only_types=[Uint32], read_only_args=list(values[at : at + 4]))
        for at in range(0, len(values), 4)
    ]


def widened(word: Uint32) -> tuple[Uint32, Uint32]:
    """Four FP8 (E4M3) numbers as two words of FP16, in memory order; exact."""
    text = (
        "{ .reg .b16 low, high; mov.b32 {low, high}, {$r0}; "
        "cvt.rn.f16x2.e4m3x2 {$w0}, low; cvt.rn.f16x2.e4m3x2 {$w1}, high; }"
    )
    low, high = inline_ptx(text, write_only_types=[Uint32] * 2, read_only_args=[word])
    return low, high


def widened_columns(word: Uint32) -> tuple[Uint32, Uint32]:
    """Four FP8 numbers [row][column], two by two, as FP16 words of the two columns."""
    text = "prmt.b32 {$w0}, {$r0}, 0, 0x3120;"
    return widened(inline_ptx(text, write_only_types=[Uint32], read_only_args=[word]))


def nibbles(word: Uint32) -> tuple[Uint32, ...]:
    """Eight FP4 (E2M1) numbers, the even ones in the low halves of their bytes, as FP16 pairs
    (0, 4), (2, 6), (1, 5), (3, 7), each 2**-14 times its value; exact.

    The two exponent bits become the lowest of FP16's, its subnormal numbers included, so there is
    nothing to look up. What belongs to a byte's even number is moved up, to its odd one down.
    """
    text = (
        "{ .reg .b32 sign, size, even, odd; "
        "shl.b32 sign, {$r0}, 4; shl.b32 size, {$r0}, 1; and.b32 size, size, 0x0e0e0e0e; "
        "lop3.b32 even, sign, 0x80808080, size, 0xea; "
        "shr.u32 size, {$r0}, 3; and.b32 size, size, 0x0e0e0e0e; "
        "lop3.b32 odd, {$r0}, 0x80808080, size, 0xea; "
        "prmt.b32 {$w0}, even, 0, 0x2404; and.b32 {$w1}, even, 0xff00ff00; "
        "prmt.b32 {$w2}, odd, 0, 0x2404; and.b32 {$w3}, odd, 0xff00ff00; }"
    )
    return inline_ptx(text, write_only_types=[Uint32] * 4, read_only_args=[word])


def half_scale(words: Sequence[Uint32]) -> tuple[Float32, Float32]:
    """The power of two that brings BF16 numbers, those of four neighbouring lanes together, below
    2**15, and its inverse: times the former they are FP16 numbers, exact down to 2**-32 of the
    largest."""
    text = "{ .reg .b32 size; and.b32 size, {$r1}, 0x7fff7fff; max.u16x2 {$w0}, {$r0}, size; }"
    top = words[0] & 0x7FFF7FFF
    for word in words[1:]:
        top = inline_ptx(text, write_only_types=[Uint32], read_only_args=[top, word])
    for offset in (1, 2):
        other = cute.arch.shuffle_sync_bfly(top, offset)
        top = inline_ptx(text, write_only_types=[Uint32], read_only_args=[top, other])
    exponent = cutlass.max((top >> 7) & 0xFF, top >> 23).bitcast(Int32)
    biased = cutlass.min(268 - exponent, Int32(253))
    return (biased << 23).bitcast(Float32), ((254 - biased) << 23).bitcast(Float32)


def load_scale(at: Int32) -> Float32:
    """The power of two an E8M0 byte of shared memory stands for. 0 is taken for zero instead of
    2**-127, 255 for infinity instead of NaN."""
    text = "{ .reg .b32 held; ld.shared.u8 held, [{$r0}]; shl.b32 {$w0}, held, 23; }"
    bits = inline_ptx(text, write_only_types=[Uint32], read_only_args=[at])
    return bits.bitcast(Float32)


def scale_of(word: Uint32, place: int) -> Float32:
    """The same of byte `place` of four in a register."""
    shift = 23 - 8 * place
    moved = word << shift if shift >= 0 else word >> -shift
    return (moved & 0x7F800000).bitcast(Float32)


def add_shared(pointer: cute.Pointer, value: Int32) -> Int32:
    """What was there, after which it is larger by `value`; one thread after the other."""
    text = "atom.shared.add.u32 {$w0}, [{$r0}], {$r1};"
    places = [shared_address(pointer), value]
    return inline_ptx(text, write_only_types=[Int32], read_only_args=places)


def rounded(value: Float32) -> Float32:
    """`value` after one rounding to BF16."""
    return value.to(BFloat16).to(Float32)


def dot(left: Sequence[Float32], right: Sequence[Float32]) -> Float32:
    """Sum of products, first to last."""
    total = left[0] * right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        total = total + a * b
    return total


def rsqrt(value: Float32) -> Float32:
    """1 / sqrt, to the last bit or two."""
    text = "rsqrt.approx.f32 {$w0}, {$r0};"
    return inline_ptx(text, write_only_types=[Float32], read_only_args=[value])


def exp2(value: Float32) -> Float32:
    """2 to the power of `value`, to the last bit or two; 0 at minus infinity."""
    text = "ex2.approx.ftz.f32 {$w0}, {$r0};"
    return inline_ptx(text, write_only_types=[Float32], read_only_args=[value])


def reciprocal(value: Float32) -> Float32:
    """1 / value, to the last bit; 0 at infinity."""
    text = "rcp.approx.ftz.f32 {$w0}, {$r0};"
    return inline_ptx(text, write_only_types=[Float32], read_only_args=[value])


def sigmoid(value: Float32) -> Float32:
    """1 / (1 + exp(-value)), to a few last bits."""
    return reciprocal(1.0 + exp2(value * -LOG2_E))


def tanh(value: Float32) -> Float32:
    """To a few last bits, small numbers included."""
    square = value * value
    near = value * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0)))
    far = 1.0 - 2.0 * reciprocal(1.0 + exp2(value * (2.0 * LOG2_E)))
    return Float32(cutlass.select_(square < 0.01, near, far))


def situ(gate: Float32, up: Float32, beta: float, linear_beta: float) -> Float32:
    """See `common.situ`."""
    bounded = beta * tanh(gate * (1.0 / beta)) * sigmoid(gate)
    return bounded * (linear_beta * tanh(up * (1.0 / linear_beta)))


def log2(value: Float32) -> Float32:
    """Logarithm to base 2; minus infinity at 0."""
    text = "lg2.approx.f32 {$w0}, {$r0};"
    return inline_ptx(text, write_only_types=[Float32], read_only_args=[value])


def width_of(count: int) -> int:
    """Lanes that `transposed_sums` spreads `count` sums over: the next power of two."""
    return 1 << (count - 1).bit_length()


def transposed_sums(values: list[Float32], lane: Int32, group: int = WARP) -> Float32:
    """Sums of up to `group` values per lane over every `group` neighbouring lanes of the warp; lane
    l gets sum l % width_of(len(values)) of its group.

    The list halves at every exchange, so that k sums cost about k shuffles instead of 5 k.
    """
    width = width_of(len(values))
    held = [*values, *[Float32(0.0)] * (width - len(values))]
    offset = width // 2
    while offset:
        upper = (lane & offset) != 0
        half = len(held) // 2
        held = [
            cutlass.select_(upper, high, low)
            + cute.arch.shuffle_sync_bfly(cutlass.select_(upper, low, high), offset)
            for low, high in zip(held[:half], held[half:], strict=True)
        ]
        offset //= 2
    (total,) = held
    return _butterfly(total, width, group)


def warp_sum(value: Float32) -> Float32:
    """Sum over the warp, in every lane."""
    return _butterfly(value, 1, WARP)


def _butterfly(value: Float32, offset: int, end: int) -> Float32:
    while offset < end:
        value = value + cute.arch.shuffle_sync_bfly(value, offset)
        offset *= 2
    return value


def send(rank: Any, pointer: cute.Pointer, value: Float32, barrier: cute.Pointer) -> None:
    """Store into the shared memory of block `rank` of this cluster, at this block's `pointer`, and
    count the 4 bytes at that block's `barrier`. Whoever waits there sees the value: no fence."""
    send_words(rank, pointer, [value], barrier)


def send_words(
    rank: Any, pointer: cute.Pointer, words: Sequence[Any], barrier: cute.Pointer
) -> None:
    """The same with one, two or four words, 4 bytes each."""
    width = {1: "", 2: ".v2", 4: ".v4"}[len(words)]
    names = ", ".join(f"{{$r{i + 3}}}" for i in range(len(words)))
    names = f"{{{names}}}" if width else names
    text = (
        "{ .reg .b32 there, counter; mapa.shared::cluster.u32 there, {$r0}, {$r2}; "
        "mapa.shared::cluster.u32 counter, {$r1}, {$r2}; "
        f"st.async.shared::cluster.mbarrier::complete_tx::bytes{width}.b32 [there], {names}, "
        "[counter]; }"
    )
    places = shared_address(pointer), shared_address(barrier)
    inline_ptx(text, read_only_args=[*places, Int32(rank), *words])


def fetch(pointer: cute.Pointer, at: Int64, size: int, barrier: cute.Pointer) -> None:
    """Start copying `size` contiguous bytes into shared memory; they count at `barrier`."""
    text = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[{$r0}], [{$r1}], {$r2}, [{$r3}];"
    )
    places = shared_address(pointer), at, Int32(size), shared_address(barrier)
    inline_ptx(text, read_only_args=[*places])


def prefetch(at: Int64, size: Any) -> None:
    """Start bringing `size` contiguous bytes into L2: no value reaches the program."""
    text = "cp.async.bulk.prefetch.L2.global [{$r0}], {$r1};"
    inline_ptx(text, read_only_args=[at, Int32(size)])


def store_shared(at: Int32, words: Sequence[Any]) -> None:
    """Two or four words of shared memory."""
    names = ", ".join(f"{{$r{i + 1}}}" for i in range(len(words)))
    text = f"st.shared.v{len(words)}.b32 [{{$r0}}], " + f"{{{names}}};"
    inline_ptx(text, read_only_args=[at, *words])


def store_shared_half(at: Int32, value: Float32, kind: str = "bf16") -> None:
    """One number, rounded to BF16 or, with `kind` f16, to FP16."""
    text = "{ .reg .b16 low; cvt.rn." + kind + ".f32 low, {$r1}; st.shared.b16 [{$r0}], low; }"
    inline_ptx(text, read_only_args=[at, value])


def load_shared(pointer: cute.Pointer) -> tuple[Uint32, ...]:
    """16 bytes of shared memory."""
    text = "ld.shared.v4.u32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];"
    places = [shared_address(pointer)]
    return inline_ptx(text, write_only_types=[Uint32] * 4, read_only_args=places)


def load_shared_pair(pointer: cute.Pointer) -> tuple[Uint32, ...]:
    """8 bytes of shared memory."""
    text = "ld.shared.v2.u32 {{$w0}, {$w1}}, [{$r0}];"
    places = [shared_address(pointer)]
    return inline_ptx(text, write_only_types=[Uint32] * 2, read_only_args=places)


def load_shared_word(pointer: cute.Pointer) -> Uint32:
    """4 bytes of shared memory."""
    text = "ld.shared.u32 {$w0}, [{$r0}];"
    return inline_ptx(text, write_only_types=[Uint32], read_only_args=[shared_address(pointer)])


def load_matrices(at: Int32, transposed: bool = False) -> tuple[Uint32, ...]:
    """Four 8x8 matrices of 2-byte elements from shared memory; lane l gives the address of row
    l % 8 of matrix l // 8."""
    way = ".trans" if transposed else ""
    text = f"ldmatrix.sync.aligned.m8n8.x4{way}.shared.b16 " + "{{$w0}, {$w1}, {$w2}, {$w3}}, "
    return inline_ptx(text + "[{$r0}];", write_only_types=[Uint32] * 4, read_only_args=[at])


def multiply_add(
    left: Sequence[Uint32], right: Sequence[Uint32], acc: Sequence[Float32], kind: str = "bf16"
) -> tuple[Float32, ...]:
    """acc + left right: 16x16 and 16x8 of `kind`, 16x8 FP32 spread over the warp."""
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
        "{{$w0}, {$w1}, {$w2}, {$w3}}, "
        "{{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, {{$r6}, {$r7}, {$r8}, {$r9}};"
    )
    operands = [*left, *right, *acc]
    return inline_ptx(text, write_only_types=[Float32] * 4, read_only_args=operands)


def multiply_add_32(
    upper: Sequence[Uint32],
    lower: Sequence[Uint32],
    right: Sequence[Uint32],
    acc: Sequence[Float32],
) -> tuple[Float32, ...]:
    """acc + left right over 32 columns of BF16, operands as memory holds them: lane l has columns
    8 (l % 4) to 8 (l % 4) + 7 of rows l // 4 and 8 + l // 4 of the left and of row l // 4 of the
    right, transposed. The instruction takes them in another order, the same on both sides."""
    for at in (0, 2):
        left = (upper[at], lower[at], upper[at + 1], lower[at + 1])
        acc = multiply_add(left, right[at : at + 2], acc)
    return tuple(acc)


# ---- mailboxes: memory that another rank writes while this one reads --------------------------

ABSENT = 0xFFFFFFFF
"""A word of a mailbox that nothing has arrived in: two BF16 NaNs with every bit set. Rounding to
BF16 makes any NaN 0x7FFF, so no sum is ever mistaken for it, and -0.0 stays what it is."""


def deliver(at: Int64, words: Sequence[Uint32]) -> None:
    """16 bytes into any rank's memory; each word arrives whole, in no order."""
    text = "st.relaxed.sys.global.v4.u32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};"
    inline_ptx(text, read_only_args=[at, *words])


def deliver_word(at: Int64, word: Uint32) -> None:
    """4 bytes for another block of this device."""
    inline_ptx("st.relaxed.gpu.global.u32 [{$r0}], {$r1};", read_only_args=[at, word])


def fence() -> None:
    """Nothing of this thread behind it is seen by the device before what is ahead of it."""
    inline_ptx("fence.acq_rel.gpu;")


@cute.jit
def leave(empty: Any, lane: Int32) -> None:
    """This warp has read a stage, which TMA may fill again once every warp has left it.

    Nothing else waits for the data of its last loads: without the fence TMA, weights in L2,
    overtook them on multiprocessors busy with a second block.
    """
    inline_ptx("fence.proxy.async.shared::cta;")
    cute.arch.sync_warp()
    if lane == 0:
        cute.arch.mbarrier_arrive(empty)


def look(at: Int64) -> tuple[Uint32, ...]:
    """16 bytes that another rank may be writing."""
    text = "ld.relaxed.sys.global.v4.u32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];"
    return inline_ptx(text, write_only_types=[Uint32] * 4, read_only_args=[at])


def wait_for(at: Int64, seen: Sequence[Uint32], limit: Uint32) -> tuple[tuple[Uint32, ...], Uint32]:
    """16 bytes once all have arrived, and 0. `seen` is what was there at a first look. After
    `limit` further looks: what is there then, and 1."""
    text = (
        "{ .reg .pred missing; .reg .u32 left; mov.u32 left, {$r1}; "
        "mov.u32 {$w4}, 0; mov.u32 {$w0}, {$r2}; mov.u32 {$w1}, {$r3}; "
        "mov.u32 {$w2}, {$r4}; mov.u32 {$w3}, {$r5}; "
        "again: setp.eq.u32 missing, {$w0}, 0xffffffff; "
        "setp.eq.or.u32 missing, {$w1}, 0xffffffff, missing; "
        "setp.eq.or.u32 missing, {$w2}, 0xffffffff, missing; "
        "setp.eq.or.u32 missing, {$w3}, 0xffffffff, missing; "
        "@!missing bra done; "
        "setp.eq.u32 missing, left, 0; @missing mov.u32 {$w4}, 1; @missing bra done; "
        "sub.u32 left, left, 1; "
        "ld.relaxed.sys.global.v4.u32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}]; "
        "bra again; "
        "done: }"
    )
    *words, late = inline_ptx(
        text, write_only_types=[Uint32] * 5, read_only_args=[at, limit, *seen]
    )
    return tuple(words), late

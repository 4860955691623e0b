"""Planted kernels: what the audit must refuse, and beside each what it must accept.

Every audit compiles them with the same compiler, for the same architecture, as the kernels it is
about; if one of them is not judged as `rules.hoist.CONTROLS` says, nothing follows about the rest.
The run-time variant launches two of them behind a slow producer. All read activations `x` [n] and
weights `w` [n] and write `y` [n], float32, n = blocks x 128; each thread makes one element, and
where nothing else is said, ``y = w * x``. Runs only under a Python with CuTe DSL.
"""

from __future__ import annotations

import functools
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_compact_tensor
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.memory import SmemAllocator

from fasttrack.audit.declare import CompiledKernel

THREADS = 128
BLOCKS = 4
ARCHS = ("sm_90a", "sm_100a", "sm_103a")


@dsl_user_op
def _load(address: Int64, movable: bool, *, loc: Any = None, ip: Any = None) -> Float32:
    """A load from an address; `movable` is what a hand-written cached load often says: that the
    data never changes (.nc) and that the load has no side effect."""
    value = llvm.inline_asm(
        ir.F32Type.get(),
        [Int64(address).ir_value(loc=loc, ip=ip)],
        f"ld.global{'.nc' if movable else ''}.f32 $0, [$1];",
        "=f,l",
        has_side_effects=not movable,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    return Float32(value)


@cute.jit
def _element() -> Int32:
    """This thread's element."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    return block * THREADS + thread


@cute.kernel
def _late_load(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor) -> None:
    i = _element()
    cute.arch.griddepcontrol_wait()
    y[i] = w[i] * x[i]
    cute.arch.griddepcontrol_launch_dependents()


@cute.kernel
def _early_load(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor) -> None:
    i = _element()
    activation = x[i]
    cute.arch.griddepcontrol_wait()
    y[i] = w[i] * activation
    cute.arch.griddepcontrol_launch_dependents()


@cute.kernel
def _static_weight(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor) -> None:
    i = _element()
    weight = w[i]
    cute.arch.griddepcontrol_wait()
    y[i] = weight * x[i]


@cute.kernel
def _moved_by_the_compiler(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, n: Int32) -> None:
    """Every load stands behind a wait in this text, and in the PTX made from it: ptxas moves the
    one that is said to be read-only above the wait."""
    i = _element()
    total = Float32(0.0)
    for j in cutlass.range(n, unroll=1):
        cute.arch.griddepcontrol_wait()
        total += _load((x.iterator + i).toint(), True) * w[j]
    y[i] = total


@cute.kernel
def _wait_in_one_branch(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor) -> None:
    i = _element()
    thread, _, _ = cute.arch.thread_idx()
    if thread < 32:
        cute.arch.griddepcontrol_wait()
    y[i] = w[i] * x[i]


@cute.kernel
def _wait_at_the_end_of_a_loop(
    x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, n: Int32
) -> None:  # fmt: skip
    i = _element()
    total = Float32(0.0)
    for j in cutlass.range(n, unroll=1):
        total += w[i] * x[i + j]
        cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_wait()
    y[i] = total


@cute.kernel
def _early_store(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor) -> None:
    i = _element()
    y[i] = Float32(0.0)
    cute.arch.griddepcontrol_wait()
    y[i] = w[i] * x[i]


@cute.kernel
def _no_wait(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor) -> None:
    """Harmless by itself; but whoever waits for it believes that all before it has ended too."""
    i = _element()
    if w[i] > Float32(1e30):
        cute.arch.griddepcontrol_launch_dependents()


@cute.kernel
def _pointer_from_memory(w: cute.Tensor, y: cute.Tensor) -> None:
    """Reads through a table of addresses: where to, no listing can tell."""
    i = _element()
    value = _load(w[i], False)
    cute.arch.griddepcontrol_wait()
    y[i] = value


@cute.kernel
def _tma(atom: cute.CopyAtom, source: cute.Tensor, y: cute.Tensor, layout: cute.Layout) -> None:
    """Fetches a tile by TMA before the wait: fine for weights, wrong for activations."""
    thread, _, _ = cute.arch.thread_idx()
    memory = SmemAllocator()
    barrier = memory.allocate_array(Int64, 1)
    tile = memory.allocate_tensor(Float32, layout, 128)
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    shared, whole = cpasync.tma_partition(
        atom,
        0,
        cute.make_layout(1),
        cute.group_modes(tile, 0, 2),
        cute.group_modes(cute.local_tile(source, (64, 32), (0, 0)), 0, 2),
    )
    if thread == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, 64 * 32 * 4)
        cute.copy(atom, whole, shared, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    cute.arch.griddepcontrol_wait()
    y[thread] = tile[thread % 64, 0]


@cute.jit
def _launch(
    x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, table: cute.Tensor, tiles: cute.Tensor, n: Int32
) -> None:
    """Launches every kernel of this file, each dependent on the one before: one cubin for all."""
    for kernel in (_late_load, _early_load, _static_weight, _wait_in_one_branch, _early_store,
                   _no_wait):  # fmt: skip
        _dependent(kernel(x, w, y))
    for kernel in (_moved_by_the_compiler, _wait_at_the_end_of_a_loop):
        _dependent(kernel(x, w, y, n))
    _dependent(_pointer_from_memory(table, y))
    layout = cute.make_layout((64, 32), stride=(32, 1))
    atom, tensor = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), tiles, layout, (64, 32)
    )
    _tma(atom, tensor, y, layout).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), use_pdl=True)


def _dependent(launcher: Any) -> None:
    launcher.launch(grid=(BLOCKS, 1, 1), block=(THREADS, 1, 1), use_pdl=True)


@functools.cache
def _cubin(arch: str) -> bytes:
    """All kernels of this file for the architecture that the environment names."""
    vector = [make_fake_compact_tensor(kind, (BLOCKS * THREADS,), assumed_align=16)
              for kind in (Float32, Float32, Float32, Int64)]  # fmt: skip
    tiles = make_fake_compact_tensor(Float32, (256, 128), stride_order=(1, 0), assumed_align=16)
    cubin: bytes = cute.compile(_launch, *vector, tiles, Int32(3)).artifacts.CUBIN
    return cubin


def compiled_kernels() -> list[CompiledKernel]:
    """All of them; the names are those of `rules.hoist.CONTROLS`."""

    def plant(name: str, kernel: str, names: str = "x w y", static: str = "w") -> CompiledKernel:
        names_, static_ = tuple(names.split()), tuple(static.split())
        return CompiledKernel(name, ARCHS, _cubin, names_, static_, entry=f"cutlass_{kernel}_")

    return [
        plant("late_load", "_late_load"),
        plant("static_weight", "_static_weight"),
        plant("static_weight_by_tma", "_tma", "w y"),
        plant("early_load", "_early_load"),
        plant("weight_not_declared", "_static_weight", static=""),
        plant("early_tma", "_tma", "x y", static=""),
        plant("moved_by_the_compiler", "_moved_by_the_compiler", "x w y n"),
        plant("wait_in_one_branch", "_wait_in_one_branch"),
        plant("wait_at_the_end_of_a_loop", "_wait_at_the_end_of_a_loop", "x w y n"),
        plant("pointer_from_memory", "_pointer_from_memory", "w y"),
        plant("early_store", "_early_store"),
        plant("no_wait", "_no_wait"),
    ]

"""Compiling GPU kernels and binding them to tensors.

Owns: what a kernel tells about its arguments, one launcher per form and process, the check of
tensors, the launch on the current stream. Does not own: which form a step needs (the `launch`
modules), device code. Read by: the `launch` modules, `compiled`.

Everything is compiled and bound before a graph is captured; a launch allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor

from kimi_k3.kernels import stored

if TYPE_CHECKING:
    import torch

Stream = cuda.CUstream
"""What a kernel is told to launch on; named so that a stored launcher knows its type."""
ALIGNMENT = 16
"""Bytes: what vector accesses and TMA ask of every argument."""
_TYPES = {
    "bfloat16": cutlass.BFloat16,
    "float32": cutlass.Float32,
    "int32": cutlass.Int32,
    "uint8": cutlass.Uint8,
    "int64": cutlass.Int64,
}
_LAUNCHERS: dict[tuple[type, tuple[Any, ...]], Callable[..., None]] = {}


class Argument(NamedTuple):
    """One tensor of a kernel: contiguous, of this shape."""

    dtype: str
    shape: tuple[int, ...]
    kind: str = "step"
    """``step``, ``static`` (nothing writes it during a step) or ``own`` (no other kernel of the
    step touches it), as the audit of compiled kernels asks."""


class Kernel(Protocol):
    """Device code made for one form."""

    @property
    def form(self) -> tuple[Any, ...]:
        """What code is made for: equal forms, equal code."""
        ...

    def arguments(self) -> Mapping[str, Argument]:
        """By name, in order."""
        ...


def compile_kernel(kernel: Kernel) -> Any:
    """Compile a kernel for this process's device or for $CUTE_DSL_ARCH."""
    fakes = [
        make_fake_compact_tensor(
            _TYPES[one.dtype], one.shape, assumed_align=ALIGNMENT,
            stride_order=tuple(reversed(range(len(one.shape)))),
        )
        for one in kernel.arguments().values()
    ]  # fmt: skip
    return cute.compile(kernel, *fakes, cuda.CUstream(0))


def launcher(kernel: Kernel) -> Callable[..., None]:
    """The compiled launcher of a kernel: of this process, of an earlier one, or made now."""
    key = type(kernel), tuple(kernel.form)
    if key not in _LAUNCHERS:
        file = stored.path(*key)
        found = stored.load(file) if file else None
        if found is None:
            found = compile_kernel(kernel)
            if file:
                stored.store(file, found)
        _LAUNCHERS[key] = found
    return _LAUNCHERS[key]


class Bound:
    """A kernel and the memory it works on. Calling it launches on torch's current stream."""

    def __init__(self, kernel: Kernel, **tensors: torch.Tensor) -> None:
        """Raises ValueError where a tensor is not as the kernel's arguments say."""
        arguments = kernel.arguments()
        if tensors.keys() != arguments.keys():
            raise ValueError(f"tensors {sorted(tensors)} for arguments {sorted(arguments)}")
        for name, one in arguments.items():
            tensor = tensors[name]
            found = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            if found != (one.dtype, one.shape) or not tensor.is_contiguous():
                raise ValueError(f"{name} is {found}, strides {tensor.stride()}, not {one}")
            if tensor.data_ptr() % ALIGNMENT:
                raise ValueError(f"{name} is not aligned to {ALIGNMENT} bytes")
        self.kernel = kernel
        self.tensors = {name: tensors[name] for name in arguments}
        """Kept alive as long as this is; a captured graph knows addresses only."""
        self._launch = launcher(kernel)
        self._views = [
            from_dlpack(tensor, assumed_align=ALIGNMENT) for tensor in self.tensors.values()
        ]

    def __call__(self) -> None:
        """Launch."""
        import torch

        self._launch(*self._views, cuda.CUstream(torch.cuda.current_stream().cuda_stream))

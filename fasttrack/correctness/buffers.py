"""Child side: the buffers that code under test reads and writes, and which outputs are accepted.

Owns guard zones, poison, refilling buffers in place, spotting changed inputs, and the list of
reasons why an output is not a plain tensor. Knows no op. Read by the case child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fasttrack.correctness.device import Device

GUARD = 256
"""Bytes on either side of a buffer; a multiple of the alignment of tensors."""
POISON = b"\xff"
"""Every byte of poison: NaN in all floating formats, -1 in integers."""


@dataclass(frozen=True)
class Form:
    """Dtype and shape of a tensor, by torch's names."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count * int(getattr(torch, self.dtype).itemsize)


class Buffer:
    """A tensor between two guard zones."""

    def __init__(self, device: Device, form: Form) -> None:
        self._device = device
        self.form = form
        room = -(-form.nbytes // GUARD) * GUARD
        self._storage = device.storage(room + 2 * GUARD)
        flat = self._storage[GUARD : GUARD + form.nbytes]
        self.tensor = flat.view(getattr(torch, form.dtype)).reshape(form.shape)
        self.start = self._storage.data_ptr() + GUARD
        self._tail = room - form.nbytes + GUARD

    def fill(self, data: bytes | None) -> None:
        """Put content, or poison, and fresh guards."""
        self._device.write(self._storage, 0, POISON * GUARD)
        self._device.write(self._storage, GUARD, data or POISON * self.form.nbytes)
        self._device.write(self._storage, GUARD + self.form.nbytes, POISON * self._tail)

    def content(self) -> bytes:
        """What is in the buffer."""
        return self._device.read(self._storage)[GUARD : GUARD + self.form.nbytes]

    def damage(self) -> int:
        """Guard bytes that are no longer what they were."""
        whole = self._device.read(self._storage)
        guards = whole[:GUARD] + whole[GUARD + self.form.nbytes :]
        return len(guards) - guards.count(POISON)


class Slots:
    """Several sets of buffers, so that calls find new content at old addresses and old content at
    new ones."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: dict[tuple[int, str, Form], Buffer] = {}

    def fill(
        self, slot: int, content: Mapping[str, tuple[Form, bytes | None]]
    ) -> dict[str, Buffer]:
        """The buffers of a slot with this content; a form seen before keeps its address."""
        made = {}
        for name, (form, data) in content.items():
            key = (slot, name, form)
            if key not in self._buffers:
                self._buffers[key] = Buffer(self._device, form)
            made[name] = self._buffers[key]
            made[name].fill(data)
        return made

    def clear(self) -> None:
        """Forget every buffer."""
        self._buffers.clear()


def unfit(outputs: Any, device: Device, inputs: Mapping[str, Buffer], free: Sequence[str]) -> str:
    """Why outputs cannot be accepted as plain tensors; empty when they can.

    `free` names inputs that an output may share memory with.
    """
    if type(outputs) is not dict:
        return f"the outputs are a {type(outputs).__name__}, not a dict"
    for name, tensor in outputs.items():
        reason = _unfit(tensor, device) or _alias(tensor, inputs, free)
        if reason:
            return f"{name} {reason}"
    return ""


def _unfit(tensor: Any, device: Device) -> str:
    if type(tensor) is not torch.Tensor:
        kind = "a subclass of tensor" if isinstance(tensor, torch.Tensor) else "not a tensor"
        return f"is a {type(tensor).__name__}, {kind}"
    if tensor.device.type != device.kind:
        return f"is on {tensor.device.type}, not on {device.kind}"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"has the layout {tensor.layout}, not plain strides"
    if tensor.is_conj() or tensor.is_neg():
        return "is lazily conjugated or negated"
    if vars(tensor):
        return f"carries attributes of its own: {', '.join(map(str, vars(tensor)))[:100]}"
    reach = 1
    for stride, size in sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size > 1
    ):
        if stride < reach:
            return f"overlaps itself: strides {tensor.stride()} of shape {tuple(tensor.shape)}"
        reach += stride * (size - 1)
    return ""


def _alias(tensor: torch.Tensor, inputs: Mapping[str, Buffer], free: Sequence[str]) -> str:
    storage = tensor.untyped_storage()
    start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    for name, buffer in inputs.items():
        inside = start < buffer.start + buffer.form.nbytes and buffer.start < end
        if inside and name not in free:
            return f"shares memory with the input {name}"
    return ""

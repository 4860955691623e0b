"""What NVIDIA's management library tells of the GPUs, sample by sample.

Needs the module `pynvml` (package nvidia-ml-py) and a driver; without either, or where a counter is
not offered, the value is left out. Read by `monitors`, in the sampler's process, and, for the GPUs
there are, by those who deal them out.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

IDLE = 0x1
"""`nvmlClocksEventReasonGpuIdle`: a slow clock that is no throttling."""
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Devices of NVIDIA's and AMD's drivers: where one is, there are GPUs, whether or not told of."""


def count() -> int:
    """How many GPUs this machine has; none where nothing tells."""
    return Gpus(lambda pid: True).count


def usable() -> tuple[int, ...] | None:
    """Indices of the GPUs that this process may use; None where some are told by no index."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is None:
        found = tuple(range(count()))
        return found if found or not any(map(os.path.exists, DRIVERS)) else None
    names = [name for name in told.split(",") if name]
    return tuple(map(int, names)) if all(name.isdecimal() for name in names) else None


class Gpus:
    """GPUs of the machine, all or some by index; empty where there are none."""

    def __init__(self, ours: Callable[[int], bool], chosen: Sequence[int] | None = None) -> None:
        """`ours`: whether a process id is in the harness's own tree."""
        self._ours = ours
        self._handles: list[Any] = []
        self._clocks: list[float] = []
        self._watts: list[float] = []
        self._throttle = 0
        self._foreign = 0
        with contextlib.suppress(Exception):
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            indices = range(self._nvml.nvmlDeviceGetCount()) if chosen is None else chosen
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in indices]
        self._energy = self._joules()
        self._ecc = self._errors()

    @property
    def count(self) -> int:
        """How many are watched."""
        return len(self._handles)

    def sample(self) -> None:
        """Look at every GPU once."""
        for handle in self._handles:
            with contextlib.suppress(Exception):
                clock = self._nvml.nvmlDeviceGetClockInfo(handle, self._nvml.NVML_CLOCK_SM)
                self._clocks.append(float(clock))
            with contextlib.suppress(Exception):
                self._watts.append(self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
            with contextlib.suppress(Exception):
                reasons = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
                self._throttle |= int(reasons) & ~IDLE
            with contextlib.suppress(Exception):
                found = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                foreign = sum(not self._ours(process.pid) for process in found)
                self._foreign = max(self._foreign, foreign)

    def summary(self) -> dict[str, float]:
        """Over all samples and GPUs; energy in joules, clocks in MHz, power in watts."""
        if not self._handles:
            return {}
        values: dict[str, float] = {
            "gpus": len(self._handles),
            "gpu_throttle_bits": self._throttle,
            "gpu_foreign_processes": self._foreign,
        }
        if self._clocks:
            values |= {"sm_mhz_least": min(self._clocks), "sm_mhz_most": max(self._clocks)}
        if self._watts:
            values["gpu_watts_mean"] = sum(self._watts) / len(self._watts)
        energy, errors = self._joules(), self._errors()
        if energy is not None and self._energy is not None:
            values["gpu_joules"] = energy - self._energy
        if errors is not None and self._ecc is not None:
            values["gpu_ecc_errors"] = errors - self._ecc
        return values

    def _joules(self) -> float | None:
        with contextlib.suppress(Exception):
            if self._handles:
                told = map(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._handles)
                return float(sum(told)) / 1000
        return None

    def _errors(self) -> float | None:
        with contextlib.suppress(Exception):
            if self._handles:
                kind = self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
                scope = self._nvml.NVML_VOLATILE_ECC
                read = self._nvml.nvmlDeviceGetTotalEccErrors
                return float(sum(read(handle, kind, scope) for handle in self._handles))
        return None

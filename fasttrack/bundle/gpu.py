"""GPU facts for provenance: through NVML when its Python package is there, else `nvidia-smi`.

Neither is required: a machine without a GPU has an empty list. Serial numbers are never read.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 20
_FIELDS = (
    "name", "uuid", "driver_version", "vbios_version", "memory.total", "compute_cap",
    "power.limit", "clocks.max.sm", "clocks.max.memory", "mig.mode.current", "ecc.mode.current",
)  # fmt: skip


def gpus() -> list[dict[str, Any]]:
    """One mapping per GPU."""
    return _through_nvml() or _through_nvidia_smi()


def _through_nvml() -> list[dict[str, Any]]:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # an absent package or driver raises the package's own classes
        return []
    try:
        return [_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except Exception:
        return []
    finally:
        nvml.nvmlShutdown()


def _describe(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    readers: dict[str, Callable[[], Any]] = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
        "driver": nvml.nvmlSystemGetDriverVersion,
        "cuda_driver": nvml.nvmlSystemGetCudaDriverVersion_v2,
        "vbios": lambda: nvml.nvmlDeviceGetVbiosVersion(handle),
        "compute_capability": lambda: list(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "memory_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20,
        "power_limit_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "max_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "max_memory_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
        "ecc": lambda: nvml.nvmlDeviceGetEccMode(handle)[0],
        "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
    }
    found: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            value = read()
        except Exception:  # a field this device or driver does not have
            continue
        found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def _through_nvidia_smi() -> list[dict[str, Any]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(",") for line in done.stdout.splitlines() if line.strip()]
    return [
        {name: value.strip() for name, value in zip(_FIELDS, row, strict=False)} for row in rows
    ]

"""Machine state around a session: load, CPU frequency, stolen time, memory. Linux; else empty."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

Values = Mapping[str, float]


def snapshot() -> dict[str, float]:
    """What the kernel tells now; a source that cannot be read is left out."""
    values: dict[str, float] = {}
    try:
        values["load_1min"] = os.getloadavg()[0]
        cpu = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        values["cpu_ticks"] = float(sum(map(int, cpu[1:9])))
        values["steal_ticks"] = float(cpu[8])
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                values["available_mib"] = int(line.split()[1]) / 1024
        speeds = [
            float(line.split(":")[1])
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("cpu MHz")
        ]
        if speeds:
            values["cpu_mhz"] = sum(speeds) / len(speeds)
    except (OSError, ValueError, IndexError):
        pass
    return values


def between(before: Values, after: Values) -> dict[str, float]:
    """State at the end, with stolen time as a share of the interval."""
    values = {key: after[key] for key in ("load_1min", "available_mib", "cpu_mhz") if key in after}
    ticks = after.get("cpu_ticks", 0.0) - before.get("cpu_ticks", 0.0)
    if ticks > 0:
        stolen = after.get("steal_ticks", 0.0) - before.get("steal_ticks", 0.0)
        values["steal_share"] = stolen / ticks
    return values

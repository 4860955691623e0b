"""Energy of the CPU packages, as Linux's powercap tells it (RAPL). Read by `monitors`.

Counters are in microjoules and wrap; whoever samples every second misses no wrap. Left out where
the kernel has no such counters or does not let this user read them.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/sys/class/powercap")
PACKAGE = re.compile(r"[a-z-]+-rapl:\d+")
"""Packages alone: their cores, memory controllers and so on are parts of them."""


class Packages:
    """All CPU packages of the machine; empty where they cannot be read."""

    def __init__(self, root: Path = ROOT) -> None:
        found = sorted(root.iterdir()) if root.is_dir() else []
        self._joules = 0.0
        self._last: dict[Path, int] = {}
        for folder in found:
            count = _read(folder / "energy_uj")
            if PACKAGE.fullmatch(folder.name) and count is not None:
                self._last[folder] = count

    def sample(self) -> None:
        """Add what was used since the last sample."""
        for folder, before in self._last.items():
            now = _read(folder / "energy_uj")
            if now is None:
                continue
            if now < before:
                before -= _read(folder / "max_energy_range_uj") or before
            self._joules += (now - before) / 1e6
            self._last[folder] = now

    def summary(self) -> dict[str, float]:
        """``cpu_joules`` since the start, where there is a counter."""
        return {"cpu_joules": self._joules} if self._last else {}


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None

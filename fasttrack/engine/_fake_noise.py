"""Noise of the fake engine's step times: drawn from a normal distribution, or as it was recorded.

Recorded (`fake_noise.json`) are decode sessions of a real engine on a shared machine, with its
spikes and slow boots: a session draws one of them, and each call one of its cells, how far that
boot lay from the others and how its steps went. Read by the fake child.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("fake_noise.json")


class Noise:
    """Factors of step times in one session."""

    def __init__(self, kind: str, share: float, seed: str) -> None:
        """`kind`: ``normal`` or ``recorded``; `share`: standard deviation of the former."""
        self._share = share
        self._random = random.Random(seed)
        self._boot = 1 + self._random.gauss(0, share)
        self._cells: list[dict[str, Any]] = []
        if kind == "recorded":
            sessions = json.loads(RECORDED.read_text(encoding="utf-8"))["sessions"]
            self._cells = self._random.choice(sessions)
        self._steps: list[float] = []
        self._at = 0

    def call(self) -> None:
        """A call begins."""
        if self._cells:
            cell = self._random.choice(self._cells)
            self._boot = math.exp(cell["boot"])
            self._steps = cell["steps"]
            self._at = self._random.randrange(len(self._steps))

    def step(self) -> float:
        """Factor of the next step."""
        if self._steps:
            self._at += 1
            return self._boot * self._steps[self._at % len(self._steps)]
        return self._boot * (1 + abs(self._random.gauss(0, self._share)))

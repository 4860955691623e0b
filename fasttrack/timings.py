"""How long units took on this machine, kept beside the checkpoints: what `plan` is calibrated by.

One line per unit of any run: target, stage, unit, estimated and real seconds. A guess for humans:
it is no evidence and enters no bundle. Written and read by the pipeline, read by `fasttrack plan`.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "timings.jsonl"
LATEST = 40
"""Units of a stage that count, the last ones: older ones may be of another code."""
LATEST_OF_UNIT = 3
"""Runs of the same unit that count: the middle one of them."""
LEAST_COST_S = 0.2
"""Units that are expected to do nothing say nothing of how long work takes."""


@dataclass(frozen=True)
class Calibration:
    """What earlier runs took: by unit, and per stage the real seconds per estimated one."""

    factor: Mapping[str, float]
    units: Mapping[str, int]
    """Number of units of this target that a stage's factor rests on; 0: on those of others."""
    took_s: Mapping[tuple[str, str, float], float]
    """By stage, unit and estimated seconds."""

    def seconds(self, stage: str, unit: str, cost_s: float) -> float:
        """Expected seconds: as the same unit took before, else as its stage's units did."""
        known = self.took_s.get((stage, unit, cost_s))
        return cost_s * self.factor.get(stage, 1.0) if known is None else known


def note(cache: Path, target: str, stage: str, unit: str, cost_s: float, took_s: float) -> None:
    """Keep one unit's times; a folder that cannot be written stops no run."""
    told = {"target": target, "stage": stage, "unit": unit, "cost_s": cost_s, "took_s": took_s}
    line = json.dumps(told)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / NAME).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        return


def calibration(cache: Path, target: str) -> Calibration:
    """What earlier runs of a target say; of a stage that it never ran, what those of others say.

    Lines that cannot be read count for nothing.
    """
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    others: dict[str, list[tuple[float, float]]] = defaultdict(list)
    same: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    try:
        lines = (cache / NAME).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in lines:
        try:
            told = json.loads(line)
            pair = float(told["cost_s"]), float(told["took_s"])
            if pair[0] >= LEAST_COST_S and pair[1] >= 0:
                stage, of = str(told["stage"]), told["target"]
                (seen if of == target else others)[stage].append(pair)
                if of == target:
                    same[stage, str(told["unit"]), pair[0]].append(pair[1])
        except (ValueError, KeyError, TypeError):
            continue
    factor, units = {}, {}
    for stage, pairs in (others | seen).items():
        chosen = pairs[-LATEST:]
        factor[stage] = sum(took for _, took in chosen) / sum(cost for cost, _ in chosen)
        units[stage] = len(chosen) if stage in seen else 0
    took_s = {key: statistics.median(took[-LATEST_OF_UNIT:]) for key, took in same.items()}
    return Calibration(factor, units, took_s)

"""How long units took on this machine, kept beside the checkpoints: what `plan` is calibrated by.

One line per unit of any run: target, stage, estimated and real seconds. A guess for humans: it is
no evidence and enters no bundle. Written by the pipeline, read by `fasttrack plan`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "timings.jsonl"
LATEST = 40
"""Units of a stage that count, the last ones: older ones may be of another code."""


@dataclass(frozen=True)
class Calibration:
    """Per stage: real seconds per estimated one, and the number of units that this rests on."""

    factor: Mapping[str, float]
    units: Mapping[str, int]


def note(cache: Path, target: str, stage: str, cost_s: float, took_s: float) -> None:
    """Keep one unit's times; a folder that cannot be written stops no run."""
    line = json.dumps({"target": target, "stage": stage, "cost_s": cost_s, "took_s": took_s})
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / NAME).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        return


def calibration(cache: Path, target: str) -> Calibration:
    """What earlier runs of a target say; lines that cannot be read count for nothing."""
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    try:
        lines = (cache / NAME).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in lines:
        try:
            told = json.loads(line)
            pair = float(told["cost_s"]), float(told["took_s"])
            if told["target"] == target and pair[0] > 0 and pair[1] >= 0:
                seen[str(told["stage"])].append(pair)
        except (ValueError, KeyError, TypeError):
            continue
    factor, units = {}, {}
    for stage, pairs in seen.items():
        chosen = pairs[-LATEST:]
        factor[stage] = sum(took for _, took in chosen) / sum(cost for cost, _ in chosen)
        units[stage] = len(chosen)
    return Calibration(factor, units)

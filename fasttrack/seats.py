"""Units that boot engines, beside each other: which may begin when, and on which GPUs.

Nearly all their time is boots, and nothing in them is timed but the picture of the path stage. Owns
the order that records and compilers' caches ask for, and who is given which GPUs. Processes are
`beside`'s; the stage whose times are judged is none of this room's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fasttrack.engine.setting import Setting
from fasttrack.perf import nvml
from fasttrack.plan import Unit
from fasttrack.schema import Arm, Target
from fasttrack.schema.record import Stage

STAGES: tuple[Stage, ...] = ("path", "isolation", "features", "evals")
"""In the order in which they are looked at. Path comes first: it boots each arm just once."""
COMPARED = frozenset({"features", "evals"})
"""Stages whose candidate reads what base left."""
RANKS = ("pipeline_parallel_size", "data_parallel_size")
"""Engine arguments that multiply the GPUs of an engine."""
MARGIN = 0.05
"""Share of a GPU's memory that is left free by engines that share it."""
Key = tuple[Stage, str]


def boots(unit: Unit) -> bool:
    """Whether a unit boots engines and times nothing that is judged."""
    return unit.stage in STAGES and unit.spec.get("check") != "scope"


class Seats:
    """Room for `jobs` engines at once, or as many as there are GPUs for; a `beside.Room`.

    Where there are no GPUs, memory and cores are the user's to know.
    """

    def __init__(self, target: Target, units: Sequence[Unit], jobs: int) -> None:
        in_turn = sorted(units, key=lambda unit: STAGES.index(unit.stage))
        self._needs = {_key(unit): _needs(unit, in_turn) for unit in in_turn}
        self._left = set(self._needs)
        self.order = self._longest_first(in_turn)
        """The units as they would begin."""
        gpus, needed = nvml.usable(), gpus_of(target)
        places: tuple[int | None, ...] = gpus or (None,)
        if gpus == ():
            self._needed, self._seats, why = 1, jobs, ""
        elif gpus is None:
            self._needed, self._seats, why = 1, 1, "nothing tells the GPUs by their index"
        elif len(gpus) < needed:
            places, self._needed, self._seats = (None,), 1, 1
            why = f"each needs {needed} GPUs, there are {len(gpus)}"
        else:
            self._needed, self._seats = needed, engines_per_gpu(target)
            why = f"each needs {needed} of {len(gpus)} GPUs, each of which holds {self._seats}"
        self.most = min(jobs, len(places) * self._seats // self._needed)
        """Engines at once."""
        self.why_fewer = (
            "" if self.most == jobs else f"{self.most} of {jobs} engines at once: {why}"
        )
        """One sentence; empty if `jobs` engines fit."""
        self._free = dict.fromkeys(places, self._seats)
        self._taken: dict[Key, tuple[tuple[int | None, ...], int]] = {}

    def begin(self, setting: Setting, unit: Unit) -> Setting | None:
        """The GPUs with the most seats left, in their order; see `beside.Room`."""
        if len(self._taken) >= self.most or self._needs[_key(unit)] & self._left:
            return None
        # A neighbour would show in its picture of a step.
        seats = self._seats if unit.stage == "path" else 1
        most_left = sorted(self._free, key=lambda place: -self._free[place])
        chosen = tuple(p for p in most_left if self._free[p] >= seats)[: self._needed]
        if len(chosen) < self._needed:
            return None
        for place in chosen:
            self._free[place] -= seats
        self._taken[_key(unit)] = chosen, seats
        gpus = tuple(sorted(place for place in chosen if place is not None))
        return replace(setting, gpus=gpus) if gpus else setting

    def end(self, unit: Unit) -> None:
        """See `beside.Room`."""
        chosen, seats = self._taken.pop(_key(unit))
        for place in chosen:
            self._free[place] += seats
        self._left.remove(_key(unit))

    def _longest_first(self, in_turn: Sequence[Unit]) -> list[Unit]:
        """By the work of a unit and of all that wait for it, one after the other; path before all,
        as it wants its GPUs empty."""
        row_s: dict[Key, float] = {}
        for unit in reversed(in_turn):  # nothing waits for a later one
            behind = (row_s[key] for key in row_s if _key(unit) in self._needs[key])
            row_s[_key(unit)] = unit.cost_s + max(behind, default=0.0)
        return sorted(in_turn, key=lambda unit: (unit.stage != "path", -row_s[_key(unit)]))


def gpus_of(target: Target) -> int:
    """How many GPUs an engine of a target needs."""
    more = (int(target.engine_args.get(name, 1)) for name in RANKS)
    return math.prod((target.tensor_parallel_size, *more))


def engines_per_gpu(target: Target) -> int:
    """How many engines share a GPU: as its target says, if it also fixes the size of the cache.

    An engine that measures how much memory is left for its cache must be alone with the GPU: what a
    neighbour takes or frees meanwhile would change the size, or stop the boot.
    """
    told = target.engine_args
    share = told.get("gpu_memory_utilization")
    if not isinstance(share, int | float) or not told.get("kv_cache_memory_bytes"):
        return 1
    return max(1, math.floor((1 - MARGIN) / share + 1e-9)) if share > 0 else 1


def _key(unit: Unit) -> Key:
    return unit.stage, unit.name


def _arms(unit: Unit) -> tuple[Arm, ...]:
    """Arms of the claimed model that a unit boots; the unrelated model has none."""
    if unit.stage == "isolation":
        return ("base", "candidate") if unit.spec["check"] == "model" else ()
    return (unit.spec["arm"],)


def _plain(unit: Unit) -> bool:
    """Whether its engine is the target's as it is; path and our evals force tokens, features count
    NaNs."""
    return unit.stage == "isolation" or "external" in unit.spec


def _needs(unit: Unit, in_turn: Sequence[Unit]) -> frozenset[Key]:
    """Units, of those before it, that must have ended before this one begins.

    A candidate is compared with what base left. Engines of one configuration write the same files
    of vLLM's compilation cache, not all of them whole at once: the first unit of an arm fills it
    for the others, and those that boot what it did not come one after the other.
    """
    before = in_turn[: [_key(other) for other in in_turn].index(_key(unit))]
    found = []
    for arm in _arms(unit):
        mine = [other for other in before if arm in _arms(other)]
        found += mine[:1]
        found += [other for other in mine if _plain(other) and _plain(unit)]
    if unit.stage in COMPARED and not _plain(unit):
        found += [other for other in before if other.stage == unit.stage and not _plain(other)]
    return frozenset(map(_key, found))

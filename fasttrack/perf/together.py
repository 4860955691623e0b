"""The perf stage with engines of a block that boot together and are measured one after the other.

Booting takes most of a session on a GPU, and can wait for nobody: files, one core, compilers. While
one engine is measured the others sit idle and no engine boots. They are given GPUs of their own, by
their place in the block, if there are enough; otherwise they share the GPUs and their memory. Owns
who boots when; what is measured is `sweep`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from fasttrack.engine.setting import Ready, Setting
from fasttrack.errors import FasttrackError
from fasttrack.perf import nvml, sweep
from fasttrack.schema import Record

Spec = Mapping[str, Any]


class Together:
    """Runs units of the perf stage. Use as a context manager, then as a runner.

    `specs`: the units that still wait, in their order; `count`: how many engines at once.
    """

    def __init__(self, specs: Sequence[Spec], count: int) -> None:
        self._specs = specs
        self._count = count
        self._idle: dict[str, Ready] = {}
        self._gpus = nvml.usable() or ()

    def __enter__(self) -> Together:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._idle:
            self._idle.popitem()[1].session.kill()

    def __call__(self, setting: Setting, spec: Spec) -> list[Record]:
        """Records of one session; its turn comes when all of its group are ready."""
        group = self._group(spec)
        if len(group) > 1 and spec == group[0]:
            self._boot(setting, group)
        return sweep.run(self._with_gpus(setting, spec), spec)

    def _group(self, spec: Spec) -> list[Spec]:
        """The units that boot with this one, in order: of its block, by position."""
        if "agent" in spec:
            return [spec]
        mine = spec["block"], spec["position"] // self._count
        return [
            one
            for one in self._specs
            if "agent" not in one and (one["block"], one["position"] // self._count) == mine
        ]

    def _with_gpus(self, setting: Setting, spec: Spec) -> Setting:
        """With GPUs of its own for a unit, by its place in the group, if all can have some."""
        own = None
        if "agent" not in spec and spec["shape"][0] * self._count <= len(self._gpus):
            needed = spec["shape"][0]
            first = spec["position"] % self._count * needed
            own = self._gpus[first : first + needed]
        return replace(setting, idle=self._idle, gpus=own)

    def _boot(self, setting: Setting, group: Sequence[Spec]) -> None:
        """Begin all, then wait for all. If one fails, each boots alone in its turn, and the error,
        if it comes again, is told then: two may be more than the memory holds."""
        boots = [boot for spec in group if (boot := sweep.boot_of(setting, spec)) is not None]
        if len(boots) < len(group):
            return
        with contextlib.ExitStack() as failed:
            begun = []
            for spec, one in zip(group, boots, strict=True):
                here = self._with_gpus(setting, spec)
                made = here.boot("perf", one.name, one.arm, one.variant)
                failed.callback(made.boot.child.kill)
                begun.append(made)
            try:
                ready = [booting.wait() for booting in begun]
            except FasttrackError as error:
                setting.say(f"together they do not boot ({error.code}): one by one")
                return
            failed.pop_all()
        names = [one.name for one in boots]
        for name, engine in zip(names, ready, strict=True):
            beside = tuple(other for other in names if other != name)
            record = engine.record.model_copy(update={"beside": beside})
            self._idle[name] = replace(engine, record=record)

"""What every measuring stage gets: the claim on one target, with the means to boot sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fasttrack.engine.base import Boot, Engine, Generation, Launch, Session, check_switch
from fasttrack.schema import Arm, Claim, PathRecord, Record, SessionRecord, Target
from fasttrack.schema.claim import AgentTraffic
from fasttrack.schema.record import Stage

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Variant:
    """A way to boot both arms that differs from the target's: for what needs another engine.

    `engine_args` come on top of the target's; `name` is empty for the target as it is.
    """

    name: str = ""
    engine_args: Mapping[str, Any] = field(default_factory=dict)


AS_TARGETED = Variant()


@dataclass(frozen=True)
class Setting:
    """One claim, one target, one engine, one checkpoint. Stages read it and change nothing."""

    claim: Claim
    target_name: str
    engine: Engine
    checkpoint: Path | None
    checkpoint_sha256: str
    source_sha256: Callable[[], str]
    """Digest of the optimization's files as they are now: an edit in mid-run must show."""
    logs: Path
    folder: Path
    """The optimization's folder."""
    seed: int
    timeout_s: float
    say: Progress
    """Tells the user what is going on, in a few words."""
    cell: str | None = None
    """Glob over cell names for authors; None measures all."""
    earlier: Callable[[], Iterable[Record]] = tuple
    """Records of the units that are finished."""
    base: str | None = None
    """Reference of the protected branch; None: as CI says, else the default branch."""
    data: Mapping[str, Path] = field(default_factory=dict)
    """Files of external evals that lie elsewhere on this machine than the claim says, by eval."""
    agent: AgentTraffic | None = None
    """Agent traffic of the run."""
    aiperf: Path | None = None
    """The program that replays agent traffic; None: look for it."""
    settled: Callable[[int, int], frozenset[str]] = lambda block, pairs: frozenset()
    """Perf cells of which the rule needs no further block, by the blocks before this one and the
    number of valid pairs that are planned."""
    machine: str = ""
    """Opaque name of the machine on which the sessions run."""
    place: Mapping[str, str] = field(default_factory=dict)
    """Where sessions are timed: `machine`, what it is, and of a cluster `node`, its name there."""
    idle: dict[str, Ready] = field(default_factory=dict)
    """Engines that were booted ahead, by session; each is taken out when its turn has come."""
    gpus: tuple[int, ...] | None = None
    """Indices of the GPUs that engines are given; None: those this process has."""
    journal: Path | None = None
    """Folder for what a unit wants to keep of itself should it be interrupted."""

    @property
    def target(self) -> Target:
        """The target being run."""
        return self.claim.targets[self.target_name]

    def launch(
        self,
        name: str,
        arm: Arm,
        variant: Variant = AS_TARGETED,
        count_nans: bool = False,
        forces: bool = False,
    ) -> Launch:
        """How to boot a session of an arm: the arms differ by the switch alone."""
        arguments = {**self.target.engine_args, **variant.engine_args}
        return Launch(
            session=name,
            arm=arm,
            target=self.target.model_copy(update={"engine_args": arguments}),
            count_nans=count_nans,
            forces=forces,
            additional_config=self.claim.switch.additional_config(arm),
            plugin=self.claim.plugin,
            checkpoint=self.checkpoint,
            log=self.logs / f"{name}.log",
            env=self._env,
            call_timeout_s=self.timeout_s,
            start_timeout_s=self.timeout_s,
        )

    @property
    def _env(self) -> Mapping[str, str]:
        if self.gpus is None:
            return {}
        # In the order of NVIDIA's management library, by which the indices are.
        chosen = ",".join(map(str, self.gpus))
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": chosen}

    def boot(self, stage: Stage, name: str, arm: Arm, variant: Variant = AS_TARGETED) -> Booting:
        """Begin to boot an arm; raises what `Engine.boot` raises."""
        launch = self.launch(name, arm, variant)
        record = self._begun(stage, launch, variant)
        return Booting(self.engine.boot(launch), record)

    def _begun(self, stage: Stage, launch: Launch, variant: Variant) -> SessionRecord:
        """The record of a session whose boot begins now."""
        self.say(f"{launch.session}: starting {launch.arm}")
        now = time.monotonic()
        return SessionRecord(
            stage=stage,
            session=launch.session,
            arm=launch.arm,
            variant=variant.name,
            machine=self.machine,
            started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            start_s=now,
            ready_s=now,
            end_s=now,
            switch=None,
            fingerprint={"checkpoint": self.checkpoint_sha256, "source": self.source_sha256()},
        )

    @contextmanager
    def session(
        self,
        stage: Stage,
        name: str,
        arm: Arm,
        out: list[Record],
        variant: Variant = AS_TARGETED,
        count_nans: bool = False,
        on_ready: Callable[[SessionRecord], None] | None = None,
        forces: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Iterator[Session]:
        """Boot an arm, hand it out, stop it and append its `SessionRecord` to `out`.

        One of `idle` is handed out as it is. `on_ready` is given the record of the session as if it
        ended at once.

        Raises what `Engine.start` raises, and CLM-006 when the switch is not in effect.
        """
        ready = self.idle.pop(name, None)
        if ready is None:
            launch = self.launch(name, arm, variant, count_nans, forces)
            begun = self._begun(stage, launch, variant)
            launch = replace(launch, env={**launch.env, **(env or {})})
            ready = Ready.now(self.engine.start(launch), begun)
            record = ready.record
        else:
            record = ready.record.model_copy(update={"turn_s": time.monotonic()})
        with ready.session as session:
            expected = getattr(self.claim.switch, arm)
            check_switch(session.info, expected, self.claim.switch.key)
            if on_ready is not None:
                on_ready(record)
            yield session
        ended = {"end_s": time.monotonic(), "peak_rss_mib": session.peak_rss_mib}
        out.append(record.model_copy(update=ended))


@dataclass(frozen=True)
class Ready:
    """An engine that is ready, and its record as if it ended at once."""

    session: Session
    record: SessionRecord

    @classmethod
    def now(cls, session: Session, begun: SessionRecord) -> Ready:
        """`begun`: the record that was made when its boot began."""
        ready = time.monotonic()
        known = {
            "ready_s": ready,
            "end_s": ready,
            "switch": session.info.switch,
            "fingerprint": {**session.info.fingerprint, **begun.fingerprint},
        }
        return cls(session, begun.model_copy(update=known))


@dataclass(frozen=True)
class Booting:
    """An engine that is being booted."""

    boot: Boot
    record: SessionRecord

    def wait(self) -> Ready:
        """The engine, when it is ready; raises what `Boot.wait` raises."""
        return Ready.now(self.boot.wait(), self.record)


def path_record(
    stage: Stage, session: str, arm: Arm, cell: str, generation: Generation
) -> PathRecord:
    """The path evidence of one call.

    Of timed steps without what they wrote: only the path stage compares it, and it grows with
    batch and window.
    """
    timed = stage == "perf"
    return PathRecord(
        stage=stage,
        session=session,
        arm=arm,
        cell=cell,
        steps=[step.model_copy(update={"wrote": {}}) for step in generation.path]
        if timed
        else generation.path,
        scheduled=tuple((s.decode_tokens, s.prefill_tokens) for s in generation.steps),
        drafted=generation.drafted,
    )

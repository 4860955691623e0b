"""What every measuring stage gets: the claim on one target, with the means to boot sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fasttrack.engine.base import Engine, Generation, Launch, Session, check_switch
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
    place: Mapping[str, str] = field(default_factory=dict)
    """Of a node of a cluster: `node`, its name, and `machine`, what it is."""
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
            call_timeout_s=self.timeout_s,
            start_timeout_s=self.timeout_s,
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

        `on_ready` is given the record of the session as if it ended at once.

        Raises what `Engine.start` raises, and CLM-006 when the switch is not in effect.
        """
        self.say(f"{name}: starting {arm}")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        start = time.monotonic()
        source = self.source_sha256()
        launch = self.launch(name, arm, variant, count_nans, forces)
        with self.engine.start(replace(launch, env={**launch.env, **(env or {})})) as session:
            expected = getattr(self.claim.switch, arm)
            check_switch(session.info, expected, self.claim.switch.key)
            ready = time.monotonic()
            record = SessionRecord(
                stage=stage,
                session=name,
                arm=arm,
                variant=variant.name,
                started_utc=started,
                start_s=start,
                ready_s=ready,
                end_s=ready,
                switch=session.info.switch,
                fingerprint={
                    **session.info.fingerprint,
                    "checkpoint": self.checkpoint_sha256,
                    "source": source,
                },
            )
            if on_ready is not None:
                on_ready(record)
            yield session
        ended = {"end_s": time.monotonic(), "peak_rss_mib": session.peak_rss_mib}
        out.append(record.model_copy(update=ended))


def path_record(
    stage: Stage, session: str, arm: Arm, cell: str, generation: Generation
) -> PathRecord:
    """The path evidence of one call."""
    return PathRecord(
        stage=stage,
        session=session,
        arm=arm,
        cell=cell,
        steps=generation.path,
        scheduled=tuple((s.decode_tokens, s.prefill_tokens) for s in generation.steps),
        drafted=generation.drafted,
    )

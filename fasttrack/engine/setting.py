"""What every measuring stage gets: the claim on one target, with the means to boot sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fasttrack.engine.base import Engine, Generation, Launch, Session, check_switch
from fasttrack.schema import Arm, Claim, PathRecord, Record, SessionRecord, Target
from fasttrack.schema.record import Stage

Progress = Callable[[str], None]


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
    base: str | None = None
    """Reference of the protected branch; None: as CI says, else the default branch."""

    @property
    def target(self) -> Target:
        """The target being run."""
        return self.claim.targets[self.target_name]

    def launch(self, name: str, arm: Arm) -> Launch:
        """How to boot a session of an arm: the arms differ by the switch alone."""
        return Launch(
            session=name,
            arm=arm,
            target=self.target,
            additional_config=self.claim.switch.additional_config(arm),
            plugin=self.claim.plugin,
            checkpoint=self.checkpoint,
            log=self.logs / f"{name}.log",
            call_timeout_s=self.timeout_s,
            start_timeout_s=self.timeout_s,
        )

    @contextmanager
    def session(self, stage: Stage, name: str, arm: Arm, out: list[Record]) -> Iterator[Session]:
        """Boot an arm, hand it out, stop it and append its `SessionRecord` to `out`.

        Raises what `Engine.start` raises, and CLM-006 when the switch is not in effect.
        """
        self.say(f"{name}: starting {arm}")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        start = time.monotonic()
        source = self.source_sha256()
        with self.engine.start(self.launch(name, arm)) as session:
            expected = getattr(self.claim.switch, arm)
            check_switch(session.info, expected, self.claim.switch.key)
            ready = time.monotonic()
            yield session
        out.append(
            SessionRecord(
                stage=stage,
                session=name,
                arm=arm,
                started_utc=started,
                start_s=start,
                ready_s=ready,
                end_s=time.monotonic(),
                switch=session.info.switch,
                fingerprint={
                    **session.info.fingerprint,
                    "checkpoint": self.checkpoint_sha256,
                    "source": source,
                },
                peak_rss_mib=session.peak_rss_mib,
            )
        )


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

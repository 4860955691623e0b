"""The order of stages: the only file that knows it. Journal by existence, resume by content.

A run folder's name holds a digest of everything that decides its numbers: claim, plan, the
optimization's files, the harness and the checkpoint. The same command continues an unfinished
folder; a changed source, or a finished run, begins a new one. Owns no measurement and no rule.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fasttrack import __version__, beside, checkpoints, folders, plan, rules, seats, timings
from fasttrack.bundle import archive, provenance
from fasttrack.bundle.reader import open_bundle
from fasttrack.bundle.writer import RunFolder
from fasttrack.claim import Frozen
from fasttrack.cluster.blocks import Blocks
from fasttrack.engine import get as get_engine
from fasttrack.engine.setting import Setting
from fasttrack.errors import FasttrackError, Interrupted, RunError
from fasttrack.evals import manifest
from fasttrack.perf.agent import client, traces
from fasttrack.perf.together import Together
from fasttrack.report import build, markdown
from fasttrack.rules.looks import PAIRS
from fasttrack.schema import (
    STAGES,
    AgentRecord,
    FailureRecord,
    Outcome,
    Policy,
    RunInfo,
    SampleRecord,
    SelfTest,
    SessionRecord,
    Tier,
    Verdict,
)
from fasttrack.schema._json import digest
from fasttrack.schema.record import Stage
from fasttrack.selftest import catalogue
from fasttrack.selftest import run as selftest
from fasttrack.stages import RUNNERS, Runner

DONE = ".done"
WITHOUT_ENGINE = frozenset({"kernels"})
"""Stages that boot no engine, so that a machine without it can run them."""
FILES, ENGINES, KERNELS, TIMED = range(4)
"""Turns of a run with neighbours. Engines and kernels have none of the other kind."""


class Watcher:
    """What the caller learns while a run goes on; the command line draws it."""

    def begin(self, total_s: float, units: int, done: int) -> None:
        """Expected seconds by earlier runs, number of units and how many are already there."""

    def unit(self, stage: str, name: str, cost_s: float) -> None:
        """A unit begins."""

    def say(self, text: str) -> None:
        """What is going on inside it."""

    def note(self, text: str) -> None:
        """A line worth keeping."""

    def finished(self, stage: str, name: str, cost_s: float, took_s: float) -> None:
        """A unit ended."""


@dataclass(frozen=True)
class Options:
    """How to run a claim."""

    target: str
    tier: Tier = Tier.SMOKE
    seed: int = 0
    stages: tuple[Stage, ...] = STAGES
    cell: str | None = None
    runs: Path = Path("runs")
    out: Path = Path("submissions")
    cache: Path = Path(".fasttrack")
    timeout_s: float = 900.0
    fresh: bool = False
    command: tuple[str, ...] = ()
    policy: Policy = field(default_factory=Policy)
    base: str | None = None
    """Reference of the protected branch that the change is compared with."""
    ray: str | None = None
    """Address of a Ray cluster whose nodes measure the perf stage."""
    data: Mapping[str, Path] = field(default_factory=dict)
    """Data files of external evals that lie elsewhere than the claim says, by eval."""
    jobs: int = 1
    """Units at once, of the stages in which no time is judged."""
    together: int = 1
    """Engines of a perf block that boot at once."""
    agent: bool = False
    """Replay agent traffic, whatever the tier."""
    aiperf: Path | None = None
    """The program that replays it; None: look for it."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: Path
    bundle: Path
    outcome: Outcome
    verdicts: tuple[Verdict, ...]


def validate(frozen: Frozen, options: Options, watcher: Watcher) -> Result:
    """Run every stage of a claim, decide, and pack the unsigned bundle.

    Raises the coded error of a unit that failed, after recording it; what was finished is kept and
    the same call continues there. `KeyboardInterrupt` becomes `Interrupted` RUN-001.
    """
    claim = frozen.claim
    made = plan.make(claim, options.target, options.tier, options.seed, options.agent)
    target = claim.targets[options.target]
    if made.agent_cells and "perf" in options.stages:
        traces.load(claim, options.target, frozen.folder)  # a bad file shows before hours of work
    items = manifest.load(claim, options.target, frozen.folder, options.data)
    engine = get_engine(target.engine)
    if set(options.stages) - WITHOUT_ENGINE:
        engine.check()
    weights: Path | None = None
    weights_sha256 = "none"
    if target.checkpoint is not None:
        watcher.say(f"checkpoint {target.checkpoint.name}")
        weights, weights_sha256 = checkpoints.ensure(
            target.checkpoint, options.cache / "checkpoints", options.cache / "logs"
        )
    folder = _folder(frozen, options, made, items, weights_sha256)
    with RunFolder.open(folder) as run:
        info = _freeze(run, frozen, options, made, items, watcher)
        setting = Setting(
            claim=claim,
            target_name=options.target,
            engine=engine,
            checkpoint=weights,
            checkpoint_sha256=weights_sha256,
            source_sha256=lambda: folders.digest(frozen.folder.resolve()),
            logs=folder / "logs",
            folder=frozen.folder,
            seed=options.seed,
            timeout_s=options.timeout_s,
            say=watcher.say,
            cell=options.cell,
            base=options.base,
            data=options.data,
            agent=claim.agent_traffic(options.target, options.tier, options.agent),
            aiperf=client.find(options.aiperf, options.cache),
            machine=provenance.machine_name(),
            place={"machine": provenance.describe()},
            journal=folder / "journal",
            earlier=run.records,
            # Blocks run one after the other, so the answer for a block stays what it is.
            settled=functools.cache(
                lambda block, pairs: rules.settled(
                    claim, info, list(run.records("perf")), options.policy, block, pairs
                )
            ),
        )
        try:
            _measure(run, setting, made, info.stages, watcher, options)
        except KeyboardInterrupt:
            raise Interrupted(
                "RUN-001",
                f"interrupted; {folder} keeps what was finished",
                next_step=shlex.join(options.command) or "repeat the command",
            ) from None
        watcher.say("deciding")
        records = list(run.records())
        verdicts, outcome = rules.decide(claim, info, records, options.policy)
        _conclude(run, frozen, options, verdicts, outcome, weights, weights_sha256)
        bundle = archive.pack(folder, options.out)
        (folder / DONE).touch()
    return Result(folder=folder, bundle=bundle, outcome=outcome, verdicts=verdicts)


def _folder(
    frozen: Frozen,
    options: Options,
    made: plan.Plan,
    items: manifest.Manifests,
    weights_sha256: str,
) -> Path:
    """The folder of this very run: an unfinished one, or the next free name."""
    key = digest(
        {
            "plan": made.json_value(),
            "items": items.json_value(),
            "stages": list(options.stages),
            "cell": options.cell,
            "base": options.base,
            "policy": options.policy.digest(),
            # Times of this machine and of a cluster's do not belong into one run.
            **({"cluster": True} if options.ray else {}),
            **({"together": options.together} if options.together > 1 else {}),
            "source": folders.digest(frozen.folder.resolve()),
            "harness": provenance.harness_digest(),
            "checkpoint": weights_sha256,
        }
    )[:10]
    stem = f"{frozen.claim.name}-{options.target}-{options.tier.value}-{key}"
    if options.fresh:
        for old in options.runs.glob(f"{stem}*"):
            if not (old / DONE).exists():
                shutil.rmtree(old)
    number = 1
    while True:
        folder = options.runs / (stem if number == 1 else f"{stem}-{number}")
        if not (folder / DONE).exists():
            return folder
        number += 1


def _freeze(
    run: RunFolder,
    frozen: Frozen,
    options: Options,
    made: plan.Plan,
    items: manifest.Manifests,
    watcher: Watcher,
) -> RunInfo:
    """Write claim, policy, plan and run information before anything is measured; keep the first."""
    stages = tuple(stage for stage in STAGES if stage in options.stages)
    info = RunInfo(
        run_id=run.path.name,
        target=options.target,
        tier=options.tier,
        seed=options.seed,
        stages=stages,
        cell=options.cell,
        agent=options.agent,
        command=provenance.command(options.command),
        claim_sha256=frozen.claim.digest(),
        policy_sha256=options.policy.digest(),
        plan_sha256=digest(made.json_value()),
        evals_sha256=items.digest() if items.manifests else "",
        harness_version=__version__,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    path = run.path / "claim" / "run.json"
    if path.exists():
        before = RunInfo.model_validate_json(path.read_bytes())
        of_one_attempt = {"created_utc": "", "command": (), "self_test": None}
        if before.model_copy(update=of_one_attempt) == info.model_copy(update=of_one_attempt):
            return before
        raise RunError("RUN-003", f"{path} belongs to another run", next_step="use --fresh")
    if options.cell is None and stages == STAGES:
        info = info.model_copy(update={"self_test": _self_test(options, watcher)})
    run.write_bytes("claim/claim.toml", frozen.source)
    run.write_json("claim/claim.json", frozen.claim.json_value())
    run.write_json("claim/policy.json", options.policy.json_value())
    run.write_json("claim/plan.json", made.json_value())
    if items.manifests:
        run.write_json("claim/evals.json", items.json_value())
    run.write_json("claim/run.json", info.json_value())
    return info


def _self_test(options: Options, watcher: Watcher) -> SelfTest | None:
    """What this harness does with the zoo; None where the installation has none.

    Only of full runs: the others are for their author, who need not wait for it.
    """
    if catalogue.default_folder() is None:
        watcher.note("this installation has no zoo to test the harness with")
        return None
    watcher.note("testing the harness on planted cheats: a minute, once per build of it")
    found = selftest.kept(options.cache / "self-test")
    watcher.note(f"self-test: {found.sentence}")
    return found


def _measure(
    run: RunFolder,
    setting: Setting,
    made: plan.Plan,
    stages: Sequence[str],
    watcher: Watcher,
    options: Options,
) -> None:
    units = [unit for unit in made.units if unit.stage in stages]
    perf = [unit for unit in units if unit.stage == "perf"]
    _tell_of_others(run, setting.machine, options, watcher)
    if options.ray:
        _whole_blocks(run, perf)
    else:
        _whole_pairs(run, perf, setting.machine)
    waiting = [unit for unit in units if not run.has_unit(unit.stage, unit.name)]
    known = timings.calibration(options.cache, made.target)
    cost_s = {
        (unit.stage, unit.name): known.seconds(unit.stage, unit.stem, unit.cost_s)
        for unit in waiting
    }
    watcher.begin(sum(cost_s.values()), len(units), len(units) - len(waiting))
    with contextlib.ExitStack() as stack:
        runners = dict(RUNNERS)
        if options.ray and any(unit.stage == "perf" for unit in waiting):
            specs = [unit.spec for unit in made.stage("perf")]
            device = setting.engine.name != "fake"
            blocks = Blocks(options.ray, specs, device, run.append_failure)
            runners["perf"] = stack.enter_context(blocks)
        elif options.together > 1:
            specs = [unit.spec for unit in waiting if unit.stage == "perf"]
            runners["perf"] = stack.enter_context(Together(specs, options.together))
        _run_units(run, setting, made, waiting, cost_s, runners, watcher, options)


def _whole_blocks(run: RunFolder, units: Sequence[plan.Unit]) -> None:
    """Forget blocks that were written in part: their rest may be measured on another node."""
    for block in {unit.spec["block"] for unit in units}:
        members = [unit for unit in units if unit.spec["block"] == block]
        if not all(run.has_unit(unit.stage, unit.name) for unit in members):
            for unit in members:
                run.drop_unit(unit.stage, unit.name)


def _tell_of_others(run: RunFolder, machine: str, options: Options, watcher: Watcher) -> None:
    """Say so when a run goes on that another machine began; a cluster's nodes are always others."""
    sessions = [r for r in run.records() if isinstance(r, SessionRecord)]
    kept = [r for r in sessions if not (options.ray and r.stage == "perf")]
    for name, count in Counter(r.machine for r in kept if r.machine != machine).items():
        watcher.note(
            f"this run goes on from another machine: {count} sessions ran on {name or 'one'}, the "
            f"rest runs on {machine or 'this one'}; a speed pair counts if it is of one machine"
        )


def _whole_pairs(run: RunFolder, units: Sequence[plan.Unit], machine: str) -> None:
    """Forget halves of pairs that another machine left: the whole pair is measured on this one."""
    records = list(run.records("perf"))
    machines = {r.session: r.machine for r in records if isinstance(r, SessionRecord)}
    measured = [r for r in records if isinstance(r, SampleRecord | AgentRecord)]
    others = {(r.block, r.position) for r in measured if machines.get(r.session) != machine}
    for block in {unit.spec["block"] for unit in units}:
        at = {unit.spec["position"]: unit for unit in units if unit.spec["block"] == block}
        for pair in PAIRS:
            done = [place for place in pair if run.has_unit("perf", at[place].name)]
            if len(done) == 1 and (block, done[0]) in others:
                run.drop_unit("perf", at[done[0]].name)


def _run_units(
    run: RunFolder,
    setting: Setting,
    made: plan.Plan,
    waiting: Sequence[plan.Unit],
    cost_s: Mapping[tuple[Stage, str], float],
    runners: Mapping[Stage, Runner],
    watcher: Watcher,
    options: Options,
) -> None:
    """`cost_s`: expected seconds by stage and name of a unit."""
    # Closed here, so that units beside each other are stopped before the run is left.
    with contextlib.closing(
        _ended(setting, waiting, cost_s, runners, watcher, options.jobs)
    ) as units:
        for ended in units:
            unit, error = ended.unit, ended.error
            if error is not None:
                run.append_failure(
                    FailureRecord(
                        stage=unit.stage,
                        unit=unit.name,
                        code=error.code,
                        cause=error.cause[:2000],
                        next=error.next_step,
                        cell=error.cell,
                    )
                )
                raise error
            run.write_unit(unit.stage, unit.name, ended.records)
            # On a cluster, the first unit of a block takes the time of all.
            if ended.records and runners[unit.stage] is RUNNERS[unit.stage]:
                timings.note(
                    options.cache, made.target, unit.stage, unit.stem, unit.cost_s, ended.took_s
                )
            watcher.finished(unit.stage, unit.name, cost_s[unit.stage, unit.name], ended.took_s)


def _ended(
    setting: Setting,
    waiting: Sequence[plan.Unit],
    cost_s: Mapping[tuple[Stage, str], float],
    runners: Mapping[Stage, Runner],
    watcher: Watcher,
    jobs: int,
) -> Generator[beside.Ended, None, None]:
    """The units one after the other, in order; with `jobs`, turn by turn, those that may have
    neighbours as they end."""
    in_turn = sorted(waiting, key=_turn) if jobs > 1 else waiting
    for turn, group in itertools.groupby(in_turn, key=_turn):
        units = list(group)
        if jobs > 1 and turn == ENGINES:
            room = seats.Seats(setting.target, units, jobs)
            if room.why_fewer:
                watcher.note(room.why_fewer)
            stages = ", ".join(stage for stage in STAGES if stage in {u.stage for u in units})
            watcher.unit(stages, f"{len(units)} units, {room.most} at once", 0.0)
            yield from beside.run(setting, room.order, runners, room)
        elif jobs > 1 and turn == KERNELS:
            watcher.unit("kernels", f"{len(units)} units, {jobs} at once", 0.0)
            yield from beside.run(setting, units, runners, beside.AtOnce(jobs))
        else:
            yield from _alone(setting, units, cost_s, runners, watcher)


def _alone(
    setting: Setting,
    units: Sequence[plan.Unit],
    cost_s: Mapping[tuple[Stage, str], float],
    runners: Mapping[Stage, Runner],
    watcher: Watcher,
) -> Iterator[beside.Ended]:
    """One after the other, in this process."""
    for unit in units:
        watcher.unit(unit.stage, unit.name, cost_s[unit.stage, unit.name])
        start = time.monotonic()
        try:
            records = runners[unit.stage](setting, unit.spec)
        except FasttrackError as error:
            yield beside.Ended(unit, [], time.monotonic() - start, error)
            return
        yield beside.Ended(unit, records, time.monotonic() - start)


def _turn(unit: plan.Unit) -> int:
    """When a unit has its turn in a run with neighbours."""
    if seats.boots(unit):
        return ENGINES
    return {"isolation": FILES, "kernels": KERNELS}.get(unit.stage, TIMED)


def _conclude(
    run: RunFolder,
    frozen: Frozen,
    options: Options,
    verdicts: Sequence[Verdict],
    outcome: Outcome,
    weights: Path | None,
    weights_sha256: str,
) -> None:
    run.write_json(
        "verdicts.json",
        {
            "schema": "fasttrack.verdicts/v1",
            "outcome": outcome.json_value(),
            "verdicts": [verdict.json_value() for verdict in verdicts],
        },
    )
    known = provenance.collect(
        frozen.claim,
        options.target,
        weights,
        weights_sha256 if weights else None,
        frozen.folder,
        {},
    )
    run.write_json("provenance.json", known.json_value())
    with open_bundle(run.path) as bundle:
        text = markdown.render(build.build(bundle))
    run.write_bytes("report/report.md", text.encode("utf-8"))

"""Runs one plant through the real stages, children and rules, and says whether it was judged right.

Case plants share two children, as the ops of one claim do; a plant that spoils its process has its
own. A coded error that stops a stage counts as a verdict with that code. Read by `run`.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fasttrack import plan, rules
from fasttrack.engine import get as get_engine
from fasttrack.engine.setting import Setting
from fasttrack.errors import FasttrackError
from fasttrack.schema import (
    STAGES,
    Claim,
    CompiledRecord,
    Outcome,
    Policy,
    Record,
    RunInfo,
    State,
    Tier,
    Verdict,
)
from fasttrack.schema.verdict import GOOD
from fasttrack.selftest.catalogue import Plant
from fasttrack.stages import RUNNERS

if TYPE_CHECKING:
    from fasttrack.correctness.worker import Worker

TARGET = "zoo"
NOT_COMPILED = CompiledRecord(cell="compiled", status="none")
"""The kernels stage's word on a plant, which has no compiled kernels."""
Judged = tuple[tuple[Verdict, ...], State]


class Zoo(AbstractContextManager["Zoo"]):
    """A zoo with its scratch folder and the children its case plants share."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder = folder
        self._scratch = scratch
        self._workers: dict[str, Worker] = {}

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def problem(self, plant: Plant) -> str:
        """Why a plant was judged wrongly; empty when a cheat was caught or honest work passed."""
        verdicts, outcome = self.judge(plant)
        wanted = plant.expect
        found = [
            verdict
            for verdict in verdicts
            if verdict.reason == wanted.code
            and fnmatchcase(verdict.cell, wanted.cell)
            and wanted.says in verdict.detail
        ]
        refused = [v for v in verdicts if v.deciding and v.state not in GOOD]
        if plant.group == "honest":
            if refused or outcome is not State.PASS:
                return f"refused: {_told(refused) or outcome.value}"
            if wanted.code and not found:
                return f"no verdict {_wanted(plant)}; {_told(verdicts)}"
            return ""
        if outcome is State.PASS:
            return f"accepted: {_told(verdicts)}"
        if not any(verdict.state not in GOOD for verdict in found):
            return f"no verdict {_wanted(plant)}; {_told(refused)}"
        strays = [v for v in refused if v.reason not in (wanted.code, *wanted.also)]
        return f"refused for another reason too: {_told(strays)}" if strays else ""

    def judge(self, plant: Plant) -> Judged:
        """All verdicts on a plant, and the outcome."""
        kinds: Mapping[str, Callable[[Plant], Judged]] = {
            "case": self._case,
            "stage": self._stage,
            "records": self._records,
            "probe": self._probe,
        }
        try:
            return kinds[plant.kind](plant)
        except FasttrackError as error:
            verdict = Verdict(
                rule="error",
                cell=error.cell or plant.name,
                state=State.INVALID,
                reason=error.code,
                detail=error.cause,
            )
            return (verdict,), State.FAIL

    def _case(self, plant: Plant) -> Judged:
        from fasttrack.correctness import kernels, worker

        entry = f"zoo_cases:only_{plant.group}_{plant.name}" if plant.alone else "zoo_cases:cases"
        claim = _claim(plant, scope=_scope([plant.name]), plugin=_plugin(entry))
        setting = self._setting(plant, claim, self._folder)
        spec = {"op": plant.name, "seeds": plant.seeds, "repeats": plant.repeats}
        if plant.alone:
            return _decide(claim, ["kernels"], [*kernels.run(setting, spec), NOT_COMPILED])
        for role in ("referee", "candidate"):
            self._workers.setdefault(role, worker.Worker(setting, role))
        records = kernels.measure(setting, spec, **self._workers)
        return _decide(claim, ["kernels"], [*records, NOT_COMPILED])

    def _stage(self, plant: Plant) -> Judged:
        folder = self._folder / plant.group / plant.name / "optimization"
        if not folder.is_dir():
            folder = folder.parent
        if plant.stage == "isolation":
            # Away from this repository, whose own changes would count as the plant's.
            copy = self._scratch / _name(plant) / folder.name
            folder = Path(shutil.copytree(folder, copy, dirs_exist_ok=True))
        claim = _claim(plant)
        records: list[Record] = []
        # As in a run, a later unit may read what an earlier one has recorded.
        setting = replace(
            self._setting(plant, claim, folder),
            earlier=lambda: tuple(records),
            settled=lambda block, pairs: rules.settled(
                claim, _run_info(claim, [plant.stage]), records, Policy(), block, pairs
            ),
        )
        run = RUNNERS[plant.stage]
        for unit in plan.make(claim, TARGET, Tier.SMOKE, 0).stage(plant.stage):
            records.extend(run(setting, unit.spec))
        return _decide(claim, [plant.stage], records)

    def _records(self, plant: Plant) -> Judged:
        builders = _module(self._folder / "zoo_records" / "__init__.py", "zoo_records")
        made = _module(self._folder / plant.group / plant.name / "records.py", _name(plant))
        verdicts, outcome = builders.decide(made.records(builders), builders.claim(**plant.claim))
        return verdicts, outcome.state

    def _probe(self, plant: Plant) -> Judged:
        made = _module(self._folder / plant.group / plant.name / "probe.py", _name(plant))
        scratch = self._scratch / _name(plant)
        scratch.mkdir(parents=True, exist_ok=True)
        verdicts = tuple(
            Verdict(
                rule="probe", cell=plant.name, state=State.FAIL, reason=code, detail=detail[:400]
            )
            for code, detail in made.probe(scratch)
        )
        return verdicts, State.FAIL if verdicts else State.PASS

    def _setting(self, plant: Plant, claim: Claim, folder: Path) -> Setting:
        return Setting(
            claim=claim,
            target_name=TARGET,
            engine=get_engine("fake"),
            checkpoint=None,
            checkpoint_sha256="none",
            source_sha256=lambda: "0" * 64,
            logs=self._scratch / "logs" / plant.group,
            folder=folder,
            seed=0,
            timeout_s=plant.timeout_s,
            say=lambda text: None,
        )


def _plugin(cases: str | None = None) -> dict[str, Any]:
    return {
        "distribution": "fasttrack-zoo",
        "module": "zoo_cases",
        "cases": cases,
        "entry": "zoo_cases:load",
    }


def _scope(ops: Sequence[str]) -> dict[str, Any]:
    return {"models": ["ZooForCausalLM"], "paths": ["**"], "ops": ops}


def _claim(plant: Plant, **parts: Any) -> Claim:
    """A small claim on the fake engine; the plant's own keys win."""
    target = {
        "engine": "fake",
        "role": "development",
        "max_model_len": 2048,
        "grid": {"batch": [1, 4], "context_tokens": [64]},
        "trace": {"shows": ["fast::*"], "hides": ["stock::*"]},
        "engine_args": {"fake": dict(plant.fake)},
    }
    return Claim.model_validate(
        _merged(
            {
                "schema": "fasttrack.claim/v1",
                "name": plant.name.replace("_", "-"),
                "title": plant.title,
                "summary": plant.how,
                "scope": _scope(["none"]),
                "switch": {
                    "key": "additional_config.decode_backend",
                    "base": "auto",
                    "candidate": "latency_specialized",
                },
                "plugin": _plugin(),
                "speed": {"sentence": "slower_nowhere", "slower_margin_percent": 3.0},
                "targets": {TARGET: target},
                **parts,
            },
            plant.claim,
        )
    )


def _merged(value: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`other` over `value`, table by table."""
    made = dict(value)
    for key, new in other.items():
        both = isinstance(new, Mapping) and isinstance(made.get(key), Mapping)
        made[key] = _merged(made[key], new) if both else new
    return made


def _decide(claim: Claim, stages: Sequence[str], records: Sequence[Record]) -> Judged:
    run = _run_info(claim, stages)
    decided: tuple[tuple[Verdict, ...], Outcome] = rules.decide(claim, run, records, Policy())
    return decided[0], decided[1].state


def _run_info(claim: Claim, stages: Sequence[str]) -> RunInfo:
    return RunInfo(
        run_id="self-test",
        target=TARGET,
        tier=Tier.SMOKE,
        seed=0,
        stages=tuple(stage for stage in STAGES if stage in stages),
        command=("fasttrack", "self-test"),
        claim_sha256=claim.digest(),
        policy_sha256=Policy().digest(),
        plan_sha256="0" * 64,
        harness_version="0",
        created_utc="1970-01-01T00:00:00+00:00",
    )


def _module(path: Path, name: str) -> ModuleType:
    """A Python file of the zoo, run once, without a place on the import path."""
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _name(plant: Plant) -> str:
    return f"fasttrack_zoo_{plant.group}_{plant.name}"


def _wanted(plant: Plant) -> str:
    wanted = plant.expect
    said = f" that says {wanted.says!r}" if wanted.says else ""
    return f"{wanted.code} of {wanted.cell}{said}"


def _told(verdicts: Sequence[Verdict]) -> str:
    told = [v for v in verdicts if v.reason != "RUN-PARTIAL"]
    return "; ".join(f"{v.reason} [{v.cell}] {v.detail}"[:200] for v in told[:4])

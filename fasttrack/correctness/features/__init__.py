"""Stage 4: user-visible engine features, observed in both arms.

A feature is one file of this folder with a `FEATURE`; adding the file is the registration.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from fasttrack.correctness.features import kept
from fasttrack.correctness.features.control import measure
from fasttrack.correctness.features.probe import Control, Facts, Feature, Probe, Refused, watch
from fasttrack.engine.setting import AS_TARGETED, Setting, Variant, path_record
from fasttrack.errors import RunError
from fasttrack.schema import Arm, FeatureRecord, PathRecord, Record

OF_BASE = ("band", "prompt_band", "tokens")
"""What both arms use of base's control."""
Status = Literal["observed", "refused", "error"]


def registry() -> tuple[Feature, ...]:
    """All features, by name; those that look back at the others last."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        feature = getattr(import_module(f"{__name__}.{module.name}"), "FEATURE", None)
        if isinstance(feature, Feature):
            found.append(feature)
    return tuple(sorted(found, key=lambda feature: (feature.last, feature.name)))


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """All features in one arm, in one engine session per variant.

    What a session left is kept beside the journal, so that an interrupted unit goes on with the
    next; facts of the base arm are kept beside the logs, for the candidate to be compared with.
    Raises `RunError` RUN-003 when those are gone.
    """
    arm: Arm = spec["arm"]
    path = setting.logs / "features-base-facts.json"
    base = _load(path) if arm == "candidate" else {}
    chosen = [f for f in registry() if not setting.cell or fnmatch(f.name, setting.cell)]
    control = Control()
    records: list[Record] = []
    facts: dict[str, Facts] = {}
    boots = [AS_TARGETED, *(feature.boot(setting.target) for feature in chosen)]
    for variant in {boot.name: boot for boot in boots}.values():
        mine = [f for f in chosen if f.boot(setting.target) == variant]
        name = "-".join(filter(None, ("features", arm, variant.name)))
        journal = setting.journal / f"{name}.json" if setting.journal else None
        boot = kept.read(journal) if journal else None
        if boot is None:
            boot = _Stage(setting, arm, base, name, variant, control).observed(mine)
            if journal:
                kept.write(journal, boot)
        else:
            setting.say(f"{name}: already there")
        records += boot.records
        facts |= boot.facts
        control = boot.control
    if arm == "base":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts))
    return records


@dataclass
class _Stage:
    """One session of an arm: what is known of base, and what has been gathered."""

    setting: Setting
    arm: Arm
    base: Mapping[str, Facts]
    name: str
    variant: Variant
    control: Control
    """Of the session of the engine as targeted, which measures it."""
    records: list[Record] = field(default_factory=list)
    facts: dict[str, Facts] = field(default_factory=dict)

    def observed(self, features: Sequence[Feature]) -> kept.Boot:
        """Features in one session. An engine that refuses a variant offers none of its features."""
        paths: list[PathRecord] = []
        ready = False
        try:
            with self.setting.session(
                "features", self.name, self.arm, self.records, self.variant, count_nans=True
            ) as session:
                ready = True
                probe = Probe(
                    session=session,
                    target=self.setting.target,
                    seed=self.setting.seed,
                    record=lambda cell, made: path_record(
                        "features", self.name, self.arm, cell, made
                    ),
                    paths=paths,
                    control=self.control,
                )
                if self.variant == AS_TARGETED:
                    self.control = probe.control = self._measured(probe)
                for feature in features:
                    self.setting.say(f"{feature.name} ({self.arm})")
                    self.records.append(self._observe(feature, probe))
        except RunError as error:
            fatal = ready or self.variant == AS_TARGETED
            if fatal or error.code not in ("ENG-001", "ENG-007"):
                raise
            status: Status = "refused" if error.code == "ENG-007" else "error"
            self.records += [self._told(feature, status, error.cause) for feature in features]
        return kept.Boot((*self.records, *paths), self.facts, self.control)

    def _measured(self, probe: Probe) -> Control:
        """This arm's answers with stock's band."""
        self.setting.say(f"stock against stock ({self.arm})")
        found = measure(probe)
        if self.arm == "base":
            self.facts["control"] = {name: getattr(found, name) for name in OF_BASE}
            return found
        return replace(found, **self.base["control"])

    def _observe(self, feature: Feature, probe: Probe) -> FeatureRecord:
        try:
            found = watch(feature, probe)
        except Refused as refusal:
            return self._told(feature, "refused", str(refusal))
        except RunError as error:
            if error.code != "ENG-006":
                raise
            return self._told(feature, "error", error.cause)
        self.facts[feature.name] = found
        base = self.base.get(feature.name)
        return FeatureRecord(
            feature=feature.name,
            arm=self.arm,
            status="observed",
            checks=tuple(feature.checks(found, base if self.arm == "candidate" else None)),
        )

    def _told(self, feature: Feature, status: Status, message: str) -> FeatureRecord:
        return FeatureRecord(
            feature=feature.name, arm=self.arm, status=status, message=message[:500]
        )


def _load(path: Path) -> dict[str, Facts]:
    """Base's facts. Without them the candidate would be compared with nothing: RUN-003."""
    try:
        facts: dict[str, Facts] = json.loads(path.read_text())
        [facts["control"][name] for name in OF_BASE]
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            "RUN-003",
            f"{path}, what the base arm showed, cannot be read: {error}",
            next_step="repeat the command with --fresh",
        ) from error
    return facts

"""Stage 4: user-visible engine features, observed in both arms.

A feature is one file of this folder with a `FEATURE`; adding the file is the registration.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

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

    Facts of the base arm are kept beside the logs, so that the candidate can be compared with them
    even when the run is resumed in between. Raises `RunError` RUN-003 when they are gone.
    """
    arm = spec["arm"]
    kept = setting.logs / "features-base-facts.json"
    base = _load(kept) if arm == "candidate" else {}
    stage = _Stage(setting, arm, base, [], {})
    chosen = [f for f in registry() if not setting.cell or fnmatch(f.name, setting.cell)]
    control = Control()
    boots = [AS_TARGETED, *(feature.boot(setting.target) for feature in chosen)]
    for variant in {boot.name: boot for boot in boots}.values():
        mine = [f for f in chosen if f.boot(setting.target) == variant]
        control = stage.session(variant, mine, control)
    if arm == "base":
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(stage.facts))
    return stage.records


@dataclass
class _Stage:
    """One arm: what is known of base, and what has been gathered."""

    setting: Setting
    arm: Arm
    base: Mapping[str, Facts]
    records: list[Record]
    facts: dict[str, Facts]

    def session(self, variant: Variant, features: Sequence[Feature], control: Control) -> Control:
        """Features of one variant in one session; the first session measures the control.

        An engine that refuses a variant offers none of its features.
        """
        name = "-".join(filter(None, ("features", self.arm, variant.name)))
        paths: list[PathRecord] = []
        ready = False
        try:
            with self.setting.session(
                "features", name, self.arm, self.records, variant, count_nans=True
            ) as session:
                ready = True
                probe = Probe(
                    session=session,
                    target=self.setting.target,
                    seed=self.setting.seed,
                    record=lambda cell, made: path_record("features", name, self.arm, cell, made),
                    paths=paths,
                    control=control,
                )
                if variant == AS_TARGETED:
                    control = probe.control = self._control(probe)
                for feature in features:
                    self.setting.say(f"{feature.name} ({self.arm})")
                    self.records.append(self._observe(feature, probe))
        except RunError as error:
            if ready or variant == AS_TARGETED or error.code not in ("ENG-001", "ENG-007"):
                raise
            status: Status = "refused" if error.code == "ENG-007" else "error"
            self.records += [self._told(feature, status, error.cause) for feature in features]
        self.records += paths
        return control

    def _control(self, probe: Probe) -> Control:
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

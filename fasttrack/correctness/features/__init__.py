"""Stage 4: user-visible engine features, observed in both arms.

A feature is one file of this folder with a `FEATURE`; adding the file is the registration.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

from fasttrack.correctness.features.probe import Facts, Feature, Probe, Refused
from fasttrack.engine.setting import Setting, path_record
from fasttrack.errors import RunError
from fasttrack.schema import FeatureRecord, Record


def registry() -> tuple[Feature, ...]:
    """All features, by name."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        feature = getattr(import_module(f"{__name__}.{module.name}"), "FEATURE", None)
        if isinstance(feature, Feature):
            found.append(feature)
    return tuple(sorted(found, key=lambda feature: feature.name))


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """All features in one arm, in one engine session.

    Facts of the base arm are kept beside the logs, so that the candidate can be compared with them
    even when the run is resumed in between. Raises `RunError` RUN-003 when they are gone.
    """
    arm = spec["arm"]
    kept = setting.logs / "features-base-facts.json"
    base = _load(kept) if arm == "candidate" else {}
    records: list[Record] = []
    facts: dict[str, Facts] = {}
    with setting.session("features", f"features-{arm}", arm, records) as session:
        probe = Probe(
            session=session,
            target=setting.target,
            seed=setting.seed,
            record=lambda cell, made: path_record("features", f"features-{arm}", arm, cell, made),
            paths=[],
        )
        for feature in registry():
            if setting.cell and not fnmatch(feature.name, setting.cell):
                continue
            setting.say(f"{feature.name} ({arm})")
            probe.feature = feature.name
            records.append(_observe(feature, probe, arm, base.get(feature.name), facts))
        records.extend(probe.paths)
    if arm == "base":
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(facts))
    return records


def _observe(
    feature: Feature, probe: Probe, arm: Any, base: Facts | None, facts: dict[str, Facts]
) -> FeatureRecord:
    try:
        found = feature.observe(probe)
    except Refused as refusal:
        return FeatureRecord(feature=feature.name, arm=arm, status="refused", message=str(refusal))
    except RunError as error:
        if error.code != "ENG-006":
            raise
        return FeatureRecord(
            feature=feature.name, arm=arm, status="error", message=error.cause[:500]
        )
    facts[feature.name] = found
    return FeatureRecord(
        feature=feature.name,
        arm=arm,
        status="observed",
        checks=tuple(feature.checks(found, base if arm == "candidate" else None)),
    )


def _load(path: Path) -> dict[str, Facts]:
    """Base's facts. Without them the candidate would be compared with nothing: RUN-003."""
    try:
        facts: dict[str, Facts] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            "RUN-003",
            f"{path}, what the base arm showed, cannot be read: {error}",
            next_step="repeat the command with --fresh",
        ) from error
    return facts

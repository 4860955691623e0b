"""Stage 2: the change stays in its files, and what it does not own stays stock.

Unit `scope` looks at files: which ones changed (`changes`), and what their source would do
(`source`). Units `neighbour` and `model` look at running engines (`engines`): an unrelated model,
and the claimed one. Read by the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fasttrack.engine.setting import Setting
from fasttrack.isolation import changes, engines, source
from fasttrack.schema import Check, Record
from fasttrack.schema.record import IsolationRecord

SUBJECTS: Mapping[str, str] = {
    "imports": "ISO-IMPORT",
    "patches": "ISO-PATCH",
    "environment": "ISO-ENV",
    "torch": "ISO-TORCH",
}
"""Subjects of the source scan, with the code of their findings."""


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """Measure one check of the stage."""
    return UNITS[spec["check"]](setting)


def static(setting: Setting) -> list[Record]:
    """Records of everything that files alone tell.

    Raises `UsageError` USE-003 for a base that git cannot find.
    """
    change = changes.find(setting.folder, setting.claim, setting.base)
    records: list[Record] = [*changes.judge(change, setting.claim)]
    scan = source.scan(change.root, changes.python_files(change, setting.claim), setting.claim)
    told = f"{len(scan.read)} files read, {len(scan.tests)} tests not read"
    for subject, code in SUBJECTS.items():
        found = tuple(finding for finding in scan.findings if finding.code == code)
        records.append(
            IsolationRecord(
                subject=subject,
                checks=(
                    Check(name="files", relation="at_least", observed=len(scan.read), bound=1),
                ),
                message=told,
                findings=found,
            )
        )
    return records


UNITS: Mapping[str, Callable[[Setting], list[Record]]] = {
    "scope": static,
    "neighbour": engines.neighbour,
    "model": engines.model,
}

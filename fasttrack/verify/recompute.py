"""Steps 8 to 10: records are read, the rules run again, and every stored number is compared.

Stored verdicts are never an input: they are the thing under test. Read by `steps`, and by the gate
for deciding under another policy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import fasttrack
from fasttrack import rules
from fasttrack.bundle import compact, layout
from fasttrack.bundle.provenance import harness_digest
from fasttrack.bundle.reader import Bundle
from fasttrack.errors import VerificationFailed
from fasttrack.report import markdown
from fasttrack.report.build import build
from fasttrack.schema import (
    AgentRecord,
    CompiledRecord,
    ConductRecord,
    FeatureRecord,
    IsolationRecord,
    ItemRecord,
    KernelRecord,
    Outcome,
    Policy,
    Record,
    RefusalRecord,
    RoutingRecord,
    SampleRecord,
    SanitizerRecord,
    StateRecord,
    TimelineRecord,
    TraceRecord,
    TwinRecord,
    Verdict,
)
from fasttrack.schema.claim import Frozen

RELATIVE_TOLERANCE = 1e-9
"""Above what two machines' elementary functions differ by, far below any honest rounding."""

Decision = tuple[tuple[Verdict, ...], Outcome]
Sourced = tuple[str, Record]
"""A record's file and the record."""
_STAGE_OF_KIND: dict[type[Any], str] = {
    IsolationRecord: "isolation",
    KernelRecord: "kernels",
    ConductRecord: "kernels",
    CompiledRecord: "kernels",
    SanitizerRecord: "kernels",
    FeatureRecord: "features",
    ItemRecord: "evals",
    SampleRecord: "perf",
    RoutingRecord: "perf",
    RefusalRecord: "perf",
    AgentRecord: "perf",
    TraceRecord: "path",
    TimelineRecord: "path",
    TwinRecord: "path",
    StateRecord: "path",
}


def read_records(bundle: Bundle) -> tuple[Sourced, ...]:
    """All records with their files, each from a planned unit and in its own stage's folder.

    Raises `VerificationFailed` VER-060..063.
    """
    planned = set(bundle.plan["units"])
    _check_complete(bundle, planned)
    found: list[Sourced] = []
    for name in layout.record_names(bundle.names):
        stage, unit = layout.unit_of(name)
        if unit != layout.FAILURES and f"{stage}/{unit}" not in planned:
            raise VerificationFailed("VER-062", "the plan has no such unit", cell=name)
        for record in bundle.file_records(name, compact.parse):
            own = _STAGE_OF_KIND.get(type(record)) or getattr(record, "stage", None)
            if own != stage:
                raise VerificationFailed(
                    "VER-061", f"a {record.kind} record of stage {own}", cell=name
                )
            if (unit == layout.FAILURES) != (record.kind == "failure"):
                raise VerificationFailed("VER-061", f"a {record.kind} record", cell=name)
            found.append((name, record))
    return tuple(found)


def _check_complete(bundle: Bundle, planned: set[str]) -> None:
    """Each unit of the stages that ran left its file: nobody chose among the results."""
    there = set(bundle.names)
    for unit in sorted(planned):
        name = f"{unit}.jsonl"
        if unit.partition("/")[0] in bundle.run.stages and name not in there:
            raise VerificationFailed("VER-063", "it was planned and is not here", cell=name)


def decide(bundle: Bundle, records: Sequence[Record], policy: Policy) -> Decision:
    """Verdicts and outcome of the raw records under a policy; raises VER-073 if rules stumble."""
    try:
        # As the author wrote it: sentences name targets in that order.
        return rules.decide(bundle.source_claim, bundle.run, records, policy)
    except Exception as error:  # hostile records; whatever a rule raises, it is not a pass
        raise VerificationFailed(
            "VER-073",
            f"{type(error).__name__}: {layout.first_line(error)}",
            cell=layout.VERDICTS,
        ) from error


def check_verdicts(bundle: Bundle, again: Decision) -> int:
    """Number of verdicts, all equal to the recomputed ones.

    Raises `VerificationFailed` VER-070 (edited), VER-071 (removed or added), VER-072 (outcome).
    """
    verdicts, outcome = again
    stored, fresh = [_key(v) for v in bundle.verdicts], [_key(v) for v in verdicts]
    if stored != fresh:
        removed = sorted((Counter(fresh) - Counter(stored)).elements())
        added = sorted((Counter(stored) - Counter(fresh)).elements())
        told = f"removed: {', '.join(removed)[:150] or 'none'}; added: {', '.join(added)[:150]}"
        raise VerificationFailed(
            "VER-071",
            (told if removed or added else "their order changed") + _other_version(bundle),
            cell=layout.VERDICTS,
        )
    for one, two in zip(bundle.verdicts, verdicts, strict=True):
        told = difference(one, two)
        if told:
            raise VerificationFailed(
                "VER-070", f"{_key(two)}: {told}{_other_version(bundle)}", cell=layout.VERDICTS
            )
    told = difference(bundle.outcome, outcome)
    if told:
        raise VerificationFailed(
            "VER-072", f"outcome: {told}{_other_version(bundle)}", cell=layout.VERDICTS
        )
    return len(verdicts)


def difference(stored: Frozen, again: Frozen) -> str:
    """The first field in which two values differ, with both; empty when there is none."""
    one, two = stored.json_value(), again.json_value()
    for field, value in two.items():
        if not _same(one.get(field), value):
            return f"{field} says {one.get(field)!r}, the records say {value!r}"[:400]
    return ""


def check_report(bundle: Bundle, records: Sequence[Record]) -> str:
    """What became of the report inside: equal to a fresh one, or written by another build.

    Raises `VerificationFailed` VER-074.
    """
    if bundle.provenance.source.get("harness_sha256") != harness_digest():
        return "written by another build of fasttrack, so not compared; read `fasttrack report`"
    if markdown.render(build(bundle, records)).encode("utf-8") != bundle.read(layout.REPORT):
        raise VerificationFailed(
            "VER-074", "it is not what these records render to", cell=layout.REPORT
        )
    return "equal to one made anew"


def _key(verdict: Verdict) -> str:
    return f"{verdict.rule} {verdict.cell}"


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, int | float) and isinstance(two, int | float):
        return math.isclose(one, two, rel_tol=RELATIVE_TOLERANCE, abs_tol=0.0)
    return bool(one == two)


def _other_version(bundle: Bundle) -> str:
    if bundle.run.harness_version == fasttrack.__version__:
        return ""
    return f" (written by fasttrack {bundle.run.harness_version}, read by {fasttrack.__version__})"

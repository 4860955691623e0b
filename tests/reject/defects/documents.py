"""Manifest and JSON documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bundle_maker as maker

from defects.lab import EXTRA, PERF, Lab, defect, put
from fasttrack.bundle import layout, manifest
from fasttrack.schema._json import loads


@defect("VER-010", layout.MANIFEST)
def no_manifest(lab: Lab) -> Path:
    return lab.archive(**{layout.MANIFEST: None})


@defect("VER-010", layout.REPORT)
def required_file_dropped_everywhere(lab: Lab) -> Path:
    """The report is gone from the archive and from a manifest that was made anew."""
    return lab.archive(
        **{
            layout.REPORT: None,
            layout.MANIFEST: lab.edited(
                layout.MANIFEST,
                lambda v: {**v, "files": [f for f in v["files"] if f["path"] != layout.REPORT]},
            ),
        }
    )


@defect("VER-011", layout.MANIFEST)
def manifest_lists_twice(lab: Lab) -> Path:
    return lab.archive(
        **{
            layout.MANIFEST: lab.edited(
                layout.MANIFEST, lambda v: {**v, "files": [v["files"][0], *v["files"]]}
            )
        }
    )


@defect("VER-011", layout.MANIFEST)
def manifest_with_md5(lab: Lab) -> Path:
    """A weak digest in place of SHA-256."""

    def weaken(value: Any) -> None:
        value["files"][0]["md5"] = value["files"][0].pop("sha256")[:32]

    return lab.archive(**{layout.MANIFEST: lab.edited(layout.MANIFEST, weaken)})


@defect("VER-012", EXTRA)
def unlisted_file(lab: Lab) -> Path:
    return lab.archive(**{EXTRA: lab.members[PERF]})


@defect("VER-013", PERF)
def listed_file_missing(lab: Lab) -> Path:
    return lab.archive(**{PERF: None})


@defect("VER-014", PERF)
def file_grown(lab: Lab) -> Path:
    return lab.archive(**{PERF: lab.members[PERF] + b"\n"})


@defect("VER-015", PERF)
def file_changed_same_size(lab: Lab) -> Path:
    data = lab.members[PERF].replace(b'"load_1min":0.5', b'"load_1min":0.4')
    return lab.archive(**{PERF: data})


@defect("VER-016", layout.CLAIM)
def wrong_role(lab: Lab) -> Path:
    def relabel(value: Any) -> None:
        value["files"][0]["role"] = "log"

    return lab.archive(**{layout.MANIFEST: lab.edited(layout.MANIFEST, relabel)})


@defect("VER-017", layout.RUN)
def duplicate_json_key(lab: Lab) -> Path:
    data = lab.members[layout.RUN][:-1] + b',"seed":1}'
    return lab.archive(**_sealed(lab, layout.RUN, data))


@defect("VER-017", layout.PLAN)
def nan_in_json(lab: Lab) -> Path:
    data = lab.members[layout.PLAN].replace(b'"seed":0', b'"seed":NaN')
    return lab.archive(**_sealed(lab, layout.PLAN, data))


@defect("VER-017", layout.PLAN)
def huge_integer(lab: Lab) -> Path:
    data = lab.members[layout.PLAN].replace(b'"seed":0', b'"seed":9007199254740993')
    return lab.archive(**_sealed(lab, layout.PLAN, data))


@defect("VER-017", layout.PLAN)
def deep_nesting(lab: Lab) -> Path:
    data = lab.members[layout.PLAN][:-1] + b',"x":' + b"[" * 5000 + b"]" * 5000 + b"}"
    return lab.archive(**_sealed(lab, layout.PLAN, data))


@defect("VER-017", layout.CLAIM)
def not_canonical(lab: Lab) -> Path:
    data = json.dumps(loads(lab.members[layout.CLAIM]), indent=1).encode()
    return lab.archive(**_sealed(lab, layout.CLAIM, data))


def _sealed(lab: Lab, name: str, data: bytes) -> maker.Members:
    """One changed file with a manifest that knows it; statement and signature stay the old ones."""
    changed = {**lab.members, name: data}
    covered = {n: manifest.measure((d,)) for n, d in changed.items() if layout.role(n)}
    return {name: data, layout.MANIFEST: manifest.make(covered)}


@defect("VER-018", layout.POLICY)
def unknown_policy_field(lab: Lab) -> Path:
    data = lab.edited(layout.POLICY, put(leniency=1))
    return lab.archive(**_sealed(lab, layout.POLICY, data))


@defect("VER-019", layout.PLAN)
def newer_plan_format(lab: Lab) -> Path:
    data = lab.edited(layout.PLAN, put(schema="fasttrack.plan/v2"))
    return lab.archive(**_sealed(lab, layout.PLAN, data))


@defect("VER-019", layout.VERDICTS)
def newer_verdict_format(lab: Lab) -> Path:
    data = lab.edited(layout.VERDICTS, put(schema="fasttrack.verdicts/v7"))
    return lab.archive(**_sealed(lab, layout.VERDICTS, data))

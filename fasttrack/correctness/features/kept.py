"""What each boot of the feature stage left on disk: a unit of five boots that was interrupted goes
on with the boot it was in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fasttrack.correctness.features.probe import Control, Facts
from fasttrack.schema import Record, parse_record


@dataclass(frozen=True)
class Boot:
    """One session's yield."""

    records: tuple[Record, ...]
    facts: Mapping[str, Facts]
    """By feature; in base also the control's."""
    control: Control
    """For the boots that follow."""


def write(path: Path, boot: Boot) -> None:
    """Keep it; a crash leaves all of it or nothing."""
    value = {
        "records": [record.json_value() for record in boot.records],
        "facts": boot.facts,
        "control": asdict(boot.control),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def read(path: Path) -> Boot | None:
    """What `write` kept; None without it, or where it cannot be read: the boot is made again."""
    try:
        value = json.loads(path.read_text())
        control = value["control"] | {
            name: tuple(map(tuple, value["control"][name])) for name in ("prompts", "ids", "gaps")
        }
        records = tuple(parse_record(json.dumps(one).encode()) for one in value["records"])
        return Boot(records, value["facts"], Control(**control))
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""What runs on a node of a Ray cluster: what the node is, and whole blocks of perf sessions.

Both functions are Ray tasks and need no Ray themselves. Paths are the driver's: the node sees the
same folders, or holds copies at the same places, which `describe` lets the driver check.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fasttrack import folders
from fasttrack.bundle import provenance
from fasttrack.engine.setting import Setting
from fasttrack.errors import FasttrackError
from fasttrack.schema import Record
from fasttrack.stages import RUNNERS

THREADS = "OMP_NUM_THREADS"
"""Ray sets it for its tasks; a session must get what it would get without Ray."""


@dataclass(frozen=True)
class Holdings:
    """What decides the numbers of a node, to be compared with the driver's and between nodes."""

    machine: str
    files: Mapping[str, str]
    """Digest by name; of what is not there, why."""


@dataclass(frozen=True)
class Block:
    """Records of the sessions of a block, in their order, or the error that ended it."""

    sessions: tuple[tuple[Record, ...], ...] = ()
    kind: type[FasttrackError] | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the error: an exception with such a signature does not travel itself."""


def describe(setting: Setting) -> Holdings:
    """What this node is, and the digests of what it would measure with."""
    files = {"harness": provenance.harness_digest()}
    wanted = {"optimization": setting.folder, "checkpoint": setting.checkpoint}
    for name, folder in wanted.items():
        if folder is not None:
            files[name] = folders.digest(folder) if folder.is_dir() else "missing"
    return Holdings(provenance.describe(), files)


def measure(setting: Setting, specs: Sequence[Mapping[str, Any]], threads: str | None) -> Block:
    """All sessions of one block, one after the other."""
    if threads is None:
        os.environ.pop(THREADS, None)
    else:
        os.environ[THREADS] = threads
    here = replace(setting, machine=provenance.machine_name())
    try:
        return Block(tuple(tuple(RUNNERS["perf"](here, spec)) for spec in specs))
    except FasttrackError as error:
        return Block(kind=type(error), told=vars(error))

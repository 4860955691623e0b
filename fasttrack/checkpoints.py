"""The weights of a target: found, or built by the claim's own command, and held to its digest."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from fasttrack import folders
from fasttrack.errors import EnvironmentUnmet
from fasttrack.schema.claim import Checkpoint

BUILD_TIMEOUT_S = 1800


def ensure(checkpoint: Checkpoint, cache: Path, logs: Path) -> tuple[Path, str]:
    """(folder, digest) of a checkpoint, building it when it is not there.

    A folder named by the environment variable ``FASTTRACK_CHECKPOINT_<NAME>`` comes first.
    Raises `EnvironmentUnmet` ENV-003 (missing, build failed) or ENV-004 (wrong digest).
    """
    variable = "FASTTRACK_CHECKPOINT_" + checkpoint.name.upper().replace("-", "_").replace(".", "_")
    given = os.environ.get(variable)
    folder = Path(given) if given else cache / checkpoint.name
    if not folder.is_dir():
        if given or not checkpoint.build:
            raise EnvironmentUnmet(
                "ENV-003",
                f"checkpoint {checkpoint.name} is not at {folder}",
                next_step=f"set {variable} to its folder",
                cell=checkpoint.name,
            )
        _build(checkpoint, folder, logs)
    found = folders.digest(folder)
    if checkpoint.sha256 and found != checkpoint.sha256:
        raise EnvironmentUnmet(
            "ENV-004",
            f"checkpoint {checkpoint.name} at {folder} has digest {found[:12]}, the claim pins "
            f"{checkpoint.sha256[:12]}",
            next_step=(
                f"unset {variable}, or pin the new digest"
                if given
                else f"rm -r {folder}, then run again"
            ),
            cell=checkpoint.name,
        )
    return folder, found


def _build(checkpoint: Checkpoint, folder: Path, logs: Path) -> None:
    """Build aside and rename, so that a build cut short is never taken for a checkpoint."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    command = [
        part.replace("{python}", sys.executable).replace("{out}", str(unfinished))
        for part in checkpoint.build
    ]
    shutil.rmtree(unfinished, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"build-{checkpoint.name}.log"
    try:
        with log.open("wb") as sink:
            status = subprocess.run(
                command, stdout=sink, stderr=sink, timeout=BUILD_TIMEOUT_S, check=False
            ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnmet(
            "ENV-003",
            f"building {checkpoint.name}: {error}",
            next_step=shlex.join(command),
            cell=checkpoint.name,
        ) from error
    if status or not unfinished.is_dir():
        raise EnvironmentUnmet(
            "ENV-003",
            f"building {checkpoint.name} ended with status {status}; see {log}",
            next_step=shlex.join(command),
            cell=checkpoint.name,
        )
    unfinished.rename(folder)

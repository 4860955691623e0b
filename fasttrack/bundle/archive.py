"""From a finished run folder to one `.ftb` file: the same folder gives the same bytes.

Owns the order of sealing: files, manifest over them, statement over the manifest, envelope over the
statement, archive around all. Signs nothing. Read by the pipeline; `sign` adds signatures later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from fasttrack.bundle import atomic, container, layout, manifest, statement
from fasttrack.bundle.reader import open_bundle
from fasttrack.bundle.writer import file_chunks, file_names
from fasttrack.errors import RunError, VerificationFailed

SUFFIX = ".ftb"
Content = Callable[[str], Iterator[bytes]]


def pack(run_folder: Path, out_dir: Path) -> Path:
    """Write `<claim>-<target>-<digest12>.ftb` from a run folder and return its path.

    The archive is unsigned. An existing file with the same content keeps the signatures it has
    already collected. Raises `RunError` RUN-003 when a file of the folder is missing or damaged.
    """
    try:
        with open_bundle(run_folder) as run:
            claim, info, outcome = run.claim, run.run, run.outcome
    except VerificationFailed as error:
        raise RunError(
            "RUN-003", f"{run_folder}: {error.cause}", cell=error.cell,
            next_step="repeat the `fasttrack validate` command",
        ) from error  # fmt: skip
    covered = [name for name in file_names(run_folder) if layout.role(name) is not None]
    absent = [name for name in layout.REQUIRED if name not in covered]
    if absent:
        raise RunError(
            "RUN-003",
            f"{run_folder} is not finished: no {', '.join(absent)}",
            cell=absent[0],
            next_step="repeat the `fasttrack validate` command",
        )
    measured = {name: manifest.measure(file_chunks(run_folder / name)) for name in covered}
    sealed = manifest.make(measured)
    digest = hashlib.sha256(sealed).hexdigest()
    payload = statement.make(digest, info, outcome)
    seals = {
        layout.MANIFEST: sealed,
        layout.STATEMENT: payload,
        layout.ENVELOPE: statement.envelope(payload, ()),
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / f"{claim.name}-{info.target}-{digest[:12]}{SUFFIX}"
    if _already_packed(target, payload):
        return target

    def content(name: str) -> Iterator[bytes]:
        return iter((seals[name],)) if name in seals else file_chunks(run_folder / name)

    sizes = measured | {name: manifest.measure((data,)) for name, data in seals.items()}
    with atomic.replacing(target) as out:
        write(out, sizes, content)
    return target


def write(out: BinaryIO, files: Mapping[str, manifest.Measured], content: Content) -> None:
    """Write measured files as one archive, sorted by name."""
    entries = [container.Entry(name, files[name].size, files[name].crc32) for name in sorted(files)]
    container.write(out, entries, content)


def _already_packed(target: Path, payload: bytes) -> bool:
    """Whether the file there is intact and makes this very statement."""
    if not target.is_file():
        return False
    try:
        with open_bundle(target) as bundle:
            return bundle.statement_bytes == payload
    except VerificationFailed:
        return False

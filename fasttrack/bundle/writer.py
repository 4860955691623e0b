"""The run folder: where stages leave their records, and how an interrupted run goes on.

Owns the layout on disk while measuring, the lock, and the rule that a unit's file exists if and
only if the unit is finished. Does not know what records mean. Written to by the pipeline; read by
`archive.pack` and `reader.open_bundle`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from fasttrack.bundle import atomic, compact, layout
from fasttrack.bundle.container import CHUNK
from fasttrack.errors import RunError
from fasttrack.schema import FailureRecord, Record
from fasttrack.schema._json import canonical_bytes

LOCK = ".lock"


class RunFolder:
    """An open run folder, locked for this process. Use as a context manager, or call `close`."""

    def __init__(self, path: Path, lock: int) -> None:
        """Use `open`."""
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Create or continue a run folder.

        Raises `RunError` RUN-002 when a live process holds it. The lock is the kernel's, so a
        killed process leaves none behind.
        """
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 20).decode("ascii", errors="replace").strip() or "unknown"
            os.close(lock)
            raise RunError(
                "RUN-002",
                f"{path} is in use by process {holder}",
                next_step="wait for it to end, or name another folder with --runs",
            ) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode("ascii"))
        for leftover in path.rglob(f"{atomic.TEMPORARY_PREFIX}*"):
            leftover.unlink(missing_ok=True)
        return cls(path, lock)

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_bytes(self, rel: str, data: bytes) -> None:
        """Write a whole file atomically; raises `ValueError` for a name that leaves the folder."""
        atomic.write_bytes(self._target(rel), data)

    def write_json(self, rel: str, value: Any) -> None:
        """Write a JSON value in canonical form, atomically."""
        self.write_bytes(rel, canonical_bytes(value))

    def has_unit(self, stage: str, unit: str) -> bool:
        """Whether a unit of work is finished."""
        return (self.path / layout.unit_path(stage, unit)).is_file()

    def drop_unit(self, stage: str, unit: str) -> None:
        """Let a finished unit be measured again."""
        (self.path / layout.unit_path(stage, unit)).unlink(missing_ok=True)

    def write_unit(self, stage: str, unit: str, records: Iterable[Record]) -> None:
        """Finish a unit: all its records at once, one canonical JSON line each."""
        if unit == layout.FAILURES:
            raise ValueError("failures are appended one by one")
        with atomic.replacing(self._target(layout.unit_path(stage, unit))) as file:
            for record in records:
                file.write(canonical_bytes(record.json_value()) + b"\n")

    def append_failure(self, record: FailureRecord) -> None:
        """Add a failure to its stage's list.

        The list is copied and replaced whole rather than appended in place: a crash while writing
        must not damage the failures noted before.
        """
        target = self._target(layout.unit_path(record.stage, layout.FAILURES))
        before = target.read_bytes() if target.is_file() else b""
        atomic.write_bytes(target, before + canonical_bytes(record.json_value()) + b"\n")

    def records(self, stage: str | None = None) -> Iterator[Record]:
        """Records of one stage or of all, in the order in which rules always see them.

        Raises `RunError` RUN-003 naming a damaged file.
        """
        for name in layout.record_names(file_names(self.path), stage):
            try:
                yield from layout.parse_lines(file_chunks(self.path / name), compact.parse)
            except layout.BadLine as error:
                raise RunError(
                    "RUN-003",
                    f"{self.path / name}: {error}",
                    cell=name,
                    next_step=f"mv {self.path / name} /tmp && repeat the command",
                ) from error

    def _target(self, rel: str) -> Path:
        if not layout.safe_name(rel):
            raise ValueError(f"not a plain relative path: {rel!r}")
        target = self.path / rel
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


def file_names(folder: Path) -> list[str]:
    """Relative POSIX names of the files in a folder that belong to a bundle, sorted."""
    names = (
        Path(root, file).relative_to(folder).as_posix()
        for root, _, files in os.walk(folder)
        for file in files
    )
    return sorted(name for name in names if layout.known(name))


def file_chunks(path: Path) -> Generator[bytes, None, None]:
    """A file's content in pieces; a link is refused, so no file outside is read for one inside."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk

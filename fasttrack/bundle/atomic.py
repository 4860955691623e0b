"""Whole-file writes that a crash leaves either done or undone, never half done."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY_PREFIX = ".writing-"


@contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file object whose content becomes `path` when the block ends without an exception.

    The data is flushed to the device before the rename and the folder after it, so the order
    survives a power cut.
    """
    handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _sync_folder(path.parent)


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a whole file through `replacing`."""
    with replacing(path, mode) as file:
        file.write(data)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

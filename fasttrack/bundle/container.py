"""The archive form of a bundle: the smallest subset of ZIP that every unzip program can read.

Owns the bytes around members: stored (never compressed) members, sorted by name, fixed time,
mode 0644, no comment, no extra field, no gap, no ZIP64. One member list has exactly one such
archive, so the reader rebuilds every structural byte and compares: nothing can hide in a header, in
padding or behind the end. Knows nothing of manifests or signatures. Read by `archive` (writing) and
`reader` (reading). Source of the layout: PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12, 4.3.16.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fasttrack.bundle import layout
from fasttrack.errors import VerificationFailed

CHUNK = 1 << 20
_VERSION = 20
_UNIX = 3 << 8
_MIDNIGHT_1980 = (0, 0x21)
_MODE = 0o100644 << 16
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
_CENTRAL_SIGNATURE = b"PK\x01\x02"


@dataclass(frozen=True)
class Entry:
    """One member: `name` is ASCII, `size` bytes stored from `start`, `crc32` of its content."""

    name: str
    size: int
    crc32: int
    start: int = 0


def local_header(entry: Entry) -> bytes:
    """The bytes before a member's content."""
    name = entry.name.encode("ascii")
    return (
        _LOCAL.pack(
            b"PK\x03\x04", _VERSION, 0, 0, *_MIDNIGHT_1980,
            entry.crc32, entry.size, entry.size, len(name), 0,
        )
        + name
    )  # fmt: skip


def _central_header(entry: Entry, offset: int) -> bytes:
    name = entry.name.encode("ascii")
    return (
        _CENTRAL.pack(
            _CENTRAL_SIGNATURE, _UNIX | _VERSION, _VERSION, 0, 0, *_MIDNIGHT_1980,
            entry.crc32, entry.size, entry.size, len(name), 0, 0, 0, 0, _MODE, offset,
        )
        + name
    )  # fmt: skip


def _tail(entries: Sequence[Entry]) -> bytes:
    """Central directory and end record of members laid out one after the other."""
    directory = io.BytesIO()
    offset = 0
    for entry in entries:
        directory.write(_central_header(entry, offset))
        offset += len(local_header(entry)) + entry.size
    size = directory.tell()
    directory.write(_END.pack(_END_SIGNATURE, 0, 0, len(entries), len(entries), size, offset, 0))
    return directory.getvalue()


def write(
    out: BinaryIO, entries: Sequence[Entry], content: Callable[[str], Iterator[bytes]]
) -> None:
    """Write the archive of sorted `entries`; `content(name)` yields each member's bytes.

    Raises `ValueError` when a content is not what its entry says: the file changed meanwhile.
    """
    for entry in entries:
        out.write(local_header(entry))
        size, crc = 0, 0
        for chunk in content(entry.name):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            out.write(chunk)
        if (size, crc) != (entry.size, entry.crc32):
            raise ValueError(f"{entry.name} changed while it was being packed")
    out.write(_tail(entries))


class Container:
    """An open archive whose every structural byte was checked. Close it when done."""

    def __init__(self, path: Path) -> None:
        """Raises `VerificationFailed` VER-001..005 and VER-008; reads headers, no content."""
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise VerificationFailed(
                "VER-001", f"cannot read {path}: {error.strerror}", cell=path.name
            ) from error
        try:
            self.entries = {entry.name: entry for entry in self._read(path.name)}
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        """Content of a member in pieces of at most `CHUNK` bytes; raises `KeyError`."""
        entry = self.entries[name]
        position, left = entry.start, entry.size
        while left:
            self._file.seek(position)
            chunk = self._file.read(min(left, CHUNK))
            if not chunk:
                raise VerificationFailed("VER-003", "the archive is cut short", cell=name)
            position, left = position + len(chunk), left - len(chunk)
            yield chunk

    def _read(self, archive: str) -> list[Entry]:
        length = os.fstat(self._file.fileno()).st_size
        if length < _END.size:
            raise VerificationFailed("VER-001", "too short to be a result file", cell=archive)
        self._file.seek(length - _END.size)
        end = self._file.read(_END.size)
        signature, _, _, _, count, size, offset, _ = _END.unpack(end)
        if signature != _END_SIGNATURE:
            raise VerificationFailed(
                "VER-001",
                "not a result file, or bytes were added or cut at its end",
                cell=archive,
            )
        if count > layout.MAX_MEMBERS or length > layout.MAX_TOTAL_BYTES:
            raise VerificationFailed(
                "VER-002",
                f"{count} members and {length} bytes are beyond the limits of "
                f"{layout.MAX_MEMBERS} and {layout.MAX_TOTAL_BYTES}",
                cell=archive,
            )
        if offset + size + _END.size != length or size > layout.MAX_MEMBERS * 512:
            raise VerificationFailed(
                "VER-003", "its parts do not add up to its length", cell=archive
            )
        self._file.seek(offset)
        directory = self._file.read(size)
        entries = _parse_directory(directory, count, archive)
        self._check_locals(entries, offset, archive)
        expected = _tail(entries)
        if expected != directory + end:
            raise VerificationFailed(
                "VER-003",
                "the central directory is not the one these members have",
                cell=_first_difference(entries, expected, directory + end) or archive,
            )
        return entries

    def _check_locals(self, entries: Sequence[Entry], limit: int, archive: str) -> None:
        position = 0
        for entry in entries:
            header = local_header(entry)
            self._file.seek(position)
            if self._file.read(len(header)) != header:
                raise VerificationFailed(
                    "VER-003", "its header is not the only one it may have", cell=entry.name
                )
            if entry.start != position + len(header):
                raise VerificationFailed(
                    "VER-003", "it does not follow the member before it", cell=entry.name
                )
            position = entry.start + entry.size
            if position > limit:
                raise VerificationFailed(
                    "VER-003", "it is longer than the archive", cell=entry.name
                )
        if position != limit:
            raise VerificationFailed("VER-003", "bytes that belong to no member", cell=archive)


def _parse_directory(directory: bytes, count: int, archive: str) -> list[Entry]:
    entries: list[Entry] = []
    seen: dict[str, str] = {}
    at = 0
    for _ in range(count):
        fields = directory[at : at + _CENTRAL.size]
        if len(fields) < _CENTRAL.size or not fields.startswith(_CENTRAL_SIGNATURE):
            raise VerificationFailed("VER-003", "broken central directory", cell=archive)
        (_, _, _, flags, method, _, _, crc, packed, size, length, extra, comment, _, _, mode,
         offset) = _CENTRAL.unpack(fields)  # fmt: skip
        at += _CENTRAL.size
        name = layout.checked_name(directory[at : at + length])
        at += length
        if mode >> 16 != _MODE >> 16:
            raise VerificationFailed("VER-008", f"not a plain file: mode {mode >> 16:o}", cell=name)
        if flags or method or packed != size or extra or comment:
            raise VerificationFailed(
                "VER-003", "compressed, encrypted or carrying extra data", cell=name
            )
        if size > layout.MAX_MEMBER_BYTES:
            raise VerificationFailed("VER-002", f"{size} bytes are beyond the limit", cell=name)
        folded = name.casefold()
        if folded in seen:
            raise VerificationFailed(
                "VER-005", f"listed twice, or too like {seen[folded]}", cell=name
            )
        if entries and name < entries[-1].name:
            raise VerificationFailed("VER-005", "members are not sorted", cell=name)
        seen[folded] = name
        entries.append(Entry(name, size, crc, offset + _LOCAL.size + length))
    if at != len(directory):
        raise VerificationFailed("VER-003", "bytes behind the last member", cell=archive)
    return entries


def _first_difference(entries: Sequence[Entry], expected: bytes, found: bytes) -> str | None:
    """The member in whose directory entry the first differing byte lies."""
    differing = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), len(expected)
    )
    at = 0
    for entry in entries:
        at += _CENTRAL.size + len(entry.name)
        if differing < at:
            return entry.name
    return None

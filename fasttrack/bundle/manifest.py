"""The list of a bundle's files with sizes and digests, and the check of files against it.

Owns: how the manifest is made and what it must cover. The manifest's own SHA-256 is the subject of
the signed statement, so whoever holds that digest holds every file. Read by `archive` (making) and
`reader` (checking).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fasttrack.bundle import layout
from fasttrack.bundle.documents import model, strict_json
from fasttrack.errors import VerificationFailed
from fasttrack.schema import FileEntry, Manifest
from fasttrack.schema._json import canonical_bytes

SCHEMA = "fasttrack.manifest/v1"


@dataclass(frozen=True)
class Measured:
    """What one pass over a file's bytes gives."""

    size: int
    sha256: str
    crc32: int


def measure(chunks: Iterable[bytes]) -> Measured:
    """Size, SHA-256 and CRC-32 of a stream, in one pass and constant memory."""
    size, crc, sha = 0, 0, hashlib.sha256()
    for chunk in chunks:
        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        sha.update(chunk)
    return Measured(size, sha.hexdigest(), crc)


def make(files: Mapping[str, Measured]) -> bytes:
    """Canonical manifest bytes of the files that a manifest covers."""
    entries = []
    for path in sorted(files):
        role = layout.role(path)
        if role is None:
            raise ValueError(f"a bundle has no place for {path}")
        found = files[path]
        entries.append(FileEntry(path=path, size=found.size, sha256=found.sha256, role=role))
    return canonical_bytes(Manifest(files=tuple(entries)).json_value())


def parse(data: bytes) -> Manifest:
    """A manifest from its exact bytes; raises `VerificationFailed` VER-011, -016, -017, -019."""
    value = strict_json(data, layout.MANIFEST, schema=SCHEMA)
    manifest = model(Manifest, value, layout.MANIFEST, code="VER-011")
    paths = [entry.path for entry in manifest.files]
    if paths != sorted(set(paths)):
        raise VerificationFailed(
            "VER-011", "its files are not sorted, or one is listed twice", cell=layout.MANIFEST
        )
    for entry in manifest.files:
        if layout.role(entry.path) != entry.role:
            raise VerificationFailed(
                "VER-016", f"listed as {entry.role!r}, which this name cannot be", cell=entry.path
            )
    for path in layout.REQUIRED:
        if path not in paths:
            raise VerificationFailed("VER-010", "the bundle has no such file", cell=path)
    return manifest


def check(manifest: Manifest, found: Mapping[str, Measured]) -> None:
    """Compare what was measured of every file with the manifest.

    Raises `VerificationFailed`: VER-012 unlisted file, VER-013 missing file, VER-014 size, VER-015
    digest.
    """
    listed = {entry.path: entry for entry in manifest.files}
    present = {name for name in found if layout.role(name) is not None}
    for path in sorted(present - listed.keys()):
        raise VerificationFailed("VER-012", "not listed in the manifest", cell=path)
    for path in sorted(listed.keys() - present):
        raise VerificationFailed("VER-013", "listed in the manifest but absent", cell=path)
    for path, entry in listed.items():
        if found[path].size != entry.size:
            raise VerificationFailed(
                "VER-014", f"{found[path].size} bytes, not the listed {entry.size}", cell=path
            )
        if found[path].sha256 != entry.sha256:
            raise VerificationFailed("VER-015", "its SHA-256 is not the listed one", cell=path)

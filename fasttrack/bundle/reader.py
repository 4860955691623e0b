"""The only door back in: a bundle, from an archive or from a run folder, read as hostile input.

Owns opening, the limits, and typed access to each document. An archive is opened only after every
structural byte, every checksum and the manifest hold; nothing is ever extracted to disk. Does not
judge signatures or verdicts (`fasttrack.verify`). Read by report, verify, sign and pack.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fasttrack.bundle import container, layout, manifest, statement
from fasttrack.bundle.documents import model, strict_json
from fasttrack.bundle.writer import file_chunks, file_names
from fasttrack.errors import VerificationFailed
from fasttrack.schema import (
    Claim,
    Manifest,
    Outcome,
    Policy,
    Provenance,
    Record,
    RunInfo,
    Statement,
    Verdict,
    parse_record,
)
from fasttrack.schema.claim import CLAIM_SCHEMA

VERDICTS_SCHEMA = "fasttrack.verdicts/v1"
POLICY_SCHEMA = "fasttrack.policy/v1"
PLAN_SCHEMA = "fasttrack.plan/v1"


class Source(Protocol):
    """Where a bundle's files come from."""

    names: tuple[str, ...]

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        """Content of one file in pieces."""

    def close(self) -> None:
        """Release what is held."""


class _Archive:
    def __init__(self, path: Path) -> None:
        self._container = container.Container(path)
        self.names = tuple(self._container.entries)

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        return self._container.chunks(name)

    def close(self) -> None:
        self._container.close()

    def measure(self) -> dict[str, manifest.Measured]:
        """Size and digests of every member, read once.

        Each is compared with the checksum in its header first, which names a damaged member even
        where the damage is in the manifest.
        """
        found = {name: manifest.measure(self.chunks(name)) for name in self.names}
        for name, entry in self._container.entries.items():
            if found[name].crc32 != entry.crc32:
                raise VerificationFailed("VER-007", "its bytes were damaged", cell=name)
        return found


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.names = tuple(file_names(path))

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        try:
            yield from file_chunks(self._path / name)
        except OSError as error:
            raise VerificationFailed(
                "VER-008", f"cannot be read as a plain file: {error.strerror}", cell=name
            ) from error

    def close(self) -> None:
        """Nothing is held open."""


class Bundle:
    """Typed view of a bundle. Documents are parsed on first use and kept."""

    def __init__(self, path: Path, source: Source, *, sealed: bool) -> None:
        """Use `open_bundle`."""
        self.path = path
        self.sealed = sealed
        """Whether this is an archive whose manifest was checked, not a run folder."""
        self._source = source

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        self._source.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all files, sorted."""
        return self._source.names

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        """Content of one file in pieces."""
        return self._source.chunks(name)

    def read(self, name: str) -> bytes:
        """Content of one document.

        Raises `VerificationFailed` VER-010 (absent) or VER-002 (too large to be a document).
        """
        if name not in self.names:
            raise VerificationFailed("VER-010", "the bundle has no such file", cell=name)
        parts: list[bytes] = []
        size = 0
        for chunk in self.chunks(name):
            size += len(chunk)
            if size > layout.MAX_DOCUMENT_BYTES:
                raise VerificationFailed("VER-002", "too large for a document", cell=name)
            parts.append(chunk)
        return b"".join(parts)

    @cached_property
    def claim(self) -> Claim:
        """The frozen claim."""
        value = strict_json(self.read(layout.CLAIM), layout.CLAIM, schema=CLAIM_SCHEMA)
        return model(Claim, value, layout.CLAIM)

    @cached_property
    def source_claim(self) -> Claim:
        """The claim as the author's exact bytes say it.

        Raises `VerificationFailed` VER-050 when they do not say one, VER-002 when they are too
        many for a careful parser.
        """
        source = self.read(layout.CLAIM_TOML)
        if len(source) > layout.MAX_CLAIM_BYTES:
            raise VerificationFailed(
                "VER-002", f"{len(source)} bytes are too many", cell=layout.CLAIM_TOML
            )
        try:
            return Claim.model_validate(tomllib.loads(source.decode("utf-8")))
        except (ValueError, RecursionError) as error:
            raise VerificationFailed(
                "VER-050", layout.first_line(error), cell=layout.CLAIM_TOML
            ) from error

    @cached_property
    def policy(self) -> Policy:
        """The policy the run was planned and decided under."""
        value = strict_json(self.read(layout.POLICY), layout.POLICY, schema=POLICY_SCHEMA)
        return model(Policy, value, layout.POLICY)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The frozen plan, as JSON."""
        return strict_json(self.read(layout.PLAN), layout.PLAN, schema=PLAN_SCHEMA)

    @cached_property
    def run(self) -> RunInfo:
        """Which run this is."""
        return model(RunInfo, strict_json(self.read(layout.RUN), layout.RUN), layout.RUN)

    @cached_property
    def provenance(self) -> Provenance:
        """Machine, software and source state."""
        value = strict_json(self.read(layout.PROVENANCE), layout.PROVENANCE)
        return model(Provenance, value, layout.PROVENANCE)

    @cached_property
    def _verdicts(self) -> tuple[tuple[Verdict, ...], Outcome]:
        name = layout.VERDICTS
        value = strict_json(self.read(name), name, schema=VERDICTS_SCHEMA)
        if set(value) != {"schema", "outcome", "verdicts"} or not isinstance(
            value["verdicts"], list
        ):
            raise VerificationFailed("VER-018", "it must hold outcome and verdicts", cell=name)
        verdicts = tuple(model(Verdict, item, name) for item in value["verdicts"])
        return verdicts, model(Outcome, value["outcome"], name)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts as stored; the verifier recomputes them."""
        return self._verdicts[0]

    @property
    def outcome(self) -> Outcome:
        """Outcome as stored."""
        return self._verdicts[1]

    @cached_property
    def manifest(self) -> Manifest:
        """The list of files; a run folder has none yet (VER-010)."""
        return manifest.parse(self.read(layout.MANIFEST))

    @cached_property
    def manifest_sha256(self) -> str:
        """Hex SHA-256 of the manifest's bytes: the identity of the bundle's content."""
        return hashlib.sha256(self.read(layout.MANIFEST)).hexdigest()

    @cached_property
    def statement_bytes(self) -> bytes:
        """The exact bytes that are signed."""
        return self.read(layout.STATEMENT)

    @cached_property
    def statement(self) -> Statement:
        """A checked view of the statement."""
        return statement.parse(self.statement_bytes)

    def signature_numbers(self) -> tuple[int, ...]:
        """Numbers of the signatures present, sorted."""
        numbers = {layout.signature_number(name) for name in self.names}
        return tuple(sorted(number for number in numbers if number is not None))

    def records(self, stage: str | None = None) -> Iterator[Record]:
        """Raw records in their fixed order, one at a time.

        Raises `VerificationFailed` VER-060 naming the file with a line that is not a record.
        """
        for name in layout.record_names(self.names, stage):
            yield from self.file_records(name)

    def file_records(
        self, name: str, parse: Callable[[bytes], Record] = parse_record
    ) -> Iterator[Record]:
        """Raw records of one file; see `records`. `parse` may keep them in another form."""
        try:
            yield from layout.parse_lines(self.chunks(name), parse)
        except layout.BadLine as error:
            raise VerificationFailed("VER-060", str(error), cell=name) from error


def open_bundle(path: Path) -> Bundle:
    """Open a `.ftb` file or a run folder.

    An archive is read once from end to end: structure (VER-001..005, -008), checksums (VER-007),
    manifest and every file's size and digest (VER-006, VER-010..019). A run folder has only the
    limits checked. Raises `VerificationFailed`.
    """
    if path.is_dir():
        return Bundle(path, _Folder(path), sealed=False)
    if not path.is_file():
        raise VerificationFailed("VER-001", f"there is no file {path}", cell=path.name)
    archive = _Archive(path)
    try:
        found = archive.measure()
        bundle = Bundle(path, archive, sealed=True)
        for name in bundle.names:
            if not layout.known(name):
                raise VerificationFailed("VER-006", "a bundle has no place for it", cell=name)
        manifest.check(bundle.manifest, found)
    except BaseException:
        archive.close()
        raise
    return bundle

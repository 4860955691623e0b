"""What a long unit keeps of itself: one line per call, so that no answered item is asked again.

Owns the file and its replay. A line holds the records of one call of the engine, the session's own
record as of then included; a line that was cut short by a crash counts as not written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fasttrack.errors import RunError
from fasttrack.schema import ItemRecord, Record, SessionRecord, parse_record
from fasttrack.schema._json import StrictJsonError, canonical_bytes, loads


class Journal:
    """Records of a unit so far, in memory and, with a path, on disk."""

    def __init__(self, path: Path | None) -> None:
        """Read what an earlier attempt left; raises `RunError` RUN-003 where it is damaged."""
        self._path = path
        self._records: list[Record] = []
        self._sessions: dict[str, SessionRecord] = {}
        if path is not None and path.is_file():
            whole, _, _cut = path.read_bytes().rpartition(b"\n")
            path.write_bytes(whole + b"\n" if whole else b"")
            for number, line in enumerate(whole.splitlines(), 1):
                try:
                    self._take(_parsed(line))
                except ValueError as error:
                    raise RunError(
                        "RUN-003",
                        f"{path}: line {number}: {str(error)[:300]}",
                        next_step=f"mv {path} /tmp && repeat the command",
                    ) from error
        self.resumed = len(self.answers())

    def add(self, records: Sequence[Record]) -> None:
        """Keep the records of one call; on disk before this returns."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            value = [record.json_value() for record in records]
            with self._path.open("ab") as file:
                file.write(canonical_bytes(value) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._take(records)

    def answers(self) -> list[ItemRecord]:
        """Items answered or failed so far."""
        return [record for record in self._records if isinstance(record, ItemRecord)]

    @property
    def boots(self) -> int:
        """Sessions that began so far."""
        return len(self._sessions)

    def records(self) -> list[Record]:
        """All records: every session once, as last told."""
        return [*self._sessions.values(), *self._records]

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, SessionRecord):
                self._sessions[record.session] = record
            else:
                self._records.append(record)


def _parsed(line: bytes) -> list[Record]:
    value = loads(line)
    if not isinstance(value, list):
        raise StrictJsonError("a line of a journal is a list of records")
    return [parse_record(canonical_bytes(one)) for one in value]

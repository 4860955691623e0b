"""Names, roles, limits and order of a bundle's files. Pure; touches no file.

The run folder and the archive share one layout::

    claim/{claim.toml,claim.json,policy.json,plan.json,run.json}     claim    frozen beforehand
    claim/evals.json                                                 claim    items, where the
                                                                              claim has such evals
    {isolation,kernels,path,features,evals,perf}/<unit>.jsonl        record   one file per unit
    <stage>/failures.jsonl                                           record   units that failed
    verdicts.json  provenance.json  report/report.md                 results
    manifest.json  statement.json  attestation.dsse.json             what is signed
    signatures/<n>.{sig,json,json.sig}                               who signed it
    sigstore/<n>.json                                                who else did, optional

Files above the last three lines are covered by the manifest; anything else in a run folder (logs,
the lock) stays behind. Read by every module of this room.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Literal

from fasttrack.errors import VerificationFailed
from fasttrack.schema import STAGES, Record, parse_record

Role = Literal["claim", "record", "verdict", "provenance", "report", "log"]

CLAIM_TOML = "claim/claim.toml"
CLAIM = "claim/claim.json"
POLICY = "claim/policy.json"
PLAN = "claim/plan.json"
RUN = "claim/run.json"
EVALS = "claim/evals.json"
VERDICTS = "verdicts.json"
PROVENANCE = "provenance.json"
REPORT = "report/report.md"
MANIFEST = "manifest.json"
STATEMENT = "statement.json"
ENVELOPE = "attestation.dsse.json"
FAILURES = "failures"

REQUIRED: tuple[str, ...] = (
    CLAIM_TOML, CLAIM, POLICY, PLAN, RUN, VERDICTS, PROVENANCE, REPORT,
)  # fmt: skip
SEALS: tuple[str, ...] = (MANIFEST, STATEMENT, ENVELOPE)

# Far above honest bundles (a full run has some hundred files), far below what could hurt a reader.
MAX_MEMBERS = 20_000
MAX_MEMBER_BYTES = 2**31
MAX_TOTAL_BYTES = 2**32 - 2**20
MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_LINE_BYTES = 8 * 2**20
MAX_CLAIM_BYTES = 2**20
MAX_SIGNATURES = 16
MAX_KEYLESS = 4

_PART = r"[A-Za-z0-9_=+,@-][A-Za-z0-9._=+,@-]*"
_NAME = re.compile(rf"{_PART}(/{_PART}){{0,3}}\Z")
_UNIT = re.compile(rf"{_PART}\Z")
_RECORD = re.compile(rf"({'|'.join(STAGES)})/({_PART})\.jsonl\Z")
_SIGNATURE = re.compile(r"signatures/([1-9][0-9]?)\.(sig|json|json\.sig)\Z")
_KEYLESS = re.compile(r"sigstore/([1-9])\.json\Z")
_FIXED: dict[str, Role] = {
    CLAIM_TOML: "claim", CLAIM: "claim", POLICY: "claim", PLAN: "claim", RUN: "claim",
    EVALS: "claim",
    VERDICTS: "verdict", PROVENANCE: "provenance", REPORT: "report",
}  # fmt: skip


class BadLine(ValueError):
    """A record line that cannot be read; the message gives its number and why."""


def safe_name(name: str) -> bool:
    """Whether a name is a plain relative POSIX path of harmless ASCII characters.

    ASCII only, so no two names can differ by Unicode normalisation; no part begins with a dot, so
    none leads upwards.
    """
    return len(name) <= 240 and _NAME.match(name) is not None


def checked_name(raw: bytes) -> str:
    """A member's name; raises `VerificationFailed` VER-004 for one that could do harm."""
    name = raw.decode("ascii", errors="backslashreplace")
    if not raw.isascii() or not safe_name(name):
        raise VerificationFailed(
            "VER-004", "a member's name leads elsewhere or has unsafe characters", cell=name[:240]
        )
    return name


def unit_path(stage: str, unit: str) -> str:
    """Path of a unit's record file; raises `ValueError` for a name that cannot be one."""
    if stage not in STAGES or not _UNIT.match(unit):
        raise ValueError(f"not a stage and unit name: {stage!r}, {unit!r}")
    return f"{stage}/{unit}.jsonl"


def role(path: str) -> Role | None:
    """Role of a file that the manifest covers, or None."""
    if path in _FIXED:
        return _FIXED[path]
    return "record" if _RECORD.match(path) else None


def signature_number(path: str) -> int | None:
    """The number in the name of a signature file, or None for any other file."""
    match = _SIGNATURE.match(path)
    return int(match.group(1)) if match else None


def keyless_numbers(paths: Iterable[str]) -> list[int]:
    """Numbers of the Sigstore bundles among files, sorted."""
    return sorted(int(match.group(1)) for path in paths if (match := _KEYLESS.match(path)))


def keyless_name(number: int) -> str:
    """Name of a Sigstore bundle."""
    return f"sigstore/{number}.json"


def known(path: str) -> bool:
    """Whether a bundle may hold a file of that name."""
    signed = signature_number(path) is not None or _KEYLESS.match(path) is not None
    return role(path) is not None or path in SEALS or signed


def record_names(paths: Iterable[str], stage: str | None = None) -> list[str]:
    """Record files in the order in which they are always read: by stage, then by name."""
    found = [path for path in paths if _RECORD.match(path)]
    order: dict[str, int] = {name: index for index, name in enumerate(STAGES)}
    chosen = [path for path in found if stage in (None, path.split("/")[0])]
    return sorted(chosen, key=lambda path: (order[path.split("/")[0]], path))


def unit_of(path: str) -> tuple[str, str]:
    """(stage, unit) of a record file's path."""
    stage, _, file = path.partition("/")
    return stage, file.removesuffix(".jsonl")


def parse_lines(
    chunks: Generator[bytes, None, None], parse: Callable[[bytes], Record] = parse_record
) -> Iterator[Record]:
    """Records of one file, read piece by piece; the pieces are closed whatever happens.

    Raises `BadLine` for a line that is malformed, too long, empty, or not ended: a file that was
    cut short is damaged even when its last line happens to parse.
    """
    rest = b""
    number = 0
    with closing(chunks):
        for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise BadLine(f"line {number + len(lines) + 1} is too long")
            for line in lines:
                number += 1
                try:
                    record = parse(line)
                except ValueError as error:
                    raise BadLine(f"line {number}: {first_line(error)}") from error
                yield record
    if rest:
        raise BadLine(f"line {number + 1} is cut short")


def first_line(error: Exception) -> str:
    """An exception's message on one bounded line."""
    return " ".join(str(error).split())[:300]

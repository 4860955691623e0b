"""OpenSSH `allowed_signers` files: who may sign, with which key, for what and when.

Owns the reading of that format and `Allowed`, one permission, whatever file it comes from. Stricter
than OpenSSH where that file allows a surprise: times need a `Z`, since a result must not depend on
the verifier's time zone, and certificate authorities are not accepted. Read by `identity`.
Source: ssh-keygen(1), section "ALLOWED SIGNERS".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from fasttrack.bundle import sshsig
from fasttrack.errors import UsageError

_OPTION = re.compile(r'([A-Za-z-]+)(?:="([^"]*)")?(?:,|\Z)')
_TIME = re.compile(r"(\d{8})(\d{4}(?:\d{2})?)?Z\Z")


@dataclass(frozen=True)
class Allowed:
    """One line of the file, or one key of an account."""

    principals: tuple[str, ...]
    public_key: bytes
    namespaces: tuple[str, ...] = ()
    """Patterns; empty: any purpose."""
    valid_after: datetime | None = None
    valid_before: datetime | None = None
    removed: datetime | None = None
    """Of a GitHub account's key: when it was found to be gone."""


def parse(text: str, where: str) -> tuple[Allowed, ...]:
    """The lines of a file that messages call `where`.

    Raises `UsageError` USE-001 for a line that cannot be read, because a line that is skipped may
    be the one that matters.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            found.append(_line(line))
        except ValueError as error:
            raise UsageError(
                "USE-001", f"{where}:{number}: {error}", next_step=f"edit {where}"
            ) from error
    return tuple(found)


def _line(line: str) -> Allowed:
    if line.startswith('"'):
        principals, _, rest = line[1:].partition('"')
    else:
        principals, _, rest = line.partition(" ")
    rest = rest.strip()
    options: dict[str, str] = {}
    if not re.match(r"(ssh|ecdsa|sk)-", rest):
        options, rest = _options(rest)
    return Allowed(
        principals=tuple(part for part in principals.split(",") if part),
        public_key=sshsig.wire_key(rest),
        namespaces=tuple(part for part in options.get("namespaces", "").split(",") if part),
        valid_after=_time(options["valid-after"]) if "valid-after" in options else None,
        valid_before=_time(options["valid-before"]) if "valid-before" in options else None,
    )


def _options(text: str) -> tuple[dict[str, str], str]:
    """Options and what follows them."""
    field = re.match(r'(?:[^\s"]|"[^"]*")+', text)
    if field is None:
        raise ValueError("no key")
    found: dict[str, str] = {}
    at = 0
    while at < len(field.group()):
        option = _OPTION.match(field.group(), at)
        if option is None:
            raise ValueError(f"cannot read the option at {field.group()[at : at + 30]!r}")
        name = option.group(1).lower()
        if name not in ("namespaces", "valid-after", "valid-before") or name in found:
            raise ValueError(f"the option {name!r} is not supported here, or stands twice")
        found[name] = option.group(2) or ""
        at = option.end()
    if not all(found.values()):
        raise ValueError("an option has no value")
    return found, text[field.end() :].strip()


def _time(text: str) -> datetime:
    match = _TIME.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not YYYYMMDD[HHMM[SS]]Z; the Z (UTC) is required")
    digits = match.group(1) + (match.group(2) or "0000")
    return datetime.strptime(digits.ljust(14, "0"), "%Y%m%d%H%M%S").replace(tzinfo=UTC)

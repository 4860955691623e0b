"""Step 6: is a genuine signer one whom the reader of this file trusts.

Owns the reading of OpenSSH `allowed_signers` files and the decision for one signer. Stricter than
OpenSSH where that file allows a surprise: times need a `Z`, since a result must not depend on the
verifier's time zone, and certificate authorities are not accepted. Read by `steps`.
Source: ssh-keygen(1), section "ALLOWED SIGNERS".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fasttrack.bundle import sshsig
from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.schema.evidence import SIGNATURE_NAMESPACE
from fasttrack.verify.signature import Signer

MAX_BYTES = 4 * 2**20
_OPTION = re.compile(r'([A-Za-z-]+)(?:="([^"]*)")?(?:,|\Z)')
_TIME = re.compile(r"(\d{8})(\d{4}(?:\d{2})?)?Z\Z")


@dataclass(frozen=True)
class Allowed:
    """One line of the file."""

    principals: tuple[str, ...]
    public_key: bytes
    namespaces: tuple[str, ...] = ()
    """Patterns; empty: any purpose."""
    valid_after: datetime | None = None
    valid_before: datetime | None = None


def read(path: Path) -> tuple[Allowed, ...]:
    """The lines of an `allowed_signers` file; raises `UsageError` USE-001 for a file or line that
    cannot be read, because a line that is skipped may be the one that matters."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("USE-001", f"cannot read {path}: {error}") from error
    if len(data) > MAX_BYTES:
        raise UsageError("USE-001", f"{path} is larger than {MAX_BYTES} bytes")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            found.append(_line(line))
        except ValueError as error:
            raise UsageError(
                "USE-001", f"{path}:{number}: {error}", next_step=f"edit {path}"
            ) from error
    return tuple(found)


def check(signer: Signer, allowed: tuple[Allowed, ...]) -> None:
    """Demand that one line lists this principal with this key, for this purpose, at this time.

    Raises `VerificationFailed` VER-040..043; with several lines the most favourable one counts.
    """
    cell = f"signatures/{signer.number}.json"
    named = [line for line in allowed if _matches(signer.principal, line.principals)]
    if not named:
        raise VerificationFailed(
            "VER-040", f"{signer.principal} is not in the list of allowed signers", cell=cell
        )
    keyed = [line for line in named if line.public_key == signer.public_key]
    if not keyed:
        raise VerificationFailed(
            "VER-041",
            f"{signer.principal} is not listed with the key {signer.key_fingerprint}",
            cell=cell,
        )
    purposed = [
        line for line in keyed
        if not line.namespaces or _matches(SIGNATURE_NAMESPACE, line.namespaces)
    ]  # fmt: skip
    if not purposed:
        raise VerificationFailed(
            "VER-043",
            f"the key of {signer.principal} is not listed for {SIGNATURE_NAMESPACE}",
            cell=cell,
        )
    if not any(_valid(line, signer.signed) for line in purposed):
        raise VerificationFailed(
            "VER-042",
            f"the key of {signer.principal} was not valid at {signer.signed.isoformat()}",
            cell=cell,
        )


def _valid(line: Allowed, when: datetime) -> bool:
    early = line.valid_after is not None and when < line.valid_after
    late = line.valid_before is not None and when > line.valid_before
    return not early and not late


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


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """OpenSSH pattern list: `*` and `?`, and a leading `!` that excludes."""
    if any(p.startswith("!") and _glob(p[1:], name) for p in patterns):
        return False
    return any(not p.startswith("!") and _glob(p, name) for p in patterns)


def _glob(pattern: str, name: str) -> bool:
    expression = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    return re.fullmatch(expression, name) is not None

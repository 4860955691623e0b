"""Step 6: is a genuine signer one whom the reader of this file trusts.

Owns the decision for one signer, and which file is of which kind: an OpenSSH `allowed_signers` file
(`allowed`) or a snapshot of GitHub accounts' keys (`github`). Read by `steps` and by the gate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from fasttrack.bundle import sshsig
from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.schema.evidence import SIGNATURE_NAMESPACE
from fasttrack.verify import allowed as openssh
from fasttrack.verify import github
from fasttrack.verify.allowed import Allowed
from fasttrack.verify.signature import Signer

MAX_BYTES = 4 * 2**20


def read(path: Path) -> tuple[Allowed, ...]:
    """The permissions of a file of either kind; raises `UsageError` USE-001."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError("USE-001", f"cannot read {path}: {error.strerror}") from error
    return parse(data, str(path))


def parse(data: bytes, where: str) -> tuple[Allowed, ...]:
    """The permissions in a file's bytes; messages call it `where`. Raises `UsageError` USE-001."""
    if len(data) > MAX_BYTES:
        raise UsageError("USE-001", f"{where} is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("USE-001", f"cannot read {where}: {error}") from error
    if text.lstrip().startswith("{"):
        return github.parse(text, where)
    return openssh.parse(text, where)


def check(signer: Signer, allowed: Sequence[Allowed]) -> None:
    """Demand that one line lists a signer's principal and key for evidence, at that time.

    Raises `VerificationFailed` VER-040..044.
    """
    check_key(
        signer.principal,
        signer.public_key,
        SIGNATURE_NAMESPACE,
        signer.signed,
        allowed,
        cell=f"signatures/{signer.number}.json",
    )


def check_key(
    principal: str,
    public_key: bytes,
    namespace: str,
    when: datetime,
    allowed: Sequence[Allowed],
    *,
    cell: str,
) -> None:
    """Demand that one line lists this principal with this key, for this purpose, at this time.

    `cell` is the file to name. With several lines the most favourable one counts. Raises
    `VerificationFailed` VER-040 (nobody of that name), VER-041 (another key), VER-043 (another
    purpose), VER-044 (key removed from its account before), VER-042 (not valid then).
    """
    named = [line for line in allowed if _matches(principal, line.principals)]
    if not named:
        raise VerificationFailed(
            "VER-040", f"{principal} is not in the list of allowed signers", cell=cell
        )
    keyed = [line for line in named if line.public_key == public_key]
    if not keyed:
        raise VerificationFailed(
            "VER-041",
            f"{principal} is not listed with the key {sshsig.fingerprint(public_key)}",
            cell=cell,
        )
    purposed = [
        line for line in keyed if not line.namespaces or _matches(namespace, line.namespaces)
    ]
    if not purposed:
        raise VerificationFailed(
            "VER-043", f"the key of {principal} is not listed for {namespace}", cell=cell
        )
    if any(_valid(line, when) for line in purposed):
        return
    gone = [line.removed for line in purposed if line.removed is not None and when > line.removed]
    if len(gone) == len(purposed):
        raise VerificationFailed(
            "VER-044",
            f"the key of {principal} was removed from the account {max(gone).isoformat()}",
            cell=cell,
        )
    raise VerificationFailed(
        "VER-042", f"the key of {principal} was not valid at {when.isoformat()}", cell=cell
    )


def _valid(line: Allowed, when: datetime) -> bool:
    early = line.valid_after is not None and when < line.valid_after
    late = any(end is not None and when > end for end in (line.valid_before, line.removed))
    return not early and not late


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """OpenSSH pattern list: `*` and `?`, and a leading `!` that excludes."""
    if any(p.startswith("!") and _glob(p[1:], name) for p in patterns):
        return False
    return any(not p.startswith("!") and _glob(p, name) for p in patterns)


def _glob(pattern: str, name: str) -> bool:
    expression = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
    return re.fullmatch(expression, name) is not None

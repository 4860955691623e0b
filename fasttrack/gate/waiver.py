"""Waivers: a maintainer's signed word that one demand may be set aside for one change.

Owns the file's form and the reasons for refusing one. `submissions/**/<any>.waiver.toml`::

    schema = "fasttrack.waiver/v1"
    rule = "GAT-005"                    # what is waived
    change_sha256 = "..."               # of exactly these changed files; the gate prints it
    reason = "Only a comment changed since the run."
    approver = "carol@example.org"      # a principal of the protected branch's allowed_signers
    expires = 2026-12-31                # the last day

Beside it lies `<any>.waiver.toml.sig`, made by the approver::

    ssh-keygen -Y sign -f KEY -n fasttrack-waiver-v1@fasttrack.dev X.waiver.toml

Anyone can write a name into a file, hence the signature; and anyone listed for evidence could waive
what their own evidence lacks, hence the approver's line in `allowed_signers` must name the purpose:
`carol@example.org namespaces="fasttrack-waiver-v1@fasttrack.dev" ssh-ed25519 AAAA...`. Read by
`change`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from fasttrack.bundle import sshsig
from fasttrack.bundle.layout import first_line
from fasttrack.errors import VerificationFailed
from fasttrack.gate.findings import DEMANDS, Decision, Finding
from fasttrack.schema import Policy
from fasttrack.schema.claim import Frozen
from fasttrack.verify import identity
from fasttrack.verify.allowed import Allowed

SUFFIX = ".waiver.toml"
NAMESPACE = "fasttrack-waiver-v1@fasttrack.dev"
MAX_BYTES = 16 * 1024


class Waiver(Frozen):
    """One waiver; see the module docstring."""

    schema_: Literal["fasttrack.waiver/v1"] = Field(alias="schema")
    rule: str = Field(pattern=r"^GAT-[0-9]{3}$")
    change_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    reason: str = Field(min_length=20, max_length=1000)
    approver: str = Field(pattern=r"^[A-Za-z0-9._%+@/-]{1,128}$")
    expires: date

    model_config = ConfigDict(extra="forbid", frozen=True)


class Refused(ValueError):
    """A waiver that does not count; `code` is one of GAT-020..025."""

    def __init__(self, code: str, cause: str) -> None:
        super().__init__(cause)
        self.code = code


def read(source: bytes) -> Waiver:
    """A waiver from its file's bytes; raises `Refused` GAT-020."""
    try:
        return Waiver.model_validate(tomllib.loads(source.decode("utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused("GAT-020", f"{where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise Refused("GAT-020", first_line(error)) from error


def check(
    told: Waiver,
    source: bytes,
    signature: bytes | None,
    *,
    change_sha256: str,
    policy: Policy,
    allowed: Sequence[Allowed],
    authors: Mapping[bytes, str],
    now: datetime,
) -> None:
    """Demand that a waiver counts for this change, here and now.

    `authors` maps the keys that signed the change's evidence to their principals. Raises `Refused`.
    """
    if told.rule not in DEMANDS or told.rule not in policy.gate.waivable:
        raise Refused("GAT-022", f"{told.rule} is not a demand that policy lets anyone waive")
    if told.change_sha256 != change_sha256:
        raise Refused("GAT-025", f"it is about {told.change_sha256[:12]}, not {change_sha256[:12]}")
    if now.date() > told.expires:
        raise Refused("GAT-021", f"it ended with {told.expires.isoformat()}")
    key = _signer(source, signature)
    try:
        identity.check_key(
            told.approver,
            key,
            NAMESPACE,
            now,
            [line for line in allowed if line.namespaces],
            cell=told.approver,
        )
    except VerificationFailed as error:
        raise Refused("GAT-023", f"{error.code}: {error.cause}") from error
    if key in authors or told.approver in authors.values():
        raise Refused("GAT-024", f"{told.approver} signed the evidence")


def _signer(source: bytes, signature: bytes | None) -> bytes:
    if signature is None:
        raise Refused("GAT-020", "there is no signature file beside it")
    try:
        parsed = sshsig.parse(signature)
        sshsig.verify(parsed, source)
    except sshsig.BadSignatureError as error:
        raise Refused("GAT-023", f"its signature: {error}") from error
    except ValueError as error:
        raise Refused("GAT-020", f"its signature: {error}") from error
    if parsed.namespace != NAMESPACE:
        raise Refused("GAT-023", f"it was signed for {parsed.namespace[:80]!r}, not {NAMESPACE}")
    return parsed.public_key


def apply(decision: Decision, waivers: Sequence[Waiver]) -> Decision:
    """A decision whose waived findings say so."""
    by_rule = {waiver.rule: waiver for waiver in waivers}
    findings = []
    for finding in decision.findings:
        waiver = by_rule.get(finding.code)
        findings.append(finding if waiver is None else _waived(finding, waiver))
    return replace(decision, findings=tuple(findings))


def _waived(finding: Finding, waiver: Waiver) -> Finding:
    told = f"waived by {waiver.approver} until {waiver.expires.isoformat()}: {waiver.reason}"
    return replace(finding, waived=told)

"""The in-toto statement, the exact bytes that are signed, and the DSSE envelope around them.

Owns: statement bytes (RFC 8785, made once and kept; never serialised again before checking), the
pre-authentication encoding, and the envelope's only allowed form. Does not own signatures
(`sshsig`, `sign`). Sources: in-toto attestation framework, Statement v1; DSSE protocol v1.0.0.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fasttrack.bundle import layout
from fasttrack.bundle.documents import model, strict_json
from fasttrack.errors import VerificationFailed
from fasttrack.schema import Outcome, RunInfo, Statement
from fasttrack.schema._json import canonical_bytes
from fasttrack.schema.evidence import PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE


@dataclass(frozen=True)
class EnvelopeSignature:
    """One entry of the envelope: the key's fingerprint and the raw SSHSIG bytes."""

    keyid: str
    sig: bytes


def predicate(run: RunInfo, outcome: Outcome) -> dict[str, Any]:
    """What the statement says beside the manifest's digest; the verifier derives it again."""
    return {
        "claim_sha256": run.claim_sha256,
        "policy_sha256": run.policy_sha256,
        "plan_sha256": run.plan_sha256,
        "run_id": run.run_id,
        "target": run.target,
        "tier": run.tier.value,
        "outcome": outcome.state.value,
        "admissible": outcome.admissible,
        "harness_version": run.harness_version,
    }


def make(manifest_sha256: str, run: RunInfo, outcome: Outcome) -> bytes:
    """The statement's exact bytes."""
    return canonical_bytes(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": layout.MANIFEST, "digest": {"sha256": manifest_sha256}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate(run, outcome),
        }
    )


def parse(data: bytes) -> Statement:
    """A statement from its exact bytes.

    Raises `VerificationFailed`: VER-017 not strict JSON, VER-019 a newer predicate type, VER-020
    shape, VER-021 `_type`, VER-022 another predicate type, VER-023 no SHA-256 subject.
    """
    value = strict_json(data, layout.STATEMENT)
    if value.get("_type") != STATEMENT_TYPE:
        raise VerificationFailed(
            "VER-021", f"its _type is not {STATEMENT_TYPE}", cell=layout.STATEMENT
        )
    _check_predicate_type(value.get("predicateType"))
    statement = model(Statement, value, layout.STATEMENT, code="VER-020")
    if len(statement.subject) != 1 or subject_sha256(statement) is None:
        raise VerificationFailed(
            "VER-023", "it must name one subject, with a SHA-256 digest", cell=layout.STATEMENT
        )
    return statement


def subject_sha256(statement: Statement) -> str | None:
    """The manifest digest a statement names, or None when it names none in SHA-256."""
    subject = statement.subject[0]
    digests = subject.get("digest")
    if subject.get("name") != layout.MANIFEST or not isinstance(digests, dict):
        return None
    value = digests.get("sha256")
    return value if isinstance(value, str) else None


def _check_predicate_type(found: Any) -> None:
    if found == PREDICATE_TYPE:
        return
    stem, _, version = PREDICATE_TYPE.rpartition("/v")
    if isinstance(found, str) and found.startswith(f"{stem}/v"):
        number = found.removeprefix(f"{stem}/v")
        if number.isascii() and number.isdecimal() and int(number[:9]) > int(version):
            raise VerificationFailed(
                "VER-019",
                f"its predicate type v{number[:9]} is newer than v{version}: unknown, and unknown "
                "is not a pass",
                next_step="pip install --upgrade fasttrack",
                cell=layout.STATEMENT,
            )
    raise VerificationFailed(
        "VER-022", f"its predicate type is not {PREDICATE_TYPE}", cell=layout.STATEMENT
    )


def pae(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """DSSE pre-authentication encoding: what a signature covers."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def envelope(payload: bytes, signatures: Sequence[EnvelopeSignature]) -> bytes:
    """Canonical envelope bytes; an empty list is an envelope that nobody signed yet."""
    return canonical_bytes(
        {
            "payload": base64.b64encode(payload).decode("ascii"),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {"keyid": item.keyid, "sig": base64.b64encode(item.sig).decode("ascii")}
                for item in signatures
            ],
        }
    )


def check_envelope(data: bytes, payload: bytes, signatures: Sequence[EnvelopeSignature]) -> None:
    """Demand that an envelope says exactly what the files beside it say.

    Raises `VerificationFailed`: VER-026 shape, VER-027 payload type, VER-028 another payload,
    VER-029 other signatures.
    """
    value = strict_json(data, layout.ENVELOPE)
    if set(value) != {"payload", "payloadType", "signatures"}:
        raise VerificationFailed("VER-026", "not a DSSE envelope", cell=layout.ENVELOPE)
    if value["payloadType"] != PAYLOAD_TYPE:
        raise VerificationFailed(
            "VER-027", f"its payload type is not {PAYLOAD_TYPE}", cell=layout.ENVELOPE
        )
    if value["payload"] != base64.b64encode(payload).decode("ascii"):
        raise VerificationFailed(
            "VER-028", "its payload is not the statement beside it", cell=layout.ENVELOPE
        )
    if data != envelope(payload, signatures):
        raise VerificationFailed(
            "VER-029", "its signatures are not those of the signature files", cell=layout.ENVELOPE
        )

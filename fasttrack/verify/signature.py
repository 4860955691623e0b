"""Steps 4 and 5: the envelope says what the files say, and every signature is genuine.

Owns the check of signatures and of their cards. Whether a signer is trusted is `identity`'s
question. Read by `steps`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from fasttrack.bundle import card, layout, sshsig, statement
from fasttrack.bundle.card import Card, Challenge
from fasttrack.bundle.reader import Bundle
from fasttrack.errors import VerificationFailed
from fasttrack.schema.evidence import SIGNATURE_NAMESPACE

CLOCK_SKEW = timedelta(minutes=10)


@dataclass(frozen=True)
class Signer:
    """A genuine signature: who says they made it, and with which key."""

    number: int
    principal: str
    role: str
    key_fingerprint: str
    public_key: bytes
    """SSH wire form."""
    signed: datetime
    challenge: Challenge | None = None

    def json_value(self) -> dict[str, Any]:
        """The JSON object of this value."""
        return {
            "number": self.number,
            "principal": self.principal,
            "role": self.role,
            "key_fingerprint": self.key_fingerprint,
            "public_key": sshsig.public_line(self.public_key),
            "signed_utc": self.signed.isoformat(),
            "challenge": self.challenge.json_value() if self.challenge else None,
        }


def check_envelope(bundle: Bundle) -> int:
    """Number of signatures the envelope lists, all of them those of the files beside it.

    Raises `VerificationFailed` VER-010, VER-026..029, VER-031 or VER-034.
    """
    numbers = bundle.signature_numbers()
    if numbers != tuple(range(1, len(numbers) + 1)) or len(numbers) > layout.MAX_SIGNATURES:
        raise VerificationFailed(
            "VER-034", "signatures are not numbered from 1 without gaps", cell="signatures"
        )
    listed = []
    for number in numbers:
        parsed = _parsed(bundle, f"signatures/{number}.sig")
        listed.append(
            statement.EnvelopeSignature(sshsig.fingerprint(parsed.public_key), parsed.encode())
        )
    statement.check_envelope(bundle.read(layout.ENVELOPE), bundle.statement_bytes, listed)
    return len(numbers)


def check_signatures(bundle: Bundle, now: datetime) -> tuple[Signer, ...]:
    """All signers, each with two genuine signatures by one key: of statement and of card.

    Raises `VerificationFailed` VER-030..037.
    """
    numbers = bundle.signature_numbers()
    if not numbers:
        raise VerificationFailed(
            "VER-030",
            "the file carries no signature",
            next_step="fasttrack sign FILE",
            cell=layout.ENVELOPE,
        )
    signers: list[Signer] = []
    for number in numbers:
        signer = _signer(bundle, number, now)
        if any(other.key_fingerprint == signer.key_fingerprint for other in signers):
            raise VerificationFailed(
                "VER-036",
                f"{signer.key_fingerprint} signed twice",
                cell=f"signatures/{number}.sig",
            )
        signers.append(signer)
    return tuple(signers)


def _signer(bundle: Bundle, number: int, now: datetime) -> Signer:
    name = f"signatures/{number}.json"
    data = bundle.read(name)
    payload = bundle.statement_bytes
    signature = _checked(
        bundle, f"signatures/{number}.sig", statement.pae(payload), SIGNATURE_NAMESPACE
    )
    card_signature = _checked(bundle, f"{name}.sig", data, card.NAMESPACE)
    told = card.parse(data, name)
    _check_card(told, name, signature, card_signature, payload)
    _check_time(told, name, bundle, now)
    return Signer(
        number=number,
        principal=told.principal,
        role=told.role,
        key_fingerprint=told.key_fingerprint,
        public_key=signature.public_key,
        signed=told.signed,
        challenge=told.challenge,
    )


def _parsed(bundle: Bundle, name: str) -> sshsig.SshSignature:
    try:
        return sshsig.parse(bundle.read(name))
    except sshsig.SshsigError as error:
        raise VerificationFailed("VER-031", str(error), cell=name) from error


def _checked(bundle: Bundle, name: str, message: bytes, namespace: str) -> sshsig.SshSignature:
    signature = _parsed(bundle, name)
    if signature.namespace != namespace:
        raise VerificationFailed(
            "VER-032", f"its namespace is {signature.namespace[:80]!r}, not {namespace}", cell=name
        )
    try:
        sshsig.verify(signature, message)
    except sshsig.SshsigError as error:
        raise VerificationFailed("VER-031", str(error), cell=name) from error
    except sshsig.WeakKeyError as error:
        raise VerificationFailed("VER-035", str(error), cell=name) from error
    except sshsig.BadSignatureError as error:
        raise VerificationFailed("VER-033", str(error), cell=name) from error
    return signature


def _check_card(
    told: Card,
    name: str,
    signature: sshsig.SshSignature,
    card_signature: sshsig.SshSignature,
    payload: bytes,
) -> None:
    if told.statement_sha256 != hashlib.sha256(payload).hexdigest():
        raise VerificationFailed("VER-034", "it is about another statement", cell=name)
    if card_signature.public_key != signature.public_key:
        raise VerificationFailed("VER-034", "another key signed it than the statement", cell=name)
    line = sshsig.public_line(signature.public_key)
    if told.public_key != line or told.key_fingerprint != sshsig.fingerprint(signature.public_key):
        raise VerificationFailed("VER-034", "it names another key", cell=name)


def _check_time(told: Card, name: str, bundle: Bundle, now: datetime) -> None:
    if told.signed > now + CLOCK_SKEW:
        raise VerificationFailed("VER-037", f"signed in the future: {told.signed_utc}", cell=name)
    try:
        created = datetime.fromisoformat(bundle.run.created_utc)
        early = told.signed < created - CLOCK_SKEW
    except (ValueError, TypeError) as error:
        raise VerificationFailed(
            "VER-018", "created_utc is not a time with a zone", cell=layout.RUN
        ) from error
    if early:
        raise VerificationFailed(
            "VER-037", f"signed {told.signed_utc}, before the run began", cell=name
        )

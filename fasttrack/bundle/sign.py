"""Add a person's signature to a result file.

Owns what is signed (the statement's pre-authentication encoding, and the signer's card) and how the
archive grows. Keys come from `keys`; whom to trust is decided by `verify.identity`. Signing needs
no GPU and no run folder, so it may happen on another machine than measuring.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from fasttrack.bundle import atomic, card, keys, layout, manifest, sshsig, statement
from fasttrack.bundle.archive import write
from fasttrack.bundle.card import Card, Challenge, SignerRole
from fasttrack.bundle.keys import development_key
from fasttrack.bundle.reader import Bundle, open_bundle
from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.schema._json import canonical_bytes
from fasttrack.schema.evidence import PAYLOAD_TYPE, SIGNATURE_NAMESPACE

__all__ = ["SignatureInfo", "development_key", "sign", "verify_lines"]


@dataclass(frozen=True)
class SignatureInfo:
    """A signature that was added."""

    number: int
    principal: str
    role: str
    key_fingerprint: str
    public_key: str
    signed_utc: str

    def json_value(self) -> dict[str, str | int]:
        """The JSON object of this value."""
        return asdict(self)


def sign(
    ftb: Path,
    *,
    key: Path | None,
    principal: str,
    role: SignerRole = "author",
    challenge: Challenge | None = None,
    now: datetime | None = None,
) -> SignatureInfo:
    """Add a signature to an archive, atomically; the same key in the same role replaces its own.

    `key` names a private key file (Ed25519, ECDSA, RSA), a `.pub` file whose key an SSH agent or a
    FIDO device holds, or None for the only key of the agent. `challenge` records what a reproducer
    measured again; `now` is the signer's clock. Raises `EnvironmentUnmet` ENV-006,
    `UsageError` USE-001 (principal, role), `VerificationFailed` for a file that is damaged already.
    """
    with open_bundle(ftb) as bundle:
        if not bundle.sealed:
            raise UsageError("USE-001", f"{ftb} is a run folder; sign the .ftb file made from it")
        payload = bundle.statement_bytes
        if statement.subject_sha256(bundle.statement) != bundle.manifest_sha256:
            raise VerificationFailed(
                "VER-024", "its subject is not this manifest", cell=layout.STATEMENT
            )
        signer = keys.find(key)
        mine = _card(signer, payload, principal, role, challenge, now or datetime.now(UTC))
        present = _present(bundle)
        number = _number(present, mine)
        present[number] = (
            sshsig.armour(signer.sign(statement.pae(payload), SIGNATURE_NAMESPACE).encode()),
            canonical_bytes(mine.json_value()),
            sshsig.armour(signer.sign(canonical_bytes(mine.json_value()), card.NAMESPACE).encode()),
        )
        _rewrite(bundle, ftb, payload, present)
    return SignatureInfo(
        number, mine.principal, mine.role, mine.key_fingerprint, mine.public_key, mine.signed_utc
    )


def verify_lines(ftb: Path, info: SignatureInfo) -> str:
    """Shell lines with which anyone can check a signature without this program.

    They rebuild the signed bytes (a prefix with the statement's length, then the statement) and
    hand them to ssh-keygen. Needs unzip and OpenSSH 8.1 or newer.
    """
    return "\n".join(
        [
            f"unzip -q {shlex.quote(ftb.name)} -d check && cd check",
            f"echo '{info.principal} {info.public_key}' > signers   # or your allowed_signers",
            f"(printf 'DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} %d ' "
            f"$(wc -c < {layout.STATEMENT}); "
            f"cat {layout.STATEMENT}) |",
            f"  ssh-keygen -Y verify -f signers -I {info.principal} -n {SIGNATURE_NAMESPACE} "
            f"-s signatures/{info.number}.sig",
            f"sha256sum {layout.MANIFEST}   # is the sha256 named in {layout.STATEMENT}",
        ]
    )


def _card(
    signer: keys.Signer,
    payload: bytes,
    principal: str,
    role: SignerRole,
    challenge: Challenge | None,
    now: datetime,
) -> Card:
    try:
        return Card(
            principal=principal,
            role=role,
            key_fingerprint=sshsig.fingerprint(signer.public_key),
            public_key=sshsig.public_line(signer.public_key),
            statement_sha256=hashlib.sha256(payload).hexdigest(),
            signed_utc=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            challenge=challenge,
        )
    except ValidationError as error:
        raise UsageError(
            "USE-001",
            f"{error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}",
            next_step="fasttrack sign FILE --principal you@example.org --role author",
        ) from error


def _present(bundle: Bundle) -> dict[int, tuple[bytes, bytes, bytes]]:
    return {
        number: (
            bundle.read(f"signatures/{number}.sig"),
            bundle.read(f"signatures/{number}.json"),
            bundle.read(f"signatures/{number}.json.sig"),
        )
        for number in bundle.signature_numbers()
    }


def _number(present: dict[int, tuple[bytes, bytes, bytes]], mine: Card) -> int:
    """The place of a signature: its own older one's, or the next."""
    for number, (_, data, _) in present.items():
        other = card.parse(data, f"signatures/{number}.json")
        if other.key_fingerprint == mine.key_fingerprint:
            if other.role != mine.role:
                raise UsageError(
                    "USE-001",
                    f"this key signed as {other.role} already; one key cannot vouch for itself as "
                    f"{mine.role}",
                    next_step="sign with the key of another person",
                )
            return number
    if len(present) >= layout.MAX_SIGNATURES:
        raise UsageError("USE-001", f"the file holds {len(present)} signatures, the most it may")
    return max(present, default=0) + 1


def _rewrite(
    bundle: Bundle, ftb: Path, payload: bytes, present: dict[int, tuple[bytes, bytes, bytes]]
) -> None:
    """Write the archive anew with these signatures and the envelope that lists them."""
    new: dict[str, bytes] = {}
    entries: list[statement.EnvelopeSignature] = []
    for number in sorted(present):
        signature, data, card_signature = present[number]
        new[f"signatures/{number}.sig"] = signature
        new[f"signatures/{number}.json"] = data
        new[f"signatures/{number}.json.sig"] = card_signature
        try:
            parsed = sshsig.parse(signature)
        except sshsig.SshsigError as error:
            raise VerificationFailed(
                "VER-031", str(error), cell=f"signatures/{number}.sig"
            ) from error
        entries.append(
            statement.EnvelopeSignature(sshsig.fingerprint(parsed.public_key), parsed.encode())
        )
    new[layout.ENVELOPE] = statement.envelope(payload, entries)

    def content(name: str) -> Iterator[bytes]:
        return iter((new[name],)) if name in new else bundle.chunks(name)

    names = set(bundle.names) | set(new)
    files = {name: manifest.measure(content(name)) for name in names}
    with atomic.replacing(ftb) as out:
        write(out, files, content)

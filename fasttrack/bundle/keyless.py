"""Sigstore bundles beside the SSH signatures: the same statement bytes, an identity from a log-in.

Owns making one (`add`, which needs the extra `sigstore` and its servers) and what can be said of
one without that library (`payload`). It adds to SSH signatures and replaces none: a person's key
works offline and is what `allowed_signers` lists; a Sigstore identity is that of a CI workflow or
of an e-mail address, and leaves a line in a public log. Read by `fasttrack sign` and
`verify.keyless`. Sources: Sigstore bundle format v0.3; DSSE protocol v1.0.0.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fasttrack.bundle import atomic, layout, manifest, statement
from fasttrack.bundle.archive import write
from fasttrack.bundle.documents import strict_json
from fasttrack.bundle.reader import open_bundle
from fasttrack.errors import EnvironmentUnmet, UsageError, VerificationFailed
from fasttrack.schema._json import canonical_bytes
from fasttrack.schema.evidence import PAYLOAD_TYPE

EXTRA = "pip install 'fasttrack[sigstore]'"


def add(ftb: Path) -> str:
    """Sign a result file's statement with Sigstore and put the bundle into the file.

    The identity is the ambient one of a CI job, or that of an interactive log-in. Returns the name
    of the new member. Raises `EnvironmentUnmet` ENV-001 without the extra, ENV-006 when no identity
    could be had or a server refused; `UsageError` USE-001 for a run folder or a full file.
    """
    with open_bundle(ftb) as bundle:
        if not bundle.sealed:
            raise UsageError("USE-001", f"{ftb} is a run folder; sign the .ftb file made from it")
        if statement.subject_sha256(bundle.statement) != bundle.manifest_sha256:
            raise VerificationFailed(
                "VER-024", "its subject is not this manifest", cell=layout.STATEMENT
            )
        numbers = layout.keyless_numbers(bundle.names)
        if len(numbers) >= layout.MAX_KEYLESS:
            raise UsageError("USE-001", f"the file holds {len(numbers)} Sigstore bundles already")
        name = layout.keyless_name(max(numbers, default=0) + 1)
        new = canonical_bytes(json.loads(_sign(bundle.statement_bytes)))
        payload(new, name, bundle.statement_bytes)

        def content(member: str) -> Iterator[bytes]:
            return iter((new,)) if member == name else bundle.chunks(member)

        files = {member: manifest.measure(content(member)) for member in (*bundle.names, name)}
        with atomic.replacing(ftb) as out:
            write(out, files, content)
    return name


def _sign(data: bytes) -> str:
    """A Sigstore bundle over exactly these statement bytes, as its library writes it."""
    try:
        from sigstore import dsse, models, oidc, sign
    except ImportError as error:
        raise EnvironmentUnmet(
            "ENV-001", "signing with Sigstore needs the package 'sigstore'", next_step=EXTRA
        ) from error
    try:
        trust = models.ClientTrustConfig.production()
        ambient = oidc.detect_credential()
        if ambient is not None:
            token = oidc.IdentityToken(ambient)
        else:
            token = oidc.Issuer(trust.signing_config.get_oidc_url()).identity_token()
        with sign.SigningContext.from_trust_config(trust).signer(token) as signer:
            made: str = signer.sign_dsse(dsse.Statement(data)).to_json()
            return made
    except Exception as error:  # its tree of errors spans three libraries and the network
        raise EnvironmentUnmet(
            "ENV-006",
            f"Sigstore could not sign: {layout.first_line(error)}",
            next_step="check the network, or sign with an SSH key: fasttrack sign FILE --key KEY",
        ) from error


def payload(data: bytes, name: str, expected: bytes) -> dict[str, Any]:
    """A Sigstore bundle whose envelope holds exactly the expected statement, as JSON.

    Says nothing about its signature. Raises `VerificationFailed` VER-017, VER-045.
    """
    value = strict_json(data, name)
    envelope = value.get("dsseEnvelope")
    if not isinstance(envelope, dict):
        raise VerificationFailed("VER-045", "it holds no DSSE envelope", cell=name)
    if envelope.get("payloadType") != PAYLOAD_TYPE:
        raise VerificationFailed("VER-045", "its envelope holds no in-toto statement", cell=name)
    try:
        found = base64.b64decode(str(envelope.get("payload")), validate=True)
    except (binascii.Error, ValueError) as error:
        raise VerificationFailed("VER-045", "its payload is not base64", cell=name) from error
    if found != expected:
        raise VerificationFailed("VER-045", "it is over another statement", cell=name)
    return value

"""Step 6, second half: Sigstore bundles, for readers who ask for an identity.

Owns the check against Sigstore's trust root, offline: the one that its library carries, or one that
the reader gives. Without a wanted identity nothing is concluded from a bundle, and that is said.
Read by `steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrack.bundle import keyless, layout
from fasttrack.bundle.reader import Bundle
from fasttrack.errors import EnvironmentUnmet, VerificationFailed

Check = Callable[[str], tuple[str, bytes]]


@dataclass(frozen=True)
class Wanted:
    """Whose Sigstore signature the reader demands."""

    identity: str
    """An e-mail address, or a workflow's URL with its reference."""
    issuer: str
    """Who vouches for it, e.g. ``https://token.actions.githubusercontent.com``."""
    trust_root: Path | None = None
    """A trust root file instead of the one the library carries."""


def check(bundle: Bundle, wanted: Wanted | None) -> str:
    """What was found, in a few words; empty for a file without bundles of which none was wanted.

    Raises `VerificationFailed`: VER-017, VER-045 (not over this statement), VER-046 (not genuine,
    or of somebody else); `EnvironmentUnmet` ENV-001 when one is wanted and the extra is missing.
    """
    names = [layout.keyless_name(number) for number in layout.keyless_numbers(bundle.names)]
    for name in names:
        keyless.payload(bundle.read(name), name, bundle.statement_bytes)
    if wanted is None:
        return f"{len(names)} Sigstore bundles not checked: no identity was asked for" * bool(names)
    if not names:
        raise VerificationFailed(
            "VER-046", "the file carries no Sigstore bundle", cell=layout.ENVELOPE
        )
    examine = _library(wanted)
    refused: list[str] = []
    for name in names:
        try:
            kind, payload = examine(bundle.read(name).decode("utf-8"))
        except Exception as error:  # whatever the library raises for hostile bytes, it is no pass
            refused.append(f"{name}: {layout.first_line(error)}")
            continue
        if payload != bundle.statement_bytes:
            raise VerificationFailed("VER-045", f"it proved another {kind}", cell=name)
        return f"{wanted.identity} signed with Sigstore ({name})"
    raise VerificationFailed(
        "VER-046",
        f"no bundle is by {wanted.identity} of {wanted.issuer}: {refused[0]}",
        cell=names[0],
    )


def _library(wanted: Wanted) -> Check:
    try:
        from sigstore import models
        from sigstore.verify import Verifier, policy
    except ImportError as error:
        raise EnvironmentUnmet(
            "ENV-001",
            "checking a Sigstore identity needs the package 'sigstore'",
            next_step=keyless.EXTRA,
        ) from error
    if wanted.trust_root is None:
        verifier: Any = Verifier.production(offline=True)
    else:
        root = models.TrustedRoot.from_file(str(wanted.trust_root))
        verifier = Verifier(trusted_root=root)
    who = policy.Identity(identity=wanted.identity, issuer=wanted.issuer)

    def examine(text: str) -> tuple[str, bytes]:
        found: tuple[str, bytes] = verifier.verify_dsse(models.Bundle.from_json(text), who)
        return found

    return examine

"""What a defect works with, and the list of all defects."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import bundle_maker as maker

from fasttrack.bundle import card, keys, layout, sshsig, statement
from fasttrack.schema._json import canonical_bytes
from fasttrack.schema.evidence import SIGNATURE_NAMESPACE

PERF = maker.unit_file("perf/block0-0-base")
PERF_OTHER = maker.unit_file("perf/block0-1-candidate")
PERF_THIRD = maker.unit_file("perf/block0-2-candidate")
EVALS = maker.unit_file("evals/candidate")
FEATURES = maker.unit_file("features/base")
KERNELS = maker.unit_file("kernels/mix")
PROOFS = maker.unit_file("path/candidate")
ISOLATION = maker.unit_file("isolation/scope")
EXTRA = "perf/extra-0a1b.jsonl"
CARD = "signatures/1.json"
SIG = "signatures/1.sig"
CARD_SIG = "signatures/1.json.sig"


@dataclass
class Lab:
    """What a defect may work with."""

    members: maker.Members
    raw: bytes
    key: Path
    foreign: Path
    scratch: Path

    @property
    def out(self) -> Path:
        """Where the spoilt file goes."""
        return self.scratch / "spoilt.ftb"

    def bytes(self, data: bytes) -> Path:
        """A file of exactly these bytes."""
        self.out.write_bytes(data)
        return self.out

    def archive(self, **changed: bytes | None) -> Path:
        """Only the archive is repaired; a member given as None is left out."""
        members = dict(self.members)
        for name, data in changed.items():
            if data is None:
                members.pop(name, None)
            else:
                members[name] = data
        return maker.assemble(members, self.out)

    def resealed(self, **changed: bytes | None) -> Path:
        """Manifest, statement and signatures are made anew."""
        members = {n: d for n, d in (self.members | changed).items() if d is not None}
        return maker.reseal(members, self.out, self.key)

    def redecided(self, **changed: bytes | None) -> Path:
        """Verdicts and report follow from the changed records too: a forgery but for this."""
        members = {n: d for n, d in (self.members | changed).items() if d is not None}
        return maker.reseal(maker.redecide(members, self.scratch / "forged"), self.out, self.key)

    def edited(self, name: str, change: Callable[[Any], Any]) -> bytes:
        """A changed JSON document."""
        return maker.edit_json(self.members[name], change)

    def lines(
        self, name: str, kind: str, change: Callable[[dict[str, Any]], Iterable[Any] | None]
    ) -> bytes:
        """A changed record file."""
        return maker.edit_lines(self.members[name], kind, change)


def once(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Apply a change to the first record only."""
    done: list[bool] = []

    def apply(value: dict[str, Any]) -> None:
        if not done:
            done.append(True)
            change(value)

    return apply


def put(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Overwrite fields of an object."""
    return lambda value: value.update(fields)


@dataclass(frozen=True)
class Defect:
    """What verification must say about a spoilt file."""

    make: Callable[[Lab], Path]
    code: str
    member: str | None = None
    """The file it must name; None where any name will do."""


DEFECTS: list[Defect] = []
_NAME = re.compile(r"[a-z0-9_]+\Z")
"""Of a defect: also its folder's and the documentation's."""


def defect(
    code: str, member: str | None = None
) -> Callable[[Callable[[Lab], Path]], Callable[[Lab], Path]]:
    """Register a defect: the code that verification must give, and the file it must name."""

    def register(make: Callable[[Lab], Path]) -> Callable[[Lab], Path]:
        assert _NAME.match(make.__name__)
        DEFECTS.append(Defect(make, code, member))
        return make

    return register


def signed_by_hand(
    lab: Lab,
    members: maker.Members,
    payload: bytes,
    *,
    key: Path | None = None,
    namespace: str = SIGNATURE_NAMESPACE,
    message: bytes | None = None,
    **fields: Any,
) -> Path:
    """Signature, card and envelope without the guards of `fasttrack sign`."""
    signer = keys.find(key or lab.key)
    signature = signer.sign(statement.pae(payload) if message is None else message, namespace)
    told = {
        "schema": card.SCHEMA, "principal": maker.PRINCIPAL, "role": "author",
        "key_fingerprint": sshsig.fingerprint(signer.public_key),
        "public_key": sshsig.public_line(signer.public_key),
        "statement_sha256": hashlib.sha256(payload).hexdigest(),
        "signed_utc": (maker.CREATED + timedelta(hours=1)).isoformat(),
    } | fields  # fmt: skip
    data = canonical_bytes(told)
    members[SIG] = sshsig.armour(signature.encode())
    members[CARD] = data
    members[CARD_SIG] = sshsig.armour(signer.sign(data, card.NAMESPACE).encode())
    entry = statement.EnvelopeSignature(sshsig.fingerprint(signer.public_key), signature.encode())
    members[layout.ENVELOPE] = statement.envelope(payload, (entry,))
    return maker.assemble(members, lab.out)

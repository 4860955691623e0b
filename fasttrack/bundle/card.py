"""The signer's card: who says they signed, as what, and when.

A signature covers the statement, which many people may sign; the card is what one of them adds. It
is signed too, in its own namespace: otherwise anyone could relabel an author's signature as an
independent reproducer's, or date it back. Read by `sign` and `verify.signature`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator

from fasttrack.bundle.documents import model, strict_json
from fasttrack.schema.claim import Frozen

SCHEMA = "fasttrack.signer/v1"
NAMESPACE = "fasttrack-signer-v1@fasttrack.dev"
SignerRole = Literal["author", "reproducer"]


class Answer(Frozen):
    """One cell that the signer measured again: where, from which seed, in which result file."""

    stage: str = Field(max_length=40)
    cell: str = Field(max_length=400)
    seed: int = Field(ge=0)
    manifest_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Manifest digest of the result file that holds the signer's measurement."""


class Challenge(Frozen):
    """A challenge that a reproducer met: the cells a nonce chose, all in agreement."""

    nonce: str = Field(pattern=r"^[!-~]{1,128}$")
    answers: tuple[Answer, ...] = Field(min_length=1, max_length=16)


class Card(Frozen):
    """`signatures/<n>.json`."""

    schema_: Literal["fasttrack.signer/v1"] = Field(default="fasttrack.signer/v1", alias="schema")
    principal: str = Field(pattern=r"^[A-Za-z0-9._%+@/-]{1,128}$")
    """The name under which `allowed_signers` lists the key, usually an e-mail address."""
    role: SignerRole
    key_fingerprint: str
    public_key: str
    """`type base64`."""
    statement_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Binds the card to one statement."""
    signed_utc: str
    """The signer's own clock, ISO 8601 with a zone."""
    challenge: Challenge | None = None
    """Of a reproducer: what was measured again. Left out of the file when there is none."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        populate_by_name=True,
    )

    @field_validator("signed_utc")
    @classmethod
    def _has_zone(cls, value: str) -> str:
        if datetime.fromisoformat(value).tzinfo is None:
            raise ValueError("a time without a zone")
        return value

    def json_value(self) -> dict[str, Any]:
        """The JSON object of this value."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def signed(self) -> datetime:
        """The time of signing."""
        return datetime.fromisoformat(self.signed_utc)


def parse(data: bytes, name: str) -> Card:
    """A card from its exact bytes; raises `VerificationFailed` VER-017, VER-019 or VER-034."""
    return model(Card, strict_json(data, name, schema=SCHEMA), name, code="VER-034")

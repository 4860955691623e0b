"""A snapshot of GitHub accounts' published signing keys, as a source of identity without network.

Owns its reading. GitHub shows the present only: a removed key vanishes. A snapshot therefore keeps
what it once saw, and `removed_utc` is added when a key is gone::

    {"schema": "fasttrack.github-keys/v1", "fetched_utc": "2026-11-29T12:00:00Z",
     "accounts": [{"login": "octocat", "id": 583231, "ssh_signing_keys": [
       {"id": 7, "key": "ssh-ed25519 AAAA...", "created_at": "2024-05-01T08:00:00Z"}]}]}

`ssh_signing_keys` is GitHub's own answer to ``GET /users/LOGIN/ssh_signing_keys``. The principal of
an account is ``github/LOGIN``. Read by `identity`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fasttrack.bundle import sshsig
from fasttrack.bundle.layout import first_line
from fasttrack.errors import UsageError
from fasttrack.schema._json import loads
from fasttrack.verify.allowed import Allowed

PREFIX = "github/"


def _with_zone(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without a zone")
    return text


Time = Annotated[str, AfterValidator(_with_zone)]


class _Key(BaseModel):
    """One key; GitHub's answer may grow fields."""

    key: str
    created_at: Time
    removed_utc: Time | None = None


class _Account(BaseModel):
    login: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,38}$")
    id: int
    ssh_signing_keys: tuple[_Key, ...]


class _Snapshot(BaseModel):
    schema_: Literal["fasttrack.github-keys/v1"] = Field(alias="schema")
    fetched_utc: Time
    accounts: tuple[_Account, ...]

    model_config = ConfigDict(extra="forbid")


def parse(text: str, where: str) -> tuple[Allowed, ...]:
    """The keys of a snapshot that messages call `where`; raises `UsageError` USE-001."""
    try:
        snapshot = _Snapshot.model_validate(loads(text))
        return tuple(_allowed(account, key) for account in snapshot.accounts
                     for key in account.ssh_signing_keys)  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        told = f"{at}: {first['msg']}"
    except ValueError as error:
        told = first_line(error)
    raise UsageError("USE-001", f"{where}: {told}", next_step=f"edit {where}")


def _allowed(account: _Account, key: _Key) -> Allowed:
    removed = datetime.fromisoformat(key.removed_utc) if key.removed_utc else None
    return Allowed(
        principals=(f"{PREFIX}{account.login}",),
        public_key=sshsig.wire_key(key.key),
        valid_after=datetime.fromisoformat(key.created_at),
        removed=removed,
    )

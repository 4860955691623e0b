"""Protects the optional Sigstore identity: checked offline, only when asked for, and never believed
without the library.

Sigstore's servers cannot be reached from tests, so a stand-in for its library takes their part: a
bundle "verifies" when its `verificationMaterial` names the wanted identity and issuer. Where the
real library is installed, it must refuse a made-up bundle.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import bundle_maker as maker
import pytest

from fasttrack.bundle import keyless as making
from fasttrack.bundle import layout
from fasttrack.cli.main import main
from fasttrack.errors import EnvironmentUnmet, VerificationFailed
from fasttrack.schema.evidence import PAYLOAD_TYPE
from fasttrack.verify import keyless
from fasttrack.verify.steps import verify

IDENTITY = "https://github.com/ada/vllm/.github/workflows/evidence.yml@refs/heads/main"
ISSUER = "https://token.actions.githubusercontent.com"
WANTED = keyless.Wanted(IDENTITY, ISSUER)


def made_up(statement: bytes, identity: str = IDENTITY, issuer: str = ISSUER) -> str:
    """A bundle as the stand-in makes and accepts it."""
    envelope = {"payload": base64.b64encode(statement).decode(), "payloadType": PAYLOAD_TYPE}
    told = {"identity": identity, "issuer": issuer}
    return json.dumps({"dsseEnvelope": envelope, "verificationMaterial": told})


class Verifier:
    """Stands in for `sigstore.verify.Verifier`; remembers how it was made."""

    made: ClassVar[list[str]] = []

    def __init__(self, *, trusted_root: Any = None) -> None:
        self.made.append(f"root {trusted_root}")

    @classmethod
    def production(cls, *, offline: bool = False) -> Verifier:
        """The embedded root; only its offline form may be asked for."""
        assert offline
        cls.made.append("offline")
        return cls.__new__(cls)

    def verify_dsse(self, bundle: Any, who: Any) -> tuple[str, bytes]:
        """The type and bytes that were signed."""
        if bundle["verificationMaterial"] != vars(who):
            raise ValueError("certificate's identity does not match")
        return PAYLOAD_TYPE, base64.b64decode(bundle["dsseEnvelope"]["payload"])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, installed."""
    Verifier.made.clear()
    package, verifying = ModuleType("sigstore"), ModuleType("sigstore.verify")
    production = SimpleNamespace(signing_config=SimpleNamespace(get_oidc_url=lambda: "url"))
    signer = SimpleNamespace(
        sign_dsse=lambda statement: SimpleNamespace(to_json=lambda: made_up(statement))
    )

    class Context:
        """What `signer()` gives."""

        def __enter__(self) -> Any:
            return signer

        def __exit__(self, *_: object) -> None:
            """Nothing is held."""

    parts: dict[str, Any] = {
        "models": {
            "Bundle": SimpleNamespace(from_json=json.loads),
            "TrustedRoot": SimpleNamespace(from_file=lambda path: f"of {Path(path).name}"),
            "ClientTrustConfig": SimpleNamespace(production=lambda: production),
        },
        "dsse": {"Statement": bytes},
        "oidc": {
            "detect_credential": lambda: "ambient",
            "IdentityToken": str,
        },
        "sign": {
            "SigningContext": SimpleNamespace(
                from_trust_config=lambda trust: SimpleNamespace(signer=lambda token: Context())
            )
        },
    }
    for name, members in parts.items():
        setattr(package, name, SimpleNamespace(**members))
    verifying.Verifier = Verifier  # type: ignore[attr-defined]
    verifying.policy = SimpleNamespace(Identity=SimpleNamespace)  # type: ignore[attr-defined]
    package.verify = verifying  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sigstore", package)
    monkeypatch.setitem(sys.modules, "sigstore.verify", verifying)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra."""
    for name in ("sigstore", "sigstore.verify"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def file(honest: Path, tmp_path: Path) -> Path:
    """A copy of the honest file."""
    return Path(shutil.copy(honest, tmp_path))


def with_bundle(file: Path, text: str) -> Path:
    """The file with a Sigstore bundle of that text."""
    members = maker.explode(file)
    data = maker.canonical_bytes(json.loads(text))
    return maker.assemble({**members, layout.keyless_name(1): data}, file)


def statement(file: Path) -> bytes:
    return maker.explode(file)[layout.STATEMENT]


def identity_step(path: Path, wanted: keyless.Wanted | None) -> str:
    return verify(path, sigstore=wanted).steps[5].detail


def test_signing_adds_a_bundle_and_keeps_the_rest(file: Path, library: None) -> None:
    before = maker.explode(file)
    assert main(["sign", str(file), "--sigstore"]) == 0
    after = maker.explode(file)
    assert set(after) - set(before) == {"sigstore/1.json"}
    assert {name: after[name] for name in before} == before
    assert IDENTITY in identity_step(file, WANTED)
    assert making.add(file) == "sigstore/2.json"
    assert Verifier.made == ["offline"]


def test_a_trust_root_of_the_readers_own(file: Path, library: None, tmp_path: Path) -> None:
    with_bundle(file, made_up(statement(file)))
    root = tmp_path / "root.json"
    identity_step(file, keyless.Wanted(IDENTITY, ISSUER, root))
    assert Verifier.made == ["root of root.json"]


@pytest.mark.parametrize(
    ("identity", "issuer"),
    [
        (IDENTITY.replace("main", "feature"), ISSUER),
        (IDENTITY.replace("ada", "mallory"), ISSUER),
        (IDENTITY.replace("evidence", "other"), ISSUER),
        (IDENTITY, "https://accounts.example.org"),
    ],
    ids=["other-reference", "other-repository", "other-workflow", "other-issuer"],
)
def test_somebody_elses_bundle(file: Path, library: None, identity: str, issuer: str) -> None:
    with_bundle(file, made_up(statement(file), identity, issuer))
    with pytest.raises(VerificationFailed) as caught:
        verify(file, sigstore=WANTED)
    assert (caught.value.code, caught.value.cell) == ("VER-046", "sigstore/1.json")


def test_wanted_and_absent(file: Path, library: None) -> None:
    with pytest.raises(VerificationFailed) as caught:
        verify(file, sigstore=WANTED)
    assert caught.value.code == "VER-046"


def test_not_asked_for_is_not_concluded_from(file: Path, no_library: None) -> None:
    assert "Sigstore" not in identity_step(file, None)
    with_bundle(file, made_up(statement(file)))
    assert "1 Sigstore bundles not checked" in identity_step(file, None)


def test_without_the_library_nothing_is_believed(file: Path, no_library: None) -> None:
    with_bundle(file, made_up(statement(file)))
    with pytest.raises(EnvironmentUnmet) as caught:
        verify(file, sigstore=WANTED)
    assert caught.value.code == "ENV-001" and "sigstore" in caught.value.next_step
    with pytest.raises(EnvironmentUnmet):
        making.add(file)


def test_command(file: Path, library: None, capsys: pytest.CaptureFixture[str]) -> None:
    with_bundle(file, made_up(statement(file)))
    assert main(["verify", str(file), "--sigstore-identity", IDENTITY]) == 0
    assert "signed with Sigstore" in capsys.readouterr().err
    assert main(["verify", str(file), "--sigstore-identity", "eve@example.org"]) == 6
    assert "VER-046" in capsys.readouterr().err


def test_the_real_library_refuses_what_is_made_up(file: Path) -> None:
    pytest.importorskip("sigstore", reason="the extra `sigstore` is not installed")
    with_bundle(file, made_up(statement(file)))
    with pytest.raises(VerificationFailed) as caught:
        verify(file, sigstore=WANTED)
    assert caught.value.code == "VER-046"

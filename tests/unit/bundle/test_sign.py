"""Protects signatures: ours verify with OpenSSH, OpenSSH's with ours, and nothing else does."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from bundle_maker import PRINCIPAL, explode, public_line, write_key
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from fasttrack.bundle import card, keys, layout, sign, sshsig, statement
from fasttrack.errors import EnvironmentUnmet, UsageError
from fasttrack.schema.evidence import SIGNATURE_NAMESPACE
from fasttrack.verify.steps import verify

MESSAGE = b"what was measured"
NAMESPACE = "test@example.org"
needs_openssh = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed"
)
KINDS = ["ed25519", "ecdsa", "ecdsa521", "rsa"]


def openssh_accepts(
    folder: Path, line: str, signature: bytes, message: bytes, namespace: str, name: str = PRINCIPAL
) -> bool:
    """The judgement of `ssh-keygen -Y verify`."""
    (folder / "signers").write_text(f"{name} {line}\n")
    (folder / "message.sig").write_bytes(signature)
    done = subprocess.run(
        ["ssh-keygen", "-Y", "verify", "-f", folder / "signers", "-I", name, "-n", namespace,
         "-s", folder / "message.sig"],
        input=message, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode == 0


@needs_openssh
@pytest.mark.parametrize("kind", KINDS)
def test_our_signature_in_openssh(kind: str, honest: Path, tmp_path: Path) -> None:
    """The whole file: signed by us, verified by us and by plain ssh-keygen."""
    path = write_key(tmp_path / "key", kind)
    copy = Path(shutil.copy(honest, tmp_path))
    info = sign.sign(copy, key=path, principal="bob@example.org", role="reproducer")
    assert {s.principal for s in verify(copy).signers} == {PRINCIPAL, "bob@example.org"}
    members = explode(copy)
    signed = statement.pae(members[layout.STATEMENT])
    signature = members[f"signatures/{info.number}.sig"]
    assert openssh_accepts(tmp_path, public_line(path), signature, signed, SIGNATURE_NAMESPACE)
    assert not openssh_accepts(tmp_path, public_line(path), signature, signed, "git")
    assert not openssh_accepts(
        tmp_path, public_line(path), signature, signed + b" ", SIGNATURE_NAMESPACE
    )
    told = members[f"signatures/{info.number}.json"]
    card_signature = members[f"signatures/{info.number}.json.sig"]
    assert openssh_accepts(tmp_path, public_line(path), card_signature, told, card.NAMESPACE)


@needs_openssh
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_openssh_signature_in_ours(kind: str, tmp_path: Path) -> None:
    path = write_key(tmp_path / "key", kind)
    done = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", path, "-n", NAMESPACE],
        input=MESSAGE, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    signature = sshsig.parse(done.stdout)
    assert sshsig.armour(signature.encode()) == done.stdout
    assert sshsig.public_line(signature.public_key) == public_line(path)
    sshsig.verify(signature, MESSAGE)
    with pytest.raises(sshsig.BadSignatureError):
        sshsig.verify(signature, MESSAGE + b"!")


@needs_openssh
def test_printed_lines_work_as_they_are(honest: Path, key: Path, tmp_path: Path) -> None:
    if shutil.which("unzip") is None:
        pytest.skip("unzip is not installed")
    copy = Path(shutil.copy(honest, tmp_path))
    info = sign.sign(copy, key=key, principal=PRINCIPAL)
    done = subprocess.run(
        ["sh", "-ec", sign.verify_lines(copy, info)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f'Good "{SIGNATURE_NAMESPACE}" signature for {PRINCIPAL}' in done.stdout
    manifest = explode(copy)[layout.MANIFEST]
    assert hashlib.sha256(manifest).hexdigest() in done.stdout


@needs_openssh
def test_encrypted_key_asks_for_its_passphrase(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "open sesame", "-C", "", "-f", path],
        check=True, timeout=60,
    )  # fmt: skip
    asked = tmp_path / "askpass"
    asked.write_text("#!/bin/sh\necho 'open sesame'\n")
    asked.chmod(0o700)
    monkeypatch.setenv("SSH_ASKPASS", str(asked))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    copy = Path(shutil.copy(honest, tmp_path))
    info = sign.sign(copy, key=path, principal="bob", role="reproducer")
    assert info.public_key == " ".join(path.with_suffix(".pub").read_text().split()[:2])
    verify(copy)
    asked.write_text("#!/bin/sh\necho wrong\n")
    with pytest.raises(EnvironmentUnmet) as caught:
        sign.sign(copy, key=path, principal="bob", role="reproducer")
    assert caught.value.code == "ENV-006"


@needs_openssh
def test_key_of_an_agent(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ssh-agent") is None:
        pytest.skip("no SSH agent is installed")
    path = write_key(tmp_path / "key")
    socket = tmp_path / "agent"
    agent = subprocess.Popen(
        ["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        for _ in range(100):
            added = subprocess.run(["ssh-add", "-q", path], capture_output=True, check=False)
            if added.returncode == 0:
                break
            time.sleep(0.1)
        copy = Path(shutil.copy(honest, tmp_path))
        info = sign.sign(copy, key=None, principal="bob", role="reproducer")
        assert info.public_key == public_line(path)
        (tmp_path / "only.pub").write_text(public_line(path))
        again = sign.sign(copy, key=tmp_path / "only.pub", principal="bob", role="reproducer")
        assert again.number == info.number == 2
        verify(copy)
    finally:
        agent.kill()
        agent.wait(timeout=30)


def security_key(kind: str, flags: int) -> tuple[sshsig.SshSignature, str]:
    """What a FIDO key would sign, made in software: PROTOCOL.u2f, "SSH U2F Signatures"."""
    data = sshsig.signed_data(MESSAGE, NAMESPACE)
    tail = bytes([flags]) + (7).to_bytes(4, "big")
    hashed = hashlib.sha256(b"ssh:").digest() + tail + hashlib.sha256(data).digest()
    if kind == "sk-ssh-ed25519@openssh.com":
        key = ed25519.Ed25519PrivateKey.generate()
        raw = key.sign(hashed)
        point = key.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        public = sshsig.string(kind.encode()) + sshsig.string(point) + sshsig.string(b"ssh:")
    else:
        curve = ec.generate_private_key(ec.SECP256R1())
        r, s = decode_dss_signature(curve.sign(hashed, ec.ECDSA(hashes.SHA256())))
        raw = sshsig.mpint(r) + sshsig.mpint(s)
        point = curve.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        public = b"".join(
            sshsig.string(part) for part in (kind.encode(), b"nistp256", point, b"ssh:")
        )
    wire = sshsig.string(kind.encode()) + sshsig.string(raw) + tail
    return sshsig.SshSignature(public, NAMESPACE, "sha512", wire), sshsig.public_line(public)


@needs_openssh
@pytest.mark.parametrize(
    "kind", ["sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"]
)
def test_fido_signature(kind: str, tmp_path: Path) -> None:
    signature, line = security_key(kind, flags=1)
    sshsig.verify(sshsig.parse(sshsig.armour(signature.encode())), MESSAGE)
    assert openssh_accepts(tmp_path, line, sshsig.armour(signature.encode()), MESSAGE, NAMESPACE)
    with pytest.raises(sshsig.BadSignatureError):
        sshsig.verify(signature, MESSAGE + b"!")
    untouched, _ = security_key(kind, flags=0)
    with pytest.raises(sshsig.WeakKeyError):
        sshsig.verify(untouched, MESSAGE)


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_of_a_signature_is_accepted(kind: str, tmp_path: Path) -> None:
    signer = keys.find(write_key(tmp_path / "key", kind))
    blob = signer.sign(MESSAGE, NAMESPACE).encode()
    for at in range(len(blob)):
        changed = bytearray(blob)
        changed[at] ^= 1 << at % 8
        try:
            signature = sshsig.parse_blob(bytes(changed))
            if signature.namespace != NAMESPACE or signature.public_key != signer.public_key:
                continue
            sshsig.verify(signature, MESSAGE)
        except ValueError:
            continue
        raise AssertionError(f"byte {at} of {len(blob)}")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: b"\n" + text,
        lambda text: text.replace(b"=", b""),
        lambda text: text + text,
        lambda text: text[:60] + b"\n" + text[60:],
        lambda text: b"",
    ],
)
def test_armour_has_one_form(spoil: object, tmp_path: Path) -> None:
    signature = keys.find(write_key(tmp_path / "key", "rsa")).sign(MESSAGE, NAMESPACE)
    text = sshsig.armour(signature.encode())
    assert sshsig.parse(text) == signature
    spoilt = spoil(text)  # type: ignore[operator]
    if spoilt != text:
        with pytest.raises(sshsig.SshsigError):
            sshsig.parse(spoilt)


def test_same_key_and_role_replaces_its_signature(honest: Path, key: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(honest, tmp_path))
    assert sign.sign(copy, key=key, principal="new-name").number == 1
    assert [s.principal for s in verify(copy).signers] == ["new-name"]


def test_one_key_cannot_be_its_own_reproducer(honest: Path, key: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(honest, tmp_path))
    with pytest.raises(UsageError):
        sign.sign(copy, key=key, principal=PRINCIPAL, role="reproducer")
    assert copy.read_bytes() == honest.read_bytes()


@pytest.mark.parametrize("principal", ["", "two words", "a\nb", "x" * 200, "semi;colon"])
def test_principal_that_would_break_a_list_is_refused(
    principal: str, honest: Path, key: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(honest, tmp_path))
    with pytest.raises(UsageError):
        sign.sign(copy, key=key, principal=principal)


def test_run_folder_cannot_be_signed(run_folder: Path, key: Path) -> None:
    with pytest.raises(UsageError):
        sign.sign(run_folder, key=key, principal=PRINCIPAL)


@pytest.mark.parametrize("content", [None, "not a key\n"])
def test_unusable_key(
    content: str | None, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copy(honest, tmp_path))
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EnvironmentUnmet) as caught:
        sign.sign(copy, key=path, principal=PRINCIPAL)
    assert caught.value.code == "ENV-006"


def test_no_key_and_no_agent(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    copy = Path(shutil.copy(honest, tmp_path))
    with pytest.raises(EnvironmentUnmet) as caught:
        sign.sign(copy, key=None, principal=PRINCIPAL)
    assert caught.value.code == "ENV-006"


def test_development_key_is_made_once_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = sign.development_key()
    first = path.read_bytes()
    assert sign.development_key() == path
    assert path.read_bytes() == first
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()].count(path.name) == 1
    line = path.with_suffix(".pub").read_text()
    assert "integrity, not identity" in line
    assert keys.find(path).public_key == base64.b64decode(line.split()[1])


def test_development_key_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(blocked))
    with pytest.raises(EnvironmentUnmet) as caught:
        sign.development_key()
    assert caught.value.code == "ENV-006"

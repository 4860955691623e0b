"""Where signatures come from: key files in process, everything else through ssh-keygen.

Owns `Signer` and its two kinds, key discovery in the agent, and the development key. Key material
is read, used and dropped; it is never written anywhere except when the development key is made.
Read by `sign`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from fasttrack.bundle import sshsig
from fasttrack.errors import EnvironmentUnmet

DEVELOPMENT_COMMENT = "fasttrack development key: proves integrity, not identity"
TIMEOUT_S = 120
_CURVE_HASHES: dict[str, tuple[str, hashes.HashAlgorithm]] = {
    "secp256r1": ("ecdsa-sha2-nistp256", hashes.SHA256()),
    "secp384r1": ("ecdsa-sha2-nistp384", hashes.SHA384()),
    "secp521r1": ("ecdsa-sha2-nistp521", hashes.SHA512()),
}
_Key: TypeAlias = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Signer:
    """A key that can be used: its wire public key and a function from (message, namespace)."""

    public_key: bytes
    sign: Callable[[bytes, str], sshsig.SshSignature]


def find(key: Path | None) -> Signer:
    """The signer of a key file, of a `.pub` file whose key an agent holds, or of the agent's key.

    Raises `EnvironmentUnmet` ENV-006.
    """
    if key is None:
        return _from_agent()
    try:
        data = key.expanduser().read_bytes()
    except OSError as error:
        raise _unusable(f"cannot read {key}: {error.strerror}") from error
    loaded = _load(data)
    return _in_process(loaded) if loaded else _through_ssh_keygen(key.expanduser())


def development_key() -> Path:
    """The user's development key, made on first use (Ed25519, no passphrase, mode 600).

    It ties the files of a bundle together; as nobody vouches for it, it proves integrity and not
    identity. Raises `EnvironmentUnmet` ENV-006 when it can be neither read nor made.
    """
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(config).expanduser() / "fasttrack" / "development_ed25519"
    if path.is_file():
        return path
    private = ed25519.Ed25519PrivateKey.generate()
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    line = f"{sshsig.public_line(_wire(private))} {DEVELOPMENT_COMMENT}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
        try:
            # A link fails where a rename would replace: the first of two processes wins.
            os.link(temporary, path)
            path.with_suffix(".pub").write_text(line, encoding="ascii")
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
    except OSError as error:
        raise _unusable(f"cannot make {path}: {error.strerror}") from error
    return path


def _load(data: bytes) -> _Key | None:
    """A private key the library can use as it is, or None: encrypted, FIDO, public or foreign."""
    for load in (serialization.load_ssh_private_key, serialization.load_pem_private_key):
        try:
            key = load(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            continue
        if isinstance(key, _Key):
            return key
    return None


def _wire(key: _Key) -> bytes:
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return sshsig.wire_key(line.decode("ascii"))


def _in_process(key: _Key) -> Signer:
    public = _wire(key)

    def sign(message: bytes, namespace: str) -> sshsig.SshSignature:
        algorithm, raw = _raw_signature(key, sshsig.signed_data(message, namespace))
        wire = sshsig.string(algorithm.encode("ascii")) + sshsig.string(raw)
        return sshsig.SshSignature(public, namespace, "sha512", wire)

    return Signer(public, sign)


def _raw_signature(key: _Key, data: bytes) -> tuple[str, bytes]:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "ssh-ed25519", key.sign(data)
    if isinstance(key, rsa.RSAPrivateKey):
        return "rsa-sha2-512", key.sign(data, padding.PKCS1v15(), hashes.SHA512())
    if key.curve.name not in _CURVE_HASHES:
        raise _unusable(f"the curve {key.curve.name} is not one SSH knows")
    algorithm, digest = _CURVE_HASHES[key.curve.name]
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(digest)))
    return algorithm, sshsig.mpint(r) + sshsig.mpint(s)


def _through_ssh_keygen(key: Path) -> Signer:
    public_file = key if key.suffix == ".pub" else Path(f"{key}.pub")
    try:
        public = sshsig.wire_key(public_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(f"cannot read the public key {public_file}: {error}") from error
    return Signer(public, lambda message, namespace: _ssh_keygen(key, message, namespace))


def _from_agent() -> Signer:
    listed = _run(["ssh-add", "-L"], b"", check=False)
    lines = [line for line in listed.decode("utf-8", errors="replace").splitlines() if line]
    try:
        offered = [sshsig.wire_key(line) for line in lines]
    except ValueError:
        # Without an agent the program says so on its standard output.
        offered = []
    if len(offered) != 1:
        raise _unusable(f"no --key was given and the SSH agent offers {len(offered)} keys, not one")

    def sign(message: bytes, namespace: str) -> sshsig.SshSignature:
        # ssh-keygen takes the wanted agent key as a public key file.
        with tempfile.TemporaryDirectory(prefix="fasttrack-key-") as folder:
            public_file = Path(folder) / "agent.pub"
            public_file.write_text(lines[0] + "\n", encoding="utf-8")
            return _ssh_keygen(public_file, message, namespace)

    return Signer(offered[0], sign)


def _ssh_keygen(key: Path, message: bytes, namespace: str) -> sshsig.SshSignature:
    output = _run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", namespace], message)
    try:
        signature = sshsig.parse(output)
        sshsig.verify(signature, message)
    except ValueError as error:
        raise _unusable(f"ssh-keygen's signature cannot be used: {error}") from error
    return signature


def _run(command: list[str], data: bytes, *, check: bool = True) -> bytes:
    """Standard output of an OpenSSH program.

    Its standard error stays the user's: that is where it asks for a touch or a passphrase.
    """
    program = shutil.which(command[0])
    if program is None:
        raise _unusable(f"this needs the program {command[0]}, which is not installed")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            input=data,
            stdout=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=check,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _unusable(f"{command[0]} failed: {error}") from error
    return done.stdout


def _unusable(cause: str) -> EnvironmentUnmet:
    return EnvironmentUnmet(
        "ENV-006", cause, next_step="fasttrack sign FILE --key ~/.ssh/id_ed25519"
    )

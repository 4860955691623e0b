"""SSH signatures: the wire form, strict reading, and verification without the ssh-keygen program.

Owns bytes and mathematics: armour, the SSHSIG blob, public keys, and verification for Ed25519,
ECDSA (nistp256/384/521), RSA (2048 bits and more, SHA-2) and the two FIDO key types. Does not own
who may sign (`verify.identity`) nor where keys come from (`sign`).
Sources: OpenSSH PROTOCOL.sshsig and PROTOCOL.u2f, RFC 4251 section 5, RFC 5656, RFC 8332, RFC 8709.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

MAGIC = b"SSHSIG"
VERSION = 1
BEGIN = "-----BEGIN SSH SIGNATURE-----"
END = "-----END SSH SIGNATURE-----"
MAX_ARMOUR_BYTES = 64 * 1024
MIN_RSA_BITS = 2048
_COLUMNS = 70
_HASHES = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}
_CURVES: dict[str, tuple[ec.EllipticCurve, hashes.HashAlgorithm]] = {
    "ecdsa-sha2-nistp256": (ec.SECP256R1(), hashes.SHA256()),
    "ecdsa-sha2-nistp384": (ec.SECP384R1(), hashes.SHA384()),
    "ecdsa-sha2-nistp521": (ec.SECP521R1(), hashes.SHA512()),
}
_SK_ED25519 = "sk-ssh-ed25519@openssh.com"
_SK_ECDSA = "sk-ecdsa-sha2-nistp256@openssh.com"
_USER_PRESENT = 0x01


class SshsigError(ValueError):
    """Bytes that are not a well-formed SSH signature or public key; the message says why."""


class WeakKeyError(ValueError):
    """A key type or size that is not accepted as evidence."""


class BadSignatureError(ValueError):
    """A well-formed signature that is not one of this message under this key."""


@dataclass(frozen=True)
class SshSignature:
    """A parsed SSHSIG blob. `public_key` and `signature` are SSH wire strings."""

    public_key: bytes
    namespace: str
    hash_name: str
    signature: bytes

    def encode(self) -> bytes:
        """The blob."""
        return (
            MAGIC
            + struct.pack(">I", VERSION)
            + string(self.public_key)
            + string(self.namespace.encode("utf-8"))
            + string(b"")
            + string(self.hash_name.encode("ascii"))
            + string(self.signature)
        )


class _Wire:
    """Reader of SSH wire data: every read is bounded, nothing may be left over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) != count:
            raise SshsigError("it is cut short")
        self._at += count
        return piece

    def integer(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def string(self) -> bytes:
        return self.take(self.integer())

    def text(self) -> str:
        try:
            return self.string().decode("ascii")
        except UnicodeDecodeError as error:
            raise SshsigError("a name in it is not ASCII") from error

    def mpint(self) -> int:
        raw = self.string()
        value = int.from_bytes(raw, "big")
        if not raw or raw != mpint(value)[4:]:
            raise SshsigError("a number in it is not in its shortest form")
        return value

    def finish(self) -> None:
        if self._at != len(self._data):
            raise SshsigError("bytes follow its end")


def string(value: bytes) -> bytes:
    """SSH wire string: length, then the bytes."""
    return struct.pack(">I", len(value)) + value


def mpint(value: int) -> bytes:
    """SSH wire form of a non-negative integer."""
    return string(value.to_bytes(value.bit_length() // 8 + 1, "big") if value else b"")


def armour(blob: bytes) -> bytes:
    """The text form that ssh-keygen reads and writes."""
    text = base64.b64encode(blob).decode("ascii")
    lines = [text[at : at + _COLUMNS] for at in range(0, len(text), _COLUMNS)]
    return "\n".join([BEGIN, *lines, END, ""]).encode("ascii")


def parse(armoured: bytes) -> SshSignature:
    """A signature from its text form, which must be exactly the one `armour` writes.

    Raises `SshsigError`.
    """
    if len(armoured) > MAX_ARMOUR_BYTES:
        raise SshsigError("it is too long")
    lines = armoured.decode("ascii", errors="replace").split("\n")
    if lines[0] != BEGIN or lines[-2:] != [END, ""]:
        raise SshsigError("no armour, or something around it")
    try:
        blob = base64.b64decode("".join(lines[1:-2]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SshsigError("not base64") from error
    if armour(blob) != armoured:
        raise SshsigError("its armour is not in the usual form")
    return parse_blob(blob)


def parse_blob(blob: bytes) -> SshSignature:
    """A signature from its binary form; raises `SshsigError`."""
    wire = _Wire(blob)
    if wire.take(len(MAGIC)) != MAGIC or wire.integer() != VERSION:
        raise SshsigError("not an SSHSIG of version 1")
    public_key, namespace, reserved = wire.string(), wire.text(), wire.string()
    hash_name, signature = wire.text(), wire.string()
    wire.finish()
    if reserved:
        raise SshsigError("its reserved field is not empty")
    if hash_name not in _HASHES:
        raise SshsigError(f"its hash {hash_name[:20]!r} is not SHA-256 or SHA-512")
    return SshSignature(public_key, namespace, hash_name, signature)


def signed_data(message: bytes, namespace: str, hash_name: str = "sha512") -> bytes:
    """What the private key signs for a message."""
    return (
        MAGIC
        + string(namespace.encode("utf-8"))
        + string(b"")
        + string(hash_name.encode("ascii"))
        + string(_HASHES[hash_name](message).digest())
    )


def fingerprint(public_key: bytes) -> str:
    """`SHA256:…` of a wire public key, as ssh-keygen prints it."""
    value = base64.b64encode(hashlib.sha256(public_key).digest()).decode("ascii")
    return "SHA256:" + value.rstrip("=")


def public_line(public_key: bytes) -> str:
    """`type base64`: the form of `.pub` files and `allowed_signers`."""
    return f"{_Wire(public_key).text()} {base64.b64encode(public_key).decode('ascii')}"


def wire_key(line: str) -> bytes:
    """The wire public key of a `type base64 [comment]` line; raises `SshsigError`."""
    parts = line.split()
    if len(parts) < 2:
        raise SshsigError("not a public key line")
    try:
        key = base64.b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError) as error:
        raise SshsigError("the key is not base64") from error
    if _Wire(key).text() != parts[0]:
        raise SshsigError("the key is not of the type its line names")
    return key


def verify(signature: SshSignature, message: bytes) -> None:
    """Check a signature against a message; the namespace is the caller's to compare.

    Raises `SshsigError` (malformed), `WeakKeyError` or `BadSignatureError`.
    """
    data = signed_data(message, signature.namespace, signature.hash_name)
    wire = _Wire(signature.signature)
    algorithm, raw = wire.text(), wire.string()
    kind = _Wire(signature.public_key).text()
    try:
        if kind in (_SK_ED25519, _SK_ECDSA):
            _verify_security_key(signature.public_key, kind, algorithm, raw, wire, data)
        else:
            wire.finish()
            _verify_plain(signature.public_key, kind, algorithm, raw, data)
    except InvalidSignature as error:
        raise BadSignatureError("it does not match these bytes") from error
    except UnsupportedAlgorithm as error:
        raise WeakKeyError(f"key type {kind[:40]!r} is not supported") from error


def _verify_plain(public_key: bytes, kind: str, algorithm: str, raw: bytes, data: bytes) -> None:
    if kind not in ("ssh-ed25519", "ssh-rsa", *_CURVES):
        raise WeakKeyError(f"key type {kind[:40]!r} is not accepted")
    try:
        key = load_ssh_public_key(public_line(public_key).encode("ascii"))
    except ValueError as error:
        raise SshsigError("its public key is malformed") from error
    if isinstance(key, ed25519.Ed25519PublicKey) and algorithm == "ssh-ed25519":
        key.verify(raw, data)
    elif isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            raise WeakKeyError(f"an RSA key of {key.key_size} bits is too short")
        digest = {"rsa-sha2-256": hashes.SHA256(), "rsa-sha2-512": hashes.SHA512()}.get(algorithm)
        if digest is None:
            raise WeakKeyError(f"signature algorithm {algorithm[:40]!r} is not accepted")
        key.verify(raw, data, padding.PKCS1v15(), digest)
    elif isinstance(key, ec.EllipticCurvePublicKey) and algorithm == kind:
        key.verify(_dss(raw), data, ec.ECDSA(_CURVES[kind][1]))
    else:
        raise SshsigError("key and signature are of different kinds")


def _verify_security_key(
    public_key: bytes, kind: str, algorithm: str, raw: bytes, wire: _Wire, data: bytes
) -> None:
    """FIDO keys sign a hash of the application, flags, a counter and a hash of the data."""
    flags, counter = wire.take(1), wire.take(4)
    wire.finish()
    if algorithm != kind:
        raise SshsigError("key and signature are of different kinds")
    if not flags[0] & _USER_PRESENT:
        raise WeakKeyError("the key was used without its owner's touch")
    key = _Wire(public_key)
    key.text()
    try:
        if kind == _SK_ED25519:
            point, application = key.string(), key.string()
        else:
            key.text()
            point, application = key.string(), key.string()
        key.finish()
        message = (
            hashlib.sha256(application).digest() + flags + counter + hashlib.sha256(data).digest()
        )
        if kind == _SK_ED25519:
            ed25519.Ed25519PublicKey.from_public_bytes(point).verify(raw, message)
        else:
            curve = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
            curve.verify(_dss(raw), message, ec.ECDSA(hashes.SHA256()))
    except SshsigError:
        raise
    except ValueError as error:
        raise SshsigError("its public key is malformed") from error


def _dss(raw: bytes) -> bytes:
    """An SSH ECDSA signature (two numbers) in the DER form the library takes."""
    numbers = _Wire(raw)
    r, s = numbers.mpint(), numbers.mpint()
    numbers.finish()
    return encode_dss_signature(r, s)

"""Writes the golden files beside this script: `make golden`. The same code gives the same bytes.

`v1.ftb` is a result file of bundle format v1 with an author's and a reproducer's signature, and
`v1.json` is what verification says of it, so that a change of meaning shows as a diff of text. They
change when rules, plans or formats do, never by themselves: review the diff before committing it.
The keys follow from a text in this file: they are public, for tests only, and prove nothing.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

sys.path.append(str(Path(__file__).resolve().parents[1] / "reject"))

import bundle_maker as maker

from fasttrack.bundle import archive, sign
from fasttrack.bundle.card import Answer, Challenge
from fasttrack.schema import PlantResult, SelfTest, Tier
from fasttrack.verify import challenge
from fasttrack.verify.steps import verify

HERE = Path(__file__).resolve().parent
CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOW = CREATED + timedelta(days=1)
NONCE = "golden"
SIGNERS = "allowed_signers"
SOURCE = {"harness_sha256": "0" * 64, "scope_sha256": "5" * 64}
SELF_TEST = SelfTest(
    harness_sha256="0" * 64,
    catalogue_sha256="1" * 64,
    plants=[
        PlantResult(group="cheats", name="a_cheat", row=1, code="NUM-RATIO", state="right"),
        PlantResult(group="honest", name="honest_work", row=None, code="", state="right"),
    ],
)
RUN = {
    "tier": Tier.SMOKE,
    "harness_version": "0.1.0",
    "run_id": "demo-gpu-a-smoke-golden",
    "self_test": SELF_TEST,
}


def test_only_key(folder: Path, name: str) -> Path:
    """A key file made from a public text."""
    seed = hashlib.sha256(f"fasttrack golden files, TEST ONLY, {name}".encode()).digest()
    private = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    path = folder / name
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    path.with_suffix(".pub").write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return path


def build(out: Path) -> None:
    """Write all golden files into a folder."""
    with tempfile.TemporaryDirectory() as scratch, mock.patch.object(maker, "CREATED", CREATED):
        folder = Path(scratch)
        author, bob = (test_only_key(folder, name) for name in ("author", "reproducer"))
        run = maker.run_folder(folder / "run", source=SOURCE, run=RUN)
        # The report is prose that changes often and is not compared for another build's files.
        (run / "report" / "report.md").write_text("# Golden\n")
        made = archive.pack(run, folder / "out")
        sign.sign(made, key=author, principal=maker.PRINCIPAL, now=CREATED + timedelta(hours=2))
        found = verify(made, now=NOW)
        picks = challenge.picks(NONCE, found.manifest_sha256, found.verdicts)
        answers = [
            Answer(stage=p.stage, cell=p.cell, seed=p.seed, manifest_sha256="a" * 64) for p in picks
        ]
        sign.sign(
            made, key=bob, principal="bob", role="reproducer", now=CREATED + timedelta(hours=3),
            challenge=Challenge(nonce=NONCE, answers=tuple(answers)),
        )  # fmt: skip
        (out / SIGNERS).write_text(
            f"{maker.PRINCIPAL} {maker.public_line(author)}\nbob {maker.public_line(bob)}\n"
        )
        (out / "v1.ftb").write_bytes(made.read_bytes())
    (out / "v1.json").write_text(expected(out / "v1.ftb"))


def expected(path: Path) -> str:
    """What verification says of a golden file."""
    found = verify(path, allowed_signers=path.parent / SIGNERS, now=NOW)
    value = found.json_value() | {"file": path.name}
    value["verdicts"] = [verdict.json_value() for verdict in found.verdicts]
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    build(HERE)

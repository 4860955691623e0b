"""Protects: whatever byte of a result file changes, verification refuses it and names a file.

Content and structure alike: headers, the central directory, the end record. Then whole-file
mutations by attackers who repair what they broke (`fuzz`).
"""

from __future__ import annotations

import random
from pathlib import Path

import fuzz
import pytest
from bundle_maker import PRINCIPAL, explode, public_line, write_key

from fasttrack.bundle.reader import open_bundle
from fasttrack.errors import VerificationFailed
from fasttrack.verify.steps import verify

SAMPLED = 600
SEED = 20


def positions(raw: bytes) -> list[int]:
    """All of the end record, one whole header of each kind, and a seeded sample of the rest."""
    local, central = 0, raw.index(b"PK\x01\x02")
    chosen = {
        *range(len(raw) - 22, len(raw)),
        *range(local, local + 60),
        *range(central, central + 70),
        *random.Random(SEED).sample(range(len(raw)), SAMPLED),
        *random.Random(SEED).sample(range(central, len(raw)), SAMPLED // 3),
    }
    return sorted(chosen)


def test_every_flipped_byte_is_refused(honest: Path, tmp_path: Path) -> None:
    raw = honest.read_bytes()
    path = tmp_path / "flipped.ftb"
    for at in positions(raw):
        changed = bytearray(raw)
        changed[at] ^= 1 + at % 255
        path.write_bytes(bytes(changed))
        with pytest.raises(VerificationFailed) as caught:
            verify(path)
        assert caught.value.cell, at


def test_flipped_content_names_its_member(honest: Path, tmp_path: Path) -> None:
    raw = honest.read_bytes()
    path = tmp_path / "flipped.ftb"
    for name, data in explode(honest).items():
        at = raw.index(data) + len(data) // 2
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        with pytest.raises(VerificationFailed) as caught:
            open_bundle(path)
        assert (caught.value.code, caught.value.cell) == ("VER-007", name)


def test_no_mutant_is_accepted(
    honest: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(f"{PRINCIPAL} {public_line(key)}\n")
    foreign = write_key(tmp_path / "foreign")
    refused = fuzz.run(honest, allowed, foreign, count=250, seed=SEED)
    with capsys.disabled():
        print(f" {sum(refused.values())} mutants, seed {SEED}, 0 accepted ", end="")

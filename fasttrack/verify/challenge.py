"""Challenges: a second person measures a few cells again, and chance chooses which.

Owns the choice (`picks`), the comparison (`compare`) and step 13. Cells, seeds and order follow
from a nonce and the file's manifest digest by SHA-256: an author who froze the file before the
nonce was known cannot have prepared for it, and a reproducer cannot choose what suits. Whoever
challenges takes care that the nonce is younger than the file. Read by `steps` and the CLI.
"""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrack.bundle.card import Answer, Challenge
from fasttrack.bundle.reader import Bundle
from fasttrack.errors import VerificationFailed
from fasttrack.schema import State, Tier, Verdict
from fasttrack.schema.verdict import BAD, GOOD
from fasttrack.verify.signature import Signer

PERF_CELLS = 2
KERNEL_CELLS = 1
_RULES = (("kernels", "numerics", KERNEL_CELLS), ("perf", "speed", PERF_CELLS))


@dataclass(frozen=True)
class Pick:
    """One cell to measure again."""

    stage: str
    cell: str
    seed: int

    def command(self, folder: str, target: str, tier: Tier) -> str:
        """The exact command."""
        words = ["fasttrack", "validate", folder, "--target", target, "--tier", tier.value]
        words += ["--seed", str(self.seed), "--fresh", "--only", self.stage, "--cell", self.cell]
        return shlex.join(words)


def picks(nonce: str, manifest_sha256: str, verdicts: Sequence[Verdict]) -> tuple[Pick, ...]:
    """Cells with something to reproduce, as chance orders them: at most three."""

    def chance(*parts: str) -> bytes:
        return hashlib.sha256("\n".join((nonce, manifest_sha256, *parts)).encode()).digest()

    chosen: list[Pick] = []
    for stage, rule, count in _RULES:
        cells = {v.cell for v in verdicts
                 if v.rule == rule and v.state in GOOD and v.estimate is not None}  # fmt: skip
        ranked = sorted(cells, key=lambda cell: chance("cell", stage, cell))
        chosen += [
            Pick(stage, cell, int.from_bytes(chance("seed", stage, cell)[:4], "big") >> 1)
            for cell in ranked[:count]
        ]
    return tuple(sorted(chosen, key=lambda pick: chance("order", pick.stage, pick.cell)))


def check(bundle: Bundle, signer: Signer) -> None:
    """Step 13 for one signer. Raises `VerificationFailed` VER-038."""
    met = signer.challenge
    assert met is not None
    wanted = picks(met.nonce, bundle.manifest_sha256, bundle.verdicts)
    found = [Pick(answer.stage, answer.cell, answer.seed) for answer in met.answers]
    if signer.role != "reproducer" or list(wanted) != found:
        raise VerificationFailed(
            "VER-038",
            f"the nonce chooses {', '.join(pick.cell for pick in wanted) or 'nothing'}",
            cell=f"signatures/{signer.number}.json",
        )


def told(signer: Signer) -> str:
    """What a signer measured again, in a few words."""
    assert signer.challenge is not None
    cells = ", ".join(answer.cell for answer in signer.challenge.answers)
    return f"{signer.principal} met nonce {signer.challenge.nonce}: {cells} agree"


@dataclass(frozen=True)
class Small:
    """A second person's verified result file."""

    path: Path
    manifest_sha256: str
    claim_sha256: str
    scope_sha256: str | None
    dirty: bool
    target: str
    seed: int
    cell: str | None
    stages: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    signer_keys: frozenset[bytes]


@dataclass(frozen=True)
class Compared:
    """One picked cell: what became of it.

    `difference` and `allowed` are natural logarithms of ratios of speed-ups.
    """

    pick: Pick
    answer: str
    """`agrees`, `contradicts` or `undecided`."""
    why: str
    small: Small | None = None
    difference: float | None = None
    allowed: float | None = None

    def json_value(self) -> dict[str, Any]:
        """The JSON object of this value."""
        return {
            "stage": self.pick.stage,
            "cell": self.pick.cell,
            "seed": self.pick.seed,
            "answer": self.answer,
            "why": self.why,
            "file": str(self.small.path) if self.small else None,
            "difference": self.difference,
            "allowed": self.allowed,
        }


def compare(
    wanted: Sequence[Pick], original: Small, smalls: Sequence[Small], margin_percent: float
) -> tuple[Compared, ...]:
    """Each picked cell against the small file that measured it.

    Speed-ups agree when they differ by no more than the two intervals together and a difference
    that does not matter (`margin_percent`, of policy); kernel cells when both pass.
    """
    return tuple(_compare(pick, original, smalls, margin_percent) for pick in wanted)


def _compare(
    pick: Pick, original: Small, smalls: Sequence[Small], margin_percent: float
) -> Compared:
    mine = [s for s in smalls if (s.seed, s.cell) == (pick.seed, pick.cell)
            and pick.stage in s.stages]  # fmt: skip
    if not mine:
        return Compared(pick, "undecided", "no file measured it from this seed")
    small = mine[0]
    problem = _problem(original, small)
    if problem:
        return Compared(pick, "undecided", problem, small)
    rule = next(rule for stage, rule, _ in _RULES if stage == pick.stage)
    bad = next((v for v in small.verdicts
                if v.state in BAD or v.state is State.NOT_EXERCISED), None)  # fmt: skip
    if bad is not None:
        return Compared(pick, "contradicts", f"{bad.rule} {bad.cell}: {bad.state.value}", small)
    theirs, again = (
        next((v for v in found.verdicts if (v.rule, v.cell) == (rule, pick.cell)), None)
        for found in (original, small)
    )
    if theirs is None or again is None:
        return Compared(pick, "undecided", "it left no verdict", small)
    if pick.stage == "perf":
        return _speed(pick, theirs, again, small, margin_percent)
    if again.state in GOOD:
        return Compared(pick, "agrees", f"{again.state.value} again", small)
    return Compared(pick, "undecided", f"{again.state.value}: {again.detail}", small)


def _problem(original: Small, small: Small) -> str:
    """Why a file is no second measurement of the same thing; empty if it is one."""
    if small.claim_sha256 != original.claim_sha256 or small.target != original.target:
        return "it is about another claim or target"
    if small.scope_sha256 is None or small.scope_sha256 != original.scope_sha256:
        return "it was measured from other in-scope files"
    if small.dirty:
        return "its working tree was changed after its commit"
    if small.manifest_sha256 == original.manifest_sha256:
        return "it is the file itself"
    return ""


def _speed(
    pick: Pick, theirs: Verdict, again: Verdict, small: Small, margin_percent: float
) -> Compared:
    widths = [_half_width(theirs), _half_width(again)]
    if None in widths or theirs.estimate is None or again.estimate is None:
        return Compared(pick, "undecided", f"{again.state.value}: {again.detail}", small)
    difference = math.log(again.estimate) - math.log(theirs.estimate)
    allowed = math.hypot(*(width for width in widths if width is not None)) + math.log1p(
        margin_percent / 100
    )
    told = (
        f"{theirs.estimate:.3f}x there, {again.estimate:.3f}x here; they may differ by "
        f"{math.expm1(allowed):.1%}"
    )
    if abs(difference) > allowed:
        answer = "contradicts"
    else:
        answer = "agrees" if again.state is theirs.state else "undecided"
    return Compared(pick, answer, told, small, difference, allowed)


def _half_width(verdict: Verdict) -> float | None:
    if not verdict.lower or not verdict.upper or verdict.lower < 0:
        return None
    return (math.log(verdict.upper) - math.log(verdict.lower)) / 2


def met(nonce: str, compared: Sequence[Compared]) -> Challenge:
    """What a reproducer's card says; every cell must agree."""
    if not compared or any(c.answer != "agrees" or c.small is None for c in compared):
        raise ValueError("a challenge is met when every cell agrees")
    return Challenge(
        nonce=nonce,
        answers=tuple(
            Answer(stage=c.pick.stage, cell=c.pick.cell, seed=c.pick.seed,
                   manifest_sha256=c.small.manifest_sha256)
            for c in compared if c.small is not None
        ),
    )  # fmt: skip

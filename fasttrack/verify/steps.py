"""Verification as a numbered list; every step either adds a line to the result or refuses the file.

1.  files       archive structure, names, limits, checksums; manifest; every size and digest
2.  documents   claim, policy, plan, run, provenance, verdicts: strict, known format, right shape
3.  statement   in-toto v1, this project's predicate, its subject is this manifest
4.  envelope    DSSE around exactly these statement bytes, listing exactly these signatures
5.  signatures  each signer's two signatures are genuine, by one key, at a possible time
6.  identity    with `allowed_signers`: each signer is listed with that key, purpose and time; with
                `sigstore`: that identity signed too
7.  frozen      claim, policy and plan are those frozen before measuring; the statement repeats them
8.  records     every line is a record, in its stage's folder, from a unit of the plan
9.  verdicts    the rules run again on the raw records; every stored number and word is compared
10. outcome     with `policy`: decided anew under the reader's policy instead of the author's
11. consistency records of different kinds and stages tell one story
12. answers     eval items made again from the seed, every answer scored again
13. challenges  what reproducers measured again is what their nonces chose
14. report      the report inside is what these records render to

What it cannot tell: whether the numbers were honestly measured. That takes an independent re-run by
a second signer. Needs no GPU, no torch and no network. Read by the CLI and the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fasttrack.bundle import layout
from fasttrack.bundle.reader import Bundle, open_bundle
from fasttrack.errors import VerificationFailed
from fasttrack.schema import Claim, Outcome, Policy, Provenance, Record, RunInfo, Verdict
from fasttrack.verify import (
    answers,
    challenge,
    consistency,
    frozen,
    identity,
    keyless,
    recompute,
    signature,
)
from fasttrack.verify.allowed import Allowed
from fasttrack.verify.signature import Signer

NOT_CHECKED = "not checked"
LISTED = "listed"


@dataclass(frozen=True)
class Step:
    """One step that held, and what it saw."""

    number: int
    name: str
    detail: str


@dataclass(frozen=True)
class Verification:
    """A file that passed every step. `verdicts` and `outcome` are the recomputed ones."""

    path: Path
    manifest_sha256: str
    steps: tuple[Step, ...]
    signers: tuple[Signer, ...]
    identity: str
    """`listed`: every signer is in the reader's list; `not checked`: no list was given."""
    claim: Claim
    run: RunInfo
    provenance: Provenance
    own_policy: Policy
    """The policy the run was made under."""
    verdicts: tuple[Verdict, ...]
    outcome: Outcome

    def json_value(self) -> dict[str, Any]:
        """What `fasttrack verify --json` prints."""
        return {
            "file": str(self.path),
            "verified": True,
            "manifest_sha256": self.manifest_sha256,
            "claim": self.claim.name,
            "run_id": self.run.run_id,
            "target": self.run.target,
            "tier": self.run.tier.value,
            "outcome": self.outcome.json_value(),
            "identity": self.identity,
            "signers": [signer.json_value() for signer in self.signers],
            "steps": [{"number": s.number, "name": s.name, "detail": s.detail} for s in self.steps],
        }


@dataclass
class _Context:
    """What steps hand to later steps."""

    bundle: Bundle
    allowed: Sequence[Allowed] | None
    policy: Policy | None
    sigstore: keyless.Wanted | None
    now: datetime
    signers: tuple[Signer, ...] = ()
    sourced: tuple[recompute.Sourced, ...] = ()
    records: tuple[Record, ...] = ()
    decision: recompute.Decision = field(init=False)


def verify(
    path: Path,
    *,
    allowed_signers: Path | Sequence[Allowed] | None = None,
    policy: Policy | None = None,
    sigstore: keyless.Wanted | None = None,
    now: datetime | None = None,
) -> Verification:
    """Check a result file from its first byte to its last number.

    `allowed_signers`, a file or its permissions, adds the question who signed; `policy` decides the
    records anew under the reader's policy; `sigstore` demands a Sigstore identity; `now` is the
    reader's clock. Raises `VerificationFailed` with a code of `codes.CODES` and the file concerned
    as `cell`, `UsageError` USE-001 for an unreadable list.
    """
    given = allowed_signers
    allowed = identity.read(given) if isinstance(given, Path) else given
    with open_bundle(path) as bundle:
        if not bundle.sealed:
            raise VerificationFailed(
                "VER-010",
                "a run folder is not a result file: it has no manifest and no signature",
                cell=layout.MANIFEST,
                next_step="pass the .ftb file that `fasttrack validate` names at its end",
            )
        context = _Context(bundle, allowed, policy, sigstore, now or datetime.now(UTC))
        steps = tuple(
            Step(number, name, run(context)) for number, (name, run) in enumerate(STEPS, 1)
        )
        verdicts, outcome = context.decision
        return Verification(
            path=path,
            manifest_sha256=bundle.manifest_sha256,
            steps=steps,
            signers=context.signers,
            identity=NOT_CHECKED if allowed is None else LISTED,
            claim=bundle.claim,
            run=bundle.run,
            provenance=bundle.provenance,
            own_policy=bundle.policy,
            verdicts=verdicts,
            outcome=outcome,
        )


def _files(context: _Context) -> str:
    # Opening has checked them; an archive that fails never becomes a `Bundle`.
    count = len(context.bundle.manifest.files)
    return f"{count} files, each with the size and SHA-256 of the manifest"


def _documents(context: _Context) -> str:
    bundle = context.bundle
    count = len((bundle.claim, bundle.policy, bundle.plan, bundle.run, bundle.provenance))
    return f"{count + 1} documents and {len(bundle.verdicts)} verdicts in strict, canonical JSON"


def _statement(context: _Context) -> str:
    return f"about manifest sha256:{frozen.check_statement(context.bundle)}"


def _envelope(context: _Context) -> str:
    count = signature.check_envelope(context.bundle)
    return f"holds the statement's exact bytes and {count} signatures"


def _signatures(context: _Context) -> str:
    context.signers = signature.check_signatures(context.bundle, context.now)
    return "; ".join(
        f"{s.principal} as {s.role}, {s.key_fingerprint}, {s.signed.isoformat()}"
        for s in context.signers
    )


def _identity(context: _Context) -> str:
    told = [keyless.check(context.bundle, context.sigstore)]
    if context.allowed is None:
        told.insert(0, "not checked: no list of allowed signers was given, so names prove nothing")
    else:
        for signer in context.signers:
            identity.check(signer, context.allowed)
        count = len(context.signers)
        told.insert(0, f"{count} of {count} signers are listed with their key")
    return "; ".join(text for text in told if text)


def _frozen(context: _Context) -> str:
    frozen.check_frozen(context.bundle)
    run = context.bundle.run
    return (
        f"claim {run.claim_sha256[:12]}, policy {run.policy_sha256[:12]}, plan "
        f"{run.plan_sha256[:12]} as frozen at {run.created_utc}"
    )


def _records(context: _Context) -> str:
    context.sourced = recompute.read_records(context.bundle)
    context.records = tuple(record for _, record in context.sourced)
    files = len(layout.record_names(context.bundle.names))
    return f"{len(context.sourced)} records in {files} files"


def _verdicts(context: _Context) -> str:
    context.decision = recompute.decide(context.bundle, context.records, context.bundle.policy)
    count = recompute.check_verdicts(context.bundle, context.decision)
    return f"{count} verdicts recomputed from raw records, all equal"


def _outcome(context: _Context) -> str:
    told = f"{context.bundle.outcome.state.value}, as stored"
    own, theirs = context.policy, context.bundle.policy
    if own is None or own.digest() == theirs.digest():
        return told
    context.decision = recompute.decide(context.bundle, context.records, own)
    return f"{told}; {context.decision[1].state.value} under the reader's policy"


def _consistency(context: _Context) -> str:
    return f"{consistency.check(context.bundle, context.sourced)} checks found no contradiction"


def _answers(context: _Context) -> str:
    return f"{answers.check(context.bundle, context.sourced)} answers scored again, all as stored"


def _challenges(context: _Context) -> str:
    met = [signer for signer in context.signers if signer.challenge is not None]
    for signer in met:
        challenge.check(context.bundle, signer)
    told = [challenge.told(signer) for signer in met]
    return "; ".join(told) or "nobody but the author measured"


def _report(context: _Context) -> str:
    return recompute.check_report(context.bundle, context.records)


STEPS: tuple[tuple[str, Callable[[_Context], str]], ...] = (
    ("files", _files),
    ("documents", _documents),
    ("statement", _statement),
    ("envelope", _envelope),
    ("signatures", _signatures),
    ("identity", _identity),
    ("frozen", _frozen),
    ("records", _records),
    ("verdicts", _verdicts),
    ("outcome", _outcome),
    ("consistency", _consistency),
    ("answers", _answers),
    ("challenges", _challenges),
    ("report", _report),
)

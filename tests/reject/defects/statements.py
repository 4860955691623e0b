"""Statement and envelope."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundle_maker as maker

from defects.lab import Lab, defect, put, signed_by_hand
from fasttrack.bundle import layout
from fasttrack.schema._json import loads


def _restated(lab: Lab, change: Callable[[Any], Any]) -> Path:
    """Another statement, genuinely signed."""
    members = maker.remanifest(dict(lab.members))
    payload = maker.edit_json(members[layout.STATEMENT], change)
    members[layout.STATEMENT] = payload
    return signed_by_hand(lab, members, payload)


@defect("VER-020", layout.STATEMENT)
def statement_with_extra_field(lab: Lab) -> Path:
    return _restated(lab, put(note="trust me"))


@defect("VER-021", layout.STATEMENT)
def wrong_statement_type(lab: Lab) -> Path:
    return _restated(lab, put(_type="https://in-toto.io/Statement/v0.1"))


@defect("VER-022", layout.STATEMENT)
def foreign_predicate_type(lab: Lab) -> Path:
    return _restated(lab, put(predicateType="https://slsa.dev/provenance/v1"))


@defect("VER-019", layout.STATEMENT)
def newer_predicate_type(lab: Lab) -> Path:
    return _restated(lab, put(predicateType="https://fasttrack.dev/attestation/validation/v2"))


@defect("VER-023", layout.STATEMENT)
def no_subject(lab: Lab) -> Path:
    return _restated(lab, put(subject=[{"name": layout.MANIFEST}]))


@defect("VER-023", layout.STATEMENT)
def subject_with_weak_digest(lab: Lab) -> Path:
    return _restated(lab, put(subject=[{"name": layout.MANIFEST, "digest": {"sha1": "a" * 40}}]))


@defect("VER-024", layout.STATEMENT)
def subject_of_another_manifest(lab: Lab) -> Path:
    return _restated(lab, put(subject=[{"name": layout.MANIFEST, "digest": {"sha256": "a" * 64}}]))


@defect("VER-025", layout.STATEMENT)
def statement_claims_another_tier(lab: Lab) -> Path:
    return _restated(lab, lambda v: v["predicate"].update(tier="full"))


@defect("VER-025", layout.STATEMENT)
def statement_claims_another_outcome(lab: Lab) -> Path:
    return _restated(lab, lambda v: v["predicate"].update(outcome="FAIL"))


@defect("VER-017", layout.STATEMENT)
def statement_not_canonical(lab: Lab) -> Path:
    data = json.dumps(loads(lab.members[layout.STATEMENT])).encode()
    return lab.archive(**{layout.STATEMENT: data})


@defect("VER-026", layout.ENVELOPE)
def envelope_with_extra_field(lab: Lab) -> Path:
    return lab.archive(**{layout.ENVELOPE: lab.edited(layout.ENVELOPE, put(extra=1))})


@defect("VER-027", layout.ENVELOPE)
def other_payload_type(lab: Lab) -> Path:
    data = lab.edited(layout.ENVELOPE, put(payloadType="text/plain"))
    return lab.archive(**{layout.ENVELOPE: data})


@defect("VER-028", layout.ENVELOPE)
def payload_byte_changed(lab: Lab) -> Path:
    def change(value: Any) -> None:
        value["payload"] = value["payload"][:40] + "A" + value["payload"][41:]

    return lab.archive(**{layout.ENVELOPE: lab.edited(layout.ENVELOPE, change)})


@defect("VER-029", layout.ENVELOPE)
def envelope_signature_dropped(lab: Lab) -> Path:
    return lab.archive(**{layout.ENVELOPE: lab.edited(layout.ENVELOPE, put(signatures=[]))})


@defect("VER-029", layout.ENVELOPE)
def junk_after_envelope_signature(lab: Lab) -> Path:
    def change(value: Any) -> None:
        value["signatures"][0]["sig"] += "===="

    return lab.archive(**{layout.ENVELOPE: lab.edited(layout.ENVELOPE, change)})

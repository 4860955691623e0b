"""Signatures, cards and keyless bundles."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import bundle_maker as maker

from defects.lab import CARD, CARD_SIG, PERF, SIG, Lab, defect, put, signed_by_hand
from fasttrack.bundle import layout, sshsig, statement
from fasttrack.schema._json import canonical_bytes
from fasttrack.schema.evidence import PAYLOAD_TYPE


@defect("VER-030", layout.ENVELOPE)
def unsigned(lab: Lab) -> Path:
    return maker.assemble(maker.remanifest(dict(lab.members)), lab.out)


@defect("VER-031", SIG)
def armour_junk(lab: Lab) -> Path:
    return lab.archive(**{SIG: lab.members[SIG] + b"\n"})


@defect("VER-031", SIG)
def signature_cut(lab: Lab) -> Path:
    blob = sshsig.parse(lab.members[SIG]).encode()[:-3]
    return lab.archive(**{SIG: sshsig.armour(blob)})


@defect("VER-032", SIG)
def other_namespace(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    return signed_by_hand(lab, members, members[layout.STATEMENT], namespace="git")


@defect("VER-033", SIG)
def signature_of_other_bytes(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    payload = members[layout.STATEMENT]
    return signed_by_hand(lab, members, payload, message=statement.pae(payload + b" "))


@defect("VER-033", SIG)
def signature_replayed_on_new_content(lab: Lab) -> Path:
    """Records changed, manifest and statement anew, but the honest author's old signature."""
    members = dict(lab.members)
    members[PERF] = lab.lines(PERF, "monitor", put(values={"load_1min": 0.1}))
    renewed = maker.remanifest(members)
    old = sshsig.parse(lab.members[SIG])
    entry = statement.EnvelopeSignature(sshsig.fingerprint(old.public_key), old.encode())
    renewed[layout.ENVELOPE] = statement.envelope(renewed[layout.STATEMENT], (entry,))
    for name in (SIG, CARD, CARD_SIG):
        renewed[name] = lab.members[name]
    return maker.assemble(renewed, lab.out)


@defect("VER-033", CARD_SIG)
def card_relabelled(lab: Lab) -> Path:
    """An author's signature passed off as an independent reproducer's."""
    return lab.archive(**{CARD: lab.edited(CARD, put(role="reproducer"))})


@defect("VER-034", CARD)
def card_of_another_statement(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    return signed_by_hand(lab, members, members[layout.STATEMENT], statement_sha256="0" * 64)


@defect("VER-034", CARD)
def card_names_another_key(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    return signed_by_hand(
        lab, members, members[layout.STATEMENT], public_key=maker.public_line(lab.foreign)
    )


@defect("VER-034", "signatures")
def signature_numbers_with_a_gap(lab: Lab) -> Path:
    changed = {n: None for n in (SIG, CARD, CARD_SIG)}
    moved = {n.replace("/1", "/3"): lab.members[n] for n in (SIG, CARD, CARD_SIG)}
    return lab.archive(**changed, **moved)


@defect("VER-035", SIG)
def short_rsa_key(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    weak = maker.write_key(lab.scratch / "weak", "short-rsa")
    return signed_by_hand(lab, members, members[layout.STATEMENT], key=weak)


@defect("VER-036", "signatures/2.sig")
def one_key_signs_twice(lab: Lab) -> Path:
    second = {n.replace("/1", "/2"): lab.members[n] for n in (SIG, CARD, CARD_SIG)}
    signature = sshsig.parse(lab.members[SIG])
    entry = statement.EnvelopeSignature(
        sshsig.fingerprint(signature.public_key), signature.encode()
    )
    envelope = statement.envelope(lab.members[layout.STATEMENT], (entry, entry))
    return lab.archive(**{**second, layout.ENVELOPE: envelope})


@defect("VER-037", CARD)
def signed_before_the_run(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    early = (maker.CREATED - timedelta(days=3)).isoformat()
    return signed_by_hand(lab, members, members[layout.STATEMENT], signed_utc=early)


@defect("VER-037", CARD)
def signed_in_the_future(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    late = (maker.CREATED + timedelta(days=3)).isoformat()
    return signed_by_hand(lab, members, members[layout.STATEMENT], signed_utc=late)


@defect("VER-038", CARD)
def challenge_of_another_nonce(lab: Lab) -> Path:
    """A reproducer's card whose cells were chosen by somebody, not by its nonce."""
    members = maker.remanifest(dict(lab.members))
    answer = {"stage": "perf", "cell": "decode/batch=1/context_tokens=64", "seed": 7,
              "manifest_sha256": "a" * 64}  # fmt: skip
    return signed_by_hand(
        lab, members, members[layout.STATEMENT], role="reproducer",
        challenge={"nonce": "n", "answers": [answer]},
    )  # fmt: skip


def _keyless(lab: Lab, envelope: Any) -> Path:
    data = canonical_bytes({"dsseEnvelope": envelope, "mediaType": "application/json"})
    return lab.archive(**{layout.keyless_name(1): data})


@defect("VER-045", layout.keyless_name(1))
def sigstore_bundle_of_another_statement(lab: Lab) -> Path:
    """A genuine bundle of somebody's other file, moved here."""
    payload = base64.b64encode(lab.members[layout.STATEMENT] + b" ").decode()
    return _keyless(lab, {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": []})


@defect("VER-045", layout.keyless_name(1))
def sigstore_bundle_of_another_payload_type(lab: Lab) -> Path:
    payload = base64.b64encode(lab.members[layout.STATEMENT]).decode()
    return _keyless(lab, {"payload": payload, "payloadType": "text/plain", "signatures": []})


@defect("VER-045", layout.keyless_name(1))
def sigstore_bundle_without_an_envelope(lab: Lab) -> Path:
    return _keyless(lab, None)


@defect("VER-045", layout.keyless_name(1))
def sigstore_bundle_with_junk(lab: Lab) -> Path:
    payload = base64.b64encode(lab.members[layout.STATEMENT]).decode() + "!"
    return _keyless(lab, {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": []})

"""Every way in which a result file is spoilt: one function per defect, named after it.

A defect takes a `Lab` (a copy of the honest file in pieces, two keys, a scratch folder) and returns
the path of the spoilt file. `DEFECTS` gives the code and member that verification must name. The
attacker repairs every layer above the one that is spoilt, so that no earlier check saves the day.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import bundle_maker as maker

from fasttrack.bundle import card, keys, layout, manifest, sshsig, statement
from fasttrack.schema import Claim
from fasttrack.schema._json import canonical_bytes, digest, loads
from fasttrack.schema.evidence import PAYLOAD_TYPE, SIGNATURE_NAMESPACE

PERF = maker.unit_file("perf/block0-0-base")
PERF_OTHER = maker.unit_file("perf/block0-1-candidate")
PERF_THIRD = maker.unit_file("perf/block0-2-candidate")
EVALS = maker.unit_file("evals/candidate")
FEATURES = maker.unit_file("features/base")
KERNELS = maker.unit_file("kernels/mix")
PROOFS = maker.unit_file("path/candidate")
ISOLATION = maker.unit_file("isolation/scope")
EXTRA = "perf/extra-0a1b.jsonl"
CARD = "signatures/1.json"
SIG = "signatures/1.sig"
CARD_SIG = "signatures/1.json.sig"


@dataclass
class Lab:
    """What a defect may work with."""

    members: maker.Members
    raw: bytes
    key: Path
    foreign: Path
    scratch: Path

    @property
    def out(self) -> Path:
        """Where the spoilt file goes."""
        return self.scratch / "spoilt.ftb"

    def bytes(self, data: bytes) -> Path:
        """A file of exactly these bytes."""
        self.out.write_bytes(data)
        return self.out

    def archive(self, **changed: bytes | None) -> Path:
        """Only the archive is repaired; a member given as None is left out."""
        members = dict(self.members)
        for name, data in changed.items():
            if data is None:
                members.pop(name, None)
            else:
                members[name] = data
        return maker.assemble(members, self.out)

    def resealed(self, **changed: bytes | None) -> Path:
        """Manifest, statement and signatures are made anew."""
        members = {n: d for n, d in (self.members | changed).items() if d is not None}
        return maker.reseal(members, self.out, self.key)

    def redecided(self, **changed: bytes | None) -> Path:
        """Verdicts and report follow from the changed records too: a forgery but for this."""
        members = {n: d for n, d in (self.members | changed).items() if d is not None}
        return maker.reseal(maker.redecide(members, self.scratch / "forged"), self.out, self.key)

    def edited(self, name: str, change: Callable[[Any], Any]) -> bytes:
        """A changed JSON document."""
        return maker.edit_json(self.members[name], change)

    def lines(
        self, name: str, kind: str, change: Callable[[dict[str, Any]], Iterable[Any] | None]
    ) -> bytes:
        """A changed record file."""
        return maker.edit_lines(self.members[name], kind, change)


def once(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Apply a change to the first record only."""
    done: list[bool] = []

    def apply(value: dict[str, Any]) -> None:
        if not done:
            done.append(True)
            change(value)

    return apply


def put(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Overwrite fields of an object."""
    return lambda value: value.update(fields)


# Archive ------------------------------------------------------------------------------------------


def empty_file(lab: Lab) -> Path:
    return lab.bytes(b"")


def not_an_archive(lab: Lab) -> Path:
    return lab.bytes(b"#!/bin/sh\n" * 40)


def truncated(lab: Lab) -> Path:
    return lab.bytes(lab.raw[: len(lab.raw) // 2])


def appended_bytes(lab: Lab) -> Path:
    return lab.bytes(lab.raw + b"x")


def archive_comment(lab: Lab) -> Path:
    return lab.bytes(lab.raw[:-2] + struct.pack("<H", 5) + b"hello")


def too_many_members(lab: Lab) -> Path:
    count = struct.pack("<HH", 60000, 60000)
    return lab.bytes(lab.raw[:-14] + count + lab.raw[-10:])


def oversized_member(lab: Lab) -> Path:
    """A central directory that promises three gigabytes."""
    raw, at = bytearray(lab.raw), lab.raw.index(b"PK\x01\x02")
    raw[at + 20 : at + 28] = struct.pack("<LL", 3 * 2**30, 3 * 2**30)
    return lab.bytes(bytes(raw))


def oversized_document(lab: Lab) -> Path:
    big = b'{"a":"' + b"x" * layout.MAX_DOCUMENT_BYTES + b'"}'
    return lab.archive(**{layout.ENVELOPE: big})


def prefix_before_archive(lab: Lab) -> Path:
    return lab.bytes(b"GIF89a" + lab.raw)


def compressed_member(lab: Lab) -> Path:
    with zipfile.ZipFile(lab.out, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(lab.members):
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o100644 << 16
            file.writestr(info, lab.members[name])
    return lab.out


def encrypted_flag(lab: Lab) -> Path:
    raw, at = bytearray(lab.raw), lab.raw.index(b"PK\x01\x02")
    raw[at + 8] |= 1
    return lab.bytes(bytes(raw))


def time_in_local_header(lab: Lab) -> Path:
    raw = bytearray(lab.raw)
    raw[10] ^= 1
    return lab.bytes(bytes(raw))


def offsets_swapped(lab: Lab) -> Path:
    raw = bytearray(lab.raw)
    first = lab.raw.index(b"PK\x01\x02")
    raw[first + 42 : first + 46] = struct.pack("<L", 64)
    return lab.bytes(bytes(raw))


def _renamed(lab: Lab, new: bytes) -> Path:
    """The first member under another name of the same length, in both places."""
    name = sorted(lab.members)[0].encode()
    assert len(new) == len(name)
    return lab.bytes(lab.raw.replace(name, new))


def path_traversal(lab: Lab) -> Path:
    name = sorted(lab.members)[0]
    return _renamed(lab, b"../" + b"x" * (len(name) - 3))


def absolute_path(lab: Lab) -> Path:
    name = sorted(lab.members)[0]
    return _renamed(lab, b"/" + b"x" * (len(name) - 1))


def backslash_path(lab: Lab) -> Path:
    name = sorted(lab.members)[0]
    return _renamed(lab, b"a\\" + b"x" * (len(name) - 2))


def unicode_lookalike(lab: Lab) -> Path:
    name = sorted(lab.members)[0]
    return _renamed(lab, "é".encode() + b"x" * (len(name) - 2))


def listed_twice(lab: Lab) -> Path:
    """A member renamed to its neighbour."""
    return lab.bytes(lab.raw.replace(PERF_THIRD.encode(), PERF_OTHER.encode()))


def case_collision(lab: Lab) -> Path:
    return lab.archive(**{"Verdicts.json": b"{}"})


def members_out_of_order(lab: Lab) -> Path:
    """`claim/run.json` is renamed to come before its neighbour."""
    return lab.bytes(lab.raw.replace(b"claim/run.json", b"claim/aun.json"))


def unknown_member(lab: Lab) -> Path:
    return lab.archive(**{"run.sh": b"echo hello"})


def flipped_bit(lab: Lab) -> Path:
    raw = bytearray(lab.raw)
    raw[lab.raw.index(lab.members[PERF]) + 100] ^= 1
    return lab.bytes(bytes(raw))


def symbolic_link(lab: Lab) -> Path:
    raw, at = bytearray(lab.raw), lab.raw.index(b"PK\x01\x02")
    raw[at + 38 : at + 42] = struct.pack("<L", 0o120777 << 16)
    return lab.bytes(bytes(raw))


def device_file(lab: Lab) -> Path:
    raw, at = bytearray(lab.raw), lab.raw.index(b"PK\x01\x02")
    raw[at + 38 : at + 42] = struct.pack("<L", 0o020666 << 16)
    return lab.bytes(bytes(raw))


# Manifest and documents ---------------------------------------------------------------------------


def no_manifest(lab: Lab) -> Path:
    return lab.archive(**{layout.MANIFEST: None})


def required_file_dropped_everywhere(lab: Lab) -> Path:
    """The report is gone from the archive and from a manifest that was made anew."""
    return lab.archive(
        **{
            layout.REPORT: None,
            layout.MANIFEST: lab.edited(
                layout.MANIFEST,
                lambda v: {**v, "files": [f for f in v["files"] if f["path"] != layout.REPORT]},
            ),
        }
    )


def manifest_lists_twice(lab: Lab) -> Path:
    return lab.archive(
        **{
            layout.MANIFEST: lab.edited(
                layout.MANIFEST, lambda v: {**v, "files": [v["files"][0], *v["files"]]}
            )
        }
    )


def manifest_with_md5(lab: Lab) -> Path:
    """A weak digest in place of SHA-256."""

    def weaken(value: Any) -> None:
        value["files"][0]["md5"] = value["files"][0].pop("sha256")[:32]

    return lab.archive(**{layout.MANIFEST: lab.edited(layout.MANIFEST, weaken)})


def unlisted_file(lab: Lab) -> Path:
    return lab.archive(**{EXTRA: lab.members[PERF]})


def listed_file_missing(lab: Lab) -> Path:
    return lab.archive(**{PERF: None})


def file_grown(lab: Lab) -> Path:
    return lab.archive(**{PERF: lab.members[PERF] + b"\n"})


def file_changed_same_size(lab: Lab) -> Path:
    data = lab.members[PERF].replace(b'"load_1min":0.5', b'"load_1min":0.4')
    return lab.archive(**{PERF: data})


def wrong_role(lab: Lab) -> Path:
    def relabel(value: Any) -> None:
        value["files"][0]["role"] = "log"

    return lab.archive(**{layout.MANIFEST: lab.edited(layout.MANIFEST, relabel)})


def duplicate_json_key(lab: Lab) -> Path:
    data = lab.members[layout.RUN][:-1] + b',"seed":1}'
    return lab.archive(**_sealed(lab, layout.RUN, data))


def nan_in_json(lab: Lab) -> Path:
    data = lab.members[layout.PLAN].replace(b'"seed":0', b'"seed":NaN')
    return lab.archive(**_sealed(lab, layout.PLAN, data))


def huge_integer(lab: Lab) -> Path:
    data = lab.members[layout.PLAN].replace(b'"seed":0', b'"seed":9007199254740993')
    return lab.archive(**_sealed(lab, layout.PLAN, data))


def deep_nesting(lab: Lab) -> Path:
    data = lab.members[layout.PLAN][:-1] + b',"x":' + b"[" * 5000 + b"]" * 5000 + b"}"
    return lab.archive(**_sealed(lab, layout.PLAN, data))


def not_canonical(lab: Lab) -> Path:
    data = json.dumps(loads(lab.members[layout.CLAIM]), indent=1).encode()
    return lab.archive(**_sealed(lab, layout.CLAIM, data))


def _sealed(lab: Lab, name: str, data: bytes) -> maker.Members:
    """One changed file with a manifest that knows it; statement and signature stay the old ones."""
    changed = {**lab.members, name: data}
    covered = {n: manifest.measure((d,)) for n, d in changed.items() if layout.role(n)}
    return {name: data, layout.MANIFEST: manifest.make(covered)}


def unknown_policy_field(lab: Lab) -> Path:
    data = lab.edited(layout.POLICY, put(leniency=1))
    return lab.archive(**_sealed(lab, layout.POLICY, data))


def newer_plan_format(lab: Lab) -> Path:
    data = lab.edited(layout.PLAN, put(schema="fasttrack.plan/v2"))
    return lab.archive(**_sealed(lab, layout.PLAN, data))


def newer_verdict_format(lab: Lab) -> Path:
    data = lab.edited(layout.VERDICTS, put(schema="fasttrack.verdicts/v7"))
    return lab.archive(**_sealed(lab, layout.VERDICTS, data))


# Statement and envelope ---------------------------------------------------------------------------


def _restated(lab: Lab, change: Callable[[Any], Any]) -> Path:
    """Another statement, genuinely signed."""
    members = maker.remanifest(dict(lab.members))
    payload = maker.edit_json(members[layout.STATEMENT], change)
    members[layout.STATEMENT] = payload
    return _signed_by_hand(lab, members, payload)


def _signed_by_hand(
    lab: Lab,
    members: maker.Members,
    payload: bytes,
    *,
    key: Path | None = None,
    namespace: str = SIGNATURE_NAMESPACE,
    message: bytes | None = None,
    **fields: Any,
) -> Path:
    """Signature, card and envelope without the guards of `fasttrack sign`."""
    signer = keys.find(key or lab.key)
    signature = signer.sign(statement.pae(payload) if message is None else message, namespace)
    told = {
        "schema": card.SCHEMA, "principal": maker.PRINCIPAL, "role": "author",
        "key_fingerprint": sshsig.fingerprint(signer.public_key),
        "public_key": sshsig.public_line(signer.public_key),
        "statement_sha256": hashlib.sha256(payload).hexdigest(),
        "signed_utc": (maker.CREATED + timedelta(hours=1)).isoformat(),
    } | fields  # fmt: skip
    data = canonical_bytes(told)
    members[SIG] = sshsig.armour(signature.encode())
    members[CARD] = data
    members[CARD_SIG] = sshsig.armour(signer.sign(data, card.NAMESPACE).encode())
    entry = statement.EnvelopeSignature(sshsig.fingerprint(signer.public_key), signature.encode())
    members[layout.ENVELOPE] = statement.envelope(payload, (entry,))
    return maker.assemble(members, lab.out)


def statement_with_extra_field(lab: Lab) -> Path:
    return _restated(lab, put(note="trust me"))


def wrong_statement_type(lab: Lab) -> Path:
    return _restated(lab, put(_type="https://in-toto.io/Statement/v0.1"))


def foreign_predicate_type(lab: Lab) -> Path:
    return _restated(lab, put(predicateType="https://slsa.dev/provenance/v1"))


def newer_predicate_type(lab: Lab) -> Path:
    return _restated(lab, put(predicateType="https://fasttrack.dev/attestation/validation/v2"))


def no_subject(lab: Lab) -> Path:
    return _restated(lab, put(subject=[{"name": layout.MANIFEST}]))


def subject_with_weak_digest(lab: Lab) -> Path:
    return _restated(lab, put(subject=[{"name": layout.MANIFEST, "digest": {"sha1": "a" * 40}}]))


def subject_of_another_manifest(lab: Lab) -> Path:
    return _restated(lab, put(subject=[{"name": layout.MANIFEST, "digest": {"sha256": "a" * 64}}]))


def statement_claims_another_tier(lab: Lab) -> Path:
    return _restated(lab, lambda v: v["predicate"].update(tier="full"))


def statement_claims_another_outcome(lab: Lab) -> Path:
    return _restated(lab, lambda v: v["predicate"].update(outcome="FAIL"))


def statement_not_canonical(lab: Lab) -> Path:
    data = json.dumps(loads(lab.members[layout.STATEMENT])).encode()
    return lab.archive(**{layout.STATEMENT: data})


def envelope_with_extra_field(lab: Lab) -> Path:
    return lab.archive(**{layout.ENVELOPE: lab.edited(layout.ENVELOPE, put(extra=1))})


def other_payload_type(lab: Lab) -> Path:
    data = lab.edited(layout.ENVELOPE, put(payloadType="text/plain"))
    return lab.archive(**{layout.ENVELOPE: data})


def payload_byte_changed(lab: Lab) -> Path:
    def change(value: Any) -> None:
        value["payload"] = value["payload"][:40] + "A" + value["payload"][41:]

    return lab.archive(**{layout.ENVELOPE: lab.edited(layout.ENVELOPE, change)})


def envelope_signature_dropped(lab: Lab) -> Path:
    return lab.archive(**{layout.ENVELOPE: lab.edited(layout.ENVELOPE, put(signatures=[]))})


def junk_after_envelope_signature(lab: Lab) -> Path:
    def change(value: Any) -> None:
        value["signatures"][0]["sig"] += "===="

    return lab.archive(**{layout.ENVELOPE: lab.edited(layout.ENVELOPE, change)})


# Signatures ---------------------------------------------------------------------------------------


def unsigned(lab: Lab) -> Path:
    return maker.assemble(maker.remanifest(dict(lab.members)), lab.out)


def armour_junk(lab: Lab) -> Path:
    return lab.archive(**{SIG: lab.members[SIG] + b"\n"})


def signature_cut(lab: Lab) -> Path:
    blob = sshsig.parse(lab.members[SIG]).encode()[:-3]
    return lab.archive(**{SIG: sshsig.armour(blob)})


def other_namespace(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    return _signed_by_hand(lab, members, members[layout.STATEMENT], namespace="git")


def signature_of_other_bytes(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    payload = members[layout.STATEMENT]
    return _signed_by_hand(lab, members, payload, message=statement.pae(payload + b" "))


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


def card_relabelled(lab: Lab) -> Path:
    """An author's signature passed off as an independent reproducer's."""
    return lab.archive(**{CARD: lab.edited(CARD, put(role="reproducer"))})


def card_of_another_statement(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    return _signed_by_hand(lab, members, members[layout.STATEMENT], statement_sha256="0" * 64)


def card_names_another_key(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    return _signed_by_hand(
        lab, members, members[layout.STATEMENT], public_key=maker.public_line(lab.foreign)
    )


def signature_numbers_with_a_gap(lab: Lab) -> Path:
    changed = {n: None for n in (SIG, CARD, CARD_SIG)}
    moved = {n.replace("/1", "/3"): lab.members[n] for n in (SIG, CARD, CARD_SIG)}
    return lab.archive(**changed, **moved)


def short_rsa_key(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    weak = maker.write_key(lab.scratch / "weak", "short-rsa")
    return _signed_by_hand(lab, members, members[layout.STATEMENT], key=weak)


def one_key_signs_twice(lab: Lab) -> Path:
    second = {n.replace("/1", "/2"): lab.members[n] for n in (SIG, CARD, CARD_SIG)}
    signature = sshsig.parse(lab.members[SIG])
    entry = statement.EnvelopeSignature(
        sshsig.fingerprint(signature.public_key), signature.encode()
    )
    envelope = statement.envelope(lab.members[layout.STATEMENT], (entry, entry))
    return lab.archive(**{**second, layout.ENVELOPE: envelope})


def signed_before_the_run(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    early = (maker.CREATED - timedelta(days=3)).isoformat()
    return _signed_by_hand(lab, members, members[layout.STATEMENT], signed_utc=early)


def signed_in_the_future(lab: Lab) -> Path:
    members = maker.remanifest(dict(lab.members))
    late = (maker.CREATED + timedelta(days=3)).isoformat()
    return _signed_by_hand(lab, members, members[layout.STATEMENT], signed_utc=late)


def challenge_of_another_nonce(lab: Lab) -> Path:
    """A reproducer's card whose cells were chosen by somebody, not by its nonce."""
    members = maker.remanifest(dict(lab.members))
    answer = {"stage": "perf", "cell": "decode/batch=1/context_tokens=64", "seed": 7,
              "manifest_sha256": "a" * 64}  # fmt: skip
    return _signed_by_hand(
        lab, members, members[layout.STATEMENT], role="reproducer",
        challenge={"nonce": "n", "answers": [answer]},
    )  # fmt: skip


def _keyless(lab: Lab, envelope: Any) -> Path:
    data = canonical_bytes({"dsseEnvelope": envelope, "mediaType": "application/json"})
    return lab.archive(**{layout.keyless_name(1): data})


def sigstore_bundle_of_another_statement(lab: Lab) -> Path:
    """A genuine bundle of somebody's other file, moved here."""
    payload = base64.b64encode(lab.members[layout.STATEMENT] + b" ").decode()
    return _keyless(lab, {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": []})


def sigstore_bundle_of_another_payload_type(lab: Lab) -> Path:
    payload = base64.b64encode(lab.members[layout.STATEMENT]).decode()
    return _keyless(lab, {"payload": payload, "payloadType": "text/plain", "signatures": []})


def sigstore_bundle_without_an_envelope(lab: Lab) -> Path:
    return _keyless(lab, None)


def sigstore_bundle_with_junk(lab: Lab) -> Path:
    payload = base64.b64encode(lab.members[layout.STATEMENT]).decode() + "!"
    return _keyless(lab, {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": []})


# Frozen inputs ------------------------------------------------------------------------------------


def claim_toml_edited(lab: Lab) -> Path:
    data = lab.members[layout.CLAIM_TOML].replace(b"faster_everywhere", b"slower_nowhere")
    return lab.resealed(**{layout.CLAIM_TOML: data})


def claim_changed_after_freezing(lab: Lab) -> Path:
    toml = lab.members[layout.CLAIM_TOML].replace(b"faster_everywhere", b"slower_nowhere")
    claim = lab.edited(layout.CLAIM, lambda v: v["speed"].update(sentence="slower_nowhere"))
    return lab.resealed(**{layout.CLAIM_TOML: toml, layout.CLAIM: claim})


def policy_loosened(lab: Lab) -> Path:
    data = lab.edited(layout.POLICY, lambda v: v["numerics"].update(ratio_rms=99))
    return lab.resealed(**{layout.POLICY: data})


def plan_changed_after_freezing(lab: Lab) -> Path:
    data = lab.edited(layout.PLAN, lambda v: v["units"].pop() and None)
    return lab.resealed(**{layout.PLAN: data})


def plan_of_another_target(lab: Lab) -> Path:
    plan = lab.edited(layout.PLAN, put(target="gpu-b"))
    run = lab.edited(layout.RUN, put(plan_sha256=digest(loads(plan))))
    return lab.resealed(**{layout.PLAN: plan, layout.RUN: run})


def plan_with_fewer_items(lab: Lab) -> Path:
    """A tier's name with less measured than the tier means."""
    plan = lab.edited(layout.PLAN, lambda v: v["amounts"].update(items=2))
    run = lab.edited(layout.RUN, put(plan_sha256=digest(loads(plan))))
    return lab.resealed(**{layout.PLAN: plan, layout.RUN: run})


def plan_without_a_block(lab: Lab) -> Path:
    def drop(value: Any) -> None:
        value["units"] = [unit for unit in value["units"] if "block3" not in unit]

    plan = lab.edited(layout.PLAN, drop)
    run = lab.edited(layout.RUN, put(plan_sha256=digest(loads(plan))))
    return lab.resealed(**{layout.PLAN: plan, layout.RUN: run})


def self_test_of_another_harness(lab: Lab) -> Path:
    def change(value: Any) -> None:
        value["self_test"]["harness_sha256"] = "0" * 64

    return lab.resealed(**{layout.RUN: lab.edited(layout.RUN, change)})


def self_test_of_another_zoo(lab: Lab) -> Path:
    def change(value: Any) -> None:
        value["self_test"]["catalogue_sha256"] = "0" * 64

    return lab.resealed(**{layout.RUN: lab.edited(layout.RUN, change)})


def self_test_without_the_plant_that_was_missed(lab: Lab) -> Path:
    def change(value: Any) -> None:
        del value["self_test"]["plants"][0]

    return lab.resealed(**{layout.RUN: lab.edited(layout.RUN, change)})


def claim_with_too_many_cells(lab: Lab) -> Path:
    """A grid that would exhaust whoever lists its cells."""
    many = ", ".join(map(str, range(1, 300)))
    toml = lab.members[layout.CLAIM_TOML].decode()
    toml = toml.replace("[1, 2]", f"[{many}]").replace("[64]", f"[{many}]")
    toml = toml.replace("max_model_len = 512", "max_model_len = 4096\nmax_num_seqs = 400")
    claim = Claim.model_validate(tomllib.loads(toml))
    run = lab.edited(layout.RUN, put(claim_sha256=claim.digest()))
    data = canonical_bytes(claim.json_value())
    return lab.resealed(**{layout.CLAIM_TOML: toml.encode(), layout.CLAIM: data, layout.RUN: run})


def plan_without_a_cell(lab: Lab) -> Path:
    plan = lab.edited(layout.PLAN, lambda v: v["cells"].pop() and None)
    run = lab.edited(layout.RUN, put(plan_sha256=digest(loads(plan))))
    return lab.resealed(**{layout.PLAN: plan, layout.RUN: run})


# Records and verdicts -----------------------------------------------------------------------------


def last_line_cut(lab: Lab) -> Path:
    return lab.resealed(**{PERF: lab.members[PERF][:-9]})


def last_newline_cut(lab: Lab) -> Path:
    return lab.resealed(**{PERF: lab.members[PERF][:-1]})


def record_with_unknown_field(lab: Lab) -> Path:
    return lab.resealed(**{PERF: lab.lines(PERF, "sample", once(put(note="fine")))})


def record_of_unknown_kind(lab: Lab) -> Path:
    return lab.resealed(**{ISOLATION: lab.lines(ISOLATION, "isolation", put(kind="isolated"))})


def record_in_wrong_stage(lab: Lab) -> Path:
    return lab.resealed(**{ISOLATION: lab.members[KERNELS]})


def records_of_no_planned_unit(lab: Lab) -> Path:
    return lab.resealed(**{EXTRA: lab.members[PERF]})


def block_left_out(lab: Lab) -> Path:
    """The four sessions of a block that the author did not like, gone before deciding."""
    gone = {name: None for name in lab.members if name.startswith("perf/block1-")}
    return lab.redecided(**gone)


def number_edited(lab: Lab) -> Path:
    def better(value: Any) -> None:
        speed = next(v for v in value["verdicts"] if v["state"] == "FASTER")
        speed["estimate"] *= 1 + 1e-6

    return lab.resealed(**{layout.VERDICTS: lab.edited(layout.VERDICTS, better)})


def verdict_flipped(lab: Lab) -> Path:
    """Records of a broken kernel under a verdict that still says PASS."""
    worse = lab.lines(KERNELS, "kernel", lambda v: v["candidate"].update(rms=0.9, max=0.9))
    return lab.resealed(**{KERNELS: worse})


def records_dropped_verdicts_kept(lab: Lab) -> Path:
    data = lab.lines(EVALS, "item", lambda v: [] if v["item"] == "chain-8-0-3" else None)
    return lab.resealed(**{EVALS: data})


def arms_swapped_in_records(lab: Lab) -> Path:
    """Samples of both arms trade places, so the slow path looks fast."""
    other = {"base": "candidate", "candidate": "base"}
    changed = {
        name: maker.edit_lines(data, "sample", lambda v: v.update(arm=other[v["arm"]]))
        for name, data in lab.members.items()
        if name.startswith("perf/")
    }
    return lab.resealed(**changed)


def verdict_removed(lab: Lab) -> Path:
    return lab.resealed(
        **{layout.VERDICTS: lab.edited(layout.VERDICTS, lambda v: v["verdicts"].pop(0) and None)}
    )


def verdict_added(lab: Lab) -> Path:
    def add(value: Any) -> None:
        value["verdicts"].append({**value["verdicts"][0], "cell": "everything"})

    return lab.resealed(**{layout.VERDICTS: lab.edited(layout.VERDICTS, add)})


def outcome_typed_in(lab: Lab) -> Path:
    """Failing records with honest verdicts under a typed PASS."""
    worse = lab.lines(KERNELS, "kernel", lambda v: v["candidate"].update(rms=0.9, max=0.9))
    members = maker.redecide({**lab.members, KERNELS: worse}, lab.scratch / "forged")
    members[layout.VERDICTS] = maker.edit_json(
        members[layout.VERDICTS], lambda v: v["outcome"].update(state="PASS")
    )
    return maker.reseal(members, lab.out, lab.key)


def untested_list_emptied(lab: Lab) -> Path:
    data = lab.edited(layout.VERDICTS, lambda v: v["outcome"].update(untested=[]))
    return lab.resealed(**{layout.VERDICTS: data})


def report_edited(lab: Lab) -> Path:
    data = lab.members[layout.REPORT].replace(b"2.00x", b"9.00x")
    return lab.resealed(**{layout.REPORT: data})


# Consistency --------------------------------------------------------------------------------------


def session_name_reused(lab: Lab) -> Path:
    data = lab.members[PERF]
    ended = next(line for line in data.splitlines() if b'"kind":"session"' in line)
    return lab.redecided(**{PERF: data + ended + b"\n"})


def switch_contradicts_arm(lab: Lab) -> Path:
    data = lab.lines(PERF, "session", put(switch="latency_specialized"))
    return lab.redecided(**{PERF: data})


def other_build_in_one_session(lab: Lab) -> Path:
    data = lab.lines(PERF, "session", lambda v: v["fingerprint"].update(vllm="0.33.0"))
    return lab.redecided(**{PERF: data})


def other_checkpoint_in_evals(lab: Lab) -> Path:
    data = lab.lines(EVALS, "session", lambda v: v["fingerprint"].update(checkpoint="d" * 64))
    return lab.redecided(**{EVALS: data})


def session_ends_before_it_starts(lab: Lab) -> Path:
    data = lab.lines(FEATURES, "session", put(end_s=1.0))
    return lab.redecided(**{FEATURES: data})


def session_older_than_the_run(lab: Lab) -> Path:
    early = (maker.CREATED - timedelta(days=1)).isoformat()
    return lab.redecided(**{FEATURES: lab.lines(FEATURES, "session", put(started_utc=early))})


def sessions_overlap(lab: Lab) -> Path:
    """One session is stretched over its successor."""
    data = lab.lines(PERF, "session", lambda v: v.update(end_s=v["end_s"] + 30))
    return lab.redecided(**{PERF: data})


def sample_without_session(lab: Lab) -> Path:
    data = lab.lines(PERF, "session", lambda v: [])
    return lab.redecided(**{PERF: data})


def cell_outside_the_grid(lab: Lab) -> Path:
    def move(value: dict[str, Any]) -> None:
        value["cell"] = value["cell"].replace("batch=1", "batch=3")

    return lab.redecided(**{PERF: lab.lines(PERF, "sample", move)})


def block_out_of_order(lab: Lab) -> Path:
    """A block that would be A B B A says A B A A: its third session came from the other arm."""
    name = PERF_THIRD
    swap = {"arm": "base"}
    data = lab.members[name]
    for kind in ("sample", "path", "session"):
        data = maker.edit_lines(data, kind, put(**swap))
    data = maker.edit_lines(data, "session", put(switch="auto"))
    return lab.redecided(**{name: data})


def one_place_measured_twice(lab: Lab) -> Path:
    data = lab.lines(PERF_OTHER, "sample", put(position=0))
    return lab.redecided(**{PERF_OTHER: data})


def steps_outside_their_session(lab: Lab) -> Path:
    def early(value: dict[str, Any]) -> None:
        for step in value["steps"]:
            step["start_s"] -= 500

    return lab.redecided(**{PERF: lab.lines(PERF, "sample", early)})


def steps_overlap(lab: Lab) -> Path:
    def stretch(value: dict[str, Any]) -> None:
        value["steps"][3]["duration_s"] *= 50

    return lab.redecided(**{PERF: lab.lines(PERF, "sample", stretch)})


def step_without_duration(lab: Lab) -> Path:
    def vanish(value: dict[str, Any]) -> None:
        value["steps"][5]["duration_s"] = 0

    return lab.redecided(**{PERF_OTHER: lab.lines(PERF_OTHER, "sample", vanish)})


def tokens_from_nowhere(lab: Lab) -> Path:
    data = lab.lines(PERF, "sample", lambda v: v.update(output_tokens=v["output_tokens"] * 10))
    return lab.redecided(**{PERF: data})


def prefill_not_accounted_for(lab: Lab) -> Path:
    def hide(value: dict[str, Any]) -> None:
        value["steps"] = [s for s in value["steps"] if not s["prefill_tokens"]]

    return lab.redecided(**{PERF: lab.lines(PERF, "sample", hide)})


def sample_vector_copied(lab: Lab) -> Path:
    """The fast first candidate session is copied over a later one."""
    source = [loads(line) for line in lab.members[PERF_OTHER].splitlines()]
    steps = {r["cell"]: r["steps"] for r in source if r["kind"] == "sample"}
    name = PERF_THIRD
    target = [loads(line) for line in lab.members[name].splitlines()]
    start = {r["cell"]: r["steps"][0]["start_s"] for r in target if r["kind"] == "sample"}

    def copy(value: dict[str, Any]) -> None:
        copied = steps[value["cell"]]
        shift = start[value["cell"]] - copied[0]["start_s"]
        value["steps"] = [{**s, "start_s": s["start_s"] + shift} for s in copied]

    return lab.redecided(**{name: lab.lines(name, "sample", copy)})


def fewer_proofs_than_planned(lab: Lab) -> Path:
    return lab.redecided(**{PROOFS: lab.lines(PROOFS, "state", lambda v: [])})


def proof_made_twice(lab: Lab) -> Path:
    return lab.redecided(**{PROOFS: lab.lines(PROOFS, "state", lambda v: [v, v])})


def proof_of_another_call(lab: Lab) -> Path:
    data = lab.lines(PROOFS, "twin", put(cell="path/sampling/watermark"))
    return lab.redecided(**{PROOFS: data})


def more_decode_steps_traced_than_ran(lab: Lab) -> Path:
    return lab.redecided(**{PROOFS: lab.lines(PROOFS, "trace", put(decode_steps=9))})


def more_tokens_than_the_steps_made(lab: Lab) -> Path:
    long = {"token_ids": list(range(40)), "logprobs": [], "gaps": []}
    return lab.redecided(**{PROOFS: lab.lines(PROOFS, "twin", put(changed=[long]))})


def step_log_of_another_sample(lab: Lab) -> Path:
    def shift(value: dict[str, Any]) -> None:
        value["scheduled"][0][1] += 1
        value["steps"][0]["tokens"] += 1
        value["steps"][0]["prefill_tokens"] += 1

    return lab.redecided(**{PERF_OTHER: lab.lines(PERF_OTHER, "path", shift)})


def item_answered_twice(lab: Lab) -> Path:
    data = lab.lines(EVALS, "item", lambda v: [v, v] if v["item"] == "chain-8-0-0" else None)
    return lab.redecided(**{EVALS: data})


def kernel_case_recorded_twice(lab: Lab) -> Path:
    data = lab.lines(KERNELS, "kernel", lambda v: [v, v] if v["seed"] == 0 else None)
    return lab.redecided(**{KERNELS: data})


def conduct_recorded_twice(lab: Lab) -> Path:
    """A second record of the same cell, so that one of them looks better."""
    return lab.redecided(**{KERNELS: lab.lines(KERNELS, "conduct", lambda v: [v, v])})


def more_repeats_agree_than_ran(lab: Lab) -> Path:
    return lab.redecided(**{KERNELS: lab.lines(KERNELS, "kernel", put(repeats_equal=301))})


def score_above_one(lab: Lab) -> Path:
    return lab.redecided(**{EVALS: lab.lines(EVALS, "item", put(score=2.0))})


def seeds_that_went_badly_left_out(lab: Lab) -> Path:
    data = lab.lines(KERNELS, "kernel", lambda v: [] if v["seed"] > 6 else None)
    return lab.redecided(**{KERNELS: data})


def seeds_chosen_after_looking(lab: Lab) -> Path:
    data = lab.lines(KERNELS, "kernel", lambda v: v.update(seed=v["seed"] + 1000))
    return lab.redecided(**{KERNELS: data})


def fewer_repeats_than_planned(lab: Lab) -> Path:
    def fewer(value: dict[str, Any]) -> None:
        if value["control"] is None:
            value.update(repeats=3, repeats_equal=3)

    return lab.redecided(**{KERNELS: lab.lines(KERNELS, "kernel", fewer)})


def kernel_cell_of_another_regime(lab: Lab) -> Path:
    """The easy batch, measured again under the hard one's name."""
    data = lab.lines(KERNELS, "kernel", put(regime={"batch": 1}))
    return lab.redecided(**{KERNELS: data})


def wrong_answer_scored_right(lab: Lab) -> Path:
    """Scores are raised in both arms, so that no difference shows."""
    changed = {
        name: maker.edit_lines(data, "item", put(score=1))
        for name, data in lab.members.items()
        if name.startswith("evals/")
    }
    return lab.redecided(**changed)


def lost_answer_scored_right(lab: Lab) -> Path:
    data = lab.lines(
        EVALS, "item", lambda v: v.update(finish_reason="lost") if v["score"] else None
    )
    return lab.redecided(**{EVALS: data})


def items_of_another_seed(lab: Lab) -> Path:
    """Items chosen after looking at their answers."""
    changed = {
        name: maker.edit_lines(
            data, "item", lambda v: v.update(item=v["item"].replace("chain-8-0-", "chain-8-7-"))
        )
        for name, data in lab.members.items()
        if name.startswith("evals/")
    }
    return lab.redecided(**changed)


def fewer_items_than_planned(lab: Lab) -> Path:
    """The items that went badly are left out of both arms."""
    changed = {
        name: maker.edit_lines(data, "item", lambda v: None if v["score"] else [])
        for name, data in lab.members.items()
        if name.startswith("evals/")
    }
    return lab.redecided(**changed)


def one_prompt_for_two_items(lab: Lab) -> Path:
    prompts: list[str] = []

    def copy(value: dict[str, Any]) -> None:
        prompts.append(value["prompt_sha256"])
        value["prompt_sha256"] = prompts[0]

    return lab.redecided(**{EVALS: lab.lines(EVALS, "item", copy)})


def answer_longer_than_asked(lab: Lab) -> Path:
    data = lab.lines(EVALS, "item", lambda v: v.update(token_ids=list(range(1000))))
    return lab.redecided(**{EVALS: data})


def eval_nobody_knows(lab: Lab) -> Path:
    """An eval of the author's own, with scores of the author's own."""
    changed = {
        name: maker.edit_lines(data, "item", put(eval="trust-me", score=1))
        for name, data in lab.members.items()
        if name.startswith("evals/")
    }
    return lab.redecided(**changed)


@dataclass(frozen=True)
class Defect:
    """What verification must say about a spoilt file."""

    make: Callable[[Lab], Path]
    code: str
    member: str | None = None
    """The file it must name; None where any name will do."""


FIRST = layout.CLAIM_TOML
DEFECTS: tuple[Defect, ...] = (
    Defect(empty_file, "VER-001", "spoilt.ftb"),
    Defect(not_an_archive, "VER-001", "spoilt.ftb"),
    Defect(truncated, "VER-001", "spoilt.ftb"),
    Defect(appended_bytes, "VER-001", "spoilt.ftb"),
    Defect(archive_comment, "VER-001", "spoilt.ftb"),
    Defect(too_many_members, "VER-002", "spoilt.ftb"),
    Defect(oversized_member, "VER-002"),
    Defect(oversized_document, "VER-002", layout.ENVELOPE),
    Defect(prefix_before_archive, "VER-003", "spoilt.ftb"),
    Defect(compressed_member, "VER-003"),
    Defect(encrypted_flag, "VER-003"),
    Defect(time_in_local_header, "VER-003"),
    Defect(offsets_swapped, "VER-003"),
    Defect(path_traversal, "VER-004"),
    Defect(absolute_path, "VER-004"),
    Defect(backslash_path, "VER-004"),
    Defect(unicode_lookalike, "VER-004"),
    Defect(listed_twice, "VER-005"),
    Defect(case_collision, "VER-005", layout.VERDICTS),
    Defect(members_out_of_order, "VER-005", "claim/aun.json"),
    Defect(unknown_member, "VER-006", "run.sh"),
    Defect(flipped_bit, "VER-007", PERF),
    Defect(symbolic_link, "VER-008"),
    Defect(device_file, "VER-008"),
    Defect(no_manifest, "VER-010", layout.MANIFEST),
    Defect(required_file_dropped_everywhere, "VER-010", layout.REPORT),
    Defect(manifest_lists_twice, "VER-011", layout.MANIFEST),
    Defect(manifest_with_md5, "VER-011", layout.MANIFEST),
    Defect(unlisted_file, "VER-012", EXTRA),
    Defect(listed_file_missing, "VER-013", PERF),
    Defect(file_grown, "VER-014", PERF),
    Defect(file_changed_same_size, "VER-015", PERF),
    Defect(wrong_role, "VER-016", FIRST.replace(".toml", ".json")),
    Defect(duplicate_json_key, "VER-017", layout.RUN),
    Defect(nan_in_json, "VER-017", layout.PLAN),
    Defect(huge_integer, "VER-017", layout.PLAN),
    Defect(deep_nesting, "VER-017", layout.PLAN),
    Defect(not_canonical, "VER-017", layout.CLAIM),
    Defect(unknown_policy_field, "VER-018", layout.POLICY),
    Defect(newer_plan_format, "VER-019", layout.PLAN),
    Defect(newer_verdict_format, "VER-019", layout.VERDICTS),
    Defect(newer_predicate_type, "VER-019", layout.STATEMENT),
    Defect(statement_with_extra_field, "VER-020", layout.STATEMENT),
    Defect(wrong_statement_type, "VER-021", layout.STATEMENT),
    Defect(foreign_predicate_type, "VER-022", layout.STATEMENT),
    Defect(no_subject, "VER-023", layout.STATEMENT),
    Defect(subject_with_weak_digest, "VER-023", layout.STATEMENT),
    Defect(subject_of_another_manifest, "VER-024", layout.STATEMENT),
    Defect(statement_claims_another_tier, "VER-025", layout.STATEMENT),
    Defect(statement_claims_another_outcome, "VER-025", layout.STATEMENT),
    Defect(statement_not_canonical, "VER-017", layout.STATEMENT),
    Defect(envelope_with_extra_field, "VER-026", layout.ENVELOPE),
    Defect(other_payload_type, "VER-027", layout.ENVELOPE),
    Defect(payload_byte_changed, "VER-028", layout.ENVELOPE),
    Defect(envelope_signature_dropped, "VER-029", layout.ENVELOPE),
    Defect(junk_after_envelope_signature, "VER-029", layout.ENVELOPE),
    Defect(unsigned, "VER-030", layout.ENVELOPE),
    Defect(armour_junk, "VER-031", SIG),
    Defect(signature_cut, "VER-031", SIG),
    Defect(other_namespace, "VER-032", SIG),
    Defect(signature_of_other_bytes, "VER-033", SIG),
    Defect(signature_replayed_on_new_content, "VER-033", SIG),
    Defect(card_relabelled, "VER-033", CARD_SIG),
    Defect(card_of_another_statement, "VER-034", CARD),
    Defect(card_names_another_key, "VER-034", CARD),
    Defect(signature_numbers_with_a_gap, "VER-034", "signatures"),
    Defect(short_rsa_key, "VER-035", SIG),
    Defect(one_key_signs_twice, "VER-036", "signatures/2.sig"),
    Defect(signed_before_the_run, "VER-037", CARD),
    Defect(signed_in_the_future, "VER-037", CARD),
    Defect(challenge_of_another_nonce, "VER-038", CARD),
    Defect(sigstore_bundle_of_another_statement, "VER-045", layout.keyless_name(1)),
    Defect(sigstore_bundle_of_another_payload_type, "VER-045", layout.keyless_name(1)),
    Defect(sigstore_bundle_without_an_envelope, "VER-045", layout.keyless_name(1)),
    Defect(sigstore_bundle_with_junk, "VER-045", layout.keyless_name(1)),
    Defect(claim_toml_edited, "VER-050", layout.CLAIM_TOML),
    Defect(claim_changed_after_freezing, "VER-051", layout.CLAIM),
    Defect(policy_loosened, "VER-052", layout.POLICY),
    Defect(plan_changed_after_freezing, "VER-053", layout.PLAN),
    Defect(plan_of_another_target, "VER-054", layout.PLAN),
    Defect(plan_without_a_cell, "VER-054", layout.PLAN),
    Defect(plan_with_fewer_items, "VER-054", layout.PLAN),
    Defect(plan_without_a_block, "VER-054", layout.PLAN),
    Defect(self_test_of_another_harness, "VER-055", layout.RUN),
    Defect(self_test_of_another_zoo, "VER-055", layout.RUN),
    Defect(self_test_without_the_plant_that_was_missed, "VER-055", layout.RUN),
    Defect(claim_with_too_many_cells, "VER-002", layout.CLAIM),
    Defect(last_line_cut, "VER-060", PERF),
    Defect(last_newline_cut, "VER-060", PERF),
    Defect(record_with_unknown_field, "VER-060", PERF),
    Defect(record_of_unknown_kind, "VER-060", ISOLATION),
    Defect(record_in_wrong_stage, "VER-061", ISOLATION),
    Defect(records_of_no_planned_unit, "VER-062", EXTRA),
    Defect(block_left_out, "VER-063"),
    Defect(number_edited, "VER-070", layout.VERDICTS),
    Defect(verdict_flipped, "VER-070", layout.VERDICTS),
    Defect(records_dropped_verdicts_kept, "VER-071", layout.VERDICTS),
    Defect(arms_swapped_in_records, "VER-070", layout.VERDICTS),
    Defect(verdict_removed, "VER-071", layout.VERDICTS),
    Defect(verdict_added, "VER-071", layout.VERDICTS),
    Defect(outcome_typed_in, "VER-072", layout.VERDICTS),
    Defect(untested_list_emptied, "VER-072", layout.VERDICTS),
    Defect(report_edited, "VER-074", layout.REPORT),
    Defect(session_name_reused, "VER-080", PERF),
    Defect(switch_contradicts_arm, "VER-081", PERF),
    Defect(other_build_in_one_session, "VER-082", PERF),
    Defect(other_checkpoint_in_evals, "VER-082", EVALS),
    Defect(session_ends_before_it_starts, "VER-083", FEATURES),
    Defect(session_older_than_the_run, "VER-083", FEATURES),
    Defect(sessions_overlap, "VER-084", PERF_OTHER),
    Defect(sample_without_session, "VER-085", PERF),
    Defect(cell_outside_the_grid, "VER-086", PERF),
    Defect(block_out_of_order, "VER-087"),
    Defect(one_place_measured_twice, "VER-087", PERF_OTHER),
    Defect(steps_outside_their_session, "VER-088", PERF),
    Defect(steps_overlap, "VER-088", PERF),
    Defect(step_without_duration, "VER-088", PERF_OTHER),
    Defect(tokens_from_nowhere, "VER-089", PERF),
    Defect(prefill_not_accounted_for, "VER-089", PERF),
    Defect(sample_vector_copied, "VER-090"),
    Defect(item_answered_twice, "VER-091", EVALS),
    Defect(kernel_case_recorded_twice, "VER-091", KERNELS),
    Defect(conduct_recorded_twice, "VER-091", KERNELS),
    Defect(more_repeats_agree_than_ran, "VER-092", KERNELS),
    Defect(score_above_one, "VER-092", EVALS),
    Defect(seeds_that_went_badly_left_out, "VER-096", KERNELS),
    Defect(seeds_chosen_after_looking, "VER-096", KERNELS),
    Defect(fewer_repeats_than_planned, "VER-096", KERNELS),
    Defect(kernel_cell_of_another_regime, "VER-096", KERNELS),
    Defect(fewer_proofs_than_planned, "VER-098"),
    Defect(proof_made_twice, "VER-098", PROOFS),
    Defect(proof_of_another_call, "VER-098", PROOFS),
    Defect(more_decode_steps_traced_than_ran, "VER-098", PROOFS),
    Defect(more_tokens_than_the_steps_made, "VER-098", PROOFS),
    Defect(step_log_of_another_sample, "VER-098", PERF_OTHER),
    Defect(wrong_answer_scored_right, "VER-093"),
    Defect(lost_answer_scored_right, "VER-093", EVALS),
    Defect(items_of_another_seed, "VER-094"),
    Defect(fewer_items_than_planned, "VER-094"),
    Defect(one_prompt_for_two_items, "VER-094", EVALS),
    Defect(answer_longer_than_asked, "VER-094", EVALS),
    Defect(eval_nobody_knows, "VER-095"),
)
_NAME = re.compile(r"[a-z0-9_]+\Z")
assert all(_NAME.match(defect.make.__name__) for defect in DEFECTS)

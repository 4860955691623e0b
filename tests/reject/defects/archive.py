"""The archive itself: what a reader of ZIP files may be fooled with."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from defects.lab import PERF, PERF_OTHER, PERF_THIRD, Lab, defect
from fasttrack.bundle import layout


@defect("VER-001", "spoilt.ftb")
def empty_file(lab: Lab) -> Path:
    return lab.bytes(b"")


@defect("VER-001", "spoilt.ftb")
def not_an_archive(lab: Lab) -> Path:
    return lab.bytes(b"#!/bin/sh\n" * 40)


@defect("VER-001", "spoilt.ftb")
def truncated(lab: Lab) -> Path:
    return lab.bytes(lab.raw[: len(lab.raw) // 2])


@defect("VER-001", "spoilt.ftb")
def appended_bytes(lab: Lab) -> Path:
    return lab.bytes(lab.raw + b"x")


@defect("VER-001", "spoilt.ftb")
def archive_comment(lab: Lab) -> Path:
    return lab.bytes(lab.raw[:-2] + struct.pack("<H", 5) + b"hello")


@defect("VER-002", "spoilt.ftb")
def too_many_members(lab: Lab) -> Path:
    count = struct.pack("<HH", 60000, 60000)
    return lab.bytes(lab.raw[:-14] + count + lab.raw[-10:])


@defect("VER-002")
def oversized_member(lab: Lab) -> Path:
    """A central directory that promises three gigabytes."""
    raw, at = bytearray(lab.raw), lab.raw.index(b"PK\x01\x02")
    raw[at + 20 : at + 28] = struct.pack("<LL", 3 * 2**30, 3 * 2**30)
    return lab.bytes(bytes(raw))


@defect("VER-002", layout.ENVELOPE)
def oversized_document(lab: Lab) -> Path:
    big = b'{"a":"' + b"x" * layout.MAX_DOCUMENT_BYTES + b'"}'
    return lab.archive(**{layout.ENVELOPE: big})


@defect("VER-003", "spoilt.ftb")
def prefix_before_archive(lab: Lab) -> Path:
    return lab.bytes(b"GIF89a" + lab.raw)


@defect("VER-003")
def compressed_member(lab: Lab) -> Path:
    with zipfile.ZipFile(lab.out, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(lab.members):
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o100644 << 16
            file.writestr(info, lab.members[name])
    return lab.out


@defect("VER-003")
def encrypted_flag(lab: Lab) -> Path:
    raw, at = bytearray(lab.raw), lab.raw.index(b"PK\x01\x02")
    raw[at + 8] |= 1
    return lab.bytes(bytes(raw))


@defect("VER-003")
def time_in_local_header(lab: Lab) -> Path:
    raw = bytearray(lab.raw)
    raw[10] ^= 1
    return lab.bytes(bytes(raw))


@defect("VER-003")
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


@defect("VER-004")
def path_traversal(lab: Lab) -> Path:
    name = sorted(lab.members)[0]
    return _renamed(lab, b"../" + b"x" * (len(name) - 3))


@defect("VER-004")
def absolute_path(lab: Lab) -> Path:
    name = sorted(lab.members)[0]
    return _renamed(lab, b"/" + b"x" * (len(name) - 1))


@defect("VER-004")
def backslash_path(lab: Lab) -> Path:
    name = sorted(lab.members)[0]
    return _renamed(lab, b"a\\" + b"x" * (len(name) - 2))


@defect("VER-004")
def unicode_lookalike(lab: Lab) -> Path:
    name = sorted(lab.members)[0]
    return _renamed(lab, "é".encode() + b"x" * (len(name) - 2))


@defect("VER-005")
def listed_twice(lab: Lab) -> Path:
    """A member renamed to its neighbour."""
    return lab.bytes(lab.raw.replace(PERF_THIRD.encode(), PERF_OTHER.encode()))


@defect("VER-005", layout.VERDICTS)
def case_collision(lab: Lab) -> Path:
    return lab.archive(**{"Verdicts.json": b"{}"})


@defect("VER-005", "claim/aun.json")
def members_out_of_order(lab: Lab) -> Path:
    """`claim/run.json` is renamed to come before its neighbour."""
    return lab.bytes(lab.raw.replace(b"claim/run.json", b"claim/aun.json"))


@defect("VER-006", "run.sh")
def unknown_member(lab: Lab) -> Path:
    return lab.archive(**{"run.sh": b"echo hello"})


@defect("VER-007", PERF)
def flipped_bit(lab: Lab) -> Path:
    raw = bytearray(lab.raw)
    raw[lab.raw.index(lab.members[PERF]) + 100] ^= 1
    return lab.bytes(bytes(raw))


@defect("VER-008")
def symbolic_link(lab: Lab) -> Path:
    raw, at = bytearray(lab.raw), lab.raw.index(b"PK\x01\x02")
    raw[at + 38 : at + 42] = struct.pack("<L", 0o120777 << 16)
    return lab.bytes(bytes(raw))


@defect("VER-008")
def device_file(lab: Lab) -> Path:
    raw, at = bytearray(lab.raw), lab.raw.index(b"PK\x01\x02")
    raw[at + 38 : at + 42] = struct.pack("<L", 0o020666 << 16)
    return lab.bytes(bytes(raw))

"""Generic mutations of whole result files, by two attackers: one without a key, one with another.

`python tests/reject/fuzz.py --count 20000 --seed 1` prints how many of each kind were refused; a
single accepted mutant is an error. The first attacker repairs archive, manifest and statement and
keeps the author's signature; the second signs again with a key of their own under the author's
name. What an author can do with their own key is a matter of `test_defects` and of independent
re-runs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import bundle_maker as maker

from fasttrack.bundle import layout, sshsig, statement
from fasttrack.errors import VerificationFailed
from fasttrack.schema._json import StrictJsonError, canonical_bytes, loads
from fasttrack.verify.steps import verify

Mutation = Callable[[maker.Members, random.Random], maker.Members]


def _some(members: maker.Members, rng: random.Random, part: str = "") -> str:
    return rng.choice(sorted(name for name in members if part in name))


def _lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def drop_member(members: maker.Members, rng: random.Random) -> maker.Members:
    gone = _some(members, rng)
    return {name: data for name, data in members.items() if name != gone}


def swap_members(members: maker.Members, rng: random.Random) -> maker.Members:
    one, two = _some(members, rng), _some(members, rng)
    return {**members, one: members[two], two: members[one]}


def rename_member(members: maker.Members, rng: random.Random) -> maker.Members:
    old = _some(members, rng)
    at = rng.randrange(len(old))
    new = old[:at] + rng.choice("abcxyz019-_") + old[at + 1 :]
    return {new if name == old else name: data for name, data in members.items()}


def flip_bit(members: maker.Members, rng: random.Random) -> maker.Members:
    name = _some(members, rng)
    data = bytearray(members[name])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return {**members, name: bytes(data)}


def truncate(members: maker.Members, rng: random.Random) -> maker.Members:
    name = _some(members, rng)
    return {**members, name: members[name][: rng.randrange(len(members[name]))]}


def drop_line(members: maker.Members, rng: random.Random) -> maker.Members:
    name = _some(members, rng, ".jsonl")
    lines = _lines(members[name])
    del lines[rng.randrange(len(lines))]
    return {**members, name: b"".join(lines)}


def duplicate_line(members: maker.Members, rng: random.Random) -> maker.Members:
    name = _some(members, rng, ".jsonl")
    lines = _lines(members[name])
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return {**members, name: b"".join(lines)}


def reorder_lines(members: maker.Members, rng: random.Random) -> maker.Members:
    name = _some(members, rng, ".jsonl")
    lines = _lines(members[name])
    rng.shuffle(lines)
    return {**members, name: b"".join(lines)}


def swap_arms(members: maker.Members, rng: random.Random) -> maker.Members:
    name = _some(members, rng, "perf/")
    data = members[name].replace(b'"arm":"base"', b'"arm":"x"')
    data = data.replace(b'"arm":"candidate"', b'"arm":"base"')
    return {**members, name: data.replace(b'"arm":"x"', b'"arm":"candidate"')}


def scale_number(members: maker.Members, rng: random.Random) -> maker.Members:
    """One number of one record or document, scaled as by a wrong unit or a small retouch."""
    name = rng.choice(sorted(n for n in members if n.endswith((".json", ".jsonl"))))
    lines = _lines(members[name])
    index = rng.randrange(len(lines))
    value = loads(lines[index])
    places: list[tuple[dict[str, object] | list[object], str | int]] = []
    stack = [value]
    while stack:
        item = stack.pop()
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        for key, inner in pairs:
            if isinstance(inner, dict | list):
                stack.append(inner)
            elif isinstance(inner, int | float) and not isinstance(inner, bool):
                places.append((item, key))
    if places:
        where, key = rng.choice(places)
        where[key] = where[key] * rng.choice([0.5, 0.999, 1.001, 2, 1000]) + rng.choice([0, 1])  # type: ignore[index,operator]
    end = b"\n" if lines[index].endswith(b"\n") else b""
    try:
        lines[index] = canonical_bytes(value) + end
    except StrictJsonError:
        return flip_bit(members, rng)
    return {**members, name: b"".join(lines)}


MUTATIONS: tuple[Mutation, ...] = (
    drop_member, swap_members, rename_member, flip_bit, truncate, drop_line, duplicate_line,
    reorder_lines, swap_arms, scale_number,
)  # fmt: skip


def without_a_key(members: maker.Members, path: Path) -> Path:
    """Repair manifest, statement and envelope where possible; the author's signature stays."""
    try:
        renewed = maker.remanifest(members)
        old = sshsig.parse(members["signatures/1.sig"])
    except (KeyError, ValueError):
        return maker.assemble(members, path)
    entry = statement.EnvelopeSignature(sshsig.fingerprint(old.public_key), old.encode())
    renewed[layout.ENVELOPE] = statement.envelope(renewed[layout.STATEMENT], (entry,))
    for name, data in members.items():
        if layout.signature_number(name) is not None:
            renewed[name] = data
    return maker.assemble(renewed, path)


def run(honest: Path, allowed: Path, foreign: Path, count: int, seed: int) -> Counter[str]:
    """Refusals by attacker and code; raises `AssertionError` for an accepted mutant."""
    rng = random.Random(seed)
    original = maker.explode(honest)
    refused: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "mutant.ftb"
        while sum(refused.values()) < count:
            mutation = rng.choice(MUTATIONS)
            mutant = mutation(dict(original), rng)
            if mutant == original:
                continue
            attacker = rng.choice(["nobody", "repairer", "signer"])
            try:
                if attacker == "nobody":
                    maker.assemble(mutant, path)
                elif attacker == "repairer":
                    without_a_key(mutant, path)
                else:
                    try:
                        maker.reseal(mutant, path, foreign)
                    except (KeyError, ValueError, VerificationFailed):
                        maker.assemble(mutant, path)
                if path.read_bytes() == honest.read_bytes():
                    continue
                verify(path, allowed_signers=allowed)
            except VerificationFailed as error:
                refused[f"{attacker} {error.code}"] += 1
            else:
                raise AssertionError(f"accepted: {mutation.__name__} by {attacker}, seed {seed}")
    return refused


def main() -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        key, foreign = maker.write_key(folder / "author"), maker.write_key(folder / "foreign")
        allowed = folder / "allowed_signers"
        allowed.write_text(f"{maker.PRINCIPAL} {maker.public_line(key)}\n")
        honest = maker.honest(folder, key)
        verify(honest, allowed_signers=allowed)
        refused = run(honest, allowed, foreign, options.count, options.seed)
    for name, number in sorted(refused.items()):
        print(f"{name:<20} {number}")
    print(f"{sum(refused.values())} mutants, seed {options.seed}: 0 accepted")
    return 0


if __name__ == "__main__":
    sys.exit(main())

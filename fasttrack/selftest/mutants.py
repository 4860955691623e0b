"""Result files spoilt at random: verification must refuse every one.

The mutations and the three attackers (one without a key, one who repairs the archive, one with
another key) are those of `tests/reject/fuzz.py`, which a wheel holds beside the zoo. Read by `run`.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from fasttrack.schema import MutantResult

COUNT, SEED = 200, 1


def find(zoo: Path) -> Path | None:
    """The folder of the fuzzer; None where it was not shipped."""
    for folder in (zoo / "reject", zoo.parent / "reject"):
        if (folder / "fuzz.py").is_file():
            return folder
    return None


def run(folder: Path, count: int = COUNT, seed: int = SEED) -> MutantResult:
    """Spoil one good file `count` times."""
    sys.path.insert(0, str(folder))
    try:
        fuzz, maker = (importlib.import_module(name) for name in ("fuzz", "bundle_maker"))
    finally:
        sys.path.remove(str(folder))
    with tempfile.TemporaryDirectory(prefix="fasttrack-mutants-") as scratch:
        where = Path(scratch)
        key, foreign = (maker.write_key(where / name) for name in ("author", "foreign"))
        allowed = where / "allowed_signers"
        allowed.write_text(f"{maker.PRINCIPAL} {maker.public_line(key)}\n")
        good: Any = maker.honest(where, key)
        try:
            refused = sum(fuzz.run(good, allowed, foreign, count, seed).values())
            problem = ""
        except AssertionError as error:
            refused, problem = 0, str(error)
    return MutantResult(made=count, refused=refused, seed=seed, detail=problem)

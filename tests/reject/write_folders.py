"""Writes every spoilt file into a folder named after its defect, to look at or try other tools on.

``python tests/reject/write_folders.py OUT`` makes ``OUT/<defect>/{spoilt.ftb,expected.json}`` and
prints how many there are. The keys are made on the spot.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bundle_maker as maker
from defects import DEFECTS, Lab


def build(out: Path) -> None:
    """Write all folders."""
    keys = out / "keys"
    keys.mkdir(parents=True)
    key, foreign = maker.write_key(keys / "author"), maker.write_key(keys / "foreign")
    honest = maker.honest(out / "honest", key)
    raw = honest.read_bytes()
    for defect in DEFECTS:
        folder = out / defect.make.__name__
        scratch = out / "scratch" / folder.name
        for path in (folder, scratch):
            path.mkdir(parents=True)
        made = defect.make(Lab(maker.explode(honest), raw, key, foreign, scratch))
        made.replace(folder / "spoilt.ftb")
        told = {"code": defect.code, "member": defect.member, "defect": defect.make.__doc__}
        (folder / "expected.json").write_text(json.dumps(told, indent=1) + "\n")


def main() -> int:
    """Command line; see the module docstring."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    build(Path(sys.argv[1]))
    codes = {defect.code for defect in DEFECTS}
    print(f"{len(DEFECTS)} defects, {len(codes)} reject codes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

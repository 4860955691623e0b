"""Writes trees of the bundled optimization with one fault each in the device code of its experts.

``python tests/plants/kernels/write_trees.py OUT`` makes ``OUT/<plant>``, a repository of one commit
with a claim on one op in one cell. On an H200 with CuTe DSL, ``PYTHONPATH`` the harness's folder
and the tree's `optimizations`:

``cd OUT/<plant> && python -m fasttrack validate optimizations/kimi_k3/planted.toml --only kernels``

The result must be FAIL; what such runs left lies beside this file, one `.ftb` per plant, and
`tests/integration/test_planted_gpu.py` says what each must name.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
OPTIMIZATION = Path("optimizations/kimi_k3")
CLAIM = "h200-experts.toml"
LEFT_OUT = ("weights", "training", "tests", "__pycache__", "*.toml")
"""Of a tree: what no kernel needs."""


class Edit(NamedTuple):
    """Text of a file that stands there once, and what takes its place."""

    path: str
    old: str
    new: str


_EXPERTS, _FINALIZE = (f"kernels/moe/kernel/{name}.py" for name in ("experts", "finalize"))
_WAIT = "        cute.arch.griddepcontrol_wait()\n"
_BEHIND = "        total = [Float32(0.0)] * self.vector\n"
_LAUNCH = "        cute.arch.griddepcontrol_launch_dependents()\n"
PLANTS: dict[str, Sequence[Edit]] = {
    # Blocks of a crew take what lies in their inbox for the others' hidden numbers.
    "exchange_without_wait": [
        Edit(
            _EXPERTS,
            "read = [prim.wait_for(at + 64 * k, words, Uint32(LOOKS))[0] for k, words in "
            "enumerate(seen)]",
            "read = seen",
        )
    ],
    # What this kernel had until 2026-11-30: a stage may be filled while its last loads are on
    # their way.
    "stage_left_without_fence": [
        Edit("kernels/primitives.py", '    inline_ptx("fence.proxy.async.shared::cta;")\n', "")
    ],
    # A row's experts are summed as they lie in memory before the kernel ahead has ended.
    "early_load": [
        Edit(_FINALIZE, _LAUNCH + _WAIT, _LAUNCH),
        Edit(_FINALIZE, _BEHIND, _WAIT + _BEHIND),
    ],
}
"""Name to what is changed; the names of the result files too."""


def write(plant: str, repo: Path, tree: Path) -> Path:
    """Make `tree` out of the repository's optimization; returns the claim's path.

    Raises ValueError where a text to be replaced is not there exactly once.
    """
    folder = tree / OPTIMIZATION
    shutil.copytree(repo / OPTIMIZATION, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for path, old, new in PLANTS[plant]:
        _edit(folder / path, old, new)
    shutil.copy(HERE / "planted.py", folder)
    claim = folder / "planted.toml"
    shutil.copy(repo / OPTIMIZATION / CLAIM, claim)
    _edit(claim, 'name = "kimi-k3-experts"', f'name = "planted-{plant.replace("_", "-")}"')
    _edit(claim, 'title = "Kimi K3: ', 'title = "Planted fault: ')
    _edit(claim, 'ops = ["moe_front", "experts", "moe_tail"]', 'ops = ["experts"]')
    _edit(claim, '"kimi_k3.cases.gpu:claimed"', '"kimi_k3.planted:cases"')
    _edit(claim, '"kimi_k3.kernels.compiled:mixture"', '"kimi_k3.planted:kernels"')
    return claim


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{text.count(old)} times, not once, in {path.name}: {old!r}")
    path.write_text(text.replace(old, new))


def main() -> int:
    """Command line; see the module docstring."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for plant in PLANTS:
        tree = Path(sys.argv[1]) / plant
        write(plant, HERE.parents[2], tree)
        who = ("-c", "user.name=plants", "-c", "user.email=plants@example.org")
        for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", plant]):
            subprocess.run(["git", "-C", str(tree), *command], check=True)
    print(f"{len(PLANTS)} trees")
    return 0


if __name__ == "__main__":
    sys.exit(main())

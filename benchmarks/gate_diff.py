"""How long `fasttrack gate` takes on a change of many files.

``python benchmarks/gate_diff.py --files 10000`` makes a throw-away repository whose change adds so
many files outside an optimization beside one in-scope edit and its evidence, judges it in a process
of its own, and prints wall and CPU seconds. Prints one JSON object. Not a test: numbers belong to
the machine they were taken on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

import gate_lab

CODE = """
import os, sys, time
begun = time.perf_counter()
from fasttrack.cli.main import main
loaded = time.perf_counter()
status = main(["gate", "--base", "main", "--head", "change", "--repo", sys.argv[1], "--json"])
print(status, loaded - begun, time.perf_counter() - loaded, sum(os.times()[:4]), file=sys.stderr)
"""


def main() -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "keys").mkdir()
        lab = gate_lab.make(folder, gate_lab.make_keys(folder / "keys"))
        lab.commit({f"engine/{n % 97}/{n}.py": f"value = {n}\n" for n in range(options.files)})
        lab.bring(lab.measure())
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(lab.root)], check=True, capture_output=True, text=True
        )
        wall = time.perf_counter() - begun
        status, loading, judging, cpu = done.stderr.splitlines()[-1].split()
        codes = [f["code"] for d in json.loads(done.stdout)["decisions"] for f in d["findings"]]
    print(
        json.dumps(
            {
                "files": options.files,
                "exit_status": int(status),
                "codes": codes,
                "wall_s": round(wall, 2),
                "loading_s": round(float(loading), 2),
                "judging_s": round(float(judging), 2),
                "cpu_s": round(float(cpu), 2),
            },
            indent=1,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the harness itself costs: how busy it keeps the engine, and how much memory it takes.

    python benchmarks/harness_cost.py --bundle FILE.ftb    share of the perf stage an engine was up
    python benchmarks/harness_cost.py --steps 1000000      peak memory while deciding and reporting

The first reads the engine boots' own clocks in a result file: from a boot's start to its end the
engine loads, warms or measures; the rest is the harness. The second makes a run folder whose perf
records hold so many engine steps, each with its path step and schedule, and does in a process of
its own what `fasttrack validate` does behind the last unit. Prints one JSON object. Not a test:
numbers belong to the machine they were taken on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from verify_size import BYTES_PER_STEP, PEAK, make

from fasttrack.bundle.reader import open_bundle
from fasttrack.schema import SessionRecord

DECIDE = """
from fasttrack import rules
from fasttrack.bundle.reader import open_bundle
from fasttrack.bundle.writer import RunFolder
from fasttrack.report import build, markdown
from fasttrack.schema import Policy

folder = Path(sys.argv[1])
with RunFolder.open(folder) as run, open_bundle(folder) as bundle:
    records = list(run.records())
    rules.decide(bundle.claim, bundle.run, records, Policy())
    markdown.render(build.build(bundle))
"""


def busy(bundle: Path) -> dict[str, float]:
    """Share of the perf stage's wall time in which an engine was up, and the boots' part of it."""
    with open_bundle(bundle) as opened:
        boots = [
            (record.start_s, record.ready_s, record.end_s)
            for record in opened.records("perf")
            if isinstance(record, SessionRecord)
        ]
    if not boots:
        sys.exit(f"{bundle} has no engine boots of the perf stage")
    wall_s = max(end for _, _, end in boots) - min(start for start, _, _ in boots)
    return {
        "boots": len(boots),
        "wall_s": round(wall_s, 1),
        "engine_busy": round(sum(end - start for start, _, end in boots) / wall_s, 4),
        "of_which_loading": round(sum(ready - start for start, ready, _ in boots) / wall_s, 4),
    }


def memory(steps: int, scratch: Path) -> dict[str, float]:
    """Peak resident memory, MiB, and CPU seconds of deciding and reporting so many steps."""
    run = make(scratch, max(1, steps * BYTES_PER_STEP >> 20), pack=False)
    code = PEAK.format(DECIDE)
    told = subprocess.run(
        [sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    peak, cpu = told.split()
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    return {
        "records_mib": round(size / 2**20),
        "peak_mib": round(int(peak) / 1024),
        "cpu_s": round(float(cpu), 1),
    }


def main() -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--bundle", type=Path)
    chosen.add_argument("--steps", type=int)
    options = parser.parse_args()
    if options.bundle:
        found = busy(options.bundle)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            found = {"steps": options.steps, **memory(options.steps, Path(scratch))}
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long verification takes, and how much memory, for a result file of a given size.

``python benchmarks/verify_size.py --mib 1024`` makes a synthetic file (perf records as a real run
has them, with as many engine steps as the size asks for), verifies it in a process of its own, and
prints wall time and peak memory beside ``sha256sum`` of the same file. Prints one JSON object.
Needs about twice the size on disk. Not a test: numbers belong to the machine they were taken on.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "reject"))

import bundle_maker as maker

from fasttrack.bundle import archive, layout, sign
from fasttrack.bundle.reader import open_bundle
from fasttrack.report import markdown
from fasttrack.report.build import build
from fasttrack.schema import Policy
from fasttrack.schema._json import canonical_bytes, loads
from fasttrack.verify import recompute

BYTES_PER_STEP = 250
"""An engine step, its path step and its schedule entry, as text."""
GRID = "{ batch = [1, 2, 4, 8, 16, 32, 64], context_tokens = [64, 256] }"
SOURCE = maker.SOURCE.replace("{ batch = [1, 2], context_tokens = [64] }", GRID).replace(
    "max_model_len = 256", "max_model_len = 2048"
)


def grown(lines: list[dict[str, object]], steps: int, clock: float, rng: random.Random) -> bytes:
    """The records of one perf session with so many engine steps per cell."""
    begun = clock
    clock += 5.0
    out: list[bytes] = []
    for value in lines:
        if value["kind"] == "sample":
            pace = 2e-3 if value["arm"] == "base" else 1e-3
            batch, prompt = value["planned_requests"], value["prompt_tokens"]
            texts = []
            for index in range(steps + 1):
                duration = round(pace * (1 + 0.004 * rng.random()), 9) if index else 0.01
                counts = (batch, 0) if index else (0, prompt)
                texts.append(
                    f'{{"decode_tokens":{counts[0]},"duration_s":{duration!r},'
                    f'"prefill_tokens":{counts[1]},"start_s":{round(clock, 6)!r}}}'
                )
                clock += duration + 2e-6
            value = {**value, "steps": [], "output_tokens": batch * (steps + 1)}  # type: ignore[operator]
            out.append(_with(value, b'"steps":[]', texts))
        elif value["kind"] == "path":
            out.append(_path(value, steps, int(value["cell"].split("=")[1].split("/")[0])))  # type: ignore[attr-defined]
        else:
            if value["kind"] == "session":
                value.update(
                    start_s=begun, ready_s=begun + 4, end_s=clock + 1, started_utc=_utc(begun)
                )
            out.append(canonical_bytes(value))
    return b"".join(line + b"\n" for line in out)


def _path(value: dict[str, object], steps: int, batch: int) -> bytes:
    fast = value["arm"] == "candidate"
    prompt = value["steps"][0]["prefill_tokens"]  # type: ignore[index]
    texts, scheduled = [], []
    for index in range(steps + 1):
        kind, reason = ("specialised", "pure decode") if fast and index else ("stock", "off")
        tokens, prefill = (batch, 0) if index else (prompt, prompt)
        texts.append(
            f'{{"path":"{kind}","prefill_tokens":{prefill},"reason":"{reason}",'
            f'"requests":{batch},"step":{index},"tokens":{tokens},'
            f'"wrote":{{"kv":"{index * 16}-{index * 16 + batch}","slots":"1-{batch}"}}}}'
        )
        scheduled.append(f"[{tokens - prefill},{prefill}]")
    line = _with({**value, "steps": [], "scheduled": []}, b'"steps":[]', texts)
    return line.replace(b'"scheduled":[]', b'"scheduled":[' + ",".join(scheduled).encode() + b"]")


def _with(value: dict[str, object], place: bytes, texts: list[str]) -> bytes:
    filled = place[:-1] + ",".join(texts).encode() + b"]"
    return canonical_bytes(value).replace(place, filled)


def _utc(seconds: float) -> str:
    clock = maker.Clock()
    clock.now_s = seconds
    return clock.utc()


def make(folder: Path, mib: int, *, pack: bool = True) -> Path:
    """A signed file of about so many MiB, or the run folder it would come from."""
    with mock.patch.object(maker, "SOURCE", SOURCE):
        run = maker.run_folder(folder / "run")
        names = sorted((run / "perf").glob("*.jsonl"))
        cells = len(maker.claim().cells("gpu-a"))
        steps = max(64, mib * 2**20 // (BYTES_PER_STEP * cells * len(names)))
        rng = random.Random(3)
        # Sessions of the other stages end before this; perf begins after them.
        clock = 10_000.0
        for name in names:
            lines = [loads(line) for line in name.read_bytes().splitlines()]
            name.write_bytes(grown(lines, steps, clock, rng))
            clock += 10 + cells * (0.02 + steps * 2.1e-3)
        maker.CREATED -= maker.timedelta(seconds=clock)
        if not pack:
            return run
        _conclude(run)
    made = archive.pack(run, folder / "out")
    shutil.rmtree(run)
    key = maker.write_key(folder / "key")
    sign.sign(made, key=key, principal=maker.PRINCIPAL)
    return made


def _conclude(run: Path) -> None:
    info = loads((run / layout.RUN).read_bytes())
    with open_bundle(run) as bundle:
        records = [record for _, record in recompute.read_records(bundle)]
        decision = recompute.decide(bundle, records, Policy())
    (run / layout.VERDICTS).write_bytes(canonical_bytes(maker.verdicts_value(decision)))
    with open_bundle(run) as bundle:
        text = markdown.render(build(bundle, records))
    (run / layout.REPORT).write_bytes(text.encode())
    assert info["tier"] == "standard"


PEAK = """
import sys
from pathlib import Path
{0}
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak, sum(__import__("os").times()[:2]))
"""
READ = "from fasttrack.bundle.reader import open_bundle; open_bundle(Path(sys.argv[1])).close()"
VERIFY = "from fasttrack.verify.steps import verify"
STAGES = {"import": VERIFY, "integrity": READ, "verify": f"{VERIFY}; verify(Path(sys.argv[1]))"}


def timed(command: list[str]) -> tuple[float, str]:
    """Wall seconds and output of a command that must succeed."""
    begun = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - begun, done.stdout


def measure(path: Path) -> Iterator[tuple[str, float]]:
    """What is printed. Peaks are the kernel's own, of the child after it started."""
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
    yield "sha256sum_s", round(timed(["sha256sum", str(path)])[0], 2)
    for name, code in STAGES.items():
        seconds, told = timed([sys.executable, "-c", PEAK.format(code), str(path)])
        peak, cpu = told.split()
        yield f"{name}_s", round(seconds, 2)
        yield f"{name}_cpu_s", round(float(cpu), 2)
        yield f"{name}_peak_mib", round(int(peak) / 1024)


def main() -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="Where to put the files. Default: temporary.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        path = make(Path(scratch), options.mib)
        found = {"size_mib": round(path.stat().st_size / 2**20), **dict(measure(path))}
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

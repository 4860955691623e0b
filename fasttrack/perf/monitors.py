"""Machine state while a session measures, watched by a process of its own.

CPU: load, frequency, stolen time, free memory, energy (`rapl`), and the share of the machine that
processes outside the harness's tree used. NVIDIA GPUs, where their library is installed: clocks,
power, energy, throttle reasons, ECC errors and foreign processes (`nvml`). Linux; elsewhere what
can be read. Owns reading and summing; what is too much is the rule's. Read by `sweep`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fasttrack.perf import nvml, rapl

Values = Mapping[str, float]
PERIOD_S = 0.5
STOP_S = 10.0


def snapshot(root: int | None = None) -> dict[str, float]:
    """What the kernel tells now; a source that cannot be read is left out.

    `root`: process whose tree is our own.
    """
    values: dict[str, float] = {}
    try:
        values["load_1min"] = os.getloadavg()[0]
        ticks = [float(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        values["cpu_ticks"] = sum(ticks)
        values["steal_ticks"] = ticks[7]
        user, nice, system, _idle, _iowait, irq, softirq, _steal = ticks
        values["busy_ticks"] = user + nice + system + irq + softirq
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                values["available_mib"] = int(line.split()[1]) / 1024
        speeds = [
            float(line.split(":")[1])
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("cpu MHz")
        ]
        if speeds:
            values["cpu_mhz"] = sum(speeds) / len(speeds)
        if root is not None:
            values["own_ticks"] = _tree_ticks(root)
    except (OSError, ValueError, IndexError):
        pass
    return values


def _tree_ticks(root: int) -> float:
    """CPU time of a process, all below it, and their children that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The command, in parentheses, may hold anything.
            told = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        parents[int(folder.name)] = int(told[1])
        ticks[int(folder.name)] = sum(map(float, told[11:15]))
    return sum(used for one, used in ticks.items() if _below(one, root, parents))


def _below(one: int, root: int, parents: Mapping[int, int]) -> bool:
    while one not in (root, 0):
        one = parents.get(one, 0)
    return one == root


def between(before: Values, after: Values) -> dict[str, float]:
    """State at the end, with stolen and foreign time as shares of the interval's CPU time."""
    values = {key: after[key] for key in ("load_1min", "available_mib", "cpu_mhz") if key in after}
    spent = {key: after.get(key, 0.0) - value for key, value in before.items()}
    ticks = spent.get("cpu_ticks", 0.0)
    if ticks > 0:
        values["steal_share"] = spent.get("steal_ticks", 0.0) / ticks
        if "own_ticks" in before and "own_ticks" in after:
            foreign = spent["busy_ticks"] - spent["own_ticks"]
            values["foreign_cpu_share"] = max(0.0, foreign / ticks)
    return values


class Watch:
    """A sampler beside the work: `values` holds its summary after the `with` block."""

    def __init__(self, gpus: Sequence[int] | None = None) -> None:
        """`gpus`: those to watch, by index; None: all."""
        self._gpus = gpus
        self.values: dict[str, float] = {}

    def __enter__(self) -> Watch:
        chosen = map(str, self._gpus or ())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fasttrack.perf.monitors", str(os.getpid()), *chosen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # its first look is taken
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            told, _ = self._process.communicate(timeout=STOP_S)
            self.values = {str(key): float(value) for key, value in json.loads(told).items()}
        except (subprocess.TimeoutExpired, ValueError, AttributeError):
            self.values = {}  # nothing is assumed of a machine that was not watched
        finally:
            self._process.kill()
            self._process.wait()


def main(root: int, chosen: Sequence[int] | None = None) -> None:
    """Sample until standard input ends, then print the summary. `chosen`: GPUs, by index."""
    before = snapshot(root)
    gpus = nvml.Gpus(lambda pid: _is_ours(pid, root), chosen)
    packages = rapl.Packages()
    print("watching", flush=True)
    slowest = before.get("cpu_mhz")
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        gpus.sample()
        packages.sample()
        speed = snapshot().get("cpu_mhz")
        if speed is not None and slowest is not None:
            slowest = min(slowest, speed)
    gpus.sample()
    packages.sample()
    values = between(before, snapshot(root)) | gpus.summary() | packages.summary()
    if slowest is not None:
        values["cpu_mhz_least"] = slowest
    print(json.dumps(values), flush=True)


def _is_ours(pid: int, root: int) -> bool:
    while pid not in (root, 0):
        try:
            told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        pid = int(told[1])
    return pid == root


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(index) for index in sys.argv[2:]] or None)

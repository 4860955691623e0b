"""Protects the watch: what others use of the machine shows, what the run itself uses does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fasttrack.perf import monitors, nvml, rapl

BURN = "import time\nwhile time.process_time() < 0.4: pass"
"""A process that uses this much CPU time, however long that takes."""


def test_the_machine_is_looked_at() -> None:
    before = monitors.snapshot()
    assert {"load_1min", "cpu_ticks", "available_mib", "busy_ticks"} <= set(before)
    values = monitors.between(before, {**monitors.snapshot(), "cpu_ticks": before["cpu_ticks"] + 5})
    assert values["available_mib"] > 0
    assert values["steal_share"] >= 0


def test_stolen_and_foreign_time_are_shares() -> None:
    before = {"cpu_ticks": 100.0, "steal_ticks": 10.0, "busy_ticks": 50.0, "own_ticks": 20.0}
    after = {"cpu_ticks": 200.0, "steal_ticks": 35.0, "busy_ticks": 110.0, "own_ticks": 70.0,
             "load_1min": 1.5}  # fmt: skip
    told = monitors.between(before, after)
    assert told == {"load_1min": 1.5, "steal_share": 0.25, "foreign_cpu_share": 0.1}
    assert monitors.between(before, before) == {}


def test_a_machine_that_tells_nothing_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> str:
        raise OSError("no /proc here")

    monkeypatch.setattr(monitors.Path, "read_text", fails)
    assert set(monitors.snapshot()) <= {"load_1min"}
    assert monitors.between({}, {}) == {}


def test_work_of_our_own_children_is_not_foreign() -> None:

    before = monitors.snapshot(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    after = monitors.snapshot(os.getpid())
    # Ticks are a hundredth of a second; the child has ended and is counted all the same.
    assert after["own_ticks"] - before["own_ticks"] >= 20


def test_work_of_others_is_foreign() -> None:

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        before = monitors.snapshot(other.pid)
        mine = monitors.snapshot(os.getpid())
        subprocess.run([sys.executable, "-c", BURN], check=True)
        # Seen from the other process, what we did is foreign; seen from us, it is not.
        theirs = monitors.between(before, monitors.snapshot(other.pid))
        ours = monitors.between(mine, monitors.snapshot(os.getpid()))
        other.kill()
    assert theirs["foreign_cpu_share"] > ours["foreign_cpu_share"]


def test_the_watch_is_a_process_of_its_own() -> None:
    with monitors.Watch() as watch:
        assert watch.values == {}
        time.sleep(0.2)  # the kernel counts hundredths of a second
    assert {"foreign_cpu_share", "load_1min", "steal_share"} <= set(watch.values)


def test_a_watch_that_dies_leaves_nothing() -> None:
    with monitors.Watch() as watch:
        watch._process.kill()
    assert watch.values == {}


# GPUs


class FakeNvml(types.ModuleType):
    """A driver with one GPU."""

    NVML_CLOCK_SM, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 1, 0
    clocks = iter((1980, 1200, 1980))
    energy = iter((5_000, 65_000))
    pids = (7, 8)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return next(self.clocks)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 500_000

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return 0x1 | 0x4

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        return [types.SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return next(self.energy)

    def nvmlDeviceGetTotalEccErrors(self, *_: object) -> int:
        raise RuntimeError("not supported")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fake driver, installed."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    yield


def test_gpus_are_summed_up(driver: None) -> None:
    gpus = nvml.Gpus(lambda pid: pid == 7)
    gpus.sample()
    gpus.sample()
    assert gpus.summary() == {
        "gpus": 1, "gpu_throttle_bits": 4, "gpu_foreign_processes": 1, "sm_mhz_least": 1200.0,
        "sm_mhz_most": 1980.0, "gpu_watts_mean": 500.0, "gpu_joules": 60.0,
    }  # fmt: skip


def test_no_driver_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = nvml.Gpus(lambda pid: True)
    gpus.sample()
    assert gpus.summary() == {}


def counter(root: Path, name: str, value: int) -> Path:
    """A RAPL counter that wraps at 1000 microjoules."""
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "max_energy_range_uj").write_text("1000\n")
    (folder / "energy_uj").write_text(f"{value}\n")
    return folder / "energy_uj"


def test_energy_of_packages_is_added_up_over_wraps(tmp_path: Path) -> None:
    first = counter(tmp_path, "intel-rapl:0", 900)
    second = counter(tmp_path, "intel-rapl:1", 0)
    counter(tmp_path, "intel-rapl:0:0", 5)  # a part of the first
    packages = rapl.Packages(tmp_path)
    counter(tmp_path, "intel-rapl:0:0", 500)
    first.write_text("100")
    second.write_text("40")
    packages.sample()
    first.write_text("150")
    packages.sample()
    assert packages.summary() == {"cpu_joules": pytest.approx(290e-6)}


def test_a_machine_without_counters_tells_no_energy(tmp_path: Path) -> None:
    assert rapl.Packages(tmp_path / "none").summary() == {}
    secret = tmp_path / "intel-rapl:0"
    secret.mkdir()
    packages = rapl.Packages(tmp_path)
    packages.sample()
    assert packages.summary() == {}

"""Protects the light core: a claim is read, a bundle verified, gated and reported without tensors.

Each core room is imported whole, every module of it, in a fresh interpreter that records who asks
for a heavy package and then behaves as if it were not installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "vllm", "numpy")
CORE = (
    *("fasttrack", "fasttrack.__main__", "fasttrack.schema", "fasttrack.stats", "fasttrack.claim"),
    *("fasttrack.rules", "fasttrack.bundle", "fasttrack.verify", "fasttrack.gate"),
    *("fasttrack.report", "fasttrack.pipeline", "fasttrack.cli"),
)

PROBE = """
import importlib, json, pkgutil, sys

heavy, rooms = json.loads(sys.argv[1])
asked = []

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in heavy:
            asked.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
report = {}
for room in rooms:
    asked.clear()
    try:
        module = importlib.import_module(room)
        inner = getattr(module, "__path__", None) if room.count(".") else None
        for found in pkgutil.walk_packages(inner or [], room + "."):
            importlib.import_module(found.name)
        error = None
    except ImportError as problem:
        error = str(problem)
    report[room] = {"asked": sorted(set(asked)), "error": error}
print(json.dumps(report))
"""


def probe(*rooms: str, path: Path = REPO) -> dict[str, dict[str, object]]:
    """Per room: the heavy packages its modules asked for, and the import error if there was one."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([HEAVY, rooms])],
        cwd=path,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    report: dict[str, dict[str, object]] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def core() -> dict[str, dict[str, object]]:
    """One interpreter imports every core room, in the order of `CORE`."""
    return probe(*CORE)


@pytest.mark.parametrize("room", CORE)
def test_core_room_loads_without_tensors(core: dict[str, dict[str, object]], room: str) -> None:
    assert core[room] == {"asked": [], "error": None}


def test_a_planted_heavy_import_is_found(tmp_path: Path) -> None:
    room = tmp_path / "package" / "room"
    room.mkdir(parents=True)
    for folder in (room, room.parent):
        (folder / "__init__.py").write_text("")
    (room / "tries.py").write_text("try:\n    import numpy.linalg\nexcept ImportError:\n    pass\n")
    (tmp_path / "light.py").write_text("import json\n\ndef later():\n    import torch\n")
    (tmp_path / "needs.py").write_text("import torch\n")
    found = probe("package.room", "light", "needs", path=tmp_path)
    assert found["package.room"] == {"asked": ["numpy"], "error": None}
    assert found["light"] == {"asked": [], "error": None}
    assert found["needs"] == {"asked": ["torch"], "error": "No module named 'torch'"}

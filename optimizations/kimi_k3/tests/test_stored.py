"""Compiled GPU kernels on disk: made once, found by what they depend on, mended when damaged.

Protects a start that takes milliseconds per kernel, and the promise that stored code is never of
another source, device or compiler. Compiles for a GPU without having one; a launch needs one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_NAMED = os.environ.get("FASTTRACK_CUTE_PYTHON", ROOT.parent / ".venv-cute" / "bin" / "python")
COMPILER = sys.executable if importlib.util.find_spec("cutlass") else str(_NAMED)
pytestmark = pytest.mark.skipif(
    not Path(COMPILER).exists(), reason="no kernel compiler: `make cute` sets up .venv-cute"
)
CHILD = """
import json, sys
from kimi_k3.kernels import gpu, stored
from kimi_k3.kernels.moe.kernel.tail import Activate

made, plain = [], gpu.compile_kernel
gpu.compile_kernel = lambda kernel: made.append(repr(kernel.form)) or plain(kernel)
rows = [int(word) for word in sys.argv[1:]]
kernels = [Activate(batch, 768, 4.0, 25.0) for batch in rows]
for kernel in kernels:
    assert gpu.launcher(kernel) is gpu.launcher(kernel)
files = [stored.path(type(one), tuple(one.form)) for one in kernels]
print(json.dumps({"made": len(made), "files": [one and one.name for one in files]}))
"""


def _run(folder: Path, *rows: int, **environment: str) -> dict[str, Any]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("CUTE_DSL_")}
    told = plain | {
        "KIMI_K3_CACHE": str(folder), "CUTE_DSL_ARCH": "sm_90a", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [COMPILER, "-c", CHILD, *map(str, rows)]
    done = subprocess.run(
        command, env=told | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with two kernels."""
    made = tmp_path_factory.mktemp("cache")
    first = _run(made, 1, 2)
    assert first["made"] == 2 and sorted(os.listdir(made / "gpu")) == sorted(first["files"])
    return made


def test_a_second_process_compiles_nothing(folder: Path) -> None:
    second = _run(folder, 1, 2)
    assert second == {"made": 0, "files": second["files"]}
    assert sorted(os.listdir(folder / "gpu")) == sorted(second["files"])


def test_another_device_is_another_file(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    other = _run(tmp_path, 1, CUTE_DSL_ARCH="sm_100a")
    assert other["made"] == 1 and len(os.listdir(tmp_path / "gpu")) == 3


def test_a_damaged_file_is_made_anew(folder: Path, tmp_path: Path) -> None:
    for file in (folder / "gpu").iterdir():
        (tmp_path / "gpu").mkdir(exist_ok=True)
        (tmp_path / "gpu" / file.name).write_bytes(file.read_bytes()[:9000])
    (name,) = _run(tmp_path, 1)["files"]
    assert len((tmp_path / "gpu" / name).read_bytes()) > 9000


def test_a_folder_that_cannot_be_written_costs_a_compilation_and_no_more(tmp_path: Path) -> None:
    # A file in the way stops even a superuser, whom permissions do not.
    (tmp_path / "file").write_text("")
    assert _run(tmp_path / "file", 1)["made"] == 1


def test_a_wish_for_dumps_is_heard_though_the_kernel_is_stored(
    folder: Path, tmp_path: Path
) -> None:
    dumps = {"CUTE_DSL_KEEP_CUBIN": "1", "CUTE_DSL_DUMP_DIR": str(tmp_path)}
    assert _run(folder, 1, **dumps) == {"made": 1, "files": [None]}
    assert list(tmp_path.glob("*.cubin"))


def test_the_cache_that_an_engine_sets_for_others_turns_ours_not_off(folder: Path) -> None:
    assert _run(folder, 1, 2, CUTE_DSL_CACHE_DIR="elsewhere")["made"] == 0

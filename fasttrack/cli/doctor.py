"""`fasttrack doctor`: what this machine can run, and what to install for the rest."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, entry_points, version

from rich.table import Table

from fasttrack import __version__
from fasttrack.cli.common import JsonOption, emit, talk
from fasttrack.engine import registry
from fasttrack.errors import EXIT_ENVIRONMENT, EnvironmentUnmet

PACKAGES = (
    ("torch", "validate"),
    ("numpy", "validate"),
    ("vllm", "cpu"),
    ("lm_eval", "evals"),
    ("ray", "ray"),
    ("sigstore", "sigstore"),
    ("cutlass", "cuda"),
)
PROGRAMS = ("git", "ssh-keygen", "g++", "nvidia-smi", "compute-sanitizer", "aiperf")


def doctor(as_json: JsonOption = False) -> int:
    """Check packages, engines, plugins and programs. Exit status 4 without the real engine."""
    engines = {}
    for name, engine in registry().items():
        try:
            engine.check()
            engines[name] = "ready"
        except EnvironmentUnmet as error:
            engines[name] = f"{error.cause}; {error.next_step}"
    found = {
        "fasttrack": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "packages": {name: _installed(name, extra) for name, extra in PACKAGES},
        "programs": {name: shutil.which(name) or "not found" for name in PROGRAMS},
        "engines": engines,
        "plugins": {
            group: sorted(point.name for point in entry_points(group=group))
            for group in ("vllm.general_plugins", "fasttrack.cases", "fasttrack.engines")
        },
    }
    status = 0 if engines.get("vllm") == "ready" else EXIT_ENVIRONMENT
    if as_json:
        emit(found, as_json=True)
        return status
    table = Table(box=None, show_header=False)
    for key, value in found.items():
        if isinstance(value, dict):
            for name, told in value.items():
                table.add_row(key, name, str(told))
        else:
            table.add_row(key, "", str(value))
    talk().print(table)
    emit("ready" if status == 0 else "the real engine cannot run here", as_json=False)
    return status


def _installed(module: str, extra: str) -> str:
    if importlib.util.find_spec(module) is None:
        return f"not installed (pip install 'fasttrack[{extra}]')"
    for name in (module, module.replace("_", "-"), f"{module}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "installed"

"""Protects the house: which module may import which, for the harness and for the bundled plug-in.

The tables below are the rule; whatever they do not list is forbidden. Judged are the imports that
run when a module is loaded, so not those in functions or under `TYPE_CHECKING`; packages that a
house guards (torch in the harness, vLLM in a kernel) are judged wherever the import stands. A new
module needs a row; a private file follows the row of its room.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())
CORE = " ".join(re.split(r"[^\w-]", need)[0] for need in PYPROJECT["project"]["dependencies"])

# Pure files that both a measuring room and the verifier need.
LEAVES = (
    "stats folders ranges correctness.compare evals.pairing evals.task evals.tasks evals.scorers "
    "evals.manifest evals.source perf.window perf.agent.measure"
)
ROOM = "errors schema engine stats"

# Module or room -> what of the same package it may load. The first row that fits is the one that
# counts. `x.__init__` is the file of package `x`; the rooms that hold leaves keep theirs empty, so
# that a leaf loads without its room.
FASTTRACK = {
    "__init__": "errors",
    "__main__": "cli",
    "errors": "",
    "schema": "errors schema",
    "stats": "errors schema",
    "folders": "",
    "ranges": "",
    "correctness.__init__": "",
    "correctness.compare": "errors schema stats",
    "audit.__init__": "",
    "audit.declare": "",
    "audit.plants": "audit.declare",
    "audit.runtime": "audit.plants",
    "audit._compile_child": "audit.declare",
    "audit": f"{ROOM} folders audit",
    "evals.__init__": "",
    "evals.pairing": "errors schema stats",
    "evals.task": "errors schema stats",
    "evals.scorers": "evals.tasks",
    "evals.manifest": "errors schema evals.scorers evals.manifest evals.source",
    "evals.source": "errors schema",
    "evals.tasks": "errors schema stats evals.task evals.tasks",
    "perf.__init__": "",
    "perf.window": "errors schema stats",
    "perf.agent.__init__": "",
    "perf.agent.measure": "schema stats",
    "perf.agent.traces": "errors schema",
    "engine": "errors schema engine ranges",
    "claim": "errors schema",
    "plan": "errors schema evals.task perf.window",
    "checkpoints": "errors schema folders",
    "timings": "",
    "scaffold": "errors schema",
    "isolation": f"{ROOM} folders bundle.git isolation",
    "correctness.path": f"{ROOM} correctness evals.task evals.tasks",
    "correctness": f"{ROOM} correctness",
    "evals": f"{ROOM} evals",
    "perf": f"{ROOM} perf",
    "rules": f"errors schema rules {LEAVES}",
    "bundle": "errors schema bundle",
    "report": "errors schema bundle report perf.agent.measure",
    "verify": f"errors schema plan rules bundle report verify selftest.catalogue {LEAVES}",
    "gate": "errors schema claim bundle report verify gate",
    "selftest.__init__": "",
    "selftest.catalogue": "__init__ errors schema folders",
    "stages": f"{ROOM} isolation audit correctness evals perf",
    "selftest": f"{ROOM} claim plan folders stages correctness rules bundle selftest",
    "cluster.__init__": "",
    "cluster": f"{ROOM} folders stages bundle.provenance cluster",
    "beside": f"{ROOM} plan",
    "seats": f"{ROOM} plan perf.nvml",
    "pipeline": f"{ROOM} beside seats selftest cluster claim plan checkpoints timings folders "
    "stages rules bundle report evals.manifest perf.together perf.agent.traces perf.agent.client",
    "cli": "*",
}
# Packages from outside: the core's own dependencies everywhere, and these where tensors live.
FASTTRACK_OUTSIDE = {
    "engine._vllm_evidence": f"{CORE} torch",
    "engine._vllm_timeline": f"{CORE} torch",
    "engine._vllm_rank": f"{CORE} torch vllm",
    "engine._vllm_device": f"{CORE} torch",
    "engine._vllm_routing": f"{CORE} torch",
    "engine._vllm_drafter": f"{CORE} numpy",
    "engine._vllm_child": f"{CORE} vllm",
    "engine._vllm_fingerprint": f"{CORE} torch vllm",
    "engine._vllm_state": f"{CORE} torch vllm",
    "correctness._case_child": f"{CORE} torch vllm",
    "correctness.buffers": f"{CORE} torch",
    "correctness.device": f"{CORE} numpy torch",
    "correctness.device_cuda": f"{CORE} torch",
    "correctness._sanitized": f"{CORE} torch",
    "correctness.jitter": f"{CORE} numpy",
    "correctness.arrays": f"{CORE} numpy",
    "correctness.cell": f"{CORE} numpy",
    "correctness.recorder": f"{CORE} numpy",
    "correctness.watch": f"{CORE} numpy",
    "engine._vllm_caches": f"{CORE} torch",
    "engine._vllm_requests": f"{CORE} vllm",
    "engine._vllm_forced": f"{CORE} torch vllm",
    "engine._vllm_served": f"{CORE} vllm",
    "audit.plants": f"{CORE} cutlass",
    "audit.runtime": f"{CORE} cuda cutlass torch",
    "correctness.compare": f"{CORE} numpy",
    "correctness.controls": f"{CORE} numpy",
    "evals.external.harness": f"{CORE} datasets lm_eval",
    "evals.external.served": f"{CORE} aiohttp lm_eval",
    "bundle.compact": f"{CORE} pydantic_core",
    "*": CORE,
}

# plugin -> model, layers -> runtime -> prepared -> portable -> common, with dims and reference at
# the bottom. Only the weight names and shapes of the reference serve the engine's side: a stock
# path that shared its arithmetic could not be checked against it.
KIMI_K3 = {
    "__init__": "",
    "dims": "",
    "presets": "",
    "config": "dims presets",
    "reference": "dims reference",
    "tokenizer": "",
    "checkpoint": "dims presets tokenizer reference.weights",
    "slices": "dims presets checkpoint reference.weights",
    "kernels.common": "dims",
    "kernels.primitives": "",
    "kernels.cache": "",
    "kernels.stored": "kernels.cache",
    "kernels.gpu": "kernels.stored",
    "kernels.*.form": "",
    "kernels.*.kernel": "kernels.primitives kernels.gpu kernels.*.form kernels.*.kernel",
    "kernels.*.launch": "kernels.*.form kernels.*.kernel",
    "kernels.compiled": "kernels.gpu kernels.*.form kernels.*.kernel kernels.*.launch",
    "kernels.*.portable": "dims kernels.common kernels.*.portable",
    "kernels.*.prepared": "dims kernels.common kernels.*.portable kernels.*.prepared",
    "kernels": "dims kernels",
    "runtime": "dims kernels runtime",
    "layers": "dims layers runtime backend reference.weights",
    "backend": "dims layers runtime",
    "specialised": "dims layers backend runtime",
    "support": "dims presets config runtime",
    "model": "dims presets config support layers backend specialised runtime reference.weights",
    "plugin": "dims presets config support model layers backend runtime intree.support",
    "intree.plan": "runtime.plan",
    "intree.capture": "intree.plan",
    "intree.support": "intree.plan runtime.plan support",
    "intree.evidence": "runtime.evidence runtime.plan",
    "intree.watch": "",
    "intree.ranks": "kernels intree.watch",
    "intree.experts": "kernels",
    "intree.layer": "kernels intree.ranks intree.experts",
    "intree.decode": "intree.plan intree.capture intree.experts intree.layer intree.ranks "
    "kernels.oproj.mailbox",
    "intree.state": "intree.evidence",
    "intree": "intree runtime.plan",
    "cases": "dims presets checkpoint cases kernels reference runtime.attention "
    "runtime.collective runtime.executor runtime.step",
    "training": "dims presets tokenizer checkpoint reference training",
    "bench.findings": "",
    "bench.engine": "bench.findings intree.layer intree.plan intree.support runtime.evidence",
    "bench": "kernels bench",
}
KIMI_K3_OUTSIDE = {
    "__init__": "",
    "dims": "",
    "presets": "",
    "config": "transformers",
    "checkpoint": "numpy safetensors",
    "slices": "safetensors torch",
    "tokenizer": "",
    "reference": "torch safetensors",
    "kernels.primitives": "cutlass",
    "kernels.gpu": "cuda cutlass torch",
    "kernels.cache": "",
    "kernels.stored": "cuda cutlass",
    "kernels.*.kernel": "cutlass",
    "kernels.*.form": "",
    "kernels.*.launch": "",
    "kernels.compiled": "fasttrack.audit.declare",
    "kernels": "torch",
    "intree.plan": "",
    "intree.capture": "",
    "intree.evidence": "numpy torch",
    "intree.experts": "torch",
    "intree.layer": "torch",
    "intree.ranks": "torch",
    "bench.engine": "torch vllm",
    "bench.stock": "torch vllm",
    "bench.stock_mla": "torch vllm",
    "bench": "torch",
    "runtime.executor": "torch",
    "runtime.packed": "torch",
    "runtime.attention": "torch",
    "runtime.collective": "torch",
    "cases": "torch fasttrack.schema fasttrack.correctness.case",
    "training": "torch safetensors fasttrack.evals.task fasttrack.evals.tasks",
    "*": "numpy torch transformers vllm",
}


@dataclass(frozen=True)
class House:
    """One package, its two tables, and the outside packages judged in functions as well."""

    package: str
    folder: Path
    inside: Mapping[str, str]
    outside: Mapping[str, str]
    guarded: frozenset[str]
    skipped: frozenset[str] = field(default=frozenset())

    def modules(self) -> dict[str, Path]:
        """Name below the package -> file; a package's own file is `room.__init__`."""
        files = {
            ".".join(path.relative_to(self.folder).with_suffix("").parts): path
            for path in sorted(self.folder.rglob("*.py"))
        }
        return {name: files[name] for name in files if name.split(".")[0] not in self.skipped}


HARNESS = House(
    "fasttrack",
    REPO / "fasttrack",
    FASTTRACK,
    FASTTRACK_OUTSIDE,
    guarded=frozenset({"torch", "vllm", "numpy", "optimizations", "kimi_k3", "tests"}),
    skipped=frozenset({"templates"}),
)
PLUGIN = House(
    "kimi_k3",
    REPO / "optimizations" / "kimi_k3",
    KIMI_K3,
    KIMI_K3_OUTSIDE,
    guarded=frozenset({"vllm", "fasttrack", "tests"}),
    skipped=frozenset({"tests"}),
)


def covers(pattern: str, name: str) -> bool:
    """Whether a table's name means this module: itself, or a room it is in."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def row(table: Mapping[str, str], name: str) -> list[str] | None:
    """What the first fitting row allows; None if no row fits."""
    return next((may.split() for key, may in table.items() if covers(key, name)), None)


def statements(tree: ast.AST, loading: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Import statements below a node, each with whether it runs when the module loads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, loading
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from statements(ast.Module(node.orelse, []), loading)
        else:
            lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from statements(node, loading and not lazy)


def imported(node: ast.stmt, importer: str) -> Iterator[str]:
    """Full dotted names an import statement asks for; `importer` is its module's full name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = importer.split(".")[: -node.level] if node.level else []
        source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
        yield from (f"{source}.{alias.name}" for alias in node.names)


def violations(house: House) -> list[str]:
    """`file:line: what is wrong` for everything the tables do not allow."""
    modules = house.modules()
    found = []
    for name, path in modules.items():
        where = path.relative_to(house.folder)
        inside, outside = row(house.inside, name), row(house.outside, name)
        if inside is None or outside is None:
            found.append(f"{where}:1: {house.package}.{name} has no row in the table")
            continue
        for node, loading in statements(ast.parse(path.read_text())):
            for target in imported(node, f"{house.package}.{name}"):
                first, _, rest = target.partition(".")
                if first == house.package:
                    wanted = module_of(rest, modules)
                    legal = not loading or wanted == "__init__" or fits(inside, wanted)
                elif first in sys.stdlib_module_names:
                    legal = True
                else:
                    judged = loading or first in house.guarded
                    legal = not judged or fits(outside, target)
                if not legal:
                    found.append(f"{where}:{node.lineno}: {name} may not import {target}")
    return found


def module_of(rest: str, modules: Mapping[str, Path]) -> str:
    """The module that `package.rest` names or is a member of."""
    while rest and rest not in modules and f"{rest}.__init__" not in modules:
        rest = rest.rpartition(".")[0]
    return rest if rest in modules else f"{rest}.__init__".lstrip(".")


def fits(allowed: list[str], name: str) -> bool:
    """Whether a row allows a module."""
    return any(covers(pattern, name) for pattern in allowed)


@pytest.mark.parametrize("house", [HARNESS, PLUGIN], ids=lambda house: house.package)
def test_every_import_is_allowed(house: House) -> None:
    found = violations(house)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("house", [HARNESS, PLUGIN], ids=lambda house: house.package)
def test_tables_name_only_rooms_that_have_a_row(house: House) -> None:
    names = {name for may in house.inside.values() for name in may.split() if "*" not in name}
    assert {name for name in names if row(house.inside, name) is None} == set()


def planted(folder: Path, house: House, **files: str) -> list[str]:
    """Violations in a small honest tree of the house's package after writing `files` into it."""
    honest = {
        "errors": "",
        "schema____init__": "import json\n\nfrom fasttrack.errors import Oops\n",
        "perf____init__": "",
        "perf__sweep": "from pydantic import BaseModel\n\nfrom ..schema import Cell\n",
        "perf__window": "from fasttrack import stats\n",
        "stats": "import math\n",
        "rules____init__": "from fasttrack.perf.window import cut\nfrom . import base\n",
        "rules__base": "from fasttrack import __version__\n",
    }
    for name, text in {**honest, **files}.items():
        path = (folder / name.replace("__", "/", 1)).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    tables = (house.inside, house.outside, house.guarded, house.skipped)
    return violations(House(house.package, folder, *tables))


def test_an_honest_tree_passes(tmp_path: Path) -> None:
    lazy = "def sweep():\n    import lm_eval\n    from fasttrack.perf import sweep\n"
    typed = "if TYPE_CHECKING:\n    import torch\n    from fasttrack.perf.sweep import Sweep\n"
    templates = {"templates__kernel": "import torch\n"}
    assert planted(tmp_path, HARNESS, rules__speed=lazy, rules__path=typed, **templates) == []


@pytest.mark.parametrize(
    "text",
    [
        "from fasttrack.perf.sweep import Sweep",
        "from fasttrack.perf import sweep",
        "import fasttrack.perf.sweep",
        "from ..perf import sweep",
        "try:\n    from fasttrack import perf\nexcept ImportError:\n    perf = None",
        "class Rule:\n    from fasttrack.perf.sweep import Sweep",
        "if TYPE_CHECKING:\n    pass\nelse:\n    from fasttrack.perf import sweep",
        "import pandas",
        "def lazily():\n    import torch.nn",
        "def lazily():\n    from vllm import LLM",
        "def lazily():\n    from optimizations import kimi_k3",
        "def lazily():\n    import kimi_k3",
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, text: str) -> None:
    (found,) = planted(tmp_path, HARNESS, rules__speed=text)
    assert re.match(r"rules/speed\.py:\d+: rules\.speed may not import", found)


def test_a_leaf_may_not_load_its_room(tmp_path: Path) -> None:
    leaf = planted(tmp_path, HARNESS, perf__window="from fasttrack.perf.sweep import Sweep\n")
    assert leaf == ["perf/window.py:1: perf.window may not import fasttrack.perf.sweep.Sweep"]
    room = planted(tmp_path, HARNESS, perf__window="", perf____init__="from . import sweep\n")
    assert room == ["perf/__init__.py:1: perf.__init__ may not import fasttrack.perf.sweep"]


def test_a_module_without_a_row_is_found(tmp_path: Path) -> None:
    assert planted(tmp_path, HARNESS, helpers="") == [
        "helpers.py:1: fasttrack.helpers has no row in the table"
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kernels__common", "def lazily():\n    import vllm\n"),
        ("kernels__common", "from kimi_k3.runtime.executor import Executor\n"),
        ("reference__kda", "from kimi_k3.kernels import common\n"),
        ("cases__kda", "from fasttrack.rules import decide\n"),
        ("runtime__executor", "from fasttrack.schema import Cell\n"),
    ],
)
def test_a_planted_import_of_the_plugin_is_found(tmp_path: Path, name: str, text: str) -> None:
    for room in ("kernels", "reference", "runtime", "cases"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("")
    (tmp_path / "runtime" / "executor.py").write_text("from kimi_k3.kernels import common\n")
    (tmp_path / "kernels" / "common.py").write_text("import torch\n")
    honest = House("kimi_k3", tmp_path, PLUGIN.inside, PLUGIN.outside, PLUGIN.guarded)
    assert violations(honest) == []
    (tmp_path / f"{name.replace('__', '/')}.py").write_text(text)
    assert len(violations(honest)) == 1

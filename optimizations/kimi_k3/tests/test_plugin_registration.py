"""Registering the plugin, in a process of its own.

Protects: our presence changes nothing for any other model: no operator, no environment variable,
no entry of vLLM's tables but our own; registering is repeatable and does not import the model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

PROBE = """
import json, os, sys
import torch
from vllm import ModelRegistry
from vllm.model_executor.models import config as model_configs
from transformers import CONFIG_MAPPING

def state():
    return {
        "operators": sorted(torch._C._dispatch_get_all_op_names()),
        "environment": dict(os.environ),
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "architectures": sorted(ModelRegistry.get_supported_archs()),
        "hooks": {k: f"{v.__module__}.{v.__name__}" for k, v in
                  model_configs.MODELS_CONFIG_MAP.items()},
        "configs": sorted(CONFIG_MAPPING.keys()),
    }

before = state()
from kimi_k3.plugin import register
register()
once = state()
register()
twice = state()
heavy = [name for name in sys.modules if name.startswith(
    ("kimi_k3.model", "kimi_k3.layers", "kimi_k3.kernels", "kimi_k3.backend",
     "kimi_k3.intree.model", "kimi_k3.intree.layer")
)]
print(json.dumps([before, once, twice, heavy]))
"""


@pytest.fixture(scope="module")
def states() -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, check=True
    )
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_only_our_own_names_are_added(states: list[Any]) -> None:
    before, once, _, _ = states
    for unchanged in ("operators", "environment", "threads", "dtype"):
        assert once[unchanged] == before[unchanged], unchanged
    own = {
        "FasttrackKimiK3ForCausalLM": "kimi_k3.support.StartupCheck",
        "FasttrackKimiLinearForCausalLM": "kimi_k3.intree.support.StartupCheck",
    }
    assert set(once["architectures"]) - set(before["architectures"]) == set(own)
    assert set(once["configs"]) - set(before["configs"]) == {"fasttrack_kimi_k3"}
    assert once["hooks"] == before["hooks"] | own


def test_registering_twice_changes_nothing(states: list[Any]) -> None:
    assert states[2] == states[1]


def test_the_model_is_not_imported(states: list[Any]) -> None:
    assert states[3] == []


def test_every_package_is_installed() -> None:
    folder = Path(__file__).parents[1]
    told = tomllib.loads((folder / "pyproject.toml").read_text())
    listed = set(told["tool"]["setuptools"]["packages"])
    found = {
        ".".join(("kimi_k3", *path.parent.relative_to(folder).parts))
        for path in folder.rglob("__init__.py")
    }
    assert found == listed


def test_vllm_finds_the_entry_point() -> None:
    found = {point.name: point.value for point in entry_points(group="vllm.general_plugins")}
    assert found["kimi_k3"] == "kimi_k3.plugin:register"

"""Protects the choice of a node: a session that needs GPUs is not sent where there are too few."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fasttrack.cluster.blocks import Blocks
from fasttrack.errors import EnvironmentUnmet


def test_too_few_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [
        {"block": block, "position": 0, "shape": [ranks, 1, 0]} for block, ranks in ((0, 1), (1, 2))
    ]
    blocks = Blocks("auto", specs, True, lambda _: None)
    node = {"NodeID": "a" * 56, "Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0}}
    monkeypatch.setattr(blocks, "_ray", SimpleNamespace(nodes=lambda: [node]), raising=False)
    setting: Any = SimpleNamespace(earlier=tuple)
    with pytest.raises(EnvironmentUnmet, match="no node with 2 GPUs answers") as raised:
        blocks._choose(setting, setting, specs)
    assert raised.value.code == "RAY-003"

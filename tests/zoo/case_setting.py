"""What the kernel stage is given in tests: the zoo's claim with cases in a folder of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zoo_records as zoo

from fasttrack import engine
from fasttrack.engine.setting import Setting


def setting(folder: Path, cases: str = "zoo_cases:cases", **changes: Any) -> Setting:
    """The zoo's claim with cases in a folder."""
    claim = zoo.claim(plugin={"distribution": "zoo", "module": "zoo", "cases": cases})
    values: dict[str, Any] = {
        "claim": claim,
        "target_name": "lab",
        "engine": engine.get("fake"),
        "checkpoint": None,
        "checkpoint_sha256": "none",
        "source_sha256": lambda: "0" * 64,
        "logs": folder / "logs",
        "folder": folder,
        "seed": 0,
        "timeout_s": 120.0,
        "say": lambda text: None,
    }
    return Setting(**(values | changes))

"""Protects what is dealt out as GPUs: those this process may use, and a word where none tells."""

from __future__ import annotations

import pytest

from fasttrack.perf import nvml


@pytest.mark.parametrize(
    ("visible", "found", "driver", "usable"),
    [
        (None, 2, True, (0, 1)),
        (None, 0, False, ()),
        (None, 0, True, None),  # a driver, and no library that tells its GPUs
        ("", 2, True, ()),
        ("1,3", 4, True, (1, 3)),
        ("GPU-0f3e", 4, True, None),
        ("MIG-7a", 0, True, None),
    ],
)
def test_gpus_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    found: int,
    driver: bool,
    usable: tuple[int, ...] | None,
) -> None:
    monkeypatch.setattr(nvml, "count", lambda: found)
    monkeypatch.setattr(nvml, "DRIVERS", ("/dev/null",) if driver else ())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.usable() == usable

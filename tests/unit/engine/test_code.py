"""Protects the comparison of compiled code: what is mapped is seen, what everybody has is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fasttrack.engine import code


def maps(folder: Path, *lines: tuple[str, str]) -> Path:
    """A map file with these (permissions, path)."""
    path = folder / "maps"
    path.write_text("".join(f"00-01 {flags} 00000 08:01 7    {file}\n" for flags, file in lines))
    return path


def test_code_is_told_apart_by_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unit, data = tmp_path / "unit one.so", tmp_path / "data.bin"
    unit.write_bytes(b"machine code")
    data.write_bytes(b"weights")
    told = maps(
        tmp_path, ("r-xp", str(unit)), ("r--p", str(data)), ("r-xp", "[vdso]"),
        ("r-xp", f"{sys.base_prefix}/lib/libpython.so"), ("r-xp", "/usr/lib/libc.so"),
        ("r-xp", str(tmp_path / "gone.so")),
    )  # fmt: skip
    monkeypatch.setattr(code, "MAPS", told)
    found = code.mapped()
    assert list(found.values()) == ["unit one.so"]
    unit.write_bytes(b"other code")
    assert code.mapped().keys() != found.keys()


def test_a_silent_system_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(code, "MAPS", tmp_path / "none")
    assert code.mapped() == {}

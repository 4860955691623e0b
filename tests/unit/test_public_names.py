"""Protects the public face: what `fasttrack` exports is what it says, and every module says why."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import fasttrack

PACKAGE = Path(fasttrack.__file__).parent
TEMPLATES = PACKAGE / "templates"


def public_names(package: ModuleType) -> set[str]:
    """Names a caller may use: no underscore in front, not a submodule; the version is one too."""
    values = vars(package).items()
    names = {name for name, value in values if not isinstance(value, ModuleType)}
    return {name for name in names if not name.startswith("_")} | ({"__version__"} & names)


def source_files(folder: Path) -> list[Path]:
    """Every module of the package; templates are texts to be copied, not modules."""
    return [path for path in sorted(folder.rglob("*.py")) if TEMPLATES not in path.parents]


def without_docstring(folder: Path) -> list[str]:
    """Modules below `folder` that hold something and do not open with a docstring."""
    trees = {path: ast.parse(path.read_text()) for path in source_files(folder)}
    bare = [path for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    return [str(path.relative_to(folder)) for path in bare]


def unknown_exports(folder: Path) -> list[str]:
    """`file: name` for each entry of an `__all__` that its module does not define at top level."""
    found = []
    for path in source_files(folder):
        body = ast.parse(path.read_text()).body
        defined = {name for node in body for name in bound(node)}
        exported = [
            name
            for node in body
            if isinstance(node, ast.Assign) and "__all__" in bound(node)
            for name in ast.literal_eval(node.value)
        ]
        missing = [name for name in exported if name not in defined]
        found += [f"{path.relative_to(folder)}: {name}" for name in missing]
    return found


def bound(node: ast.stmt) -> list[str]:
    """Names that a top-level statement defines or imports."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_all_is_exactly_the_public_names() -> None:
    assert public_names(fasttrack) == set(fasttrack.__all__)
    assert list(fasttrack.__all__) == sorted(fasttrack.__all__)


@pytest.mark.parametrize("name", ["Stray", "stray"])
def test_a_stray_public_name_is_found(name: str) -> None:
    package = ModuleType("package", "Planted.")
    vars(package).update({"__version__": "0", "json": ast, "_private": 1, name: 1})
    assert public_names(package) == {"__version__", name}


def test_every_module_has_a_docstring() -> None:
    assert without_docstring(PACKAGE) == []


def test_every_exported_name_exists() -> None:
    assert unknown_exports(PACKAGE) == []


def test_planted_gaps_are_found(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "bare.py").write_text("# not a docstring\nx = 1\n")
    (tmp_path / "honest.py").write_text('"""Says why."""\n\n__all__ = ["x"]\n\nx: int = 1\n')
    (tmp_path / "stale.py").write_text('"""Says why."""\n\n__all__ = ["gone"]\n')
    assert without_docstring(tmp_path) == ["bare.py"]
    assert unknown_exports(tmp_path) == ["stale.py: gone"]

"""Reads the optimization's Python files and tells what they would change that is not theirs.

Owns the reading and the exemptions; the judgement is that of `effects` and `importing`.
Tests are not read: no other file may import them, and the engine's own list of loaded modules is
compared with what was read.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from fasttrack.isolation.effects import Effect, Effects
from fasttrack.isolation.importing import Importing
from fasttrack.isolation.names import Module, Own, dotted, origin, reexports
from fasttrack.schema import Claim
from fasttrack.schema.record import IsolationFinding

MAX_BYTES = 2 * 2**20
"""Of one file; a longer one is a finding."""
_TEST_FOLDERS = frozenset({"test", "tests"})
_AT_START = frozenset({"sitecustomize.py", "usercustomize.py"})
_WHY_UNREAD = "the scan cannot read it, so nothing is known of it"


@dataclass(frozen=True)
class Scan:
    """What reading the files gave."""

    read: tuple[str, ...]
    tests: tuple[str, ...]
    findings: tuple[IsolationFinding, ...]


def is_test(path: str) -> bool:
    """Whether a file is one that pytest runs, by its name or folder."""
    pure = PurePosixPath(path)
    return bool(
        _TEST_FOLDERS & set(pure.parts[:-1])
        or pure.name == "conftest.py"
        or pure.name.startswith("test_")
    )


def scan(root: Path, paths: Iterable[str], claim: Claim) -> Scan:
    """Read files, by their paths from `root`; what is not Python is looked at by name only."""
    every = sorted(set(paths))
    python = [path for path in every if path.endswith(".py")]
    read = [path for path in python if not is_test(path)]
    packages = _packages(root, python)
    modules: list[Module] = []
    effects: list[tuple[str, Effect]] = [*_start_files(every), *_entry_points(root, every, claim)]
    for path in read:
        try:
            modules.append(_parse(root, path, packages))
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None) or 1
            effects.append((path, Effect("ISO-IMPORT", line, type(error).__name__, _WHY_UNREAD)))
    effects += _changes(modules, claim)
    effects += _tests_imported(modules, [dotted(p, packages) for p in python if is_test(p)])
    unique = {(path, effect.line, effect.target): (path, effect) for path, effect in effects}
    return Scan(
        read=tuple(read),
        tests=tuple(path for path in python if is_test(path)),
        findings=tuple(_finding(path, effect, claim) for path, effect in unique.values()),
    )


def _changes(modules: Sequence[Module], claim: Claim) -> Iterator[tuple[str, Effect]]:
    own = Own.of(modules)
    constants, known = _constants(modules), reexports(modules)

    def constant(name: str) -> str | None:
        return constants.get(origin(name, known))

    importing = Importing(modules, own)
    for module in modules:
        try:
            found = Effects(module, own, claim.scope.models, constant).found
            told = {effect.line for effect in found}
            # A change of something foreign on import is told once, as what it is.
            found += [effect for effect in importing.of(module) if effect.line not in told]
        except RecursionError as error:
            found = [Effect("ISO-IMPORT", 1, type(error).__name__, _WHY_UNREAD)]
        yield from ((module.path, effect) for effect in found)


def _parse(root: Path, path: str, packages: frozenset[str]) -> Module:
    source = (root / path).read_bytes()
    if len(source) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return Module(path, dotted(path, packages), ast.parse(source), path.endswith("__init__.py"))


def _packages(root: Path, paths: Iterable[str]) -> frozenset[str]:
    folders = {folder for path in paths for folder in PurePosixPath(path).parents}
    return frozenset(
        folder.as_posix()
        for folder in folders
        if folder.name and (root / folder / "__init__.py").is_file()
    )


def _constants(modules: Iterable[Module]) -> Mapping[str, str]:
    """Dotted name -> text, of constants at module level."""
    found = {}
    for module in modules:
        for node in module.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                    found[f"{module.name}.{name}"] = text
    return found


def _tests_imported(
    modules: Iterable[Module], tests: Sequence[str]
) -> Iterator[tuple[str, Effect]]:
    unread = set(tests) - {""}
    for module in modules:
        for node in ast.walk(module.tree):
            names: list[str] = []
            match node:
                case ast.Import(names=aliases):
                    names = [alias.name for alias in aliases]
                case ast.ImportFrom(names=aliases):
                    source = module.absolute(node)
                    names = [source, *(f"{source}.{alias.name}" for alias in aliases)]
                case ast.Constant(value=str(text)):
                    names = [text.partition(":")[0]]
            for name in unread & set(names):
                line = getattr(node, "lineno", 1)
                yield module.path, Effect("ISO-IMPORT", line, name, "a test, which was not read")


def _start_files(paths: Iterable[str]) -> Iterator[tuple[str, Effect]]:
    for path in paths:
        name = PurePosixPath(path).name
        if name in _AT_START or name.endswith(".pth"):
            yield path, Effect("ISO-IMPORT", 1, name, "Python runs it at every start by itself")


def _entry_points(root: Path, paths: Iterable[str], claim: Claim) -> Iterator[tuple[str, Effect]]:
    """Entry points through which the engine would load more than the claim names."""
    for path in paths:
        if PurePosixPath(path).name != "pyproject.toml":
            continue
        try:
            points = tomllib.loads((root / path).read_text("utf-8"))["project"]["entry-points"]
            groups = {group: list(names) for group, names in points.items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            continue  # no entry points, or no project at all: installing it would say so
        for group, names in groups.items():
            if not group.startswith("vllm."):
                continue
            for name in names:
                if group != "vllm.general_plugins" or name not in claim.plugin.vllm_plugins:
                    why = "the engine loads it, and the claim does not name it"
                    yield path, Effect("ISO-PATCH", 1, f"{group}: {name}", why)


def _finding(path: str, effect: Effect, claim: Claim) -> IsolationFinding:
    exempt = next(
        (
            one.why
            for one in claim.isolation.exempt
            if one.code == effect.code
            and fnmatchcase(path, one.path)
            and fnmatchcase(effect.target, one.what)
        ),
        "",
    )
    return IsolationFinding(
        code=effect.code,
        where=f"{path}:{effect.line}",
        what=effect.target[:200],
        why=effect.why,
        exempt=exempt,
    )

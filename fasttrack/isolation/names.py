"""Leaf: what the names in a Python file stand for, as far as its text tells.

Owns parsing, dotted names of files, and `Scopes`, which follows imports and plain aliases. Flow is
ignored: a name that ever stands for something of another package is taken to stand for it.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

Function = ast.FunctionDef | ast.AsyncFunctionDef
ENGINE_PACKAGES = frozenset({"vllm", "torch", "transformers", "numpy", "triton"})
"""Roots of which only the scanned files themselves can be the optimization's own."""
_BUILTINS = frozenset(vars(builtins))


@dataclass(frozen=True)
class Module:
    """One parsed file."""

    path: str
    """From the repository root, with slashes."""
    name: str
    """Dotted, as it is imported."""
    tree: ast.Module
    is_package: bool

    def absolute(self, node: ast.ImportFrom) -> str:
        """The dotted source of a `from` import, relative ones included."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*kept, *([node.module] if node.module else [])])


def dotted(path: str, packages: frozenset[str]) -> str:
    """The name a file is imported by; `packages` are the folders that hold an ``__init__.py``."""
    pure = PurePosixPath(path)
    parts = [] if pure.stem == "__init__" else [pure.stem]
    for folder in pure.parents:
        if folder.as_posix() not in packages:
            break
        parts.insert(0, folder.name)
    return ".".join(parts)


@dataclass(frozen=True)
class Own:
    """Which dotted names belong to the optimization."""

    modules: frozenset[str]
    roots: frozenset[str]

    @classmethod
    def of(cls, modules: Iterable[Module]) -> Own:
        """From the scanned files.

        A file that merely has the name of the engine's or Python's own package is not taken for it:
        such a root is own only where the file lies at that very path, as in a checkout of it.
        """
        names, roots = set(), set()
        for module in modules:
            root = module.name.partition(".")[0]
            if root not in ENGINE_PACKAGES and root not in sys.stdlib_module_names:
                names.add(module.name)
                roots.add(root)
            elif module.path.startswith(f"{root}/"):
                names.add(module.name)
        return cls(frozenset(names), frozenset(roots))

    def __contains__(self, name: str) -> bool:
        """Whether a dotted name is that of an own module or of something in one."""
        if name.partition(".")[0] in self.roots:
            return True
        return any(name == own or name.startswith(f"{own}.") for own in self.modules)


class Scopes:
    """What names stand for at a place in a file: module, then the functions around it."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._stack: list[dict[str, str | None]] = []
        self.enter(module.tree)

    def enter(self, node: ast.Module | Function | ast.Lambda) -> None:
        """Go into a module or a function: collect what it binds."""
        found: dict[str, str | None] = {}
        self._stack.append(found)
        if isinstance(node, ast.Lambda):
            found.update({name: None for name in _parameters(node.args)})
            return
        if not isinstance(node, ast.Module):
            found.update({name: None for name in _parameters(node.args)})
        prefix = self.module.name if isinstance(node, ast.Module) else None
        for inner in local_nodes(node.body):
            for name, value in self._bindings(inner, prefix):
                if value is not None or name not in found:
                    found[name] = value

    def leave(self) -> None:
        """Come out of the innermost function."""
        self._stack.pop()

    def resolve(self, node: ast.AST) -> str | None:
        """Dotted name of an expression, e.g. ``torch.backends.cudnn``; None if unknown."""
        match node:
            case ast.Name(id=name):
                for scope in reversed(self._stack):
                    if name in scope:
                        return scope[name]
                return f"builtins.{name}" if name in _BUILTINS else None
            case ast.Attribute(value=value, attr=attr):
                base = self.resolve(value)
                return f"{base}.{attr}" if base else None
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.resolve(value)
            case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
                return key if self.resolve(value) == "sys.modules" else None
            case ast.Call():
                return self._resolve_call(node)
        return None

    def _resolve_call(self, node: ast.Call) -> str | None:
        """Calls that only look something up."""
        target = self.resolve(node.func)
        first = node.args[0] if node.args else None
        text = first.value if isinstance(first, ast.Constant) else None
        if target in ("importlib.import_module", "builtins.__import__", "sys.modules.get"):
            return text if isinstance(text, str) else None
        if target == "builtins.getattr" and len(node.args) > 1:
            base, attr = self.resolve(node.args[0]), node.args[1]
            if base and isinstance(attr, ast.Constant) and isinstance(attr.value, str):
                return f"{base}.{attr.value}"
        if target == "builtins.vars" and first is not None:
            base = self.resolve(first)
            return f"{base}.__dict__" if base else None
        return None

    def _bindings(self, node: ast.AST, prefix: str | None) -> Iterator[tuple[str, str | None]]:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.asname:
                        yield alias.asname, alias.name
                    else:
                        root = alias.name.partition(".")[0]
                        yield root, root
            case ast.ImportFrom(names=names):
                source = self.module.absolute(node)
                for alias in names:
                    yield alias.asname or alias.name, f"{source}.{alias.name}".lstrip(".")
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name, f"{prefix}.{name}" if prefix else None
            case ast.Assign(targets=targets, value=value):
                known = self.resolve(value)
                for target in targets:
                    for name in _names(target):
                        own = f"{prefix}.{name}" if prefix else None
                        yield name, known if isinstance(target, ast.Name) and known else own
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                known = self.resolve(value) if value is not None else None
                yield name, known or (f"{prefix}.{name}" if prefix else None)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                yield name, self.resolve(value)
            case (
                ast.For(target=target)
                | ast.AsyncFor(target=target)
                | ast.comprehension(target=target)
            ):
                yield from ((name, None) for name in _names(target))
            case ast.withitem(optional_vars=ast.expr() as target):
                yield from ((name, None) for name in _names(target))
            case ast.ExceptHandler(name=str(name)):
                yield name, None


def reexports(modules: Iterable[Module]) -> Mapping[str, str]:
    """Name as one module offers it -> name where it comes from, for imports at module level."""
    found = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ImportFrom):
                source = module.absolute(node)
                for alias in node.names:
                    name = f"{module.name}.{alias.asname or alias.name}"
                    found[name] = f"{source}.{alias.name}"
    return found


def origin(name: str, known: Mapping[str, str]) -> str:
    """Where a name comes from in the end."""
    seen = set()
    while name in known and name not in seen:
        seen.add(name)
        name = known[name]
    return name


def local_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes of a scope in source order; definitions are named, their bodies left out.

    A class's body runs in place and is walked, but binds names of the class, not of the scope.
    """
    for node in body:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        yield from local_nodes(ast.iter_child_nodes(node))


def _parameters(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return [one.arg for one in every]


def _names(target: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _names(element)
    elif isinstance(target, ast.Starred):
        yield from _names(target.value)

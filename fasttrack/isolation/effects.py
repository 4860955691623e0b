"""What code of a file, wherever it stands, would change that is not its own.

Owns the walk over one file and the judgement of single calls and assignments. Imports run by a
loaded file are `importing`'s; which files are read and what is exempt is `source`'s.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fasttrack.isolation import tables
from fasttrack.isolation.names import Function, Module, Own, Scopes

UNDOABLE = ("ISO-ENV", "ISO-TORCH")
"""Changes that count as undone where a `finally` or an `__exit__` makes the same one again."""
_CODE_ATTRIBUTES = frozenset(
    {"__bases__", "__class__", "__closure__", "__code__", "__defaults__", "__dict__",
     "__globals__", "__kwdefaults__"}
)  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """One place in a file that changes something foreign."""

    code: str
    """Key of `fasttrack.schema.verdict.REASONS`."""
    line: int
    target: str
    """Dotted name of what is changed."""
    why: str


Constant = Callable[[str], str | None]
"""The text a dotted name of an own constant stands for."""


class Effects(ast.NodeVisitor):
    """Walks one file; `found` holds what it changes."""

    def __init__(
        self, module: Module, own: Own, models: tuple[str, ...], constant: Constant
    ) -> None:
        self.found: list[Effect] = []
        self._own = own
        self._models = models
        self._constant = constant
        self._scopes = Scopes(module)
        self._undone: list[frozenset[str]] = []
        self._managed: set[ast.AST] = set()
        self.visit(module.tree)

    # ---- scopes -------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A function: its own names, and what it undoes by itself."""
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """As `visit_FunctionDef`."""
        self._function(node)

    def _function(self, node: Function) -> None:
        for outside in (*node.decorator_list, node.args):
            self.visit(outside)
        self._scopes.enter(node)
        self._undone.append(self._undone_in(node))
        for statement in node.body:
            self.visit(statement)
        self._undone.pop()
        self._scopes.leave()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """A function of one expression."""
        self._scopes.enter(node)
        self.visit(node.body)
        self._scopes.leave()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A class: what `__exit__` sets back, `__enter__` may set."""
        exits = [
            f for f in node.body if isinstance(f, Function) and f.name in ("__exit__", "__aexit__")
        ]
        enters = any(isinstance(f, Function) and f.name == "__enter__" for f in node.body)
        undone: set[str] = set()
        for function in exits if enters else ():
            undone |= self._targets(function.body, function)
        self._undone.append(frozenset(undone))
        self.generic_visit(node)
        self._undone.pop()

    def _undone_in(self, node: Function) -> frozenset[str]:
        found: set[str] = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Try):
                found |= self._targets(inner.finalbody, None)
        return frozenset(found)

    def _targets(self, body: list[ast.stmt], scope: Function | None) -> set[str]:
        if scope is not None:
            self._scopes.enter(scope)
        found = {
            effect.target
            for statement in body
            for node in ast.walk(statement)
            for effect in self._effects(node)
            if effect.code in UNDOABLE
        }
        if scope is not None:
            self._scopes.leave()
        return found

    # ---- statements ---------------------------------------------------------------------------

    def visit_With(self, node: ast.With) -> None:
        """A call that is the context of a `with` sets its flag back by itself."""
        self._managed |= {item.context_expr for item in node.items}
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        """Judge a node, then what is inside it."""
        if node not in self._managed:
            undone = frozenset().union(*self._undone)
            self.found += [effect for effect in self._effects(node) if effect.target not in undone]
        super().generic_visit(node)

    def _effects(self, node: ast.AST) -> Iterator[Effect]:
        match node:
            case ast.Call():
                yield from self._call(node)
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                for target in targets:
                    yield from self._target(target)
            case ast.AugAssign(target=target) | ast.For(target=target):
                yield from self._target(target)
            case ast.AnnAssign(target=target, value=ast.expr()):
                yield from self._target(target)
            case ast.withitem(optional_vars=ast.expr() as target):
                yield from self._target(target)

    def _target(self, node: ast.expr) -> Iterator[Effect]:
        """Something assigned to, or deleted."""
        match node:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    yield from self._target(element)
            case ast.Starred(value=value):
                yield from self._target(value)
            case ast.Attribute(value=value, attr=attr):
                base = self._scopes.resolve(value)
                if base is not None and base not in self._own:
                    yield self._change(node, f"{base}.{attr}")
                elif attr in _CODE_ATTRIBUTES:
                    yield Effect(
                        "ISO-PATCH", node.lineno, ast.unparse(node), "replaces an object's code"
                    )
            case ast.Subscript(value=value, slice=key):
                base = self._scopes.resolve(value)
                if base is not None and base not in self._own and not self._may_add(key):
                    yield self._change(node, base)
                elif isinstance(value, ast.Attribute) and value.attr in _CODE_ATTRIBUTES:
                    yield Effect(
                        "ISO-PATCH", node.lineno, ast.unparse(node), "replaces an object's code"
                    )
            case ast.Name(id="environ"):
                if self._scopes.resolve(node) == "os.environ":
                    yield self._change(node, "os.environ")

    def _change(self, node: ast.expr, target: str) -> Effect:
        """An assignment to something foreign."""
        for code, table in (("ISO-ENV", tables.ENVIRONMENT), ("ISO-TORCH", tables.TORCH)):
            why = tables.sentence(table, target)
            if why is not None:
                return Effect(code, node.lineno, target, why)
        if target == "sys.modules" or target.startswith(("sys.meta_path", "sys.path")):
            return Effect("ISO-PATCH", node.lineno, target, "changes what imports find")
        return Effect("ISO-PATCH", node.lineno, target, "belongs to another package")

    def _call(self, node: ast.Call) -> Iterator[Effect]:
        target = self._scopes.resolve(node.func)
        if target is None:
            return
        method = target.rpartition(".")[2]
        base = target.rpartition(".")[0]
        if target in ("builtins.setattr", "builtins.delattr") or method in (
            "__setattr__", "__delattr__",
        ):  # fmt: skip
            yield from self._set_attribute(node)
        elif target in ("importlib.import_module", "builtins.__import__"):
            if self._scopes.resolve(node) is None:
                yield Effect("ISO-IMPORT", node.lineno, target, "loads what the scan cannot tell")
        elif target in self._own:
            return
        elif method in tables.MUTATORS and "." in base:
            # `x.y.append(...)` on something imported; with `add`, `x` itself may be a module.
            adds = method in tables.KEYED and self._may_add(node.args[0] if node.args else None)
            if not adds and not base.startswith(tables.MODULES_WITH_SUCH_NAMES):
                yield self._change(node, base)
        elif target == "torch.library.Library" or method in ("impl", "define", "register_kernel"):
            yield from self._operator(node, target)
        elif method in ("register_model",) and base.endswith("ModelRegistry"):
            if not self._may_add(node.args[0] if node.args else None):
                yield Effect("ISO-PATCH", node.lineno, target, "registers a model not claimed")
        else:
            yield from self._by_name(node, target)

    def _by_name(self, node: ast.Call, target: str) -> Iterator[Effect]:
        groups: tuple[tuple[str, Mapping[str, str]], ...] = (
            ("ISO-ENV", tables.ENVIRONMENT),
            ("ISO-TORCH", tables.TORCH),
            ("ISO-IMPORT", tables.HIDDEN),
            ("ISO-PATCH", tables.REACHES),
        )
        if target.startswith("os.environ") or tables.reads(target):
            return
        for code, table in groups:
            why = tables.sentence(table, target)
            if why is not None:
                yield Effect(code, node.lineno, target, why)
                return

    def _set_attribute(self, node: ast.Call) -> Iterator[Effect]:
        """`setattr(foreign, name, value)`, and the same through a type."""
        for argument in node.args[:1]:
            base = self._scopes.resolve(argument)
            if base is not None and base not in self._own:
                name = node.args[1] if len(node.args) > 1 else None
                attr = name.value if isinstance(name, ast.Constant) else "*"
                yield self._change(node, f"{base}.{attr!s}")

    def _operator(self, node: ast.Call, target: str) -> Iterator[Effect]:
        """A library of operators in a namespace that is not new."""
        first = node.args[0] if node.args else None
        name = self._text(first)
        if not target.startswith("torch.library."):
            return
        if name is None or name.partition("::")[0] in tables.FOREIGN_OPERATORS:
            yield Effect(
                "ISO-TORCH", node.lineno, f"{target}({name or '?'})",
                "changes operators that other models use",
            )  # fmt: skip

    def _may_add(self, key: ast.expr | None) -> bool:
        """Whether an entry's key is an architecture that the claim names."""
        return self._text(key) in self._models

    def _text(self, node: ast.expr | None) -> str | None:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        name = self._scopes.resolve(node) if node is not None else None
        return self._constant(name) if name is not None else None

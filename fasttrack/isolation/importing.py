"""What runs when a file is imported: calls at module level, and those they make in own code.

Functions of the optimization that are called while it is imported are followed, across files; what
only a later caller runs is not looked at. Owns no judgement of single changes: that is `effects`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from fasttrack.isolation import tables
from fasttrack.isolation.effects import Effect
from fasttrack.isolation.names import Function, Module, Own, Scopes, origin, reexports

Definition = Function | ast.ClassDef
_AT_CREATION = ("__init__", "__new__", "__post_init__")
_CODE = "ISO-IMPORT"


class Importing:
    """Follows the imports of a set of files."""

    def __init__(self, modules: Iterable[Module], own: Own) -> None:
        self._own = own
        self._modules = tuple(modules)
        self._known: Mapping[str, tuple[Module, Definition]] = {
            f"{module.name}.{node.name}": (module, node)
            for module in self._modules
            for node in ast.walk(module.tree)
            if isinstance(node, Definition)
        }
        self._from = reexports(self._modules)

    def of(self, module: Module) -> list[Effect]:
        """What importing one file does; a place in another file is told as the call's own line."""
        return list(self._body(module.tree.body, Scopes(module), frozenset()))

    def _body(
        self, body: Iterable[ast.AST], scopes: Scopes, seen: frozenset[str]
    ) -> Iterator[Effect]:
        for node in body:
            yield from self._node(node, scopes, seen)

    def _node(self, node: ast.AST, scopes: Scopes, seen: frozenset[str]) -> Iterator[Effect]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    yield from self._decorated(decorator, scopes, seen)
                yield from self._body(
                    [*node.args.defaults, *filter(None, node.args.kw_defaults)], scopes, seen
                )
                return
            case ast.ClassDef():
                for decorator in node.decorator_list:
                    yield from self._decorated(decorator, scopes, seen)
                yield from self._body([*node.bases, *node.keywords, *node.body], scopes, seen)
                return
            case ast.Lambda():
                return
            case ast.If(test=test, orelse=orelse) if _not_on_import(test):
                yield from self._body(orelse, scopes, seen)
                return
            case ast.AnnAssign(target=target, value=value):
                yield from self._body(filter(None, [target, value]), scopes, seen)
                return
            case ast.Call():
                yield from self._call(node, node, scopes, seen)
        yield from self._body(ast.iter_child_nodes(node), scopes, seen)

    def _decorated(self, node: ast.expr, scopes: Scopes, seen: frozenset[str]) -> Iterator[Effect]:
        if isinstance(node, ast.Call):
            yield from self._node(node, scopes, seen)
        else:
            yield from self._call(node, None, scopes, seen)

    def _call(
        self, node: ast.expr, call: ast.Call | None, scopes: Scopes, seen: frozenset[str]
    ) -> Iterator[Effect]:
        """A call; without one, a decorator that is applied."""
        function = call.func if call is not None else node
        target = scopes.resolve(function)
        if target is None:
            if isinstance(function, ast.Attribute) and function.attr in tables.LOUD_METHODS:
                yield Effect(
                    _CODE, node.lineno, f"{ast.unparse(function)}()"[:120],
                    tables.WHY_AT_IMPORT["*"],
                )  # fmt: skip
        elif target in self._own:
            yield from self._follow(target, node, seen)
        elif not tables.harmless(target) and not _only_reads(target, call):
            why = tables.sentence(tables.WHY_AT_IMPORT, target) or ""
            yield Effect(_CODE, node.lineno, target, why)

    def _follow(self, target: str, node: ast.expr, seen: frozenset[str]) -> Iterator[Effect]:
        """An own function or class that is called: what it does, told at the place of the call."""
        target = origin(target, self._from)
        if target in seen or target not in self._known:
            return
        module, definition = self._known[target]
        functions: list[Function] = []
        if isinstance(definition, ast.ClassDef):
            functions = [
                f for f in definition.body if isinstance(f, Function) and f.name in _AT_CREATION
            ]
        else:
            functions = [definition]
        for function in functions:
            scopes = Scopes(module)
            scopes.enter(function)
            for effect in self._body(function.body, scopes, seen | {target}):
                yield Effect(
                    effect.code, node.lineno, f"{effect.target} in {target}"[:120], effect.why
                )


def _not_on_import(test: ast.expr) -> bool:
    """Whether a condition never holds while the file is imported by an engine."""
    text = ast.unparse(test)
    return text == "__name__ == '__main__'" or text.rpartition(".")[2] == "TYPE_CHECKING"


def _only_reads(target: str, call: ast.Call | None) -> bool:
    """Whether a call opens a file for reading."""
    if target != "builtins.open" or call is None:
        return False
    modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
    return all(
        isinstance(mode, ast.Constant) and set(str(mode.value)) <= set("rbtU") for mode in modes
    )

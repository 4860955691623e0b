"""Leaf: what Python code a process has loaded, as one short text per name, equal in every boot.

A function is its byte code, constants, names, defaults and what it closes over, so that a name that
is rebound, wrapped or rewritten shows. Line numbers, file names and addresses are left out.
Imports no engine. Read by engine children, for the isolation stage.
"""

from __future__ import annotations

import collections
import functools
import gc
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

ALIAS = "alias of "
"""How the text of an imported function begins; its home and the function follow."""
_DEPTH = 4
"""Of wrappers, closures and tuples that are looked into."""
_MOST_ENTRIES = 4096
"""Of one table of classes or functions."""
_OF_EVERY_CLASS = frozenset(
    {"__abstractmethods__", "__annotations__", "__cached__", "__dict__", "__doc__", "__file__",
     "__loader__", "__module__", "__path__", "__spec__", "__warningregistry__", "__weakref__",
     "_abc_impl", "__builtins__", "__subclasshook__"}
)  # fmt: skip
_TABLES = (dict, collections.OrderedDict, collections.defaultdict)
"""Exactly these: a subclass may load or compute what it is asked for."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_CALLABLES = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial,
    staticmethod, classmethod, property,
)  # fmt: skip


def code(modules: Mapping[str, types.ModuleType | None], root: str) -> dict[str, str]:
    """``module:name`` -> text, for every loaded module of the package `root`.

    Covered are functions, methods, plain constants, references to classes, and tables of them.
    """
    found: dict[str, str] = {}
    for name in sorted(modules):
        module = modules[name]
        if name.partition(".")[0] == root and isinstance(module, types.ModuleType):
            for key, text in _members(vars(module), name, ""):
                found[f"{name}:{key}"] = text
    return found


def objects(root: str) -> dict[str, str]:
    """``module:Class.attribute`` -> text, of all live objects of classes of the package `root`.

    Told are methods that an object replaces in itself, and the classes of the objects it holds.
    """
    found: dict[str, set[str]] = {}
    for one in gc.get_objects():
        kind = type(one)
        module = kind.__module__
        if not isinstance(module, str) or module.partition(".")[0] != root:
            continue
        for key, value in list(_own(one).items()):
            if not isinstance(key, str) or value is None:
                continue
            held = type(value)
            if held in _CALLABLES and hasattr(kind, key):
                told = text(value)
            elif held.__module__ != "builtins" and held not in _CALLABLES:
                told = _name(held)
            else:
                continue
            found.setdefault(f"{module}:{kind.__qualname__}.{key}", set()).add(told)
    return {name: " ".join(sorted(told)) for name, told in sorted(found.items())}


def _members(values: Mapping[str, Any], module: str, prefix: str) -> Iterator[tuple[str, str]]:
    for key in sorted(values):
        if key in _OF_EVERY_CLASS or key.startswith("__pydantic"):
            continue
        value, name = values[key], f"{prefix}{key}"
        if issubclass(type(value), type):
            yield name, text(value)
            mine = vars(value).get("__module__") == module
            if mine and value.__qualname__ == name:
                yield from _members(dict(vars(value)), module, f"{name}.")
        elif type(value) in _TABLES:
            yield from _table(value, name)
        elif (told := text(value)) != "":
            yield name, _alias(value, module) + told


def _table(values: dict[Any, Any], name: str) -> Iterator[tuple[str, str]]:
    for key, value in list(values.items())[:_MOST_ENTRIES]:
        if isinstance(key, str) and (told := text(value)) != "":
            yield f"{name}[{key}]", told


def _alias(value: Any, module: str) -> str:
    """Where a function that a module has imported from its own package is at home."""
    home = value.__module__ if type(value) is types.FunctionType else None
    root = module.partition(".")[0]
    if not isinstance(home, str) or home == module or home.partition(".")[0] != root:
        return ""
    return f"{ALIAS}{home}:{value.__qualname__} "


def text(value: Any, depth: int = _DEPTH) -> str:
    """One value; empty for what is data or state and no code.

    Its type is asked, never the value itself: some answer by loading modules or by warning.
    """
    kind = type(value)
    if depth == 0:
        return f"a {_name(kind)}"
    if kind in _PLAIN:
        return f"{kind.__name__} {_sha(repr(value))}"
    if kind is types.FunctionType:
        return f"function {_function(value, depth)}"
    if kind in (staticmethod, classmethod, types.MethodType):
        return f"{kind.__name__} {text(value.__func__, depth - 1)}"
    if kind is property:
        parts = (value.fget, value.fset, value.fdel)
        return "property " + " ".join(text(part, depth - 1) for part in parts)
    if kind is functools.partial:
        return f"partial {text(value.func, depth - 1)} {text(value.args, depth - 1)}"
    if kind is types.BuiltinFunctionType or issubclass(kind, type):
        return f"{kind.__name__} {_name(value)}"
    if kind is types.ModuleType:
        return f"module {value.__name__}"
    if kind is tuple:
        return "(" + " ".join(text(part, depth - 1) for part in value[:64]) + ")"
    if not callable(value):
        return ""
    wrapped = _own(value).get("__wrapped__")
    return f"a {_name(kind)}" + (f" of {text(wrapped, depth - 1)}" if wrapped is not None else "")


def _own(value: Any) -> dict[str, Any]:
    """An object's own attributes, without asking it."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return own if type(own) is dict else {}


def _function(function: types.FunctionType, depth: int) -> str:
    sha = hashlib.sha256(_code(function.__code__).encode())
    for part in (function.__defaults__, *sorted((function.__kwdefaults__ or {}).items())):
        sha.update(text(part, depth - 1).encode())
    for cell in function.__closure__ or ():
        try:
            sha.update(text(cell.cell_contents, depth - 1).encode())
        except ValueError:
            sha.update(b"empty")
    wrapped = function.__dict__.get("__wrapped__")
    if wrapped is not None:
        sha.update(text(wrapped, depth - 1).encode())
    return sha.hexdigest()[:16]


def _code(one: types.CodeType) -> str:
    """Byte code as compiled, whatever the interpreter has made of it since."""
    facts = (one.co_argcount, one.co_kwonlyargcount, one.co_flags, one.co_names, one.co_varnames,
             one.co_freevars, one.co_cellvars)  # fmt: skip
    constants = " ".join(_constant(value) for value in one.co_consts)
    return f"{one.co_code.hex()} {facts!r} {constants} {one.co_exceptiontable.hex()}"


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return f"<{_code(value)}>"
    if isinstance(value, tuple):
        return "(" + " ".join(map(_constant, value)) + ")"
    if isinstance(value, frozenset):
        return "{" + " ".join(sorted(map(_constant, value))) + "}"
    return f"{type(value).__name__} {value!r}"


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '?')}"


def _sha(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "backslashreplace")).hexdigest()[:16]

"""Protects the naming of loaded code: what is rebound, wrapped or rewritten gets another text, and
what is merely compiled again gets the same."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from fasttrack.engine import loaded

SOURCE = """
import functools
LIMIT = 4
NAMES = ("a", "b")
def f(x, y=2):
    return [i for i in range(x) if i in {"p", "q", "r"}]
def outer(n):
    def inner(x):
        return x + n
    return inner
add = outer(3)
@functools.cache
def cached(x):
    return x
class Sampler:
    MODE = "greedy"
    def forward(self, x):
        return x
    @staticmethod
    def s(): return 1
    @classmethod
    def c(cls): return 2
    @property
    def p(self): return 3
    class Inner:
        def g(self): return 4
TABLE = {"Llama": Sampler, "f": f}
one = Sampler()
"""


def module(source: str = SOURCE, name: str = "engine.sample") -> types.ModuleType:
    """A module made from text, as if it were loaded."""
    made = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(made))
    return made


def names(made: types.ModuleType) -> dict[str, str]:
    """What is told of it."""
    return loaded.code({made.__name__: made, "other.x": made, "engine.none": None}, "engine")


def changed(change: Callable[[Any], object]) -> set[str]:
    """Names whose text differs after a change, without the module's own name."""
    made = module()
    before = names(made)
    change(made)
    after = names(made)
    found = {k for k in {*before, *after} if before.get(k) != after.get(k)}
    return {name.removeprefix("engine.sample:") for name in found}


def evil(self: Any, x: int) -> int:
    """Not what the engine does."""
    return x + 1


def wrapped(function: Any) -> Any:
    """A wrapper that keeps the name."""

    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


CHANGES: dict[str, tuple[Callable[[Any], object], set[str]]] = {
    "nothing": (lambda m: None, set()),
    "method": (lambda m: setattr(m.Sampler, "forward", evil), {"Sampler.forward"}),
    "wrapper": (lambda m: setattr(m.Sampler, "forward", wrapped(m.Sampler.forward)),
                {"Sampler.forward"}),
    "function": (lambda m: setattr(m, "f", evil), {"f"}),
    "code": (lambda m: setattr(m.f, "__code__", (lambda x, y: x).__code__), {"f", "TABLE[f]"}),
    "defaults": (lambda m: setattr(m.f, "__defaults__", (3,)), {"f", "TABLE[f]"}),
    "closure": (lambda m: setattr(m.add.__closure__[0], "cell_contents", 4), {"add"}),
    "class": (lambda m: setattr(m, "Sampler", type("Sampler", (), {})),
              {"Sampler", "Sampler.MODE", "Sampler.forward", "Sampler.s", "Sampler.c",
               "Sampler.p", "Sampler.Inner", "Sampler.Inner.g"}),
    "nested": (lambda m: setattr(m.Sampler.Inner, "g", evil), {"Sampler.Inner.g"}),
    "constant": (lambda m: setattr(m, "LIMIT", 5), {"LIMIT"}),
    "class_constant": (lambda m: setattr(m.Sampler, "MODE", "mine"), {"Sampler.MODE"}),
    "tuple": (lambda m: setattr(m, "NAMES", ("a",)), {"NAMES"}),
    "static": (lambda m: setattr(m.Sampler, "s", staticmethod(lambda: 2)), {"Sampler.s"}),
    "property": (lambda m: setattr(m.Sampler, "p", property(lambda self: 4)), {"Sampler.p"}),
    "table": (lambda m: m.TABLE.update(Llama=int), {"TABLE[Llama]"}),
    "entry": (lambda m: m.TABLE.update(Mine=int), {"TABLE[Mine]"}),
    "cached": (lambda m: setattr(m, "cached", functools.cache(lambda x: 0)), {"cached"}),
    "callable": (lambda m: setattr(m.Sampler, "forward", functools.partial(evil, None)),
                 {"Sampler.forward"}),
    "added": (lambda m: setattr(m.Sampler, "extra", evil), {"Sampler.extra"}),
    "removed": (lambda m: delattr(m.Sampler, "s"), {"Sampler.s"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_by_name(name: str) -> None:
    change, expected = CHANGES[name]
    assert changed(change) == expected


def test_the_same_source_reads_the_same_after_it_has_run() -> None:
    """The interpreter rewrites byte code that runs often; addresses and lines move as well."""
    one, two = module(), module("\n\n" + SOURCE)
    for _ in range(200):
        one.f(3)
        one.cached(1)
        one.Sampler().forward(1)
    assert names(one) == names(two)
    assert names(one) != names(module(SOURCE.replace("x + n", "x - n")))


def test_texts_are_equal_in_another_process() -> None:
    """Hash randomisation reorders sets in constants."""
    script = (
        "import sys, types; from fasttrack.engine import loaded; m = types.ModuleType('engine.x');"
        f"exec({SOURCE!r}, vars(m)); "
        "print(sorted(loaded.code({'engine.x': m}, 'engine').items()))"
    )

    def told(seed: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, check=True, timeout=60,
        ).stdout  # fmt: skip

    assert told("1") == told("2") != b""


def test_an_imported_function_is_told_with_its_home() -> None:
    home, other = module(), module("", "engine.other")
    home.f.__module__ = "engine.sample"
    other.g = home.f
    told = loaded.code({"engine.sample": home, "engine.other": other}, "engine")
    own = told["engine.sample:f"]
    assert told["engine.other:g"] == f"{loaded.ALIAS}engine.sample:f {own}"


def test_state_of_objects_is_no_code() -> None:
    assert "engine.sample:one" not in names(module())


def test_live_objects_that_replace_their_own_methods_are_told() -> None:
    made = module()
    for cls in (made.Sampler, made.Sampler.Inner):
        cls.__module__ = "engine.sample"
    one = made.Sampler()
    assert "engine.sample:Sampler.forward" not in loaded.objects("engine")
    one.forward = lambda x: 0
    one.helper = made.Sampler.Inner()
    told = loaded.objects("engine")
    assert told["engine.sample:Sampler.forward"].startswith("function")
    assert told["engine.sample:Sampler.helper"] == "engine.sample.Sampler.Inner"

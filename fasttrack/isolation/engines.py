"""Compares running engines: without the plugin, with it switched off, and with it switched on.

An unrelated model must be stock in all three, whatever the switch says; the claimed model may
differ by the switch in the optimization's own modules only. Compared are the answers, and the facts
of `Session.inspect` name by name, so that a record tells what differs and not only that it does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fasttrack.engine import loaded
from fasttrack.engine.base import Launch, Request, Sampling
from fasttrack.engine.setting import Setting
from fasttrack.errors import RunError
from fasttrack.isolation.source import is_test
from fasttrack.schema import Arm, Check, IsolationRecord, Record
from fasttrack.schema.claim import Plugin
from fasttrack.schema.record import IsolationFinding

STATE = ("operators", "architectures", "environment", "torch", "hooks")
CODE = ("code", "objects")
REFUSED = "ENG-007"
MOST = 60
"""Findings kept of one subject; the digests hold the rest."""
PROMPTS = tuple(tuple((7 * i + 3 * j) % 256 for j in range(5 + 11 * i)) for i in range(4))
REQUESTS = tuple(Request(prompt=p, sampling=Sampling(max_tokens=8)) for p in PROMPTS)

Facts = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Seen:
    """One boot: what the engine answered, and what its process consisted of afterwards."""

    tokens: tuple[tuple[int, ...], ...]
    facts: Facts


def neighbour(setting: Setting) -> list[Record]:
    """Records of `neighbour`, `code` (plugin, switched off) and `switched-on`: three boots."""
    quiet = setting.claim.plugin.model_copy(update={"worker_extension": None})

    def unrelated(name: str, arm: Arm, plugin: Plugin | None) -> Launch:
        config = setting.claim.switch.additional_config(arm) if arm == "candidate" else {}
        return replace(
            setting.launch(name, arm), additional_config=config, plugin=plugin, checkpoint=None
        )

    stock = _observe(setting, unrelated("neighbour-stock", "base", None), REQUESTS)
    off = _observe(setting, unrelated("neighbour-off", "base", quiet), REQUESTS)
    records: list[Record] = [
        _record(setting, "neighbour", "ISO-DIFF", stock, off, STATE, answers=True),
        _record(setting, "code", "ISO-CODE", stock, off, CODE),
    ]
    try:
        on = _observe(setting, unrelated("neighbour-on", "candidate", quiet), REQUESTS)
    except RunError as error:
        refused = error.code == REFUSED
        check = Check(name="refused" if refused else "starts", relation="equal",
                      observed=refused, bound=True)  # fmt: skip
        told = f"an unrelated model does not start with the switch on: {error.cause}"
        records.append(IsolationRecord(subject="switched-on", checks=(check,), message=told[:1000]))
    else:
        groups = (*STATE, *CODE)
        records.append(_record(setting, "switched-on", "ISO-ON", stock, on, groups, answers=True))
    return records


def model(setting: Setting) -> list[Record]:
    """The record of `model`: the claimed model, switched off and on; two boots."""
    asked = REQUESTS[:2]
    off = _observe(setting, setting.launch("model-off", "base"), asked)
    on = _observe(setting, setting.launch("model-on", "candidate"), asked)
    groups = (*STATE, *CODE)
    record = _record(setting, "model", "ISO-SPREAD", off, on, groups)
    own = list(_own_files(setting, on.facts))
    return [record.model_copy(update={"findings": (*record.findings, *own)})]


def _observe(setting: Setting, launch: Launch, requests: Sequence[Request]) -> Seen:
    setting.say(f"{launch.session}: starting")
    with setting.engine.start(launch) as session:
        answers = session.generate(requests).answers
        return Seen(tuple(answer.token_ids for answer in answers), session.inspect().facts)


def _record(
    setting: Setting, subject: str, code: str, before: Seen, after: Seen,
    groups: Sequence[str], *, answers: bool = False,
) -> IsolationRecord:  # fmt: skip
    """Two boots, group by group."""
    checks = []
    if answers:
        equal = sum(a == b for a, b in zip(before.tokens, after.tokens, strict=False))
        checks.append(
            Check(name="tokens_equal", relation="equal", observed=equal, bound=len(PROMPTS))
        )
    findings: list[IsolationFinding] = []
    for group in groups:
        one, two = comparable(before.facts.get(group, {}), after.facts.get(group, {}), setting)
        checks += [
            Check(name=f"{group}_names", relation="at_least", observed=len(one), bound=1),
            Check(name=group, relation="equal", observed=digest(two), bound=digest(one)),
        ]
        findings += differences(code, group, one, two)
    return IsolationRecord(subject=subject, checks=checks, findings=tuple(findings[:MOST]))


def comparable(
    before: Mapping[str, str], after: Mapping[str, str], setting: Setting
) -> tuple[dict[str, str], dict[str, str]]:
    """What of two boots must be equal.

    Modules loaded in one of them only say nothing. What is registered under the name of a claimed
    architecture, where nothing was before, is the optimization's own; so is what its modules hold.
    Where the engine has two functions of one name (vLLM replaces some of its own on a CPU), which
    of them a module imported depends on the order of imports, which a cold cache changes.
    """
    stock, found = set(before.values()), set(after.values())
    modules = {_module(name) for name in before} & {_module(name) for name in after}
    models = setting.claim.scope.models
    own = setting.claim.plugin.module

    def kept(name: str) -> bool:
        if _module(name) not in modules or _within(_module(name), own):
            return False
        one, two = before.get(name), after.get(name)
        if one != two and same_import(one, two) and one in found and two in stock:
            return False
        registered = name in models or name.endswith(tuple(f"[{model}]" for model in models))
        return name in before or not registered

    return (
        {name: text for name, text in before.items() if kept(name)},
        {name: text for name, text in after.items() if kept(name)},
    )


def same_import(one: str | None, two: str | None) -> bool:
    """Whether two texts are of imported functions of one name."""

    def imported(text: str | None) -> str | None:
        if text is None or not text.startswith(loaded.ALIAS):
            return None
        return text.removeprefix(loaded.ALIAS).split(" ")[0].rpartition(":")[2]

    return imported(one) is not None and imported(one) == imported(two)


def _module(name: str) -> str:
    """The module of ``module:name``; all other names are in one group of their own."""
    module, colon, _ = name.partition(":")
    return module if colon and "::" not in name else ""


def _within(module: str, own: str) -> bool:
    return module == own or module.startswith(f"{own}.")


def differences(
    code: str, group: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[IsolationFinding]:
    """One finding per name, in order."""
    for name in sorted({*before, *after}):
        one, two = before.get(name), after.get(name)
        if one == two:
            continue
        what = "added" if one is None else "removed" if two is None else "changed"
        yield IsolationFinding(
            code=code,
            where=name[:200],
            what=f"{group} {what}",
            why=f"{_short(one)} became {_short(two)}",
        )


def _short(text: str | None) -> str:
    return "nothing" if text is None else text[:120]


def digest(facts: Mapping[str, str]) -> str:
    """SHA-256 of names and texts."""
    lines = "\n".join(f"{name} {facts[name]}" for name in sorted(facts))
    return hashlib.sha256(lines.encode("utf-8", "backslashreplace")).hexdigest()


def _own_files(setting: Setting, facts: Facts) -> Iterator[IsolationFinding]:
    """The engine loaded what the source scan read: files of the folder, and no tests of it."""
    folder = setting.folder.resolve()
    for name, file in sorted(facts.get("modules", {}).items()):
        if not file:
            continue
        path = Path(file)
        inside = path.is_absolute() and path.resolve().is_relative_to(folder)
        shown = path.resolve().relative_to(folder).as_posix() if inside else path.name
        if path.is_absolute() and not inside:
            why = "the engine loaded another copy than the one that was judged"
        elif is_test(shown if inside else file):
            why = "the engine loaded a test, which the source scan does not read"
        else:
            continue
        yield IsolationFinding(code="ISO-COPY", where=shown, what=name, why=why)

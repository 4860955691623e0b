"""Which eval sees which fault, and whether stock against stock raises any alarm.

``python benchmarks/eval_faults.py --out docs/eval-faults.md`` runs the evals of the bundled
optimization on `cpu-nano` at tier `smoke`: base once, the candidate without a fault, and the
candidate under each planted fault of `tests/plants`. Nothing but the rules of the eval stage judges
them. ``--stock N`` adds N repetitions, each with items of its own, in which both arms are stock in
batches of different sizes. Records are kept in ``--keep``; what is there is not run again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

from fasttrack import claim, engine, plan
from fasttrack.bundle import layout
from fasttrack.bundle.writer import file_chunks
from fasttrack.checkpoints import ensure
from fasttrack.engine.setting import Setting
from fasttrack.evals import run as evals_run
from fasttrack.rules import quality
from fasttrack.rules.base import Case
from fasttrack.schema import ItemRecord, Policy, Record, RunInfo, State, Tier, Verdict
from fasttrack.schema._json import canonical_bytes

REPO = Path(__file__).resolve().parents[1]
TARGET = "cpu-nano"
FAULTS = {
    "head_scale": "one attention head's queries scaled by 2 %, in one layer",
    "kda_slots": "two requests swap their KDA states every 500 steps",
    "experts": "one expert too few per token, in all layers",
    "far_pages": "cache rows beyond 1024 tokens read from the page before theirs",
    "early_end": "answers end after 24 tokens",
    "temperature": "greedy requests drawn at temperature 1",
}
"""Name of a plant in `tests/plants/sitecustomize.py`: what it does."""
LOOKS = ("accuracy", "length", "divergence", "replay")
"""Kinds of verdicts of an eval: the second part of a cell's name."""
OK = (State.PASS, State.NON_INFERIOR)
STOCK_ITEMS = 8
"""Items of one repetition of stock against stock, per eval."""
STOCK_LEN = 640
"""Longest prompt and answer there: many short items tell more about false alarms than few long."""
OTHER_BATCH = 11
"""Largest batch of stock's second arm: unlike base's 64, so that it rounds otherwise."""


def main() -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the page here as well")
    parser.add_argument("--keep", type=Path, default=REPO / "runs" / "eval-faults")
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--stock", type=int, default=0, metavar="N")
    options = parser.parse_args()
    lab = Lab(options.keep)
    lines = [*HEAD.format(vllm=version(packages_distributions()["vllm"][0])).splitlines(), ""]
    lines += table(lab, options.faults)
    if options.stock:
        lines += stock(lab, options.stock)
    page = "\n".join(lines) + "\n"
    print(page)
    if options.out:
        options.out.write_text(page)
    return 0


HEAD = """\
# Which eval sees which fault

Measured, not argued: `python benchmarks/eval_faults.py --stock 20 --out FILE` runs the evals of
the bundled optimization on `cpu-nano` (vLLM {vllm}, FP32) at tier `smoke`, once without a fault and
once under each fault of `tests/plants`. Only the rules of the eval stage judge. A cell names the
looks that refuse it, with the gravest state; a dash: all of them let it pass. That most faults
leave the scores alone is a model that is sure of itself: there, what decides is the replay of
base's answers, which compares log-probabilities and their gaps at every position."""


class Lab:
    """The real engine, and the records of what it has run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.frozen = claim.load(REPO / "optimizations" / "kimi_k3")
        checkpoint = self.frozen.claim.targets[TARGET].checkpoint
        assert checkpoint is not None
        self.weights, self.digest = ensure(checkpoint, folder / "checkpoints", folder / "logs")
        made = plan.make(self.frozen.claim, TARGET, Tier.SMOKE, 0)
        self.spec = next(unit.spec for unit in made.units if unit.stage == "evals")

    def setting(self, earlier: Sequence[Record] = ()) -> Setting:
        """A setting in which the records of base are `earlier`."""
        return Setting(
            claim=self.frozen.claim,
            target_name=TARGET,
            engine=engine.get("vllm"),
            checkpoint=self.weights,
            checkpoint_sha256=self.digest,
            source_sha256=lambda: "0" * 64,
            logs=self.folder / "logs",
            folder=self.frozen.folder,
            seed=0,
            timeout_s=900.0,
            say=lambda text: print(text, file=sys.stderr, flush=True),
            earlier=lambda: earlier,
        )

    def run(self, name: str, setting: Setting, **spec: Any) -> list[Record]:
        """Records of the eval stage, kept under `name`."""
        kept = self.folder / f"{name}.jsonl"
        if not kept.exists():
            records = evals_run.run(setting, {**self.spec, **spec})
            lines = [canonical_bytes(record.json_value()) + b"\n" for record in records]
            kept.write_bytes(b"".join(lines))
        return list(layout.parse_lines(file_chunks(kept)))

    def planted(self, plant: str, base: Sequence[Record]) -> list[Record]:
        """Records of the candidate under a plant."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FASTTRACK_TEST_PLANT", plant)
            patch.setenv("PYTHONPATH", str(REPO / "tests" / "plants"), prepend=os.pathsep)
            return self.run(plant, self.setting(earlier=base), arm="candidate")

    def stock(
        self, name: str, arm: str, batch: int, items: int, base: Sequence[Record] = ()
    ) -> list[Record]:
        """Records of stock as either arm, in batches of `batch`."""
        setting = self.setting(earlier=base)
        grid = setting.target.grid.model_copy(update={"batch": (batch,)})
        short = setting.target.model_copy(update={"grid": grid, "max_model_len": STOCK_LEN})
        switch = setting.claim.switch
        twice = {
            "switch": switch.model_copy(update={"candidate": switch.base}),
            "targets": {TARGET: short},
        }
        claim = setting.claim.model_copy(update=twice)
        return self.run(name, replace(setting, claim=claim), arm=arm, items=items)

    def judge(self, records: Iterable[Record]) -> list[Verdict]:
        """Verdicts of the eval stage."""
        info = RunInfo(
            run_id="eval-faults", target=TARGET, tier=Tier.SMOKE, seed=0, stages=("evals",),
            command=(), claim_sha256="", policy_sha256="", plan_sha256="", harness_version="",
            created_utc="",
        )  # fmt: skip
        return list(quality.judge(Case(self.frozen.claim, info, Policy(), tuple(records))))


def table(lab: Lab, faults: Sequence[str]) -> Iterator[str]:
    """One line per fault, one column per eval."""
    base = lab.run("base", lab.setting(), arm="base")
    names = list(dict.fromkeys(r.eval for r in base if isinstance(r, ItemRecord)))
    yield f"| fault of the candidate | {' | '.join(names)} | harm alarm |"
    yield "|---|" + "---|" * (len(names) + 1)
    honest = lab.run("honest", lab.setting(earlier=base), arm="candidate")
    for told, records in (
        ("none", honest),
        *((FAULTS[fault], lab.planted(fault, base)) for fault in faults),
    ):
        verdicts = lab.judge([*base, *records])
        cells = [seen(verdicts, name) for name in names]
        alarms = [v for v in verdicts if v.cell.endswith("/alarm") and v.state not in OK]
        yield f"| {told} | {' | '.join(cells)} | {alarms[0].reason if alarms else '-'} |"
    yield ""


def seen(verdicts: Sequence[Verdict], name: str) -> str:
    """What refuses an eval: kind of look and reason, strongest state first."""
    found = []
    for look in LOOKS:
        refused = [v for v in verdicts if v.cell.startswith(f"{name}/{look}") and v.state not in OK]
        if refused:
            worst = min(refused, key=lambda v: v.state is State.INCONCLUSIVE)
            found.append(f"{look} {worst.state.value}")
    return ", ".join(found) or "-"


def stock(lab: Lab, times: int) -> Iterator[str]:
    """Stock against stock: repetitions with disjoint items, all from one engine per arm."""
    items = STOCK_ITEMS * times
    batch = max(lab.frozen.claim.targets[TARGET].grid.batch)
    with pytest.MonkeyPatch.context() as patch:
        # One at a time would take four times as long and is no better a control here.
        patch.setattr(evals_run, "CONTROL_CONCURRENCY", 4)
        base = lab.stock("stock", "base", batch, items)
        again = lab.stock("stock-again", "candidate", OTHER_BATCH, items, base)
    names = list(dict.fromkeys(r.item for r in base if isinstance(r, ItemRecord)))
    states: Counter[str] = Counter()
    refused: list[str] = []
    for turn in range(times):
        mine = set(names[turn::times])
        chosen = [r for r in [*base, *again] if isinstance(r, ItemRecord) and r.item in mine]
        for verdict in lab.judge(chosen):
            states[verdict.state.value] += 1
            if verdict.state not in OK:
                refused.append(f"{turn}: {verdict.cell} {verdict.state.value} {verdict.detail}")
    for line in refused:
        print(line, file=sys.stderr)
    told = ", ".join(f"{count} {state}" for state, count in states.most_common())
    yield (
        f"Stock against stock: {times} repetitions with {STOCK_ITEMS} items of their own\n"
        f"per eval, up to {STOCK_LEN} tokens long, in batches of {batch} against {OTHER_BATCH}.\n"
        f"All verdicts of all repetitions: {told}."
    )


if __name__ == "__main__":
    sys.exit(main())

"""Equal arms through the whole perf stage, many times: how often is one called faster or slower?

    python benchmarks/equal_arms.py --repetitions 30 [--engine fake]

Each repetition is a run of `fasttrack validate --only perf` with seeds of its own, of a claim whose
candidate is base: on the fake engine with the noise recorded on a real machine. Prints the states
of all cells and of the sentence. Exit status 1 if more cells than the stated level are called
FASTER, or SLOWER.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
from pathlib import Path

from fasttrack import pipeline
from fasttrack.bundle.reader import open_bundle
from fasttrack.claim import load
from fasttrack.schema import Policy, State, Tier

CLAIM = """\
schema = "fasttrack.claim/v1"
name = "equal-arms"
title = "Equal arms"
summary = "The candidate is base."
scope = {{ models = ["X"], paths = ["**"], ops = ["none"] }}
switch = {{ key = "additional_config.decode_backend", base = "auto", candidate = \
"latency_specialized" }}
plugin = {{ distribution = "equal", module = "equal" }}
speed = {{ sentence = "slower_nowhere" }}

[targets.fake]
engine = "fake"
role = "development"
max_num_seqs = 65
grid = {{ batch = [1, 8, 64], context_tokens = [64, 192] }}
engine_args = {{ fake = {{ noise = "{noise}", noise_percent = {percent}, seed = {seed} }} }}
"""


def main() -> int:
    """Run the repetitions and count."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--noise", default="recorded", choices=("recorded", "normal"))
    parser.add_argument("--noise-percent", type=float, default=1.0)
    parser.add_argument("--tier", default="full", type=Tier, choices=list(Tier))
    asked = parser.parse_args()
    states: collections.Counter[str] = collections.Counter()
    sentences: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(asked.repetitions):
            folder = Path(scratch) / f"claim-{seed}"
            folder.mkdir()
            text = CLAIM.format(noise=asked.noise, percent=asked.noise_percent, seed=seed)
            (folder / "claim.toml").write_text(text)
            options = pipeline.Options(
                target="fake", tier=asked.tier, seed=seed, stages=("perf",),
                runs=folder / "runs", out=folder / "out", cache=Path(scratch) / "cache",
            )  # fmt: skip
            result = pipeline.validate(load(folder), options, pipeline.Watcher())
            with open_bundle(result.bundle) as bundle:
                for verdict in bundle.verdicts:
                    if verdict.rule == "speed":
                        chosen = sentences if verdict.cell == "sentence" else states
                        chosen[verdict.state.value] += 1
            print(f"{seed + 1}/{asked.repetitions}: {dict(states)}", file=sys.stderr)
    total = states.total()
    print(f"{total} cells: {dict(states)}; sentences: {dict(sentences)}")
    level = Policy().speed.level
    wrong = max(states[State.FASTER.value], states[State.SLOWER.value])
    print(f"called faster or slower: at most {100 * wrong / total:.1f} %, stated {100 * level:g} %")
    return int(wrong > level * total)


if __name__ == "__main__":
    sys.exit(main())

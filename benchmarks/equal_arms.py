"""Equal arms through the whole perf stage, many times: how often is one called faster or slower?

    python benchmarks/equal_arms.py --repetitions 30
    python benchmarks/equal_arms.py --repetitions 5 --engine vllm --tier smoke

Each repetition is a run of `fasttrack validate --only perf` with seeds of its own, of a claim whose
arms are equal: on the fake engine with the noise recorded on a real machine, or on vLLM, where both
arms run stock and `equal_arms_worker` tells one of them as specialised. Prints the states of all
cells and of the sentence. Exit status 1 if more cells than the stated level are called FASTER, or
SLOWER.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import tomllib
from pathlib import Path

from fasttrack import pipeline
from fasttrack.bundle.reader import open_bundle
from fasttrack.claim import load
from fasttrack.schema import Policy, State, Tier

CLAIM = """\
schema = "fasttrack.claim/v1"
name = "equal-arms"
title = "Equal arms"
summary = "Both arms run the same."
scope = {{ models = ["X"], paths = ["**"], ops = ["none"] }}
switch = {{ key = "additional_config.{key}", base = "{base}", candidate = "{candidate}" }}
speed = {{ sentence = "slower_nowhere" }}
{target}
"""

FAKE = """\
plugin = {{ distribution = "equal", module = "equal" }}

[targets.equal]
engine = "fake"
role = "development"
max_num_seqs = 65
grid = {{ batch = [1, 8, 64], context_tokens = [64, 192] }}
engine_args = {{ fake = {{ noise = "{noise}", noise_percent = {percent}, seed = {seed} }} }}
"""

VLLM = """\
plugin = {{ distribution = "fasttrack-kimi-k3", module = "kimi_k3", vllm_plugins = ["kimi_k3"], \
worker_extension = "equal_arms_worker.Extension" }}

[targets.equal]
engine = "vllm"
role = "development"
dtype = "float32"
max_model_len = 512
max_num_seqs = 16
grid = {{ batch = [1, 4, 16], context_tokens = [64] }}

[targets.equal.checkpoint]
name = "k3-nano"
build = ["{{python}}", "-m", "kimi_k3.checkpoint", "k3-nano", "{{out}}"]
sha256 = "{sha256}"
"""
BUNDLED = Path(__file__).parents[1] / "optimizations/kimi_k3/claim.toml"


def claim(engine: str, noise: str, percent: float, seed: int) -> str:
    """The text of a claim of equal arms."""
    if engine == "vllm":
        checkpoint = tomllib.loads(BUNDLED.read_text())["targets"]["cpu-nano"]["checkpoint"]
        target = VLLM.format(sha256=checkpoint["sha256"])
        return CLAIM.format(target=target, key="equal_arms", base="base", candidate="candidate")
    return CLAIM.format(
        target=FAKE.format(noise=noise, percent=percent, seed=seed),
        key="decode_backend", base="auto", candidate="latency_specialized",
    )  # fmt: skip


def main() -> int:
    """Run the repetitions and count."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--engine", default="fake", choices=("fake", "vllm"))
    parser.add_argument("--cache", type=Path, help="checkpoints and calibration, kept; vLLM alone")
    parser.add_argument("--noise", default="recorded", choices=("recorded", "normal"))
    parser.add_argument("--noise-percent", type=float, default=1.0)
    parser.add_argument("--tier", default="full", type=Tier, choices=list(Tier))
    asked = parser.parse_args()
    # Where the engine's workers find `equal_arms_worker`.
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    states: collections.Counter[str] = collections.Counter()
    sentences: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(asked.repetitions):
            folder = Path(scratch) / f"claim-{seed}"
            folder.mkdir()
            text = claim(asked.engine, asked.noise, asked.noise_percent, seed)
            (folder / "claim.toml").write_text(text)
            options = pipeline.Options(
                target="equal", tier=asked.tier, seed=seed, stages=("perf",),
                runs=folder / "runs", out=folder / "out",
                cache=asked.cache or Path(scratch) / "cache",
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

"""vLLM's own benchmark client on the server of both arms: what users will measure.

    python benchmarks/bench_serve.py optimizations/kimi_k3 --target cpu-nano --concurrency 1,8

Boots the server as `fasttrack` does, base-candidate-candidate-base, and sends the shipped prompts
through `vllm bench serve`, as many at once as asked, each with a first line of its own so that no
prefix is cached. Its totals must equal the server's counters. Prints its TTFT, TPOT and ITL (ms;
P50 and P90 over the requests of a session, then the mean of the two sessions), base over candidate.
The harness does not judge by this client: it mixes prefill and other lanes into every TPOT, which
the engine's own steps do not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

from fasttrack import checkpoints
from fasttrack.claim import Frozen, load
from fasttrack.engine import get
from fasttrack.engine.served import ServerSession, behind_server, since
from fasttrack.engine.setting import Setting, Variant
from fasttrack.perf import prompts
from fasttrack.schema import Arm

ORDER: tuple[Arm, ...] = ("base", "candidate", "candidate", "base")
METRICS = ("ttft", "tpot", "itl")
PERCENTILES = (50, 90)
SERVED = Variant("serve", {"disable_log_stats": None})
CHARACTERS = 160
CLIENT = """
import argparse
from vllm.benchmarks import serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""
"""`vllm bench serve`, whose own program wants a distribution that is called vllm."""


def data_set(path: Path, count: int, answer_tokens: int) -> None:
    """Write `count` prompts in the form of `--dataset-name custom`."""
    passages = prompts.load(None, Path()).texts
    lines = (
        {
            "prompt": prompts.header(0, "serve", n) + passages[n % len(passages)][:CHARACTERS],
            "output_tokens": answer_tokens,
        }
        for n in range(count)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def bench(
    session: ServerSession, tokenizer: Path, data: Path, count: int, at_once: int, scratch: Path
) -> dict[str, float]:
    """One run of the client; exits with its log where it failed or counts differ."""
    out = scratch / f"{at_once}.json"
    before = session.counters()
    done = subprocess.run(
        [sys.executable, "-c", CLIENT,
         *("--backend", "vllm", "--endpoint", "/v1/completions", "--base-url", session.url),
         *("--model", session.model, "--tokenizer", tokenizer),
         *("--dataset-name", "custom", "--dataset-path", data, "--skip-chat-template"),
         *("--custom-output-len", "-1", "--num-prompts", str(count), "--no-oversample"),
         *("--max-concurrency", str(at_once), "--disable-shuffle", "--seed", "0"),
         *("--temperature", "0", "--ignore-eos", "--percentile-metrics", ",".join(METRICS)),
         *("--metric-percentiles", ",".join(map(str, PERCENTILES))),
         *("--save-result", "--result-dir", scratch, "--result-filename", out.name)],
        env={**os.environ, "VLLM_USE_RUST_BENCH": "0", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode or not out.exists():
        sys.exit((done.stdout + done.stderr)[-3000:])
    told = json.loads(out.read_text())
    counted = since(before, session.counters())
    mine = {
        "requests": told["completed"],
        "prompt_tokens": told["total_input_tokens"],
        "generated_tokens": told["total_output_tokens"],
        "cached_tokens": 0,
    }
    if mine != counted:
        sys.exit(f"client and server differ: {mine}, {counted}")
    names = [f"p{p}_{metric}_ms" for metric in METRICS for p in PERCENTILES]
    return {name: told[name] for name in names}


def main() -> int:
    """Run and print one table per concurrency."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cpu-nano")
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--answer-tokens", type=int, default=32)
    parser.add_argument("--cache", type=Path, default=Path(".cache"))
    asked = parser.parse_args()
    frozen: Frozen = load(asked.folder)
    target = frozen.claim.targets[asked.target]
    assert target.checkpoint is not None
    seen: dict[tuple[int, Arm], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        data = scratch / "prompts.jsonl"
        data_set(data, asked.prompts, asked.answer_tokens)
        tokenizer, sha256 = checkpoints.ensure(target.checkpoint, asked.cache, scratch)
        setting = Setting(
            claim=frozen.claim,
            target_name=asked.target,
            engine=behind_server(get(target.engine)),
            checkpoint=str(tokenizer),
            checkpoint_sha256=sha256,
            source_sha256=lambda: "",
            logs=scratch,
            folder=frozen.folder,
            seed=0,
            timeout_s=900.0,
            say=lambda line: print(line, file=sys.stderr),
        )
        for turn, arm in enumerate(ORDER):
            with setting.session("perf", f"serve-{turn}-{arm}", arm, [], SERVED) as session:
                assert isinstance(session, ServerSession)
                session.warm_up()
                for at_once in map(int, asked.concurrency.split(",")):
                    session.reset_prefix_cache()
                    told = bench(session, tokenizer, data, asked.prompts, at_once, scratch)
                    seen.setdefault((at_once, arm), []).append(told)
    for at_once in map(int, asked.concurrency.split(",")):
        print(f"concurrency {at_once}: {asked.prompts} prompts, {asked.answer_tokens} tokens each")
        for metric in seen[at_once, "base"][0]:
            base, mine = (
                mean(one[metric] for one in seen[at_once, arm]) for arm in ("base", "candidate")
            )
            ratio = f"{base / mine:.2f}x" if mine else "-"
            print(f"  {metric:<12} base {base:8.1f}  candidate {mine:8.1f}  {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m kimi_k3.bench.engine CHECKPOINT [--batch 1,8,64] [--json FILE]`: decode steps in vLLM.

One boot of vLLM 0.33 with the path on. The decode graphs are captured several times, each time with
other ops ours, none for stock; replaying one or another set is all that differs between the sides,
so weights, caches, requests, process and clocks are the same. This is no run of the harness: no
prompts of its kind, no arms in processes of their own, no rules.

Owns: what is asked of the engine and how it is timed. Per batch, after requests are in decode:
`step`: back-to-back replays of the step's graph, sides in turn, by CUDA events; `engine`: whole
steps of the engine, wall clock, sides in turn; `profile`: kernels of one replay by name. Parity:
hidden states and logits of one step from the same caches, and greedy tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kimi_k3.intree.plan import LARGEST, OPS
from kimi_k3.intree.support import OPTION

CONTEXT, VOCABULARY = 128, 20480
REPLAYS, ROUNDS = 20, 7
STEPS = 24
GREEDY = 32


def ladder() -> dict[str, dict[str, int]]:
    """Sides: stock, the shipped table, and ops added one after the other at every batch."""
    sides: dict[str, dict[str, int]] = {"stock": {}, "table": dict(LARGEST)}
    held: dict[str, int] = {}
    for op in ("moe", "latent_up", "attn_res", "kda", "shared"):
        held = held | {op: 64}
        sides["+" + op] = dict(held)
    return sides


class Engine:
    """vLLM in this process, and its decode graphs by side."""

    def __init__(self, checkpoint: str, batches: list[int], most: int) -> None:
        from vllm import LLM

        self.llm = LLM(
            checkpoint, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=4096,
            max_num_seqs=most, num_gpu_blocks_override=1024, enable_prefix_caching=False,
            additional_config={OPTION: "latency_specialized"},
            worker_extension_cls="kimi_k3.runtime.evidence.WorkerExtension",
            compilation_config={"cudagraph_capture_sizes": batches}, disable_log_stats=True,
        )  # fmt: skip
        self.runner: Any = self.llm.collective_rpc(lambda worker: worker.model_runner)[0]
        self.model = self.runner.get_model()
        self.manager = self.runner.cudagraph_manager
        self.sides: dict[str, Any] = {}
        self._requests = 0

    def capture(self, name: str, largest: Mapping[str, int]) -> None:
        """Capture every graph once more, with these ops ours."""
        from vllm.config import set_current_vllm_config

        self.manager.graphs = {}
        self.manager.release_graphs()
        decode = self.model.decode
        decode.choose(largest)
        decode.prepare()
        with set_current_vllm_config(self.runner.vllm_config):
            self.runner.capture_model()
        self.sides[name] = self.manager.graphs, set(decode.captured)

    def use(self, name: str) -> None:
        """Replay graphs of this side from now on."""
        self.manager.graphs, self.model.decode.captured = self.sides[name]

    def graph(self, batch: int) -> Any:
        """The decode graph of `batch` rows."""
        (found,) = (
            graph for key, graph in self.manager.graphs.items()
            if key.num_tokens == batch and key.cg_mode.name == "FULL"
        )  # fmt: skip
        return found

    def evidence(self) -> dict[str, Any]:
        """What ran since the last time."""
        (found,) = self.llm.collective_rpc("fasttrack_evidence")
        return {name: found[name] for name in ("counters", "graph_steps", "extra_bytes")}

    # ---- requests --------------------------------------------------------------------------------

    def prompts(self, count: int, length: int, seed: int = 0) -> list[dict[str, Any]]:
        """Random tokens."""
        random = torch.Generator().manual_seed(seed)
        drawn = torch.randint(1, VOCABULARY, (count, length), generator=random)
        return [{"prompt_token_ids": row} for row in drawn.tolist()]

    def start(self, batch: int, length: int) -> list[str]:
        """Requests that decode until they are told to stop."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=2048, ignore_eos=True, detokenize=False)
        names = []
        for prompt in self.prompts(batch, length):
            names.append(f"bench-{self._requests}")
            self._requests += 1
            self.llm.llm_engine.add_request(names[-1], prompt, params)
        # A prompt longer than a step's budget takes several; then all decode.
        for _ in range(4 + batch * length // 2048):
            self.llm.llm_engine.step()
        return names

    def stop(self, names: list[str]) -> None:
        """End them."""
        self.llm.llm_engine.abort_request(names)
        while self.llm.llm_engine.has_unfinished_requests():
            self.llm.llm_engine.step()
        self.llm.llm_engine.step()

    # ---- what is measured ------------------------------------------------------------------------

    def step_us(self, batch: int) -> dict[str, Any]:
        """Microseconds of the device per replay, by side."""
        spans: dict[str, list[float]] = {name: [] for name in self.sides}
        for round_ in range(ROUNDS):
            names = list(self.sides) if round_ % 2 == 0 else list(self.sides)[::-1]
            for name in names:
                self.use(name)
                graph = self.graph(batch)
                for _ in range(3):
                    graph.replay()
                ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                ends[0].record()
                for _ in range(REPLAYS):
                    graph.replay()
                ends[1].record()
                torch.cuda.synchronize()
                spans[name].append(1000 * ends[0].elapsed_time(ends[1]) / REPLAYS)
        return {name: {"median": statistics.median(one), "all": one} for name, one in spans.items()}

    def tokens_per_second(self, batch: int) -> dict[str, Any]:
        """Of whole engine steps, by side, in turn."""
        rates: dict[str, list[float]] = {}
        for name in ("stock", "table", "table", "stock", "stock", "table"):
            self.use(name)
            for _ in range(3):
                self.llm.llm_engine.step()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(STEPS):
                self.llm.llm_engine.step()
            torch.cuda.synchronize()
            rates.setdefault(name, []).append(batch * STEPS / (time.perf_counter() - begin))
        return {name: {"median": statistics.median(one), "all": one} for name, one in rates.items()}

    def profile(self, batch: int, name: str) -> dict[str, Any]:
        """Kernels of a replay: how often and how long, by name, longest first."""
        from torch.profiler import ProfilerActivity, profile

        self.use(name)
        graph, times = self.graph(batch), 4
        graph.replay()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(times):
                graph.replay()
            torch.cuda.synchronize()
        spent: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for event in seen.events():
            if event.device_type.name == "CUDA":
                spent[event.name] += event.device_time
                count[event.name] += 1
        return {
            "launches": sum(count.values()) / times,
            "busy_us": sum(spent.values()) / times,
            "kernels": [
                [key[:120], count[key] / times, us / times] for key, us in spent.most_common(40)
            ],
        }

    def parity(self, batch: int) -> dict[str, Any]:
        """One step from the same caches: hidden states and logits against stock's."""
        pools = _storages(self.runner.kv_caches)
        copies = [one.clone() for one in pools]

        def restore() -> None:
            for one, copy in zip(pools, copies, strict=True):
                one.copy_(copy)

        halves = [layer.kda for layer in self.model.decode._layers if layer.kda is not None]
        made: dict[str, list[Any]] = {}
        for name in ("stock", *self.sides):
            self.use(name)
            restore()
            self.graph(batch).replay()
            hidden = self.manager.hidden_states[:batch].clone()
            with torch.inference_mode():
                logits = self.model.compute_logits(hidden.clone())
            states = [one.pools()[1].clone() for one in (halves[0], halves[-1])]
            made.setdefault(name, []).append((hidden, logits, states))
        restore()
        stock: Any = made["stock"][0]
        found = {}
        for name, several in made.items():
            hidden, logits, states = several[-1]
            found[name] = {
                "hidden": _distance(hidden, stock[0]),
                "logits": _distance(logits, stock[1]),
                "argmax_equal": float((logits.argmax(-1) == stock[1].argmax(-1)).float().mean()),
                "finite": bool(torch.isfinite(logits).all()),
                "states": [_distance(*both) for both in zip(states, stock[2], strict=True)],
            }
        return found

    def greedy(self, name: str, count: int, seed: int) -> list[list[int]]:
        """Tokens of `count` requests at once."""
        from vllm import SamplingParams

        self.use(name)
        params = SamplingParams(
            temperature=0.0, max_tokens=GREEDY, ignore_eos=True, detokenize=False
        )
        done = self.llm.generate(self.prompts(count, 64, seed), params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in done]


def _storages(nested: Any) -> list[Tensor]:
    """All memory behind nested tensors, as bytes, each once."""
    found: dict[int, Tensor] = {}
    waiting = [nested]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            raw = torch.empty(0, dtype=torch.uint8, device=one.device).set_(storage)  # type: ignore[call-overload]
            found[storage.data_ptr()] = raw
        else:
            waiting += one.values() if isinstance(one, Mapping) else one
    return list(found.values())


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm() / b.float().norm())


def _agreement(a: list[list[int]], b: list[list[int]]) -> dict[str, float]:
    """Share of requests with equal tokens, and the mean number of equal first ones."""
    first = [next((i for i, (x, y) in enumerate(zip(p, q, strict=True)) if x != y), GREEDY)
             for p, q in zip(a, b, strict=True)]  # fmt: skip
    return {
        "equal": sum(one == GREEDY for one in first) / len(first),
        "first_equal_tokens": statistics.mean(first),
        "first_token_equal": sum(one > 1 for one in first) / len(first),
    }


def main() -> None:
    """Print, and keep, what was found piece by piece."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--batch", default="1,8,64")
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--sides", default=",".join(ladder()))
    parser.add_argument("--json")
    chosen = parser.parse_args()
    batches = [int(one) for one in chosen.batch.split(",")]
    found: dict[str, Any] = {"ops": OPS, "largest": dict(LARGEST)}
    begin = time.perf_counter()

    def piece(name: str, make: Callable[[], Any]) -> Any:
        """Make one piece; a failure is kept like a finding."""
        try:
            found[name] = make()
            shown = json.dumps(found[name], default=str)
            print(f"== {name} at {time.perf_counter() - begin:.0f} s: {shown[:1500]}", flush=True)
        except Exception:
            found[name] = traceback.format_exc()
            print(f"== {name} FAILED\n{found[name]}", flush=True)
        if chosen.json:
            with open(chosen.json, "w") as file:
                json.dump(found, file, indent=1, default=str)
        return found[name]

    engine = Engine(chosen.checkpoint, batches, max(batches))
    import vllm

    found["versions"] = vllm.__version__, torch.__version__, torch.cuda.get_device_name()
    piece("booted", engine.evidence)
    engine.sides["table"] = engine.manager.graphs, set(engine.model.decode.captured)
    for name, largest in ladder().items():
        if name in chosen.sides.split(",") and name != "table":
            piece(f"capture {name}", lambda n=name, t=largest: engine.capture(n, t))
            if name in engine.sides and not engine.sides[name][0]:
                del engine.sides[name]
    engine.sides = {n: one for n, one in engine.sides.items() if one[0]}
    found["captured"] = {name: sorted(one[1]) for name, one in engine.sides.items()}
    print(found["captured"], flush=True)
    for name in ("stock", "stock", "table"):
        piece(f"greedy {name}", lambda n=name: (engine.evidence(), engine.greedy(n, 8, 1))[1])
        found.setdefault("tokens", {}).setdefault(name, []).append(found[f"greedy {name}"])
        piece(f"evidence {name}", engine.evidence)
    told = found.get("tokens", {})
    piece("agreement stock", lambda: _agreement(*told["stock"]))
    piece("agreement table", lambda: _agreement(told["stock"][0], told["table"][0]))
    for batch in batches:
        names = piece(f"start {batch}", lambda b=batch: engine.start(b, chosen.context))
        piece(f"parity {batch}", lambda b=batch: engine.parity(b))
        piece(f"step_us {batch}", lambda b=batch: engine.step_us(b))
        for side in ("stock", "table"):
            piece(f"profile {side} {batch}", lambda b=batch, s=side: engine.profile(b, s))
        piece(f"tokens_per_second {batch}", lambda b=batch: engine.tokens_per_second(b))
        if isinstance(names, list):
            piece(f"stop {batch}", lambda n=names: engine.stop(n))
    piece("waits", engine.model.decode.check)


if __name__ == "__main__":
    main()

"""`python -m kimi_k3.bench.engine CHECKPOINT [--batch 1,8,64] [--drafts 3]`: decode steps in vLLM.

One boot of vLLM 0.33 with the path on. The decode graphs are captured several times, each time with
other ops ours, none for stock; replaying one set or another is all that differs between the sides,
so weights, caches, requests, process and clocks are the same. This is no run of the harness: no
prompts of its kind, no arms in processes of their own, no rules.

Owns: what is asked of the engine and how it is timed. Per batch, while its requests decode:
`step_us`, replays of the step's graph back to back, sides in turn, by CUDA events; `profile`, the
kernels of a replay by name; `parity`, hidden states and logits of one step from the same caches;
`ops`, single ops on random rows. Then `tokens_per_second` of whole generations, wall clock, sides
in turn, and greedy tokens of both. With drafts, which vLLM looks up in the text, a request has
several rows, a step is a verification, and attention is vLLM's on every side.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kimi_k3.bench.findings import Findings, answer
from kimi_k3.intree.layer import Pages
from kimi_k3.intree.plan import LARGEST, MEASURED, OPS
from kimi_k3.intree.support import OPTION, TABLE_OPTION
from kimi_k3.runtime.evidence import WorkerExtension

CONTEXT, VOCABULARY = 128, 20480
CACHE = 8 << 30
"""Bytes vLLM is told it has for caches."""
ASKED_S = 300.0
"""How long ranks may take to answer; compiling for all batches is the longest."""
REPLAYS, ROUNDS = 20, 7
SAME = 4
"""Repeats whose bits are compared."""
GREEDY = 32
"""Tokens of a greedy answer."""
SHORT, LONG = 32, 160
"""Tokens of the two generations whose difference is timed."""
NOISE = 2.0**-8
"""What the side `noise` adds to an eighth of the embeddings, and takes from another, relative to
them, the rest being stock: about the last bit of BF16."""


def ladder() -> dict[str, dict[Any, int]]:
    """Sides: stock, stock on slightly other embeddings, both tables, then ops of the measured table
    added one after the other. On one rank `exchange` is nothing."""
    sides: dict[str, dict[Any, int]] = {"stock": {}, "noise": {}}
    sides |= {"shipped": dict(LARGEST), "measured": dict(MEASURED)}
    held: dict[Any, int] = {}
    for op in ("moe", "latent_up", "attn_res", "kda", "mla", "exchange", "shared", "tail"):
        held = held | {op: MEASURED[op]}
        sides["+" + op] = dict(held)
    for op in ("attn_res", "kda", "mla"):
        sides[op] = {op: 64}
    # The same launches as the last but one, less careful with what is behind them.
    sides["hasty"] = sides["+shared"]
    return sides


UNTIMED = ("noise", "attn_res", "kda", "mla", "hasty")
"""Sides that only tell of numerics."""


class Worker(WorkerExtension):
    """What vLLM's worker does for the benchmark, by `collective_rpc`."""

    _bench_sides: dict[str, Any]
    _bench_told: dict[int, Any]
    """By batch, what a captured step was told: buffers that hold the last step's values."""

    def bench(self, name: str, arguments: list[Any]) -> dict[str, Any]:
        """Another method, and what it gives; a failure is told. Raised, it would leave the answers
        of other ranks in their queues, and vLLM would take them for those of the next call."""
        try:
            return {"found": getattr(self, name)(*arguments)}
        except Exception:
            return {"failed": traceback.format_exc()}

    def bench_capture(self, name: str, largest: dict[str, int] | None) -> list[int]:
        """Capture every graph once more with these ops ours, or keep those there are under `name`;
        the batches that have launches of ours."""
        from vllm.config import set_current_vllm_config
        from vllm.forward_context import get_forward_context

        runner, decode = self.model_runner, self._bench_model().decode
        manager, backbone = runner.cudagraph_manager, self._bench_model().model
        if largest is None:
            self._bench_told = {}
            self._bench_sides = {name: (manager.graphs, set(decode.capture.captured))}
            return sorted(decode.capture.captured)
        if name == "noise":
            plain, factors = backbone.embed_input_ids, _factors(backbone.embed_tokens.weight)
            backbone.embed_input_ids = lambda ids: (
                (plain(ids) * factors[: len(ids)]).bfloat16()
                if len(ids) <= len(factors)
                else plain(ids)
            )
        try:
            manager.graphs = {}
            manager.release_graphs()
            decode.capture.choose(largest)
            decode.hasty = name == "hasty"
            plain = decode._run

            def run(embedded: Tensor, positions: Tensor, steps: Any, rows: Tensor) -> Tensor:
                if steps is not None:
                    told = get_forward_context().slot_mapping
                    self._bench_told[len(embedded)] = steps, told
                out: Tensor = plain(embedded, positions, steps, rows)
                return out

            decode._run = run
            decode.prepare(decode.widths)
            with set_current_vllm_config(runner.vllm_config):
                runner.capture_model()
            self._bench_sides[name] = manager.graphs, set(decode.capture.captured)
        finally:
            backbone.__dict__.pop("embed_input_ids", None)
            decode.__dict__.pop("_run", None)
        return sorted(decode.capture.captured)

    def bench_use(self, name: str) -> None:
        """Replay graphs of this side from now on."""
        torch.cuda.synchronize()
        self.model_runner.cudagraph_manager.graphs, self._bench_model().decode.capture.captured = (
            self._bench_sides[name]
        )

    def bench_check(self) -> None:
        """Whether a launch waited in vain."""
        self._bench_model().decode.check()

    def _bench_model(self) -> Any:
        return self.model_runner.get_model()

    def _bench_graph(self, batch: int) -> Any:
        graphs = self.model_runner.cudagraph_manager.graphs
        (found,) = (
            graph for key, graph in graphs.items()
            if key.num_tokens == batch and key.cg_mode.name == "FULL"
        )  # fmt: skip
        return found

    def bench_step_us(self, batch: int) -> dict[str, Any]:
        """Microseconds of the device per replay, by side."""
        names = [name for name in self._bench_sides if name not in UNTIMED]
        spans: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            names.reverse()
            for name in names:
                self.bench_use(name)
                graph = self._bench_graph(batch)
                for _ in range(3):
                    graph.replay()
                ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                ends[0].record()
                for _ in range(REPLAYS):
                    graph.replay()
                ends[1].record()
                torch.cuda.synchronize()
                spans[name].append(1000 * ends[0].elapsed_time(ends[1]) / REPLAYS)
        return {name: _summary(one) for name, one in spans.items()}

    def bench_profile(self, batch: int, name: str) -> dict[str, Any]:
        """Kernels of a replay: how often and how long, by name, longest first. A dependent launch
        begins while it waits, so times overlap and their sum says little."""
        from torch.profiler import ProfilerActivity, profile

        self.bench_use(name)
        graph, times = self._bench_graph(batch), 4
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
            "kernels": [
                [key[:120], count[key] / times, us / times] for key, us in spent.most_common(40)
            ],
        }

    def bench_parity(self, batch: int) -> dict[str, Any]:
        """One step from the same caches: hidden states and logits against stock's, and in how many
        ways repeats come out."""
        pools = _storages(self.model_runner.kv_caches)
        copies = [one.clone() for one in pools]
        made: dict[str, list[Tensor]] = {}
        for name in self._bench_sides:
            self.bench_use(name)
            made[name] = []
            for _ in range(SAME):
                for one, copy in zip(pools, copies, strict=True):
                    one.copy_(copy)
                self._bench_graph(batch).replay()
                hidden = self.model_runner.cudagraph_manager.hidden_states
                made[name].append(hidden[:batch].clone())
        for one, copy in zip(pools, copies, strict=True):
            one.copy_(copy)
        with torch.inference_mode():
            logits = {n: self._bench_model().compute_logits(h[0].clone()) for n, h in made.items()}
        if logits["stock"] is None:
            return {}  # vLLM gathers them on the first rank
        stock, found = made["stock"][0].float(), {}
        for name, several in made.items():
            rows = (several[0].float() - stock).norm(dim=1) / stock.norm(dim=1)
            same = logits[name].argmax(-1) == logits["stock"].argmax(-1)
            found[name] = {
                "hidden": _distance(several[0], stock),
                "hidden_median_row": float(rows.median()),
                "logits": _distance(logits[name], logits["stock"]),
                "argmax_equal": float(same.float().mean()),
                "finite": bool(torch.isfinite(logits[name]).all()),
                "outcomes": len({one.cpu().view(torch.int16).numpy().tobytes() for one in several}),
            }
        return found

    @torch.inference_mode()
    def bench_ops(self, batch: int) -> dict[str, Any]:
        """Single ops on the same random rows, ours against vLLM's, and whether repeats agree. One
        rank only: vLLM's are sums over ranks."""
        from vllm.config import set_current_vllm_config
        from vllm.forward_context import set_forward_context

        decode, config = self._bench_model().decode, self.model_runner.vllm_config
        random = torch.Generator(decode.device).manual_seed(batch)
        shape = batch, self._bench_model().config.hidden_size

        def normal() -> Tensor:
            return torch.randn(shape, generator=random, device=decode.device).bfloat16()

        x, rows = normal(), torch.full((1,), batch, dtype=torch.int32, device=decode.device)
        slots = torch.arange(1, batch + 1, dtype=torch.int32, device=decode.device)
        found: dict[str, Any] = {}
        with set_current_vllm_config(config), set_forward_context(None, config, num_tokens=batch):
            for layer in decode._layers[1:5]:
                name = layer.module.layer_idx
                if layer.moe is not None:
                    stock = layer.module.mlp(x.clone())
                    for whole in (False, True):
                        made = [layer.moe(x, rows, whole, whole) for _ in range(SAME)]
                        found[f"moe {name}{' whole' * whole}"] = _compared(made, stock)
                if layer.kind == "kda":
                    found |= _kda(layer, x, slots)
                elif layer.half is not None and batch in self._bench_told:
                    found |= _mla(layer, x, self._bench_told[batch], config)
                prefix, delta = normal(), normal()
                bank = torch.stack([normal() for _ in range(decode._blocks)], dim=1)
                theirs, _, _ = layer.module._pre_attn_norm(delta, bank.clone(), prefix.clone())
                mine = [
                    layer.before(prefix.clone(), delta, bank.clone(), early=True)
                    for _ in range(SAME)
                ]
                found[f"attn_res {name}"] = _compared(mine, theirs)
        return found


def _kda(layer: Any, x: Tensor, slots: Tensor) -> dict[str, Any]:
    """A KDA layer and the states it leaves."""
    from vllm import _custom_ops as vllm_ops

    half, attention, batch = layer.half, layer.module.self_attn, len(x)
    pools, at = half.pools(), slots.long()
    held = [one.clone() for one in pools]
    made: list[list[Tensor]] = []

    def keep(y: Tensor) -> None:
        made.append([y, *(one[at].clone() for one in pools)])
        for one, copy in zip(pools, held, strict=True):
            one.copy_(copy)

    for _ in range(SAME):
        keep(half.give(half.attend(x, slots)))
    wide = half.heads * 128
    parts = attention.in_proj_qkvgfab(x)[0].split(
        [3 * wide, wide, 128, half.heads, attention.in_proj_padding], dim=-1
    )
    out = x.new_empty(1, batch, half.heads, 128)
    vllm_ops.fused_kda_decode(
        x=parts[0], weight=attention.decode_conv1d_weight, bias=attention.conv1d.bias,
        conv_state=pools[0].transpose(-1, -2), raw_beta=parts[3].unsqueeze(0), out=out,
        raw_g=attention.f_b_proj(parts[2])[0].view(1, batch, half.heads, 128), state=pools[1],
        A_log=attention.A_log, dt_bias=attention.dt_bias, state_indices=slots,
        lower_bound=attention.gate_lower_bound, norm_eps=attention.o_norm.eps,
        output_gate=parts[1].unflatten(-1, (half.heads, 128)),
        norm_weight=attention.decode_norm_weight,
    )  # fmt: skip
    keep(attention.o_proj(out.view(batch, wide))[0])
    theirs, name = made.pop(), f"kda {layer.module.layer_idx}"
    labels = (name, f"{name} conv", f"{name} state")
    return {
        label: _compared(list(mine), stock)
        for label, mine, stock in zip(labels, zip(*made, strict=True), theirs, strict=True)
    }


def _mla(layer: Any, x: Tensor, told: tuple[Any, Any], config: Any) -> dict[str, Any]:
    """An MLA layer over the live requests' pages, and the cache rows it leaves."""
    from vllm.forward_context import set_forward_context

    half, attention, (steps, mapping) = layer.half, layer.module.self_attn, told
    slots, decode = mapping[layer.prefix][: len(x)], steps[layer.prefix].decode
    pages = Pages(slots.to(torch.int32), decode.block_table, decode.seq_lens)
    rows = half.cache().view(-1, half.cache().shape[-1])
    made = [(half.give(half.attend(x, pages)), rows[slots].clone()) for _ in range(SAME)]
    positions = (decode.seq_lens - 1).long()
    with set_forward_context(steps, config, num_tokens=len(x), slot_mapping=mapping):
        theirs = attention(hidden_states=x, positions=positions), rows[slots].clone()
    labels = f"mla {layer.module.layer_idx}", f"mla {layer.module.layer_idx} rows"
    return {
        label: _compared(list(mine), stock)
        for label, mine, stock in zip(labels, zip(*made, strict=True), theirs, strict=True)
    }


# ---- this side of the engine ---------------------------------------------------------------------


class Engine:
    """vLLM, and what the benchmark asks of it."""

    def __init__(self, checkpoint: str, batches: list[int], ranks: int, drafts: int) -> None:
        from vllm import LLM

        self.each = 1 + drafts
        """Rows of a request in a step."""
        lookup = {
            "method": "ngram_gpu", "num_speculative_tokens": drafts,
            "prompt_lookup_min": 1, "prompt_lookup_max": 3,
        }  # fmt: skip
        self.llm = LLM(
            checkpoint, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=4096,
            max_num_seqs=max(batches), max_num_batched_tokens=2048, gpu_memory_utilization=0.5,
            # Given, as in the targets. To find it out, vLLM captures graphs and drops them, and its
            # all-reduce keeps open what other ranks have freed (vLLM #46515).
            kv_cache_memory_bytes=CACHE, num_gpu_blocks_override=1024, enable_prefix_caching=False,
            additional_config={OPTION: "latency_specialized", TABLE_OPTION: "measured"},
            worker_extension_cls="kimi_k3.bench.engine.Worker", tensor_parallel_size=ranks,
            compilation_config={
                "cudagraph_capture_sizes": sorted(self.each * batch for batch in batches)
            },
            speculative_config=lookup if drafts else None, disable_log_stats=True,
        )  # fmt: skip
        self._requests = 0

    def ask(self, name: str, *arguments: Any) -> Any:
        """A method of every rank's worker; what the first one says. Raises RuntimeError, and
        TimeoutError where a rank does not answer."""
        told = self.llm.collective_rpc("bench", timeout=ASKED_S, args=(name, list(arguments)))
        return answer(name, told)

    def evidence(self) -> dict[str, Any]:
        """What ran since the last time."""
        found = self.ask("fasttrack_evidence")
        return {name: found[name] for name in ("counters", "graph_steps", "extra_bytes")}

    def prompts(self, count: int, length: int, seed: int = 0) -> list[Any]:
        """Random tokens."""
        random = torch.Generator().manual_seed(seed)
        drawn = torch.randint(1, VOCABULARY, (count, length), generator=random)
        return [{"prompt_token_ids": row} for row in drawn.tolist()]

    def start(self, batch: int, length: int) -> list[str]:
        """Requests that decode until they are told to stop."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=3900 - length, ignore_eos=True,
                                detokenize=False)  # fmt: skip
        names: list[str] = []
        seen: set[str] = set()
        for prompt in self.prompts(batch, length):
            names.append(f"bench-{self._requests}")
            self._requests += 1
            self.llm.llm_engine.add_request(names[-1], prompt, params)
        while len(seen) < batch:
            for output in self.llm.llm_engine.step():
                if len(output.outputs[0].token_ids) > 2:
                    seen.add(output.request_id)
        return names

    def stop(self, names: list[str]) -> None:
        """End them."""
        self.llm.llm_engine.abort_request(names)
        while self.llm.llm_engine.has_unfinished_requests():
            self.llm.llm_engine.step()

    def generated(self, name: str, count: int, tokens: int, seed: int) -> tuple[list[Any], float]:
        """Greedy tokens of `count` requests at once, and how long it took."""
        from vllm import SamplingParams

        self.ask("bench_use", name)
        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        done = self.llm.generate(self.prompts(count, 64, seed), params, use_tqdm=False)
        spent = time.perf_counter() - begin
        return [list(one.outputs[0].token_ids) for one in done], spent

    def tokens_per_second(self, batch: int) -> dict[str, Any]:
        """Of decode, by side, in turn: the longer generation less the shorter."""
        rates: dict[str, list[float]] = {}
        for name in ("stock", "measured", "measured", "stock", "stock", "measured"):
            spans = [self.generated(name, batch, tokens, 2)[1] for tokens in (SHORT, LONG)]
            rates.setdefault(name, []).append(batch * (LONG - SHORT) / (spans[1] - spans[0]))
        return {name: _summary(one) for name, one in rates.items()}


# ---- numbers -------------------------------------------------------------------------------------


def _summary(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "all": values}


def _factors(like: Tensor) -> Tensor:
    """[64, hidden], FP32, a little more or less than one."""
    random = torch.Generator(like.device).manual_seed(0)
    drawn = torch.randint(0, 8, (64, like.shape[1]), generator=random, device=like.device)
    return 1 + NOISE * ((drawn == 0).float() - (drawn == 1).float())


def _storages(nested: Any) -> list[Tensor]:
    """All memory behind nested tensors, as bytes, each once."""
    found: dict[int, Tensor] = {}
    waiting = [nested]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor):
            storage: Any = one.untyped_storage()
            raw = torch.empty(0, dtype=torch.uint8, device=one.device).set_(storage)
            found[storage.data_ptr()] = raw
        else:
            waiting += one.values() if isinstance(one, Mapping) else one
    return list(found.values())


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm() / b.float().norm())


def _compared(mine: list[Tensor], stock: Tensor) -> dict[str, Any]:
    """Distance of the farthest, of the median row, and how many differ in a bit from the first."""
    first = mine[0].contiguous().view(torch.uint8)
    a, b = mine[0].float().flatten(1), stock.float().flatten(1)
    return {
        "distance": max(_distance(one, stock) for one in mine),
        "median_row": float(((a - b).norm(dim=1) / b.norm(dim=1)).median()),
        "other_bits": sum(
            not torch.equal(one.contiguous().view(torch.uint8), first) for one in mine
        ),
    }


def _agreement(a: list[list[int]], b: list[list[int]]) -> dict[str, float]:
    """Share of requests with equal tokens, and the mean number of equal first ones."""
    first = [
        next((i for i, (x, y) in enumerate(zip(p, q, strict=True)) if x != y), len(p))
        for p, q in zip(a, b, strict=True)
    ]
    return {
        "equal": sum(one == len(a[0]) for one in first) / len(first),
        "first_equal_tokens": statistics.mean(first),
        "first_token_equal": sum(one > 0 for one in first) / len(first),
    }


def main() -> None:
    """Boot, ask, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--batch", default="1,8,64")
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--ranks", type=int, default=1, help="GPUs: 2 for k3-slice2")
    parser.add_argument("--drafts", type=int, default=0, help="that each request verifies a step")
    parser.add_argument("--sides", default=",".join(ladder()))
    parser.add_argument("--detailed", default="1,8,64", help="batches with profile, parity and ops")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    batches = [int(one) for one in chosen.batch.split(",")]
    detailed = [int(one) for one in chosen.detailed.split(",")]
    findings = Findings(chosen.json)
    piece, found = findings.piece, findings.found
    found |= {"ops": OPS, "shipped": dict(LARGEST), "measured": dict(MEASURED)}
    sides = ["measured", *chosen.sides.split(",")]
    engine = Engine(chosen.checkpoint, batches, chosen.ranks, chosen.drafts)
    import vllm

    found["versions"] = vllm.__version__, torch.__version__
    piece("booted", engine.evidence)
    piece("captured measured", engine.ask, "bench_capture", "measured", None)
    for name, largest in ladder().items():
        if name in sides and name != "measured":
            piece(f"captured {name}", engine.ask, "bench_capture", name, largest)
    tokens: dict[str, list[Any]] = {}
    for name in ("stock", "stock", "noise", "measured", "measured"):
        if name not in sides:
            continue
        engine.evidence()
        made = piece(f"greedy {name}", engine.generated, name, 8, GREEDY, 1)
        tokens.setdefault(name, []).append(made[0])
        piece(f"evidence {name}", engine.evidence)
    for name in tokens:
        piece(f"agreement {name}", _agreement, tokens["stock"][0], tokens[name][-1])
    piece("agreement of measured with itself", _agreement, *tokens["measured"])
    for batch in batches:
        names = piece(f"start {batch}", engine.start, batch, chosen.context)
        rows = engine.each * batch
        piece(f"step_us {batch}", engine.ask, "bench_step_us", rows)
        if batch in detailed:
            piece(f"parity {batch}", engine.ask, "bench_parity", rows)
            if chosen.ranks == engine.each == 1:
                piece(f"ops {batch}", engine.ask, "bench_ops", rows)
            for side in sorted({"stock", "shipped", "measured"} & set(sides)):
                piece(f"profile {side} {batch}", engine.ask, "bench_profile", rows, side)
        if isinstance(names, list):
            piece(f"stop {batch}", engine.stop, names)
        piece(f"tokens_per_second {batch}", engine.tokens_per_second, batch)
    piece("waits", engine.ask, "bench_check")


if __name__ == "__main__":
    main()

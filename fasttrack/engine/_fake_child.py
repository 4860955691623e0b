"""Child of the fake engine: tokens from a hash, times from a simulated clock.

`engine_args.fake` keys: `speedup` (candidate's decode, default 1.0), `noise_percent` (per session
and per step, default 0.5), or `noise` = ``recorded`` for that of a real machine, its `seed`,
`fault`, one of `FAULTS`, `fault_arm` (default candidate, or ``both``), and `boot_s`, seconds that a
boot really takes (default 0).
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from fasttrack.engine import _fake_evidence
from fasttrack.engine._fake_model import STARVED_TOKENS, Lane, Model
from fasttrack.engine._fake_noise import Noise
from fasttrack.engine.base import (
    Caches,
    Generation,
    Request,
    SessionInfo,
)
from fasttrack.engine.serve import Coded, serve
from fasttrack.schema import EngineStep, PathStep, Target

FAULTS = (
    *("raise_at_import", "refuse", "raise_at_start", "hang", "die", "chatter", "ignore_switch"),
    *("no_path", "prefill_specialised", "base_specialised", "wrong_token", "broken_json"),
    *("lost_stop", "ignores_seed", "no_logprobs", "stale_prefix", "shed_load", "changed_build"),
    *("ignores_top_k", "no_penalties", "no_bias", "lost_delta", "same_samples", "truncates"),
    *("null_slot", "lost_preempted", "abort_leaks", "bad_drafts", "refuses_lora", "nan_state"),
    *("slow", "falls_back_in_evals", "falls_back_above_8", "logs_specialised_runs_stock"),
    *("ignores_watermark", "writes_null_slot", "writes_foreign_slot", "writes_more_than_it_logs"),
    *("drifts_when_alternating", "runs_other_code"),
    *("patched_at_import", "patched_when_on", "patched_model", "registers_op", "sets_variable"),
    *("takes_architecture", "sets_flag", "leaves_hook", "changes_neighbour", "loads_a_test"),
    *("refuses_neighbours", "changes_template", "echoes", "ignores_max_tokens", "cuts_prompts"),
    *("warm_prefix", "hides_cached", "clamps_batch", "slow_start", "inflates_tokens"),
    *("fails_in_external_evals", "dies_in_external_evals", "ignores_temperature"),
    *("never_ends", "relaxed_accept", "refuses_dcp"),
)
FACTS = {
    "code": {"engine.sample:Sampler.forward": "stock", "engine.core:Scheduler.schedule": "stock"},
    "objects": {"engine.core:Engine.sampler": "engine.sample.Sampler"},
    "operators": {"engine::mix": "stock"},
    "architectures": {"LlamaForCausalLM": "engine.llama"},
    "environment": {"HOME": "stock"},
    "torch": {"threads": "1"},
    "hooks": {"atexit": "0"},
}
"""What there is to inspect; `ISOLATION_FAULTS` change one of these, wherever a plugin is there."""
ISOLATION_FAULTS = {
    "patched_at_import": ("code", "engine.sample:Sampler.forward", "planted"),
    "registers_op": ("operators", "engine::mix", "planted"),
    "takes_architecture": ("architectures", "LlamaForCausalLM", "planted"),
    "sets_variable": ("environment", "PLANTED", "1"),
    "sets_flag": ("torch", "threads", "8"),
    "leaves_hook": ("hooks", "atexit", "1"),
    "patched_when_on": ("code", "engine.core:Scheduler.schedule", "planted"),
    "patched_model": ("objects", "engine.core:Engine.sampler", "planted.Sampler"),
}
SLOW_STEPS = 15
"""Pure decode steps of a session in which the fault `slow_start` still compiles."""
SWITCH = "decode_backend"
BLOCK = 128
STEP_S = 2e-3
PREFILL_TOKEN_S = 2e-5
BUDGET = 512
EXPERTS = 8
ACCEPTANCE = 0.6
"""Chance that a draft is accepted if the one before was."""


class Backend:
    """State of one fake session."""

    def __init__(self) -> None:
        self.mark: Callable[[int], None] = lambda number: None

    def marks(self, send: Callable[[int], None]) -> None:
        """Tell marks of a call by `send`."""
        self.mark = send

    def start(
        self,
        session: str,
        arm: str,
        target: dict[str, Any],
        additional_config: dict[str, Any],
        plugin: dict[str, Any] | None,
        checkpoint: str | None,
        count_nans: bool = False,
        forces: bool = False,
    ) -> dict[str, Any]:
        """Boot; see the module docstring for faults."""
        self._target = Target.model_validate(target)
        options = dict(self._target.engine_args.get("fake", {}))
        time.sleep(float(options.get("boot_s", 0)))
        fault = options.get("fault")
        if fault is not None and fault not in FAULTS:
            raise Coded("ENG-001", f"no fault {fault!r} to plant; there is {', '.join(FAULTS)}")
        self._fault = fault if options.get("fault_arm", "candidate") in (arm, "both") else None
        self._session = session
        self._isolation_fault = self._planted(fault, session, plugin is not None,
                                              additional_config)  # fmt: skip
        self._entry = bool(plugin and plugin.get("entry"))
        self._specialised = additional_config.get(SWITCH) == "latency_specialized"
        self._speedup = float(options.get("speedup", 1.0)) if self._specialised else 1.0
        if self._fault == "slow":
            self._speedup = 0.8
        seed = f"{options.get('seed', 0)}/{session}"
        self._random = random.Random(seed)
        share = float(options.get("noise_percent", 0.5)) / 100
        self._noise = Noise(options.get("noise", "normal"), share, seed)
        ranks = self._target.engine_args.get("tensor_parallel_size")
        self._ranks = int(ranks or self._target.tensor_parallel_size)
        self._budget = int(self._target.engine_args.get("max_num_batched_tokens", BUDGET))
        self._clock = 0.0
        self._slow = SLOW_STEPS
        self._step = 0
        self._seen: set[tuple[int, ...]] = set()
        self._blocks = self._target.engine_args.get("num_gpu_blocks_override")
        drafting = self._target.engine_args.get("speculative_config", {})
        self._drafts = "speculative_config" in self._target.engine_args
        # Other methods than a lookup in the text make as many drafts as asked for in every step.
        always = drafting.get("method") not in (None, "ngram")
        self._each = int(drafting.get("num_speculative_tokens", 0)) if always else 0
        self._shared = int(self._target.engine_args.get("decode_context_parallel_size", 1))
        self._null = "zero"
        other = self._isolation_fault == "changes_neighbour"
        self._model = Model(
            "wrong_token" if other else self._fault,
            self._target.max_model_len,
            self._drafts,
            self._random,
        )
        self._left = 0
        self._calls = 0
        if self._fault == "raise_at_import":
            raise Coded("ENG-002", "ImportError: planted: raised at import")
        unrelated = session.startswith("neighbour") and self._fault == "refuses_neighbours"
        if self._fault == "refuse" or unrelated:
            raise Coded("ENG-007", "planted refusal: dtype is wrong; batch is wrong")
        if self._fault == "refuses_dcp" and self._shared > 1:
            raise Coded("ENG-007", "planted refusal: decode context parallelism")
        if self._fault == "refuses_lora" and self._target.engine_args.get("enable_lora"):
            raise Coded("ENG-007", "planted refusal: LoRA adapters are not supported")
        if self._fault == "raise_at_start":
            raise RuntimeError("planted: raised at start")
        # As of a real plugin: a key it does not know stays without effect, and is not reported.
        switch = additional_config.get(SWITCH, "auto") if plugin else None
        if self._fault == "ignore_switch":
            switch = "auto"
        build = "fake-2" if self._fault == "changed_build" else "fake-1"
        info = SessionInfo(
            switch=switch,
            fingerprint={
                "engine": build,
                "max_model_len": self._target.max_model_len,
                "max_num_batched_tokens": self._budget,
                "prefix_caching": True,
                "tensor_parallel_size": self._ranks,
                "decode_context_parallel_size": self._shared,
                "draft_tokens": self._each,
                "timer": "simulated",
            },
            prepared_batches=(1, 2, 4, 8, 16, 32, 64),
        )
        return info.json_value()

    @staticmethod
    def _planted(
        fault: str | None, session: str, installed: bool, additional_config: dict[str, Any]
    ) -> str | None:
        """The fault of the isolation stage that shows in this session, if any."""
        on = additional_config.get(SWITCH) == "latency_specialized"
        if fault == "patched_model":
            return fault if on and not session.startswith("neighbour") else None
        if fault == "patched_when_on":
            return fault if on else None
        return fault if installed else None

    def evidence(
        self,
        requests: Sequence[dict[str, Any]],
        trace: bool,
        state: bool,
        watermark: bool,
        timeline: bool,
    ) -> dict[str, Any]:
        """Run requests, and tell what was simulated rather than what was logged."""
        made = Generation.model_validate(self.generate(requests, None))
        late = any(request.get("arrive_after") for request in requests)
        seen = _fake_evidence.observe(made, self._fault, self._entry, trace, state, watermark, late)
        if timeline:
            fast = any(step.path == "specialised" for step in made.path)
            seen = seen.model_copy(update={"timeline": _fake_evidence.timeline(fast)})
        return seen.json_value()

    def routing(self, requests: Sequence[dict[str, Any]], seed: int | None) -> dict[str, Any]:
        """Two layers of experts, each for a range of bytes of its own."""
        rng = random.Random(f"routing/{seed}")
        asked = [Request.model_validate(request).prompt for request in requests]
        if seed is not None:
            asked = [tuple(rng.randrange(256) for _ in prompt) for prompt in asked]
        counts = [[0] * EXPERTS for _ in range(2)]
        for token in (token for prompt in asked for token in prompt):
            for layer, row in enumerate(counts):
                row[(token // (256 // EXPERTS) + layer) % EXPERTS] += 1
        return {"experts": EXPERTS, "layers": counts}

    def code(self) -> dict[str, Any]:
        """No file is mapped, but for a planted one."""
        planted = {hashlib.sha256(b"planted").hexdigest(): "planted.so"}
        return {"files": planted if self._fault == "runs_other_code" else {}}

    def encode(self, texts: Sequence[str]) -> dict[str, Any]:
        """Bytes are tokens."""
        return {"ids": [list(text.encode()) for text in texts]}

    def chat(self, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        """A template of three markers."""
        said = "".join(f"<|{one['role']}|>{one['content']}<|end|>" for one in messages)
        extra = "<|system|>Be brief.<|end|>" if self._fault == "changes_template" else ""
        return {"text": f"{extra}{said}<|assistant|>"}

    def generate(
        self,
        requests: Sequence[dict[str, Any]],
        full_decode_steps: int | None,
        mark_after: int | None = None,
        lane_tokens: int = 1,
    ) -> dict[str, Any]:
        """One prefill phase under a token budget, then decode steps on a simulated clock."""
        if self._fault == "hang":
            time.sleep(3600)
        if self._fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "chatter":
            sys.stdout.write('{"nonce": "stray output"}\n' * 50)
            sys.stdout.flush()
        asked = [Request.model_validate(request) for request in requests]
        longest = max(len(request.prompt) for request in asked)
        if longest >= self._target.max_model_len and self._fault != "truncates":
            raise Coded("ENG-006", f"a prompt of {longest} tokens leaves no room for an answer")
        self._calls += 1
        self._noise.call()
        if self._session.startswith(("evals-aime25", "evals-mrcr")) and self._calls == 2:
            if self._fault == "fails_in_external_evals":
                raise Coded("ENG-006", "planted: out of blocks")
            if self._fault == "dies_in_external_evals":
                os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "shed_load":
            asked = asked[: max(1, len(asked) - 1)]
        lanes = [Lane(r, i, self._room(r)) for r in asked for i in range(r.sampling.n)]
        for lane in lanes:
            lane.cached = self._cached(lane.request.prompt)
            lane.waiting = len(lane.request.prompt) - lane.cached
            if self._fault == "warm_prefix":
                lane.cached = (len(lane.request.prompt) - 1) // BLOCK * BLOCK
            if self._fault == "hides_cached":
                lane.waiting, lane.cached = 1, 0
            if self._fault == "cuts_prompts":
                lane.waiting = 1 + lane.waiting // 2
        lanes[0].starved = self._fault == "never_ends" and self._session.startswith("evals")
        steps: list[EngineStep] = []
        path: list[PathStep] = []
        emitted: list[int] = []
        contexts: list[int] = []
        drafted: list[int] = []
        full = preempted = 0
        began = self._clock
        while full_decode_steps is None or full < full_decode_steps:
            ongoing = [lane for lane in lanes if not lane.done]
            here = [lane for lane in ongoing if lane.request.arrive_after <= len(steps)]
            here = here or ongoing[:1]
            preempted += self._preempt(here)
            decoding = [lane for lane in here if lane.waiting == 0 and lane.made > 0]
            decoding = [x for x in decoding if not x.starved or x.made < STARVED_TOKENS]
            before = sum(lane.made for lane in here)
            prefill = self._prefill(here, self._budget - len(decoding))
            if not decoding and not prefill:
                self._wait_for(ongoing, began)
                break
            if self._fault == "clamps_batch":
                decoding = decoding[: max(1, len(lanes) // 2)]
            for lane in decoding:
                lane.made = min(lane.made + 1 + self._accepted(), lane.most)
            if decoding and self._each:
                drafted.append(len(steps))
            steps.append(self._engine_step(len(decoding), prefill))
            path.append(self._path_step(len(asked), len(decoding), prefill))
            emitted.append(sum(lane.made for lane in here) - before)
            contexts.append(sum(lane.length for lane in here))
            for lane in ongoing:
                lane.given_up |= self._clock - began >= lane.limit_s and not lane.done
            wanted = len(lanes) * lane_tokens
            full += len(decoding) * (1 + self._each) == wanted and prefill == 0
            if full_decode_steps is not None and full in (mark_after, full_decode_steps):
                self.mark(len(steps))
        made = iter([self._model.answer(lane) for lane in lanes])
        answers = []
        for request in asked:
            first, *others = [next(made) for _ in range(request.sampling.n)]
            answers.append(first.model_copy(update={"others": tuple(others)}))
        aborted = any(request.abort_after is not None for request in asked)
        self._left += self._fault == "abort_leaks" and aborted
        if self._fault == "null_slot" and len(lanes) > 1:
            self._null = "written"
        tokens = sum(lane.made for lane in lanes)
        return Generation(
            answers=tuple(answers),
            steps=tuple(steps),
            path=tuple(path),
            emitted=tuple(emitted),
            contexts=tuple(contexts),
            drafted=tuple(drafted),
            preemptions=preempted,
            draft_tokens=tokens if self._drafts else 0,
            left=self._left,
            cache_usage=float(self._left),
        ).json_value()

    def _accepted(self) -> int:
        """Draft tokens of one request that a step accepts, up to the first that it does not."""
        chance = 0.9 if self._fault == "relaxed_accept" else ACCEPTANCE
        kept = 0
        while kept < self._each and self._random.random() < chance:
            kept += 1
        return kept

    def _wait_for(self, starved: Sequence[Lane], began: float) -> None:
        """Until requests that make no progress are given up: for ever, if nothing says when."""
        for lane in starved:
            if lane.limit_s == math.inf:
                time.sleep(3600)
            lane.given_up = True
            self._clock = max(self._clock, began + lane.limit_s)

    def _room(self, request: Request) -> int:
        """Tokens a request may still be answered with."""
        return max(1, self._target.max_model_len - len(request.prompt))

    def _preempt(self, lanes: list[Lane]) -> int:
        """Take the cache of the last lane, once, when all of it does not fit; 1 if so."""
        running = [lane for lane in lanes if lane.waiting == 0 and not lane.preempted]
        held = sum((len(lane.request.prompt) + lane.made) // BLOCK + 1 for lane in running)
        if self._blocks is None or len(running) < 2 or held <= self._blocks:
            return 0
        last = running[-1]
        last.preempted = True
        last.waiting = len(last.request.prompt) + last.made
        return 1

    def reset_prefix_cache(self) -> dict[str, Any]:
        """Forget every prompt."""
        self._seen.clear()
        return {}

    def caches(self, null_fill: str | None, whole: bool) -> dict[str, Any]:
        """No cache is simulated but the null block's content, as a word."""
        if null_fill is not None:
            self._null = null_fill
        found = Caches(
            nonfinite=None if not whole else 3 if self._fault == "nan_state" else 0,
            null_nonfinite=int(self._null == "nan"),
            null_sha256=hashlib.sha256(self._null.encode()).hexdigest(),
        )
        return {"caches": found.json_value()}

    @staticmethod
    def _prefill(lanes: list[Lane], budget: int) -> int:
        """Spend a step's budget on waiting prompts, in order; a finished one gets its token."""
        spent = 0
        for lane in lanes:
            size = min(lane.waiting, budget - spent)
            lane.waiting -= size
            spent += size
            lane.made += size > 0 and lane.waiting == 0
        return spent

    def inspect(self) -> dict[str, Any]:
        """The same facts in every boot, but for what a fault of the isolation stage plants."""
        facts: dict[str, dict[str, str]] = {group: dict(one) for group, one in FACTS.items()}
        here = self._isolation_fault
        if here in ISOLATION_FAULTS:
            group, name, value = ISOLATION_FAULTS[here]
            facts[group][name] = value
        own = {"planted": f"tests/{here}.py"} if here == "loads_a_test" else {}
        return {"facts": {**facts, "modules": own}}

    def end(self) -> dict[str, Any]:
        """Resident memory is not simulated."""
        return {"peak_rss_mib": 1.0}

    def _engine_step(self, decode: int, prefill: int) -> EngineStep:
        pure = decode and not prefill
        duration = STEP_S * (1 + decode / 16) + prefill * PREFILL_TOKEN_S
        duration *= self._noise.step()
        if self._fault == "slow_start" and pure:
            self._slow -= 1
            duration *= 5.0 if self._slow > 0 else 1.0
        duration /= (self._speedup if pure else 1.0) * self._ranks**0.5
        start, self._clock = self._clock, self._clock + duration
        return EngineStep(
            start_s=start,
            duration_s=duration,
            decode_tokens=decode * (1 + self._each),
            prefill_tokens=prefill,
        )

    def _path_step(self, rows: int, decode: int, prefill: int) -> PathStep:
        self._step += 1
        pure = decode > 0 and prefill == 0
        specialised = self._specialised and pure and not self._falls_back(decode)
        specialised |= self._fault == "prefill_specialised" and not pure
        specialised |= self._fault == "base_specialised"
        return PathStep(
            step=self._step,
            path="specialised" if specialised else "stock",
            reason="pure decode" if specialised else "prefill" if prefill else "switched off",
            requests=rows,
            tokens=decode * (1 + self._each) + prefill,
            prefill_tokens=prefill,
            wrote={"slots": f"1-{rows}"},
        )

    def _falls_back(self, decode: int) -> bool:
        """Planted fallbacks: everywhere, in one stage, or for large batches."""
        return (
            self._fault == "no_path"
            or (self._fault == "falls_back_in_evals" and self._session.startswith("evals"))
            or (self._fault == "falls_back_above_8" and decode > 8)
        )

    def _cached(self, prompt: tuple[int, ...]) -> int:
        whole = (len(prompt) - 1) // BLOCK * BLOCK
        known = prompt[:whole] in self._seen if whole else False
        self._seen.add(prompt[:whole])
        return whole if known else 0


if __name__ == "__main__":
    backend = Backend()
    serve(
        {
            "start": backend.start,
            "encode": backend.encode,
            "chat": backend.chat,
            "generate": backend.generate,
            "inspect": backend.inspect,
            "reset_prefix_cache": backend.reset_prefix_cache,
            "caches": backend.caches,
            "evidence": backend.evidence,
            "routing": backend.routing,
            "code": backend.code,
            "end": backend.end,
        },
        default_code="ENG-006",
        marker=backend.marks,
    )

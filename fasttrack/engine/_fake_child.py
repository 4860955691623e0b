"""Child of the fake engine: tokens from a hash, times from a simulated clock.

`engine_args.fake` keys: `speedup` (candidate's decode, default 1.0), `noise_percent` (per session
and per step, default 0.5), `seed` of that noise, `fault`, one of `FAULTS`, and `fault_arm`
(default candidate).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from fasttrack.engine.base import Answer, Generation, Request, SessionInfo
from fasttrack.engine.serve import Coded, serve
from fasttrack.schema import EngineStep, PathStep, Target

FAULTS = (
    *("raise_at_import", "refuse", "raise_at_start", "hang", "die", "chatter", "ignore_switch"),
    *("no_path", "prefill_specialised", "base_specialised", "wrong_token", "broken_json"),
    *("lost_stop", "ignores_seed", "no_logprobs", "stale_prefix", "shed_load", "changed_build"),
    *("slow", "falls_back_in_evals", "falls_back_above_8"),
    *("patched_at_import", "patched_when_on", "patched_model", "registers_op", "sets_variable"),
    *("takes_architecture", "sets_flag", "leaves_hook", "changes_neighbour", "loads_a_test"),
    "refuses_neighbours",
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
SWITCH = "decode_backend"
BLOCK = 128
STEP_S = 2e-3
PREFILL_TOKEN_S = 2e-5
BUDGET = 512


class Backend:
    """State of one fake session."""

    def start(
        self,
        session: str,
        arm: str,
        target: dict[str, Any],
        additional_config: dict[str, Any],
        plugin: dict[str, Any] | None,
        checkpoint: str | None,
    ) -> dict[str, Any]:
        """Boot; see the module docstring for faults."""
        self._target = Target.model_validate(target)
        options = dict(self._target.engine_args.get("fake", {}))
        fault = options.get("fault")
        if fault is not None and fault not in FAULTS:
            raise Coded("ENG-001", f"no fault {fault!r} to plant; there is {', '.join(FAULTS)}")
        self._fault = fault if options.get("fault_arm", "candidate") == arm else None
        self._session = session
        self._isolation_fault = self._planted(fault, session, plugin is not None,
                                              additional_config)  # fmt: skip
        self._specialised = additional_config.get(SWITCH) == "latency_specialized"
        self._speedup = float(options.get("speedup", 1.0)) if self._specialised else 1.0
        if self._fault == "slow":
            self._speedup = 0.8
        self._noise = float(options.get("noise_percent", 0.5)) / 100
        self._random = random.Random(f"{options.get('seed', 0)}/{session}")
        self._boot = 1 + self._random.gauss(0, self._noise)
        self._budget = int(self._target.engine_args.get("max_num_batched_tokens", BUDGET))
        self._clock = 0.0
        self._step = 0
        self._seen: set[tuple[int, ...]] = set()
        if self._fault == "raise_at_import":
            raise Coded("ENG-002", "ImportError: planted: raised at import")
        unrelated = session.startswith("neighbour") and self._fault == "refuses_neighbours"
        if self._fault == "refuse" or unrelated:
            raise Coded("ENG-007", "planted refusal: dtype is wrong; batch is wrong")
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

    def encode(self, texts: Sequence[str]) -> dict[str, Any]:
        """Bytes are tokens."""
        return {"ids": [list(text.encode()) for text in texts]}

    def generate(
        self, requests: Sequence[dict[str, Any]], full_decode_steps: int | None
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
        if longest >= self._target.max_model_len:
            raise Coded("ENG-006", f"a prompt of {longest} tokens leaves no room for an answer")
        if self._fault == "shed_load":
            asked = asked[: max(1, len(asked) - 1)]
        cached = [self._cached(request.prompt) for request in asked]
        waiting = [len(r.prompt) - c for r, c in zip(asked, cached, strict=True)]
        made = [0] * len(asked)
        steps: list[EngineStep] = []
        path: list[PathStep] = []
        full = 0
        while full_decode_steps is None or full < full_decode_steps:
            lanes = [
                index
                for index, request in enumerate(asked)
                if waiting[index] == 0 and 0 < made[index] < request.sampling.max_tokens
            ]
            prefill = self._prefill(waiting, made, self._budget - len(lanes))
            if not lanes and not prefill:
                break
            for lane in lanes:
                made[lane] += 1
            steps.append(self._engine_step(len(lanes), prefill))
            path.append(self._path_step(len(asked), len(lanes), prefill))
            full += len(lanes) == len(asked) and prefill == 0
        answers = [
            self._answer(request, cache, count)
            for request, cache, count in zip(asked, cached, made, strict=True)
        ]
        return Generation(answers=tuple(answers), steps=tuple(steps), path=tuple(path)).json_value()

    @staticmethod
    def _prefill(waiting: list[int], made: list[int], budget: int) -> int:
        """Spend a step's budget on waiting prompts, in order; a finished one gets its token."""
        spent = 0
        for index, left in enumerate(waiting):
            size = min(left, budget - spent)
            waiting[index] -= size
            spent += size
            made[index] += size > 0 and waiting[index] == 0
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
        duration *= self._boot * (1 + abs(self._random.gauss(0, self._noise)))
        duration /= self._speedup if pure else 1.0
        start, self._clock = self._clock, self._clock + duration
        return EngineStep(
            start_s=start, duration_s=duration, decode_tokens=decode, prefill_tokens=prefill
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
            tokens=decode + prefill,
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

    def _answer(self, request: Request, cached: int, count: int) -> Answer:
        sampling = request.sampling
        text = self._text(request, cached)[:count]
        finish = "length"
        for stop in sampling.stop:
            if stop in text and self._fault != "lost_stop":
                text, finish = text[: text.index(stop)], "stop"
        if sampling.structured and self._fault != "broken_json":
            text, finish = _structured(sampling.structured), "stop"
        ids = tuple(text.encode())
        logprobs: tuple[float | None, ...] = ()
        listed: tuple[int, ...] = ()
        if sampling.logprobs and self._fault != "no_logprobs":
            logprobs = tuple(-0.1 - token / 1000 for token in ids)
            listed = (sampling.logprobs,) * len(ids)
        return Answer(
            token_ids=ids,
            text=text,
            finish_reason=finish,
            cached_tokens=cached,
            logprobs=logprobs,
            gaps=tuple(1.0 for _ in logprobs),
            listed=listed,
        )

    def _text(self, request: Request, cached: int) -> str:
        sampling = request.sampling
        salt = b""
        if sampling.temperature > 0 and sampling.top_k != 1:
            seed = sampling.seed
            if seed is None or self._fault == "ignores_seed":
                seed = self._random.getrandbits(32)
            salt = str(seed).encode()
        if self._isolation_fault == "changes_neighbour":
            salt += b"planted"
        if self._fault == "wrong_token" or (self._fault == "stale_prefix" and cached):
            salt += b"planted"
        state = hashlib.sha256(salt + json.dumps(list(request.prompt)).encode()).digest()
        letters = []
        for _ in range(sampling.max_tokens):
            state = hashlib.sha256(state).digest()
            letters.append(chr(32 + state[0] % 95))
        return "".join(letters)


def _structured(wanted: dict[str, Any] | Any) -> str:
    if "choice" in wanted:
        return str(wanted["choice"][0])
    if "regex" in wanted:
        return "abc-12"
    return json.dumps(_instance(wanted["json"]))


def _instance(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {key: _instance(value) for key, value in schema.get("properties", {}).items()}
    return {"integer": 1, "number": 1.5, "boolean": True, "array": []}.get(str(kind), "text")


if __name__ == "__main__":
    backend = Backend()
    serve(
        {
            "start": backend.start,
            "encode": backend.encode,
            "generate": backend.generate,
            "inspect": backend.inspect,
            "end": backend.end,
        },
        default_code="ENG-006",
    )

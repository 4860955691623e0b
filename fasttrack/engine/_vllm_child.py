"""Child of the vLLM engine: the one file of the harness that imports vLLM.

It drives `LLMEngine.step()` itself, so that every step has a start, a duration and, from the
scheduler's own output, its decode and prefill tokens. The optimization's step log is fetched
after each call through the worker extension named in the claim.
Tried with vLLM 0.32.0 and 0.33.0 on a CPU, and with 0.33.0 on a GPU with its second model runner.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fasttrack.engine import _vllm_device
from fasttrack.engine._vllm_caches import scan
from fasttrack.engine._vllm_fingerprint import fingerprint
from fasttrack.engine._vllm_requests import Collected, forcing, parameters
from fasttrack.engine._vllm_steps import Steps
from fasttrack.engine.base import Answer, Generation, Request, SessionInfo
from fasttrack.engine.code import mapped
from fasttrack.engine.serve import Coded, serve
from fasttrack.engine.vllm_arguments import (
    CLAIMED_ENTRY,
    CLAIMED_EXTENSION,
    NEIGHBOUR,
    RANK_EXTENSION,
    of_neighbour,
    of_target,
)
from fasttrack.schema import EngineStep, PathStep, Target
from fasttrack.schema.claim import Plugin

CLOCK = time.perf_counter
"""Bound before any plugin is loaded: replacing the function in `time` changes nothing here."""
OBSERVED = "FASTTRACK_OBSERVED"
"""Set by the path stage: the claim's entry is to be wrapped."""


class Backend:
    """One vLLM engine in this process."""

    # As it is where `start` of a subclass has no such thing.
    _forces = False
    _observes_ranks = False

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
        """Boot the engine.

        Codes: ENG-002 plugin raised at import, ENG-007 refusal, ENV-005 checkpoint, else ENG-001.
        """
        self._target = Target.model_validate(target)
        self._plugin = Plugin.model_validate(plugin) if plugin else None
        wanted = self._plugin.vllm_plugins if self._plugin else ()
        # An empty list switches every plugin off; an unset variable would load all of them.
        os.environ["VLLM_PLUGINS"] = ",".join(wanted)
        if count_nans:
            os.environ["VLLM_COMPUTE_NANS_IN_LOGITS"] = "1"
        self._forces = forces
        observed = bool(os.environ.get(OBSERVED))
        self._observes_ranks = observed and self._target.tensor_parallel_size > 1
        if observed:
            from fasttrack.engine import _vllm_timeline

            _vllm_timeline.name_units()
        if self._plugin:
            self._import_plugin(self._plugin)
        self._entry = None
        if self._observes_ranks:
            self._name_for_ranks()
        elif observed:
            self._entry = self._wrapped_entry()
        from vllm import LLM

        try:
            self._llm = LLM(**self._arguments(additional_config, checkpoint))
        except Exception as error:
            raise _start_error(error) from error
        self._engine: Any = self._llm.llm_engine
        self._steps = Steps(self._engine.engine_core.engine_core.scheduler)
        self._llm.collective_rpc(_vllm_device.install)
        self._count = 0
        evidence = self._evidence()
        return SessionInfo(
            switch=evidence.get("switch"),
            fingerprint=fingerprint(self._engine.vllm_config),
            prepared_batches=tuple(evidence.get("prepared_batches", ())),
        ).json_value()

    def encode(self, texts: Sequence[str]) -> dict[str, Any]:
        """Token ids without special tokens."""
        tokenizer = self._llm.get_tokenizer()
        return {"ids": [tokenizer.encode(t, add_special_tokens=False) for t in texts]}

    def chat(self, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        """A conversation through the tokenizer's chat template."""
        tokenizer = self._llm.get_tokenizer()
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return {"text": text}

    def generate(
        self,
        requests: Sequence[dict[str, Any]],
        full_decode_steps: int | None,
        mark_after: int | None = None,
        lane_tokens: int = 1,
    ) -> dict[str, Any]:
        """Run requests together; see `Session.generate`."""
        asked = [Request.model_validate(request) for request in requests]
        names = [f"r{self._count + index}" for index in range(len(asked))]
        self._count += len(asked)
        self._steps.clear()
        self._device_s()
        try:
            answers, steps, emitted = self._run(
                names, asked, full_decode_steps, mark_after, lane_tokens
            )
        except BaseException:
            # Requests beside a bad one, and their step log, must not reach the next call.
            with contextlib.suppress(Exception):
                self._drop(names)
                self._evidence()
            raise
        evidence = self._evidence()
        device_s = self._device_s()
        scheduler = self._engine.engine_core.engine_core.scheduler
        return Generation(
            answers=answers,
            preemptions=self._steps.seen["preempted"],
            nan_logits=self._steps.seen["nan"],
            draft_tokens=self._steps.seen["drafted"],
            accepted_tokens=self._steps.seen["accepted"],
            left=sum(scheduler.get_request_counts()),
            cache_usage=scheduler.get_kv_cache_usage(),
            steps=tuple(steps),
            emitted=tuple(emitted),
            contexts=tuple(self._steps.contexts[: len(steps)]),
            device_s=tuple(map(device_s.get, range(len(steps)))) if device_s else (),
            path=tuple(
                PathStep.model_validate(entry)
                for entry in evidence.get("log", ())
                if entry["path"] != "profile"
            ),
            drafted=tuple(self._steps.drafted),
        ).json_value()

    def evidence(
        self,
        requests: Sequence[dict[str, Any]],
        trace: bool,
        state: bool,
        watermark: bool,
        timeline: bool,
    ) -> dict[str, Any]:
        """Run requests under observation; see `Session.evidence`."""
        from fasttrack.engine import _vllm_evidence as observe
        from fasttrack.engine import _vllm_timeline

        asked = {"trace": trace, "state": state, "watermark": watermark}
        if self._observes_ranks:
            return self._evidence_of_ranks(requests, asked, timeline)
        runner = self._llm.collective_rpc(_runner)[0]
        seen = observe.Observation(runner, self._entry, **asked)
        step = self._engine.step
        recorder = _vllm_timeline.Recorder(runner, self._steps.scheduled) if timeline else None

        def observed() -> Any:
            if recorder:
                return recorder.step(step)
            if not trace:
                return step()
            scheduled = len(self._steps.scheduled)
            result, names = observe.names(step)
            seen.names.extend([names] * (len(self._steps.scheduled) - scheduled))
            return result

        with contextlib.ExitStack() as stack:
            stack.enter_context(seen.watching())
            if recorder:
                stack.enter_context(recorder.watching())
            self._engine.step = observed
            stack.callback(setattr, self._engine, "step", step)
            generation = self.generate(requests, None)
        drawn = recorder.seen() if recorder else None
        return {
            "generation": generation,
            "timeline": drawn.json_value() if drawn else None,
            **seen.told(),
        }

    def _evidence_of_ranks(
        self, requests: Sequence[dict[str, Any]], asked: Mapping[str, bool], timeline: bool
    ) -> dict[str, Any]:
        """The same where the model runs in other processes, each of which looks at itself."""
        from fasttrack.engine import _vllm_rank

        self._llm.collective_rpc(_vllm_rank.begin, args=(asked,))
        try:
            generation = self.generate(requests, None)
        finally:
            first, *others = self._llm.collective_rpc(_vllm_rank.end)
        if timeline:
            first |= {"problem": "a timeline is drawn where the model runs in one process"}
        return {"generation": generation, "timeline": None, "others": others, **first}

    def routing(self, requests: Sequence[dict[str, Any]], seed: int | None) -> dict[str, Any]:
        """Which experts are chosen while requests are prefilled; see `Session.routing`."""
        from fasttrack.engine import _vllm_routing

        config = self._engine.vllm_config
        experts = int(config.model_config.get_num_experts() or 0)
        if not experts:
            return {"experts": 0}
        if config.parallel_config.world_size > 1:
            return {"experts": experts, "problem": "the model runs in other processes"}
        asked = [dict(request) for request in requests]
        if seed is not None:
            lengths = [len(request["prompt"]) for request in asked]
            words = config.model_config.get_vocab_size()
            for request, ids in zip(
                asked, _vllm_routing.random_tokens(lengths, words, seed), strict=True
            ):
                request["prompt"] = ids
        runner = self._llm.collective_rpc(_runner)[0]
        try:
            seen = _vllm_routing.watch(runner.get_model(), experts)
        except _vllm_routing.CannotWatch as error:
            return {"experts": experts, "problem": str(error)}
        step = self._engine.step

        def watched() -> Any:
            seen.step()
            with seen:
                return step()

        self.reset_prefix_cache()
        self._engine.step = watched
        try:
            self.generate(asked, None)
        except Exception as error:  # an operator of the engine's that cannot be watched
            return {"experts": experts, "problem": f"{type(error).__name__}: {error}"[:300]}
        finally:
            self._engine.step = step
        return {
            "experts": experts,
            "layers": [counts.tolist() for counts in seen.counts],
            "problem": "" if seen.counts else "no operator that routes was seen",
        }

    def _wrapped_entry(self) -> Any:
        """The claim's entry, wrapped before the engine could capture it; None without one."""
        from fasttrack.engine import _vllm_evidence as observe

        if not (self._plugin and self._plugin.entry):
            return None
        try:
            return observe.Entry(self._plugin.entry)
        except (ImportError, AttributeError) as error:
            raise Coded("ENG-002", f"no entry {self._plugin.entry!r}: {error}") from error

    def _name_for_ranks(self) -> None:
        """Leave the claim's names where the processes of ranks find them: forked from this one they
        have its modules, started anew they have its environment."""
        if self._plugin:
            os.environ[CLAIMED_EXTENSION] = self._plugin.worker_extension or ""
            os.environ[CLAIMED_ENTRY] = self._plugin.entry or ""
        try:
            from fasttrack.engine import _vllm_rank  # noqa: F401
        except (ImportError, AttributeError) as error:
            raise Coded("ENG-002", f"no extension or entry as claimed: {error}") from error

    def code(self) -> dict[str, Any]:
        """Compiled code this process has mapped."""
        return {"files": mapped(self._plugin.module if self._plugin else None)}

    def _run(
        self,
        names: Sequence[str],
        asked: Sequence[Request],
        full_decode_steps: int | None,
        mark_after: int | None,
        lane_tokens: int,
    ) -> tuple[tuple[Answer, ...], list[EngineStep], list[int]]:
        """Answers in order, the engine's steps, and the tokens that each handed out."""
        found = {name: Collected(request) for name, request in zip(names, asked, strict=True)}
        coming = sorted(
            zip(names, asked, strict=True), key=lambda pair: pair[1].arrive_after, reverse=True
        )
        steps: list[EngineStep] = []
        emitted: list[int] = []
        full = marked = 0
        began = CLOCK()
        while coming or self._engine.has_unfinished_requests():
            idle = not self._engine.has_unfinished_requests()
            while coming and (idle or coming[-1][1].arrive_after <= len(steps)):
                name, request = coming.pop()
                prompt = {"prompt_token_ids": list(request.prompt)}
                self._engine.add_request(name, prompt, parameters(request))
                idle = False
            seen = len(self._steps.scheduled)
            start = CLOCK()
            produced = self._engine.step()
            duration = CLOCK() - start
            # One entry per step is the rule; a step that scheduled nothing adds none.
            for decode, prefill in self._steps.scheduled[seen:]:
                steps.append(
                    EngineStep(
                        start_s=start,
                        duration_s=duration,
                        decode_tokens=decode,
                        prefill_tokens=prefill,
                    )
                )
                full += decode == len(asked) * lane_tokens and prefill == 0
            emitted += [0] * (len(steps) - len(emitted))
            for output in produced:
                # A step that only collects what was in flight has no entry of its own.
                emitted[-1] += found[output.request_id].add(output)
            given_up = [name for name in names if found[name].due(CLOCK() - began)]
            if given_up:
                self._engine.abort_request(given_up)
            for wanted in (mark_after, full_decode_steps):
                if wanted is not None and marked < wanted <= full:
                    self.mark(len(steps))
            marked = full
            if full_decode_steps is not None and full >= full_decode_steps:
                self._drop([name for name in names if not found[name].finished])
                break
        return tuple(found[name].answer() for name in names), steps, emitted

    def _drop(self, names: Sequence[str]) -> None:
        """Abort requests, and run out what is in flight.

        An engine that schedules ahead holds a batch of requests that it has forgotten.
        """
        self._engine.abort_request(list(names))
        core = self._engine.engine_core.engine_core
        while self._engine.has_unfinished_requests() or getattr(core, "batch_queue", None):
            self._engine.step()

    def inspect(self) -> dict[str, Any]:
        """Names of everything loaded and set in this process."""
        from fasttrack.engine import _vllm_state

        root = self._plugin.module.partition(".")[0] if self._plugin else None
        return {"facts": _vllm_state.facts(None if root == "vllm" else root)}

    def reset_prefix_cache(self) -> dict[str, Any]:
        """Forget cached prefixes; Coded ENG-006 when the engine does not."""
        if not self._engine.reset_prefix_cache():
            raise Coded("ENG-006", "the engine did not reset its prefix cache")
        return {}

    def caches(self, null_fill: str | None, whole: bool) -> dict[str, Any]:
        """See `Session.caches`; None when the caches live in other processes than this."""
        config = self._engine.vllm_config
        if config.parallel_config.world_size > 1:
            return {"caches": None}
        fill = None if null_fill is None else float(null_fill)
        found = scan(
            config.compilation_config.static_forward_context,
            config.cache_config.num_gpu_blocks,
            fill,
            whole,
        )
        return {"caches": found.json_value() if found else None}

    def end(self) -> dict[str, Any]:
        """Peak resident memory of this process, MiB."""
        return {"peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}

    def _arguments(
        self, additional_config: Mapping[str, Any], checkpoint: str | None
    ) -> dict[str, Any]:
        target = self._target
        if checkpoint is None:
            folder = Path(tempfile.mkdtemp(prefix="fasttrack-neighbour-"))
            (folder / "config.json").write_text(json.dumps(NEIGHBOUR))
            return of_neighbour(target, additional_config, str(folder))
        arguments = of_target(target, self._plugin, additional_config, checkpoint)
        if self._observes_ranks:
            arguments["worker_extension_cls"] = RANK_EXTENSION
        if self._forces:
            arguments |= forcing()
        return arguments

    def _import_plugin(self, plugin: Plugin) -> None:
        """Load what vLLM would load, so that an error is told instead of only logged."""
        try:
            importlib.import_module(plugin.module)
            for name in plugin.vllm_plugins:
                points = entry_points(group="vllm.general_plugins", name=name)
                if not points:
                    raise Coded(
                        "ENG-002",
                        f"no vLLM plugin {name!r} is installed; run `pip install -e` in the "
                        "optimization's folder",
                    )
                for point in points:
                    point.load()
        except Coded:
            raise
        except BaseException as error:
            raise Coded("ENG-002", f"{type(error).__name__}: {error}") from error

    def _device_s(self) -> dict[int, float]:
        """The device's seconds by index of the step, since the last time."""
        return _vllm_device.together(self._llm.collective_rpc(_vllm_device.read))

    def _evidence(self) -> dict[str, Any]:
        if not (self._plugin and self._plugin.worker_extension):
            return {}
        ranks = self._llm.collective_rpc("fasttrack_evidence", args=(True,))
        taken = [[entry["path"] for entry in rank.get("log", ())] for rank in ranks]
        for rank, paths in enumerate(taken):
            if paths != taken[0]:
                raise Coded(
                    "ENG-006", f"rank {rank} took other paths than rank 0 in the same steps"
                )
        return dict(ranks[0])


def _runner(worker: Any) -> Any:
    """The model runner, where it lives in this process."""
    return worker.model_runner


def _start_error(error: Exception) -> Coded:
    """Sort a start-up error by the names the plugin contract gives to them."""
    for cause in _causes(error):
        name = type(cause).__name__
        if name.endswith("RefusedError"):
            return Coded("ENG-007", str(cause))
        if name.endswith("CheckpointError"):
            return Coded("ENV-005", str(cause))
    return Coded("ENG-001", f"{type(error).__name__}: {error}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised from, and what a configuration's validator caught inside it."""
    chain: BaseException | None = error
    while chain is not None:
        yield chain
        if isinstance(chain, ValidationError):
            inside = (item.get("ctx", {}).get("error") for item in chain.errors())
            yield from (cause for cause in inside if isinstance(cause, BaseException))
        chain = chain.__cause__ or chain.__context__


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

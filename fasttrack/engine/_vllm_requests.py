"""Requests and answers in vLLM's words: sampling parameters, and what its outputs add up to.

Owns both translations. Read by the vLLM child only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fasttrack.engine.base import Answer, Delta, Request


def parameters(request: Request) -> Any:
    """vLLM's `SamplingParams` of a request."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    sampling = request.sampling
    structured = dict(sampling.structured) if sampling.structured else None
    allowed = sampling.allowed_token_ids
    return SamplingParams(
        n=sampling.n,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        ignore_eos=sampling.ignore_eos,
        stop=list(sampling.stop),
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        stop_token_ids=list(sampling.stop_token_ids),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias) if sampling.logit_bias else None,
        bad_words=list(sampling.bad_words) or None,
        allowed_token_ids=list(allowed) if allowed is not None else None,
        structured_outputs=StructuredOutputsParams(**structured) if structured else None,
        output_kind=RequestOutputKind.DELTA if request.stream else RequestOutputKind.CUMULATIVE,
        **(_forced(sampling.forced) if sampling.forced else {}),
    )


def forcing() -> dict[str, Any]:
    """Arguments of an engine whose requests may bring tokens to force."""
    if _replays_traces():
        return {"enable_trace_replay": True}
    from fasttrack.engine._vllm_forced import PROCESSOR

    return {"logits_processors": [PROCESSOR]}


def _forced(tokens: Sequence[int]) -> dict[str, Any]:
    """What a request says of them."""
    if _replays_traces():
        return {"trace_decode_token_ids": list(tokens)}
    from fasttrack.engine._vllm_forced import KEY

    return {"extra_args": {KEY: list(tokens)}}


def _replays_traces() -> bool:
    """Whether the engine forces tokens itself: vLLM's second model runner, which takes no processor
    made for the first. GPUs have it since 0.33."""
    from vllm import SamplingParams
    from vllm.platforms import current_platform

    return hasattr(SamplingParams, "trace_decode_token_ids") and current_platform.is_cuda()


class _Sequence:
    """One sequence of a request, as the engine has told it so far."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self.positions: list[Mapping[int, Any]] = []
        self.deltas: list[Delta] = []
        self.finish_reason = ""
        self.stop_reason: int | str | None = None

    def add(self, part: Any, stream: bool) -> None:
        """Take in one `CompletionOutput`: all so far, or what is new if the request streams."""
        if stream:
            self.deltas.append(Delta(token_ids=tuple(part.token_ids), text=part.text))
        else:
            self.token_ids, self.text, self.positions = [], "", []
        self.token_ids += part.token_ids
        self.text += part.text
        self.positions += part.logprobs or ()
        self.finish_reason = part.finish_reason or ""
        self.stop_reason = part.stop_reason

    def answer(self, **more: Any) -> Answer:
        """As the harness knows it."""
        logprobs: list[float | None] = []
        gaps: list[float | None] = []
        for token, position in zip(self.token_ids, self.positions, strict=False):
            ranked = sorted((entry.logprob for entry in position.values()), reverse=True)
            logprobs.append(_finite(position[token].logprob))
            gaps.append(_finite(ranked[0] - ranked[1]) if len(ranked) > 1 else None)
        return Answer(
            token_ids=tuple(self.token_ids),
            text=self.text,
            finish_reason=self.finish_reason or "aborted",
            stop_reason=self.stop_reason,
            logprobs=tuple(logprobs),
            gaps=tuple(gaps),
            listed=tuple(len(position) for position in self.positions),
            ranks=tuple(
                position[token].rank or 0
                for token, position in zip(self.token_ids, self.positions, strict=False)
            ),
            deltas=tuple(self.deltas),
            **more,
        )


class Collected:
    """Everything the engine has said of one request."""

    def __init__(self, request: Request) -> None:
        """Nothing yet."""
        self._request = request
        self._sequences = [_Sequence() for _ in range(request.sampling.n)]
        self._cached = 0
        self._prompt: Sequence[Any] = ()
        self._given_up = False

    def add(self, output: Any) -> int:
        """Take in one `RequestOutput`; the number of its new tokens."""
        before = sum(len(sequence.token_ids) for sequence in self._sequences)
        self._cached = output.num_cached_tokens or self._cached
        self._prompt = output.prompt_logprobs or self._prompt
        for part in output.outputs:
            self._sequences[part.index].add(part, self._request.stream)
        return sum(len(sequence.token_ids) for sequence in self._sequences) - before

    @property
    def finished(self) -> bool:
        """Whether the engine ended every sequence by itself."""
        return all(sequence.finish_reason for sequence in self._sequences)

    def due(self, seconds: float) -> bool:
        """Whether the request is to be given up, so many seconds into its call; true once."""
        after, limit = self._request.abort_after, self._request.abort_after_s
        made = max(len(sequence.token_ids) for sequence in self._sequences)
        over = (after is not None and made >= after) or (limit is not None and seconds >= limit)
        if not over or self._given_up or self.finished:
            return False
        self._given_up = True
        return True

    def answer(self) -> Answer:
        """All sequences, the first one in front."""
        first, *others = self._sequences
        prompt = tuple(
            _finite(position[token].logprob) if position else None
            for token, position in zip(self._request.prompt, self._prompt, strict=False)
        )
        return first.answer(
            cached_tokens=self._cached,
            prompt_logprobs=prompt,
            others=tuple(sequence.answer() for sequence in others),
        )


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None

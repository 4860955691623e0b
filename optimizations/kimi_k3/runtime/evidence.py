"""What really ran: counters and a bounded log of every engine step.

Owns: recording, and the worker methods that hand records out. Does not own: the decision
(`runtime.plan`). Read by: the harness, through the engine's `collective_rpc`.

Recording keeps references and integers; all formatting waits until the records are asked for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from kimi_k3.runtime.plan import Plan, StepFacts, Switch

LOG_STEPS = 50_000
"""Steps kept; older ones are dropped and counted."""

_NO_STEP = StepFacts(requests=0, tokens=0, decode_rows=0, verify_rows=0)


def ranges(numbers: Iterable[int]) -> str:
    """Distinct integers in compact form: {3, 4, 5, 9} is "3-5,9"."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


class Recorder:
    """Counters and path log of one rank's model."""

    def __init__(self, rank: int, size: int, switch: Switch) -> None:
        """`rank` of `size` tensor-parallel ranks; `switch`: the effective option."""
        self.rank = rank
        self.size = size
        self.switch = switch
        self.prepared: tuple[int, ...] = ()
        self.extra_bytes = 0
        self._counters: Counter[str] = Counter()
        self._steps = 0
        self._dropped = 0
        self._log: deque[tuple[int, Plan, StepFacts, Sequence[Tensor], Sequence[Tensor]]] = deque()

    def record(
        self,
        plan: Plan,
        facts: StepFacts | None,
        kda_slots: Sequence[Tensor] = (),
        mla_rows: Sequence[Tensor] = (),
    ) -> None:
        """Note one step and the cache rows it writes. The tensors must not change later."""
        self._counters[f"path:{plan.path}"] += 1
        self._counters[f"reason:{plan.reason}"] += 1
        if len(self._log) == LOG_STEPS:
            self._log.popleft()
            self._dropped += 1
        self._log.append((self._steps, plan, facts or _NO_STEP, kda_slots, mla_rows))
        self._steps += 1

    def drain(self, clear: bool = True) -> dict[str, Any]:
        """Everything recorded since the last clearing drain, as JSON-able values.

        Step numbers keep counting across drains.
        """
        found = {
            "rank": self.rank,
            "size": self.size,
            "switch": self.switch,
            "counters": dict(self._counters),
            "log": [_entry(*item) for item in self._log],
            "dropped": self._dropped,
            "prepared_batches": list(self.prepared),
            "extra_bytes": self.extra_bytes,
        }
        if clear:
            self._counters.clear()
            self._log.clear()
            self._dropped = 0
        return found


def _entry(
    step: int,
    plan: Plan,
    facts: StepFacts,
    kda_slots: Sequence[Tensor],
    mla_rows: Sequence[Tensor],
) -> dict[str, Any]:
    return {
        "step": step,
        "path": plan.path,
        "reason": plan.reason,
        "requests": facts.requests,
        "tokens": facts.tokens,
        "prefill_tokens": facts.prefill_tokens,
        "wrote": {"kda_slots": _numbers(kda_slots), "mla_rows": _numbers(mla_rows)},
    }


def _numbers(tensors: Sequence[Tensor]) -> str:
    return ranges(number for tensor in tensors for number in tensor.tolist())


class WorkerExtension:
    """Methods vLLM mixes into its worker: `worker_extension_cls=` this class's dotted name."""

    model_runner: Any

    def fasttrack_evidence(self, clear: bool = True) -> dict[str, Any]:
        """This rank's counters and path log; `clear` forgets what it hands out.

        Raises TypeError if the worker runs another model.
        """
        recorder = getattr(self.model_runner.get_model(), "recorder", None)
        if not isinstance(recorder, Recorder):
            raise TypeError("the loaded model keeps no fasttrack evidence")
        return recorder.drain(clear)

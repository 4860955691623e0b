"""What the harness puts into the processes of a vLLM server: a scheduler that writes down its steps
and a worker that tells of itself. They may live in two processes. Tried with vLLM 0.32.0 on a CPU.
"""

from __future__ import annotations

import json
import os
from typing import Any

from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.sched.scheduler import Scheduler

from fasttrack.engine._vllm_fingerprint import fingerprint
from fasttrack.engine._vllm_steps import split

_steps = os.environ["FASTTRACK_STEPS"]
"""File of the scheduler's steps."""
_own = os.environ.get("FASTTRACK_EXTENSION")
"""The optimization's own worker extension."""
_Own: Any = resolve_obj_by_qualname(_own) if _own else object


class Watched(Scheduler):
    """vLLM's scheduler; a line for every step: decode tokens, prefill tokens, requests with drafts.

    A step is written before a worker runs it.
    """

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens:
            decode, prefill = split(output, self.requests)
            with open(_steps, "a") as file:
                file.write(f"{decode} {prefill} {len(output.scheduled_spec_decode_tokens)}\n")
        return output


class Extension(_Own):
    """The optimization's extension of the worker, and a look at the worker's configuration."""

    def fasttrack_served(self: Any) -> dict[str, Any]:
        """Fingerprint, and what the optimization says: `switch`, `prepared_batches`, and the `log`
        of its steps since the last time."""
        told = self.fasttrack_evidence(True) if hasattr(self, "fasttrack_evidence") else {}
        made = {"switch": None, "prepared_batches": (), "log": (), **told}
        made["fingerprint"] = fingerprint(self.vllm_config)
        return dict(json.loads(json.dumps(made)))  # plain values: others cannot leave the process

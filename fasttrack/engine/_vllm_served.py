"""What the harness puts into the engine process of a vLLM server: a scheduler that counts, and a
worker that tells. Both live in one process only where one worker runs inside the engine's; else
no step is told. Tried with vLLM 0.32.0 on a CPU.
"""

from __future__ import annotations

import json
import os
from typing import Any

from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.sched.scheduler import Scheduler

from fasttrack.engine._vllm_child import fingerprint, split

EXTENSION = "FASTTRACK_EXTENSION"
"""Variable with the optimization's own worker extension."""
_scheduled: list[tuple[int, int]] = []
_drafted: list[int] = []
_own = os.environ.get(EXTENSION)
_Own: Any = resolve_obj_by_qualname(_own) if _own else object


class Watched(Scheduler):
    """vLLM's scheduler; (decode tokens, prefill tokens) of every step are kept."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens:
            if output.scheduled_spec_decode_tokens:
                _drafted.append(len(_scheduled))
            _scheduled.append(split(output, self.requests))
        return output


class Extension(_Own):
    """The optimization's extension of the worker, and what is kept here."""

    def fasttrack_served(self: Any) -> dict[str, Any]:
        """Step log, scheduled steps and configuration since the last time; forgets the first two.

        `switch` and `prepared_batches` are what the optimization says of itself.
        """
        told = self.fasttrack_evidence(True) if hasattr(self, "fasttrack_evidence") else {}
        made = {
            "switch": told.get("switch"),
            "prepared_batches": list(told.get("prepared_batches", ())),
            "log": [dict(entry) for entry in told.get("log", ())],
            "scheduled": list(_scheduled),
            "drafted": list(_drafted),
            "fingerprint": fingerprint(self.vllm_config),
        }
        _scheduled.clear()
        _drafted.clear()
        return dict(json.loads(json.dumps(made)))  # plain values: others cannot leave the process

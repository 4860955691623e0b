"""What a benchmark of an engine found, piece by piece, and what its ranks answered.

Owns: printing, keeping, and when nothing more can be found. Does not own: what is asked. Read by:
`bench.engine`.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FATAL = ("CUDA error", "Worker failed", "TimeoutError", "EngineDeadError")
"""In the text of a failure: nothing can follow. Other ranks wait for the one that failed, and
whoever asks them waits with them."""


def answer(name: str, told: Sequence[Mapping[str, Any]]) -> Any:
    """What the first rank says to the question `name`, if every rank could answer. Raises
    RuntimeError. `told`: by rank, what was "found" or how it "failed"."""
    failed = [rank["failed"] for rank in told if "failed" in rank]
    if failed:
        raise RuntimeError(f"{name} on {len(failed)} of {len(told)} ranks: {failed[0]}")
    return told[0]["found"]


class Findings:
    """Of one run."""

    def __init__(self, path: str | None) -> None:
        """`path`: of the JSON file, written anew after every piece."""
        self.found: dict[str, Any] = {}
        self._path, self._begin = path, time.perf_counter()

    def piece(self, name: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """Make one piece; a failure is kept like a finding. Raises SystemExit where it is one of
        `FATAL`."""
        over = False
        try:
            self.found[name] = make(*arguments)
            shown = json.dumps(self.found[name], default=str)
            spent = time.perf_counter() - self._begin
            print(f"== {name} at {spent:.0f} s: {shown[:1200]}", flush=True)
        except Exception:
            self.found[name] = told = traceback.format_exc()
            over = any(sign in told for sign in FATAL)
            print(f"== {name} FAILED\n{told}", flush=True)
        if self._path:
            with open(self._path, "w") as file:
                json.dump(self.found, file, indent=1, default=str)
        if over:
            raise SystemExit(f"{name} failed, and with it the engine")
        return self.found[name]

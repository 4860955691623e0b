"""Whether the device finishes the steps it was given, seen from a thread of the host.

Owns: the limit, and what happens beyond it. Does not own: the device's count of steps (`decode`).
Read by: `ranks`.

A rank that stops between steps never begins the next one, and then the first sum of the others'
graphs waits for it: vLLM's own, which has no limit. The mailboxes' limit, which is on the device,
is not reached, and a host that waits for the device can raise nothing. So the process ends, and
with it vLLM's executor, which stops the other ranks and names the one that ended.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

LIMIT_S = 15.0
"""A step takes milliseconds, a wait at a mailbox ends after about 10 s, and vLLM's executor gives
the ranks that are left another 9: all are gone within 30."""
STATUS = 70
"""Of the process that ends; `EX_SOFTWARE` of sysexits.h."""


def end(message: str) -> None:
    """Say it and end this process; nothing is cleaned up, since the device does not answer."""
    print(message, file=sys.stderr, flush=True)
    os._exit(STATUS)


class Watch:
    """Of one rank."""

    def __init__(
        self,
        done: Callable[[], int],
        limit_s: float = LIMIT_S,
        look_s: float = 1.0,
        lost: Callable[[str], None] = end,
    ) -> None:
        """`done`: how many steps the device has finished, without waiting for it; `lost`: what is
        done with the message."""
        self._done, self._limit_s, self._look_s, self._lost = done, limit_s, look_s, lost
        self._given = 0
        self._thread: threading.Thread | None = None

    def given(self) -> None:
        """The device is about to be given a step."""
        # Steps may be replayed that nobody tells of, but none is finished before it was given.
        self._given = max(self._given, self._done()) + 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lost-rank", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        last, since = -1, time.monotonic()
        while True:
            time.sleep(self._look_s)
            done, now = self._done(), time.monotonic()
            if done >= self._given or done != last:
                last, since = done, now
            elif now - since > self._limit_s:
                self._lost(
                    f"a step of ours was not finished within {self._limit_s:.0f} s: another rank "
                    "does not answer, all must stop"
                )
                return

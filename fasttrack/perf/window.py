"""Which steps of a session count: the steady decode window, cut by rule and not by look."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.schema import EngineStep

WARM_UP_STEPS = 3


def decode_window(steps: Sequence[EngineStep], batch: int) -> range:
    """Indices of the steady steps, less the warm-up.

    Steady: every lane decoded one token and nothing was prefilled. The window is the longest
    unbroken run of such steps (the first of equals); its first `WARM_UP_STEPS` are dropped.
    """
    best = range(0)
    start: int | None = None
    for index, step in enumerate(steps):
        if step.decode_tokens == batch and step.prefill_tokens == 0:
            start = index if start is None else start
        elif start is not None:
            best = range(start, index) if index - start > len(best) else best
            start = None
    if start is not None and len(steps) - start > len(best):
        best = range(start, len(steps))
    return range(min(best.start + WARM_UP_STEPS, best.stop), best.stop)

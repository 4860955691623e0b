"""A deterministic engine without weights: the whole flow in seconds, with switchable faults.

It speaks the same channel from the same kind of child as the real engine. `engine_args` of a
target choose its behaviour: ``fake = {speedup = 1.0, noise_percent = 0.5, fault = "..."}``; the
faults are listed in the child module. Results of this engine say nothing about any real system.
"""

from __future__ import annotations

from fasttrack.engine.base import Engine

ENGINE = Engine(name="fake", module="fasttrack.engine._fake_child")

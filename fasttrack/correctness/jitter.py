"""What the case child disturbs on purpose between repeats, so that timing is never the same twice.

On a CPU that is: other addresses (allocations come and go), memory that holds poison where a result
lay before, and up to two threads that move memory while the candidate runs. The number of threads
the candidate itself may use is not varied: it changes sums legitimately. Owns no measurement.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import numpy as np

BLOCK = 2**20
MOST_THREADS = 2


class Jitter:
    """Disturbance of a process; off until `set`."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._kept: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
        self._wanted = 0
        self._threads: list[threading.Thread] = []

    def set(self, level: int) -> None:
        """Level 0 is quiet; level n loads memory with n modulo three threads and moves the heap."""
        self._wanted = level % (MOST_THREADS + 1) if level else 0
        while len(self._threads) < self._wanted:
            number = len(self._threads)
            thread = threading.Thread(target=self._load, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()
        if not level:
            self._kept.clear()
            return
        if len(self._kept) > 8:
            del self._kept[self._random.randrange(len(self._kept))]
        self._kept.append(np.empty(self._random.randrange(64, BLOCK), np.uint8))

    def dirty(self, sizes: Sequence[int]) -> None:
        """Free memory of these sizes that is full of poison: an unwritten result will show."""
        blocks = [np.full(max(1, size), 0xFF, np.uint8) for size in sizes]
        del blocks

    def _load(self, number: int) -> None:
        source, target = np.zeros(BLOCK, np.uint8), np.empty(BLOCK, np.uint8)
        own = random.Random(number)
        while True:
            if number < self._wanted:
                np.copyto(target, source)
                time.sleep(own.random() * 1e-3)
            else:
                time.sleep(0.01)

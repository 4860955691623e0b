"""Shape of an exchange between ranks through mailboxes.

Owns: what both of its kernels are made for besides their own shapes, and the layout of mailboxes.
Read by: `oproj.kernel`, `oproj.launch`, `oproj.mailbox`; arithmetic, tested without a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

GENERATIONS = 2
"""Halves of a mailbox that take turns. Two are enough, and one is not: see docs/adr/0023."""
LOOKS = 1 << 24
"""How often a rank looks for what another sends before it gives up: about 10 s (a look that found
nothing is followed by the next after 0.6 us)."""
TURN = 3
"""int32 words of a rank's own: half that was sent last, half to send next, and 1 after a wait in
vain."""


class Exchange(NamedTuple):
    """Who exchanges how much. A mailbox is [generations, ranks, capacity, hidden] BF16."""

    ranks: int
    hidden: int
    capacity: int
    """Rows a mailbox has room for."""
    looks: int = LOOKS
    generations: int = GENERATIONS

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of one rank's mailbox."""
        return self.generations, self.ranks, self.capacity, self.hidden

"""Prompt text for the sweep: our own short passages of several kinds, never random tokens.

Every prompt starts with its own number, so that no two share a cached prefix.
"""

from __future__ import annotations

import random

PASSAGES = (
    "The scheduler admits a request as soon as its first block of the cache is free. It does not "
    "wait for the whole answer to fit, so a long answer may be paused and taken up again later. ",
    "def moving_average(values, width):\n    total, out = 0.0, []\n    for index, value in "
    "enumerate(values):\n        total += value\n        if index >= width:\n            total -= "
    "values[index - width]\n        out.append(total / min(index + 1, width))\n    return out\n",
    "Dear Mira, the boat leaves at half past six from the northern pier. Please bring the charts, "
    "two lamps and the tin with the blue lid; the weather will turn before noon. Yours, Tomas. ",
    "SELECT region, count(*) AS orders, sum(amount) AS total FROM sales WHERE day >= '2026-01-01' "
    "GROUP BY region HAVING count(*) > 10 ORDER BY total DESC;\n",
    "User: my build fails only on the second run. Assistant: that smells of a stale cache. Which "
    "folders does the first run write that the second one reads? User: only the object files. ",
    "Der Zug nach Norden hielt an jeder kleinen Station, und an jeder stieg jemand aus, den "
    "niemand erwartete. Am Ende war der Wagen leer bis auf eine Frau mit Birnen. ",
    "Error 17: the device answered with a checksum that does not match. Unplug it, wait until the "
    "light is off, plug it in again. If the error returns, note the serial number and call us. ",
    '{"id": 4312, "status": "open", "labels": ["kernel", "race"], "comments": 14, "assignee": '
    'null, "title": "Output differs between two runs at batch 48"}\n',
    "La lluvia llegó antes de lo previsto. Los pescadores recogieron las redes sin hablar, porque "
    "sabían que el río crecería durante la noche y que al día siguiente nadie saldría. ",
    "Proof. Suppose the sum were rational. Then its square would be rational as well, and so would "
    "the product of the two roots, which contradicts what was shown above. Hence the claim. ",
)


def corpus(seed: int, characters: int) -> str:
    """At least `characters` characters of passages in seeded order."""
    rng = random.Random(f"corpus/{seed}")
    parts: list[str] = []
    length = 0
    while length < characters:
        for passage in rng.sample(PASSAGES, len(PASSAGES)):
            parts.append(passage)
            length += len(passage)
    return "".join(parts)


def header(seed: int, cell: str, index: int) -> str:
    """A first line no other prompt of the run has."""
    number = random.Random(f"header/{seed}/{cell}/{index}").randrange(10**9)
    return f"{number:09d} "

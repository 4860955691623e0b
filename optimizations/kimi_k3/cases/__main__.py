"""`python -m kimi_k3.cases`: compile the units of a single rank, all at once, and run each case.

A first run takes a minute or two; later ones find the packages in the cache folder. Prints one line
per case: its name and the seconds one call took, compilation included.
"""

from __future__ import annotations

import time

import torch

from kimi_k3.cases import cases


def main() -> None:
    """The whole step comes first: a verification needs every unit, so they compile side by side."""
    torch.set_num_threads(1)
    for case in reversed(cases()):
        regime = max(case.regimes(), key=lambda one: (one["tokens"], -one["batch"]))
        start = time.perf_counter()
        with torch.inference_mode():
            case.candidate(case.inputs(regime, seed=0))
        print(f"{case.op:<6} {time.perf_counter() - start:6.1f} s")


if __name__ == "__main__":
    main()

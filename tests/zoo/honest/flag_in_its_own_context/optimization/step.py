"""One step of the path, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread inside, as before outside."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(step: Callable[[], float], switched_on: bool) -> float:
    """The step; alone on its core if the path is on."""
    if not switched_on:
        return step()
    with one_thread():
        return step()

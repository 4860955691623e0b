"""Protects the drafter of the sweep: always as many drafts as asked for, from the text so far."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

numpy = pytest.importorskip("numpy")
drafter = pytest.importorskip("fasttrack.engine._vllm_drafter")


def propose(*texts: list[int], room: int = 100, sampled: bool = True) -> Any:
    """Three drafts for each text."""
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        model_config=SimpleNamespace(max_model_len=room),
    )
    table = numpy.zeros((len(texts), 64), dtype=numpy.int32)
    for row, text in enumerate(texts):
        table[row, : len(text)] = text
    new = [[text[-1]] if sampled else [] for text in texts]
    return drafter.Lookup(config).propose(new, numpy.array([len(t) for t in texts]), table)


def test_the_text_goes_on_as_it_did_before() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 1, 2, 3]) == [[4, 5, 6]]
    assert propose([7, 1, 2, 9, 1, 2, 8, 2]) == [[8, 2, 2]]


def test_there_are_always_as_many_as_asked_for() -> None:
    assert propose([1, 2, 3], [5], [4, 4]) == [[3, 3, 3], [5, 5, 5], [4, 4, 4]]


def test_there_are_none_where_nothing_was_sampled_or_nothing_fits() -> None:
    assert propose([1, 2, 1], sampled=False) == [[]]
    assert propose([1, 2, 1], room=6) == [[]]

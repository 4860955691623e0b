"""Protects: the candidate agrees with the reference on every regime of its case."""

import torch
from @PACKAGE@.cases import cases


def test_candidate_is_close_to_the_reference() -> None:
    for case in cases():
        for regime in case.regimes():
            inputs = case.inputs(regime, seed=0)
            expected = case.reference(inputs)["y"]
            torch.testing.assert_close(case.candidate(inputs)["y"].double(), expected)

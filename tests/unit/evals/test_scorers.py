"""Protects frozen scorers: equal to what they say they are, in any environment."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from fasttrack.evals.manifest import length_bin
from fasttrack.evals.scorers import SCORERS
from fasttrack.evals.tasks import mrcr_synthetic

TEXTS = (
    *("70", " 70 ", "x = 70", "xyz = 70", "The answer is 70.", "$70$", "so $x$ is $70$", "$$"),
    *(r"\boxed{70}", r"\boxed{71} no \boxed{70}", r"\boxed{7{0}}", r"\boxed{70", r"\boxed 70$"),
    *(r"\fbox{70}", r"\boxed{\left 70 \right}", r"\boxed{70^\circ}", r"\boxed{70^{\circ}}"),
    *(r"\boxed{70\text{ cm}}", r"\boxed{70 \text{ a}\text{ b}}", r"\boxed{\$70}", r"\boxed{70\%}"),
    *(r"\boxed{070}", r"\boxed{70.0}", r"\boxed{7\!0}", r"\boxed{x=70}", r"\boxed{x=y=70}", ""),
    *(r"\boxed{\frac{140}{2}}", r"\boxed{140/2}", r"\boxed{7" + "\n" + "0}", r"\boxedfoo{70}"),
    *("$ 70", "a $70", r"\boxed{}", r"\boxed{70} then \boxed", r"\boxed{.5}", "=70", "70="),
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_aime_is_scored_as_by_the_stock_task(text: str) -> None:
    stock = importlib.import_module("lm_eval.tasks.aime.utils").process_results
    wanted = stock({"problem": "", "answer": "70"}, [text])["exact_match"]
    assert SCORERS["aime25"].score("", "70", text) == wanted


NUMBERS = (
    *(
        "18",
        " 18. ",
        "#### 18",
        "$18",
        "so 1,8 is 18.",
        "18.0",
        "-18",
        "it is 18 or 19",
        "19, no 18",
    ),
    *(
        "18%",
        "18 eggs",
        "$1,8",
        "eighteen",
        "",
        "...",
        "18 ...",
        "1-18",
        "0.18",
        "18$",
        "#### 1,8.",
    ),
)


@pytest.mark.parametrize("text", NUMBERS)
@pytest.mark.parametrize("wanted", ["18", "1,8", "-18"])
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_gsm_symbolic_is_scored_as_by_the_stock_filter(text: str, wanted: str) -> None:
    harness = importlib.import_module("fasttrack.evals.external.harness")
    config = harness._gsm_symbolic()
    assert (config["task"], config["num_fewshot"]) == ("gsm-symbolic", 0)
    stock = config["process_results"]({"answer": wanted}, [text])["exact_match"]
    assert SCORERS["gsm-symbolic"].score("", wanted, text) == stock


def test_mrcr_has_the_form_of_the_card() -> None:
    scorer = SCORERS["mrcr"]
    assert scorer.name == mrcr_synthetic.SCORER == "mrcr-card/1"
    assert scorer.score("aYooSG8CQg", "aYooSG8CQgowls", "aYooSG8CQgowls") == 1.0
    assert scorer.score("aYooSG8CQg", "aYooSG8CQgowls", " aYooSG8CQgowls") == 0.0
    assert 0 < scorer.score("aYooSG8CQg", "aYooSG8CQgowls", "aYooSG8CQgowl") < 1
    # Argument order moves scores: the answer given comes first.
    one, other = "tide", "diet"
    assert scorer.score("", one, other) != scorer.score("", other, one)
    for text in ("ab cde", "ab xyz", "zz cde"):
        long = ("qqqqqq " + text, "qqqqqq ab cde")
        assert scorer.score("qqqqqq", long[1], long[0]) == mrcr_synthetic.score(long[1], long[0])


@pytest.mark.parametrize(
    ("tokens", "name"),
    [(1, "1-4096"), (4096, "1-4096"), (4097, "4097-8192"), (8193, "8193-16384"),
     (600_000, "524289-1048576")],
)  # fmt: skip
def test_length_bins_double(tokens: int, name: str) -> None:
    assert length_bin(tokens) == name

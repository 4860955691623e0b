"""Frozen scorers of external evals, by eval. Leaf: measuring and verifying score alike.

Every variant has a name that records carry: variants of one benchmark's scorer are not
interchangeable, so another variant is another name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fasttrack.evals.tasks import mrcr_synthetic


@dataclass(frozen=True)
class Scorer:
    """A named pure score in [0, 1] of (random prefix, wanted answer, given text)."""

    name: str
    score: Callable[[str, str, str], float]


def _aime(prefix: str, wanted: str, text: str) -> float:
    """1 if the text's answer is the integer `wanted`, as lm-eval 0.4.13's stock task decides.

    The answer is what the last ``\\boxed`` holds, else what lies between the first and the last
    dollar sign, else the whole text. AIME answers are integers, so of the stock task's
    normalisation (`lm_eval/tasks/aime/utils.py`) only what can leave an integer matters.
    """
    boxed = _boxed(text)
    if boxed is not None:
        given = boxed
    elif text.count("$") > 1:
        given = text[text.index("$") + 1 : text.rindex("$")]
    else:
        given = text
    return float(given == wanted or _plain(given) == _plain(wanted))


def _boxed(text: str) -> str | None:
    """What the last ``\\boxed`` holds; None where the stock task finds no whole one."""
    if "\\boxed " in text:
        return text.rpartition("\\boxed ")[2].partition("$")[0]
    start = text.rfind("\\boxed")
    if start < 0 or not text.startswith("\\boxed{", start):
        return None
    depth = 0
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if text[end] == "}" and depth == 0:
            return text[start + len("\\boxed{") : end]
    return None


_DROPPED = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")


def _plain(text: str) -> str:
    """An answer without what may stand around an integer."""
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    for word in _DROPPED:
        text = text.replace(word, "")
    if text.count("\\text{ ") == 1:
        text = text.partition("\\text{ ")[0]
    text = text.replace("\\%", "")
    if re.match(r"[^=]{0,2}=[^=]*\Z", text):
        text = text.partition("=")[2]
    return text.replace(" ", "")


def _card(prefix: str, wanted: str, text: str) -> float:
    """The form on the card of Hugging Face `openai/mrcr`; see `mrcr_synthetic.SCORER`."""
    if not text.startswith(prefix):
        return 0.0
    answer = wanted.removeprefix(prefix)
    return difflib.SequenceMatcher(None, text.removeprefix(prefix), answer).ratio()


_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")


def _last_number(prefix: str, wanted: str, text: str) -> float:
    """1 if the last number in the text is `wanted`.

    Found and compared as by the filter `flexible-extract` of lm-eval 0.4.13's stock `gsm8k`
    (`lm_eval/tasks/gsm8k/gsm8k.yaml`).
    """
    found = ["".join(parts) for parts in _NUMBER.findall(text)]
    return float(bool(found) and _bare(found[-1]) == _bare(wanted))


def _bare(number: str) -> str:
    return re.sub(r"\.$", "", number.replace(",", "").replace("$", ""))


SCORERS: Mapping[str, Scorer] = {
    "aime25": Scorer("aime25-integer/1", _aime),
    "gsm-symbolic": Scorer("gsm-symbolic-last-number/1", _last_number),
    "mrcr": Scorer(mrcr_synthetic.SCORER, _card),
}

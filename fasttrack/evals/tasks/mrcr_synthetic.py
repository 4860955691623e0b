"""Multi-round co-reference: return the i-th of several answers to the same request, word for word.

Synthetic and offline, in the form of OpenAI's MRCR (Hugging Face `openai/mrcr`): a long dialogue of
requests and answers in which n requests are literally equal; the last turn asks for the answer to
the i-th of them, preceded by a given random string. Compact, so that a byte-level model with a few
million parameters can learn it: a request is a kind and a topic, an answer a few random words.
Every request of a dialogue occurs n times (but for a remainder), so that nothing but kind, topic
and ordinal tells a needle from a distractor.

Owns: the generator, which training shares under another name of its random stream, and the scorer.
"""

from __future__ import annotations

import difflib
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fasttrack.evals.task import Item
from fasttrack.evals.tasks.dialogue import Turn, render, tokens

SCORER = "mrcr-card/1"
"""The scorer: 0 unless the answer starts with the random string, else
`SequenceMatcher(None, answer, wanted).ratio()` of what follows it, with default autojunk. Argument
order and junk rule are those of the dataset's card and move scores; other variants have other
names."""

KINDS = ("poem", "song", "tale", "joke", "note", "memo", "list", "riff")
TOPICS = (
    *("ants", "bats", "cats", "dogs", "elms", "figs", "gold", "hats", "iron", "jazz", "kites"),
    *("lamps", "maps", "nuts", "oaks", "pears", "quilts", "rain", "snow", "tea", "urns", "vines"),
    *("wind", "yaks", "zinc", "bread", "coal", "dust", "eggs", "frost", "glue", "honey"),
)
WORDS = 5
"""Random words of one answer, of three to five letters each."""
PREFIX = 6
"""Characters of the random string."""
TURN_TOKENS = 44
"""Mean tokens of one request and its answer, so that lengths can be planned."""
SHORTEST = 512
"""Characters of the shortest prompt of an eval, where there is room for it."""


class Unit(NamedTuple):
    """What the length of a prompt is counted in."""

    measure: Callable[[str], int]
    turn: int
    """Mean size of one request and its answer."""
    question: int
    """Room for the question and its role markers."""


TOKENS = Unit(tokens, TURN_TOKENS, 48)
"""Of a byte-level tokenizer that knows the role markers."""
CHARACTERS = Unit(len, 75, 66)
"""No tokenizer needs more tokens than that."""


@dataclass(frozen=True)
class Round:
    """One request of a dialogue and its answer."""

    request: str
    text: str


def haystack(rng: random.Random, rounds: int, needles: int) -> list[Round]:
    """A dialogue of `rounds` requests, each made `needles` times except for a remainder."""
    keys = [f"{kind} about {topic}" for kind in KINDS for topic in TOPICS]
    chosen = rng.sample(keys, -(-rounds // needles))
    requests = [request for request in chosen for _ in range(needles)][:rounds]
    rng.shuffle(requests)
    return [Round(request, _words(rng)) for request in requests]


def turns(dialogue: Sequence[Round]) -> list[Turn]:
    """The dialogue as messages."""
    return [
        turn
        for one in dialogue
        for turn in (Turn("user", one.request), Turn("assistant", one.text))
    ]


def question(rng: random.Random, dialogue: Sequence[Round], index: int) -> tuple[str, str]:
    """(question, wanted answer) about round `index`, with a fresh random string."""
    request, text = dialogue[index].request, dialogue[index].text
    ordinal = sum(one.request == request for one in dialogue[: index + 1])
    kind, rest = request.split(" ", 1)
    prefix = "".join(rng.choices(string.ascii_lowercase + string.digits, k=PREFIX))
    return f"prepend {prefix} to {kind} {ordinal} {rest}", f"{prefix} {text}"


def score(wanted: str, text: str) -> float:
    """`SCORER` of an answer's text, in [0, 1]."""
    prefix = wanted[:PREFIX]
    if not text.startswith(prefix):
        return 0.0
    return difflib.SequenceMatcher(None, text[PREFIX:], wanted[PREFIX:]).ratio()


def items(
    seed: int,
    count: int,
    needles: int,
    shortest: int,
    longest: int,
    stream: str = "eval",
    unit: Unit = TOKENS,
) -> list[Item]:
    """Items whose prompts grow geometrically from about `shortest` to at most `longest`.

    Two needles fit in `task.MIN_PROMPT_TOKENS` of any unit. The wanted needle is drawn evenly.
    `stream` names the random stream: items and training rows of equal seeds have nothing in common.
    """
    made = []
    for index in range(count):
        rng = random.Random(f"mrcr-synthetic/{stream}/{seed}/{needles}/{index}")
        share = index / max(1, count - 1)
        room = shortest * (longest / shortest) ** share - unit.question
        dialogue = haystack(rng, max(needles, int(room / unit.turn)), needles)
        full = [i for i, one in enumerate(dialogue) if _count(dialogue, one.request) == needles]
        wanted = dialogue[rng.choice(full)]
        while len(dialogue) > needles and unit.measure(render(turns(dialogue))) > room:
            surplus = [i for i, one in enumerate(dialogue) if one.request != wanted.request]
            if not surplus:
                break
            del dialogue[surplus[-1]]
        asked, answer = question(rng, dialogue, dialogue.index(wanted))
        prompt = render([*turns(dialogue), Turn("user", asked)])
        made.append(Item(id=f"mrcr-{needles}n-{seed}-{index}", prompt=prompt, answer=answer))
    return made


def _count(dialogue: Sequence[Round], request: str) -> int:
    return sum(one.request == request for one in dialogue)


def _words(rng: random.Random) -> str:
    return " ".join(
        "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 5))) for _ in range(WORDS)
    )


@dataclass(frozen=True)
class MrcrSynthetic:
    """Two needles, in prompts that grow to what the context admits. See the module docstring."""

    name: str = "mrcr-synthetic"
    answer_tokens: int | None = None
    judged: bool = True

    def items(self, seed: int, count: int, max_prompt_tokens: int) -> Sequence[Item]:
        """Sizes are in characters, so that the prompts fit whatever the tokenizer."""
        shortest = min(SHORTEST, max_prompt_tokens)
        return items(seed, count, 2, shortest, max_prompt_tokens, unit=CHARACTERS)

    def score(self, item: Item, text: str) -> float:
        """`SCORER`."""
        return score(item.answer, text)


TASK = MrcrSynthetic()

"""Turns of a conversation and their plain form, shared by the synthetic tasks and by training.

Owns: the role markers. A marker is one token of a tokenizer that knows it as a special token, as
k3-nano's does, and its text is what that model's chat template writes: a rendered conversation
and the chat path of a server give the same token ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

END = "<|end|>"
"""Ends every turn; a model that has answered stops with it."""

_MARKER = re.compile(r"<\|[a-z]+\|>")


class Turn(NamedTuple):
    """One message."""

    role: str
    """`user` or `assistant`."""
    text: str


def render(turns: Iterable[Turn], answer: bool = True) -> str:
    """The conversation as one text; with `answer`, up to where the assistant begins to speak."""
    text = "".join(f"<|{turn.role}|>{turn.text}{END}" for turn in turns)
    return text + "<|assistant|>" if answer else text


def tokens(text: str) -> int:
    """Length of rendered `text` in byte-level tokens, each marker counted as one."""
    return len(_MARKER.sub("_", text).encode())

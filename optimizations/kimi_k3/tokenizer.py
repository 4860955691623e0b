"""The byte-level tokenizer of the small checkpoints, and their chat template.

Owns: token ids and the content of `tokenizer.json`. Written here rather than by a library, so that
the bytes depend on no library version. Read by: the checkpoint writer, training.
"""

from __future__ import annotations

from typing import Any

SPECIALS = ("<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
BYTES = 256
EOS, PAD, END = (BYTES + SPECIALS.index(name) for name in ("<|eos|>", "<|pad|>", "<|end|>"))

_SPACE = "\u0120"
"""How byte-level BPE writes a space."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tokenizer(vocab: int, words: bool = False) -> dict[str, Any]:
    """Content of `tokenizer.json`: byte-level BPE without merges, then specials up to `vocab`.

    A token id below 256 is its byte's value. With `words` what fills the vocabulary is no special
    but text that no encoding makes: a model that says anything whatever then says something in
    every step. Of specials alone there is no text, and engines that make text step by step go
    through the whole prompt again each time, 0.1 to 0.2 us a token.
    """
    fill = range(vocab - BYTES - len(SPECIALS))
    names = SPECIALS + (() if words else tuple(f"<|extra_{n}|>" for n in fill))
    flags = {key: False for key in ("single_word", "lstrip", "rstrip", "normalized")}
    added = [
        {"id": BYTES + n, "content": name, "special": True, **flags} for n, name in enumerate(names)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {character: byte for byte, character in enumerate(_byte_characters())}
        | {f"{_SPACE}w{n}": BYTES + len(SPECIALS) + n for n in (fill if words else ())},
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def _byte_characters() -> list[str]:
    """The printable character by which byte-level BPE writes each byte value."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_in = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(stand_in)) for byte in range(BYTES)]

"""Prompt text for the sweep: real text, by digest, and never random tokens.

Shipped are passages written for this project (`prompts.jsonl`: documents, code, mails, chat and
prose, in several languages); a target may name a set of its own. Every prompt starts with its own
number, so that no two share a cached prefix. Owns reading, order, digests, and how even the tokens
are: random tokens send a mixture-of-experts model to all of its experts alike, which no real text
does. Read by `sweep`.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fasttrack.errors import UsageError
from fasttrack.schema.claim import PromptSet

SHIPPED = Path(__file__).with_name("prompts.jsonl")
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Passages:
    """Texts of a prompt set, and the digest of the file they came from."""

    texts: tuple[str, ...]
    sha256: str


def load(wanted: PromptSet | None, folder: Path) -> Passages:
    """The target's own set, by its path from the optimization's folder, or the shipped one.

    JSON lines, each an object with a text under `text` or `prompt`. Raises `UsageError` PRF-001 for
    a file that cannot be read so, PRF-002 for another digest than the claim's.
    """
    path = SHIPPED if wanted is None else folder / wanted.file
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
        data = path.read_bytes()
        texts = tuple(_text(line) for line in data.decode("utf-8").splitlines() if line.strip())
        if not texts:
            raise ValueError("it holds no text")
    except (OSError, ValueError) as error:
        told = " ".join(str(error).split())[:200]
        raise UsageError(
            "PRF-001",
            f"prompt set {path}: {told}",
            next_step='write one JSON object a line, with a non-empty text under "text"',
        ) from error
    sha256 = hashlib.sha256(data).hexdigest()
    if wanted is not None and wanted.sha256 not in (None, sha256):
        raise UsageError(
            "PRF-002",
            f"prompt set {path} has the digest {sha256}, the claim wants {wanted.sha256}",
            next_step="get the file the claim was written for, or pin the new digest on purpose",
        )
    return Passages(texts, sha256)


def _text(line: str) -> str:
    told = json.loads(line)
    found = told.get("text") or told.get("prompt") if isinstance(told, dict) else None
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"no text in {line[:60]!r}")
    return found


def corpus(passages: Sequence[str], seed: int, characters: int) -> str:
    """At least `characters` characters of passages in seeded order."""
    rng = random.Random(f"corpus/{seed}")
    parts: list[str] = []
    length = 0
    while length < characters:
        for passage in rng.sample(passages, len(passages)):
            parts.append(passage)
            length += len(passage)
    return "".join(parts)


def header(seed: int, cell: str, index: int) -> str:
    """A first line no other prompt of the run has."""
    number = random.Random(f"header/{seed}/{cell}/{index}").randrange(10**9)
    return f"{number:09d} "


def evenness(tokens: Sequence[int]) -> float:
    """Entropy of the token frequencies over its largest value for as many kinds; 1 is uniform.

    Source: Pielou, Journal of Theoretical Biology 13, 1966. 0 where all tokens are one.
    """
    counts = Counter(tokens)
    if len(counts) < 2:
        return 0.0
    total = len(tokens)
    bits = -math.fsum(n / total * math.log2(n / total) for n in counts.values())
    return bits / math.log2(len(counts))


def digest(asked: Sequence[Sequence[int]]) -> str:
    """SHA-256 over the token ids of prompts, in order."""
    return hashlib.sha256(json.dumps([list(ids) for ids in asked]).encode()).hexdigest()

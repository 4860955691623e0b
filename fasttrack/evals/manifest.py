"""The frozen items of an external eval: ids, digests of rendered prompts, scorer and data.

`fasttrack evals prepare` writes one file per eval and target into the optimization's folder; a run
asks exactly these items and its bundle holds them, so that a verifier can score the answers again.
Leaf: it reads no data set and asks no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from fasttrack.errors import UsageError
from fasttrack.evals.scorers import SCORERS
from fasttrack.evals.source import locate
from fasttrack.schema import Claim
from fasttrack.schema._json import canonical_bytes, loads
from fasttrack.schema.claim import Frozen

FOLDER = "evals"
ALIASED = ConfigDict(
    extra="forbid",
    frozen=True,
    allow_inf_nan=False,
    serialize_by_alias=True,
    populate_by_name=True,
)
HARNESS = "lm-eval 0.4.13"
"""What renders the prompts; another version may render others."""
FIRST_EDGE = 4096
"""Upper edge of the shortest length bin; every further edge is twice the one before."""


class PlannedItem(Frozen):
    """One question of a data file."""

    id: str
    prompt_sha256: str
    """Of the token ids of the rendered prompt, as decimal numbers with commas between."""
    prompt_tokens: int
    bin: str
    """Tokens of prompt and wanted answer, by the model's own tokenizer: ``4097-8192``."""
    needles: int = 0
    """Of MRCR: how often the wanted request occurs."""
    prefix: str = ""
    """Of MRCR: the random string an answer must begin with."""
    answer: str


class Manifest(Frozen):
    """All items of one eval on one target, with everything that decides how they are asked."""

    schema_: Literal["fasttrack.items/v1"] = Field(default="fasttrack.items/v1", alias="schema")
    eval: str
    target: str
    harness: str
    scorer: str
    data_sha256: str
    answer_tokens: int
    samples: int
    temperature: float
    top_p: float
    items: tuple[PlannedItem, ...]

    model_config = ALIASED


class Manifests(Frozen):
    """The manifests of a run, in the order of their names: `claim/evals.json`."""

    schema_: Literal["fasttrack.evals/v1"] = Field(default="fasttrack.evals/v1", alias="schema")
    manifests: tuple[Manifest, ...] = ()

    model_config = ALIASED

    def of(self, name: str) -> Manifest:
        """The manifest of an eval; raises KeyError."""
        for manifest in self.manifests:
            if manifest.eval == name:
                return manifest
        raise KeyError(name)


def sample_name(item: PlannedItem, sample: int, samples: int) -> str:
    """Name of one answer to an item: of ``item#3``, the item stands before the ``#``."""
    return item.id if samples == 1 else f"{item.id}#{sample}"


def path_of(folder: Path, target: str, name: str) -> Path:
    """Where the manifest of an eval on a target lies."""
    return folder / FOLDER / f"{name}.{target}.json"


def prompt_digest(ids: Sequence[int]) -> str:
    """`PlannedItem.prompt_sha256` of token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def length_bin(tokens: int) -> str:
    """Name of the length bin: ``1-4096``, ``4097-8192``, ``8193-16384``, ..."""
    low, high = 1, FIRST_EDGE
    while tokens > high:
        low, high = high + 1, 2 * high
    return f"{low}-{high}"


def file_digest(path: Path, name: str) -> str:
    """SHA-256 of a data file; raises `UsageError` EVL-001 if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(
            "EVL-001",
            f"the data of {name} cannot be read: {path}: {error.strerror}",
            next_step="mend `file` in claim.toml, or put the official file there",
            cell=name,
        ) from error


def write(manifest: Manifest, folder: Path) -> Path:
    """Freeze a manifest in the optimization's folder; returns its path."""
    path = path_of(folder, manifest.target, manifest.eval)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(canonical_bytes(manifest.json_value()) + b"\n")
    return path


def load(
    claim: Claim, target: str, folder: Path, given: Mapping[str, Path] | None = None
) -> Manifests:
    """The manifests of all external evals of a target, each found to be that of claim and data.

    `given` is as for `source.locate`. Raises what that raises, and `UsageError`: EVL-001 no data
    file, EVL-002 another digest than the claim's, EVL-005 no manifest, EVL-006 a manifest of
    something else.
    """
    found = []
    files = locate(claim, target, folder, given or {})
    for name in sorted(claim.targets[target].evals):
        wanted = claim.targets[target].evals[name]
        path = path_of(folder, target, name)
        again = f"fasttrack evals prepare {folder} --target {target}"
        try:
            manifest = Manifest.model_validate(loads(path.read_bytes()))
        except OSError as error:
            raise UsageError(
                "EVL-005", f"no items of {name} are frozen: {path}", next_step=again, cell=name
            ) from error
        except (ValueError, ValidationError) as error:
            raise UsageError(
                "EVL-006", f"{path}: {str(error)[:300]}", next_step=again, cell=name
            ) from error
        facts = {
            "eval": name,
            "target": target,
            "harness": HARNESS,
            "scorer": SCORERS[name].name,
            "data_sha256": data_digest(files[name], wanted.sha256, name),
            "answer_tokens": wanted.answer_tokens,
            "samples": wanted.samples,
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
        }
        odd = [key for key, value in facts.items() if getattr(manifest, key) != value]
        ids = {item.id for item in manifest.items}
        if odd or not ids or len(ids) < len(manifest.items):
            told = f"other {', '.join(odd)}" if odd else "no items, or two with one name"
            raise UsageError("EVL-006", f"{path}: {told}", next_step=again, cell=name)
        found.append(manifest)
    return Manifests(manifests=tuple(found))


def data_digest(path: Path, wanted: str | None, name: str) -> str:
    """Digest of a data file; raises EVL-001, or EVL-002 if it is not the `wanted` one."""
    digest = file_digest(path, name)
    if wanted not in (None, digest):
        raise UsageError(
            "EVL-002",
            f"{path} has the digest {digest}, the claim wants {wanted}",
            next_step="get the file the claim was written for, or pin the new digest on purpose",
            cell=name,
        )
    return digest

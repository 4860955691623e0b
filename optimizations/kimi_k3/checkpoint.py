"""Writes the small K3 checkpoints: same bytes on every IEEE machine, digest pinned.

Owns: the generated weights, the byte-level tokenizer, the files of a checkpoint folder and their
digest. Does not own: names and shapes (`reference.weights`), dimensions (`dims`).
Read by: engines and tests, through the folder.

    python -m kimi_k3.checkpoint k3-nano OUT [--seed N]    write, or keep an identical OUT
    python -m kimi_k3.checkpoint k3-nano OUT --check       compare OUT with the pinned digest

Prints the digest on stdout. Exit status 0, or 2 with the reason on stderr.

Every file is serialised here rather than by a library, so that the digest depends on no library
version. Weights use integers, IEEE multiplication, division and square root only: each of those is
correctly rounded everywhere, which logarithms and cosines are not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kimi_k3.dims import Dims
from kimi_k3.presets import ARCHITECTURE, MODEL_TYPE, PRESETS
from kimi_k3.reference.weights import LM_HEAD, Shape, shapes

SPECIALS = ("<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
BYTES = 256
EOS, PAD, END = (BYTES + SPECIALS.index(name) for name in ("<|eos|>", "<|pad|>", "<|end|>"))

WRITABLE = tuple(name for name in PRESETS if name != "k3")
"""Presets small enough to generate."""

PINNED: Mapping[str, str] = {
    "k3-nano": "62a4547fa3b89cec084746723c76052b0cfa73096e153b8890a6bae38e5bf800",
    "k3-nano-13": "c4159f4bcba0bb50fd7fd5cbd3bbbd4d216037f6f9745b79cfee0b576455184f",
    "k3-nano-b4": "8a8a8503a83c1ed5d8ad272acb6be8591ce39d882a1c12e881ef07b593e233ab",
}
"""Digest of each writable preset at seed 0."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

Array = NDArray[np.float32]


class CheckpointError(Exception):
    """A checkpoint folder that cannot be written or is not what it should be."""


def write(name: str, folder: str | Path, seed: int = 0) -> str:
    """Write preset `name` to `folder` and return its digest.

    The folder appears whole or not at all. One that already holds exactly these files is kept.
    Raises CheckpointError for an unknown name, for a folder holding anything else, and where this
    machine does not reproduce the pinned digest.
    """
    if name not in WRITABLE:
        raise CheckpointError(f"no checkpoint called {name!r}; known: {', '.join(WRITABLE)}")
    folder = Path(folder)
    pinned = PINNED.get(name) if seed == 0 else None
    if pinned is not None and _occupied(folder):
        _require(folder, pinned, f"{name} at seed 0")
        return pinned
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_files(made, PRESETS[name], seed)
        result = digest(made)
        if pinned is not None and result != pinned:
            raise CheckpointError(
                f"{name} came out as {result}, but {pinned} is pinned: "
                "the generator changed or this machine's arithmetic is not IEEE 754"
            )
        made.chmod(0o755)
        if not _moved(made, folder):
            _require(folder, result, f"{name} at seed {seed}")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return result


def _occupied(folder: Path) -> bool:
    return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))


def _moved(made: Path, folder: Path) -> bool:
    """Rename `made` to `folder` unless something is there, perhaps since a moment ago."""
    try:
        os.replace(made, folder)
    except OSError:
        if not _occupied(folder):
            raise
        return False
    return True


def _require(folder: Path, wanted: str, what: str) -> None:
    found = digest(folder)
    if found != wanted:
        raise CheckpointError(
            f"{folder} exists and is not {what} (digest {found}, not {wanted}): "
            "remove it or name another folder"
        )


def verify(name: str, folder: str | Path) -> str:
    """Digest of `folder` if it is the pinned one of `name`. Raises CheckpointError if not."""
    if name not in PINNED:
        raise CheckpointError(f"no digest is pinned for {name!r}; known: {', '.join(PINNED)}")
    found = digest(folder)
    if found != PINNED[name]:
        raise CheckpointError(f"{folder} has digest {found}, {name} is pinned at {PINNED[name]}")
    return found


def digest(folder: str | Path) -> str:
    """SHA-256 over one line `path sha256 size` per file of `folder`, sorted by path.

    Raises CheckpointError where `folder` is not a directory.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    lines = []
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            lines.append(f"{path.relative_to(folder).as_posix()} {content} {path.stat().st_size}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


# ---- weights ----------------------------------------------------------------------------------


def weights(dims: Dims, seed: int = 0) -> dict[str, Array]:
    """Every tensor of the checkpoint, float32, by name in file order.

    Each tensor has its own stream, keyed by `seed` and its name, so that adding a tensor moves no
    other. Scales are those of a network whose greedy decode neither collapses nor saturates.
    """
    return {name: _tensor(name, shape, dims, seed) for name, shape in shapes(dims).items()}


def _tensor(name: str, shape: Shape, dims: Dims, seed: int) -> Array:
    count = math.prod(shape)
    raw = _stream(name, seed, count)
    if name.endswith(".A_log"):
        # Sixteenths from 0 to 22/16: decay rates 1 to 4, without a logarithm. The released tensor
        # is longer than the number of heads and zero there; so is this one.
        value = np.zeros(2 * dims.kda_heads)
        value[:count] = (raw % np.uint64(23)).astype(np.float64) / 16.0
        return value.astype(np.float32)
    if name.endswith(".dt_bias"):
        value = (raw >> np.uint64(48)).astype(np.float64) * (-4.0 / 65536.0)
    else:
        mean, deviation = _scale(name, shape)
        value = mean + deviation * _normal(raw)
    return value.astype(np.float32).reshape(shape)


def _scale(name: str, shape: Shape) -> tuple[float, float]:
    """Mean and standard deviation of the tensor called `name`."""
    rules: tuple[tuple[Callable[[str], bool], float, float], ...] = (
        (lambda n: n.endswith("e_score_correction_bias"), 0.0, 0.1),
        (lambda n: n.endswith("conv1d.weight"), 0.0, 0.5),
        (lambda n: n.endswith("embed_tokens.weight"), 0.0, 1.0),
        (lambda n: n == LM_HEAD, 0.0, 2.0 / math.sqrt(shape[-1])),
        (lambda n: n.endswith("res_proj.weight"), 0.0, 0.75 / math.sqrt(shape[-1])),
        (lambda n: len(shape) == 1, 1.0, 0.1),
        (lambda n: True, 0.0, 1.0 / math.sqrt(shape[-1])),
    )
    return next((mean, deviation) for applies, mean, deviation in rules if applies(name))


def _stream(name: str, seed: int, count: int) -> NDArray[np.uint64]:
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.PCG64(int.from_bytes(key[:16], "big"))
    return np.asarray(generator.random_raw(count), dtype=np.uint64)


def _normal(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Nearly normal, mean 0 and variance 1: the centred sum of the four 16-bit parts of `raw`."""
    low = np.uint64(0xFFFF)
    total = sum((raw >> np.uint64(shift)) & low for shift in (0, 16, 32, 48))
    centred = np.asarray(total).astype(np.float64) - 2.0 * 65535.0
    return centred / math.sqrt((65536.0 * 65536.0 - 1.0) / 3.0)


# ---- files ------------------------------------------------------------------------------------


def _write_files(folder: Path, preset: Mapping[str, Any], seed: int) -> None:
    dims = Dims.from_config(preset)
    ids = {"eos_token_id": EOS, "pad_token_id": PAD}
    config = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "dtype": "float32"}
    _write_json(folder / "config.json", {**config, **ids, **preset})
    _write_json(folder / "generation_config.json", {**ids, "eos_token_id": [EOS, END]})
    _write_json(folder / "tokenizer.json", _tokenizer(dims.vocab))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "model_max_length": dims.max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_tensors(folder / "model.safetensors", weights(dims, seed))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True)
    path.write_bytes(text.encode() + b"\n")


def _write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """The safetensors layout: header length, JSON header padded to 8 bytes, then the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            stream.write(tensor.astype("<f4").tobytes())


def _tokenizer(vocab: int) -> dict[str, Any]:
    """Byte-level BPE without merges: token id = byte value, then specials up to `vocab`."""
    names = SPECIALS + tuple(f"<|extra_{n}|>" for n in range(vocab - BYTES - len(SPECIALS)))
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
        "vocab": {character: byte for byte, character in enumerate(_byte_characters())},
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


# ---- command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="kimi_k3.checkpoint", description="small K3 checkpoints")
    parser.add_argument("name", help=f"one of {', '.join(WRITABLE)}")
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="compare with the pinned digest only")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            print(verify(options.name, options.folder))
        else:
            print(write(options.name, options.folder, options.seed))
    except (CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

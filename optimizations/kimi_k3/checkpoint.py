"""Writes the small K3 checkpoints: same bytes on every IEEE machine, digest pinned.

Owns: the generated weights, the files of a checkpoint folder and their digest. Does not own: the
trained weights (the files of `weights/`, made by `training`), names and shapes
(`reference.weights`), dimensions (`dims`), the tokenizer (`tokenizer`).
Read by: engines and tests, through the folder.

    python -m kimi_k3.checkpoint k3-nano OUT                  write, or keep an identical OUT
    python -m kimi_k3.checkpoint k3-nano OUT --check          compare OUT with the pinned digest
    python -m kimi_k3.checkpoint k3-nano-random OUT --seed N  random weights, for tests of numerics

Prints the digest on stdout. Exit status 0, or 2 with the reason on stderr.

Every file is serialised here rather than by a library, so that the digest depends on no library
version. Trained weights are shipped in BF16 and written in FP32, the precision they are judged in:
that conversion is exact. Generated weights use integers, IEEE multiplication, division and square
root only: each of those is correctly rounded everywhere, which logarithms and cosines are not.
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
from safetensors import SafetensorError
from safetensors.torch import load_file

from kimi_k3.dims import Dims
from kimi_k3.presets import ARCHITECTURE, MODEL_TYPE, NANO, NANO_13, NANO_B4
from kimi_k3.reference.weights import LM_HEAD, Shape, shapes
from kimi_k3.tokenizer import CHAT_TEMPLATE, END, EOS, PAD, tokenizer

TRAINED = "k3-nano"
"""The checkpoint whose weights are trained, and therefore have no seed."""
GENERATED: Mapping[str, Mapping[str, Any]] = {
    "k3-nano-random": NANO,
    "k3-nano-13": NANO_13,
    "k3-nano-b4": NANO_B4,
}
"""Checkpoints with weights from a seed, and their configurations."""
WRITABLE = (TRAINED, *GENERATED)
SHIPPED = Path(__file__).with_name("weights") / TRAINED / "weights.safetensors"

PINNED: Mapping[str, str] = {
    "k3-nano": "cf7e8a90eb3944d9bc19dd2600499dded79508936369d80fe7400f35b87f6f29",
    "k3-nano-random": "62a4547fa3b89cec084746723c76052b0cfa73096e153b8890a6bae38e5bf800",
    "k3-nano-13": "c4159f4bcba0bb50fd7fd5cbd3bbbd4d216037f6f9745b79cfee0b576455184f",
    "k3-nano-b4": "8a8a8503a83c1ed5d8ad272acb6be8591ce39d882a1c12e881ef07b593e233ab",
}
"""Digest of each checkpoint, at seed 0 where it has one."""

Array = NDArray[np.float32]


class CheckpointError(Exception):
    """A checkpoint folder that cannot be written or is not what it should be."""


def write(name: str, folder: str | Path, seed: int = 0) -> str:
    """Write checkpoint `name` to `folder` and return its digest.

    The folder appears whole or not at all. One that already holds exactly these files is kept.
    Raises CheckpointError for an unknown name, a seed of trained weights, a folder holding anything
    else, and where this machine does not reproduce the pinned digest.
    """
    if name not in WRITABLE:
        raise CheckpointError(f"no checkpoint called {name!r}; known: {', '.join(WRITABLE)}")
    if name == TRAINED and seed:
        raise CheckpointError(f"{name} is trained and has no seed; k3-nano-random has")
    folder = Path(folder)
    pinned = PINNED.get(name) if seed == 0 else None
    if pinned is not None and _occupied(folder):
        _require(folder, pinned, f"{name} at seed 0")
        return pinned
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        preset = GENERATED.get(name, NANO)
        dims = Dims.from_config(preset)
        _write_files(made, preset, trained(dims) if name == TRAINED else weights(dims, seed))
        result = digest(made)
        if pinned is not None and result != pinned:
            raise CheckpointError(
                f"{name} came out as {result}, but {pinned} is pinned: "
                f"{'the shipped weights' if name == TRAINED else 'the generator'} changed or this "
                "machine's arithmetic is not IEEE 754"
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


def trained(dims: Dims) -> dict[str, Array]:
    """Every tensor of the trained checkpoint, float32, by name in file order.

    Raises CheckpointError where the shipped file is not readable or not of these dimensions.
    """
    try:
        stored = load_file(SHIPPED)
        found = {name: stored[name].float().numpy() for name in shapes(dims)}
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"cannot read the trained weights {SHIPPED}: {error}") from error
    return {name: _released(name, value, dims) for name, value in found.items()}


def _released(name: str, value: Array, dims: Dims) -> Array:
    """`value` in the form of the released checkpoint, whose A_log is longer than the number of
    heads and zero there."""
    if not name.endswith(".A_log"):
        return value
    return np.concatenate((value, np.zeros(2 * dims.kda_heads - len(value), np.float32)))


def weights(dims: Dims, seed: int = 0) -> dict[str, Array]:
    """Every tensor of a generated checkpoint, float32, by name in file order.

    Each tensor has its own stream, keyed by `seed` and its name, so that adding a tensor moves no
    other. Scales are those of a network whose greedy decode neither collapses nor saturates.
    """
    return {name: _tensor(name, shape, dims, seed) for name, shape in shapes(dims).items()}


def _tensor(name: str, shape: Shape, dims: Dims, seed: int) -> Array:
    count = math.prod(shape)
    raw = _stream(name, seed, count)
    if name.endswith(".A_log"):
        # Sixteenths from 0 to 22/16: decay rates 1 to 4, without a logarithm.
        value = (raw % np.uint64(23)).astype(np.float64) / 16.0
        return _released(name, value.astype(np.float32), dims)
    if name.endswith(".dt_bias"):
        value = (raw >> np.uint64(48)).astype(np.float64) * (-4.0 / 65536.0)
    else:
        mean, deviation = scale(name, shape)
        value = mean + deviation * _normal(raw)
    return value.astype(np.float32).reshape(shape)


def scale(name: str, shape: Shape) -> tuple[float, float]:
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


def _write_files(folder: Path, preset: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
    config = {"architectures": [ARCHITECTURE], "model_type": MODEL_TYPE, "dtype": "float32"}
    write_text_files(folder, {**config, **preset})
    _write_tensors(folder / "model.safetensors", tensors)


def write_text_files(folder: Path, config: Mapping[str, Any], words: bool = False) -> None:
    """Everything of a checkpoint but its tensors, for a configuration without token ids.

    `words`: see `tokenizer`.
    """
    dims = Dims.from_config(config)
    ids = {"eos_token_id": EOS, "pad_token_id": PAD}
    _write_json(folder / "config.json", {**ids, **config})
    _write_json(folder / "generation_config.json", {**ids, "eos_token_id": [EOS, END]})
    _write_json(folder / "tokenizer.json", tokenizer(dims.vocab, words))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "model_max_length": dims.max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer_config)


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

"""Checkpoints of which a rank is a rank of eight of Kimi K3: full width, few layers, by seed.

Owns: the configurations and weights of `k3-slice` and `k3-slice-deep` (one GPU), `k3-slice2` (two)
and `k3-slice8` (eight: whole layers), in names and formats of the released checkpoint: routed
experts in MXFP4, gates and convolutions in FP32, all else in BF16. Does not own: names and shapes
(`reference.weights`). Read by: vLLM's own Kimi K3.

    python -m kimi_k3.slices k3-slice OUT     26 GiB, deep and 2: 50, 8: 69; seconds on GPUs

Thirteen layers: one with a dense MLP, three MLA, two that write a block of the attention residual;
of `k3-slice-deep` 25, which take a GPU longer than the host needs for a step; of `k3-slice8` five,
one of each kind. Values come from integers hashed from seed, name and
position, and from single IEEE multiplications and additions: a GPU and a CPU write the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from kimi_k3.checkpoint import CheckpointError, scale, write_text_files
from kimi_k3.dims import Dims
from kimi_k3.presets import K3, layers
from kimi_k3.reference.weights import MODEL, PREFIX, Shape, layer_prefix, shapes

ARCHITECTURES = ("FasttrackKimiLinearForCausalLM", "KimiLinearForCausalLM")
"""vLLM's text decoder of Kimi K3: with our path where this package is installed, else as it is."""
RANKS_OF_K3 = 8
GROUP = 32
"""Columns of a weight that share one E8M0 exponent; a byte holds two of E2M1, the even one low."""
E2M1_RMS = 2.93
"""Root mean square of the sixteen values of E2M1."""
SCALE_SPREAD_RMS = math.sqrt(2.5)
"""The same of scales that are one or two, equally often."""
E8M0_ONE = 127

CALM = 1 / 20
"""Of the usual size are the matrices through which a layer adds to the residual. At full size a
checkpoint of random weights is chaotic: the last bit of a number changes every later token, and
answers tell nothing of whoever computed them. At this size they move several times more by a layer
left out than by last bits (`test_slices`)."""
OUTWARD = (
    ".self_attn.o_proj.weight",
    ".mlp.down_proj.weight",
    ".shared_experts.down_proj.weight",
    ".routed_expert_up_proj.weight",
)
"""Ends of their names. Routed experts are normalised behind their sum, so that theirs is none."""

JOBS = 4
"""Processes that share a GPU: making and writing a layer take turns."""

_FLOAT32 = (".A_log", ".dt_bias", "conv1d.weight", "e_score_correction_bias")
_PIECE = 2**26
"""Elements made at a time: what bounds the memory beside the tensors themselves."""


def _slice(ranks: int, count: int, latent: tuple[int, ...]) -> dict[str, Any]:
    """`count` layers, those in `latent` with MLA."""
    share = ranks / RANKS_OF_K3

    def part(key: str) -> int:
        return int(K3[key] * share)

    kda = K3["linear_attn_config"] | layers(count, latent)
    return K3 | {
        "num_hidden_layers": count,
        "linear_attn_config": kda | {"num_heads": int(kda["num_heads"] * share)},
        "num_attention_heads": part("num_attention_heads"),
        "vocab_size": part("vocab_size"),
        "intermediate_size": part("intermediate_size"),
        "moe_intermediate_size": part("moe_intermediate_size"),
        "max_position_embeddings": 131072,
        # Of MLA's queries. Without it vLLM divides the hidden size by the few heads of a slice.
        "head_dim": K3["qk_nope_head_dim"] + K3["qk_rope_head_dim"],
    }


SLICES: Mapping[str, Mapping[str, Any]] = {
    "k3-slice": _slice(1, 13, (4, 8, 12)),
    "k3-slice-deep": _slice(1, 25, (4, 8, 12, 16, 20, 24)),
    "k3-slice2": _slice(2, 13, (4, 8, 12)),
    "k3-slice8": _slice(8, 5, (4,)),
}
"""Configurations by name: shares of one and of two ranks of eight, and whole layers."""


def write(
    preset: Mapping[str, Any], folder: Path, seed: int = 0, devices: Sequence[str] = ("cpu",)
) -> None:
    """Write a checkpoint of `preset`, one file per layer and one for the rest. As many processes
    write as `devices` are named, each on its own; one needs no process.

    Raises CheckpointError where `folder` holds anything already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder} is not empty: remove it or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    files = _files(Dims.from_config(preset))
    index: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        each: Callable[..., Iterable[list[str]]] = map
        if len(devices) > 1:
            # A process that has used a GPU cannot be forked.
            pool = ProcessPoolExecutor(len(devices), multiprocessing.get_context("spawn"))
            each = stack.enter_context(pool).map
        cells = zip(files.items(), itertools.cycle(devices), strict=False)
        jobs = [(folder / file, names, seed, device) for (file, names), device in cells]
        for (path, *_), names in zip(jobs, each(_write_file, jobs), strict=True):
            index |= dict.fromkeys(names, path.name)
    told = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(told, indent=1) + "\n")
    quantised = {"quant_method": "mxfp4", "format": "mxfp4-pack-quantized"}
    write_text_files(
        folder,
        {
            "architectures": list(ARCHITECTURES),
            "model_type": "kimi_linear",
            "dtype": "bfloat16",
            "quantization_config": quantised,
            **preset,
        },
        words=True,
    )


def _write_file(job: tuple[Path, Mapping[str, Shape], int, str]) -> list[str]:
    """The names of what was written."""
    path, names, seed, device = job
    tensors = {
        name.removeprefix(PREFIX): tensor.cpu()
        for wanted, shape in names.items()
        for name, tensor in _stored(wanted, shape, seed, device)
    }
    save_file(tensors, path, {"format": "pt"})
    return list(tensors)


def _files(dims: Dims) -> dict[str, dict[str, Shape]]:
    """Tensors of `reference.weights`, by the file that holds them."""
    files: dict[str, dict[str, Shape]] = {
        f"layer-{layer:02d}.safetensors": {} for layer in range(dims.layers)
    }
    files["rest.safetensors"] = {}
    starts = {layer_prefix(layer): file for layer, file in enumerate(files)}
    for name, shape in shapes(dims).items():
        start = ".".join(name.removeprefix(MODEL).split(".")[:2])
        files[starts.get(f"{MODEL}{start}.", "rest.safetensors")][name] = shape
    return files


def _stored(name: str, shape: Shape, seed: int, device: str) -> Iterator[tuple[str, Tensor]]:
    """A tensor as the checkpoint holds it; of a routed expert its codes and exponents."""
    if ".experts." in name:
        stem = name.removesuffix("weight")
        yield stem + "weight_packed", _codes(name, shape, seed, device)
        yield stem + "weight_scale", _exponents(name, shape, seed, device)
        return
    dtype = torch.float32 if name.endswith(_FLOAT32) else torch.bfloat16
    yield name, _values(name, shape, seed, device, dtype)


def _values(name: str, shape: Shape, seed: int, device: str, dtype: torch.dtype) -> Tensor:
    """Nearly normal numbers: the centred sum of the four 16-bit parts of a word, scaled.

    Every step is exact or correctly rounded on its own, so that no device fuses two.
    """
    mean, deviation = scale(name, shape)
    if name.endswith(OUTWARD):
        deviation *= CALM
    if name.endswith(".A_log"):
        mean, deviation = 0.7, 0.35  # decay rates between 1 and 4, mostly
    if name.endswith(".dt_bias"):
        mean, deviation = -2.0, 1.0
    factor = torch.tensor(deviation / math.sqrt((65536.0**2 - 1.0) / 3.0), dtype=torch.float32)
    found = torch.empty(math.prod(shape), dtype=dtype, device=device)
    for begin, words in _words(name, seed, found.numel(), device):
        total = sum(((words >> shift) & 0xFFFF for shift in (0, 16, 32, 48)), start=-131070)
        value = torch.as_tensor(total).to(torch.float32).mul_(factor.item())
        found[begin : begin + words.numel()] = value.add_(mean).to(dtype)
    return found.view(shape)


def _codes(name: str, shape: Shape, seed: int, device: str) -> Tensor:
    """uint8 [rows, columns / 2]: all sixteen values of E2M1, equally often."""
    rows, columns = shape
    count = rows * columns // 16
    words = torch.cat([words for _, words in _words(name, seed, count, device)])
    return words.view(torch.uint8).view(rows, columns // 2)


def _exponents(name: str, shape: Shape, seed: int, device: str) -> Tensor:
    """uint8 [rows, columns / 32]: scales with which a row has a norm near one."""
    rows, columns = shape
    wanted = 1.0 / (math.sqrt(columns) * E2M1_RMS * SCALE_SPREAD_RMS)
    base = E8M0_ONE + round(math.log2(wanted))
    count = rows * columns // GROUP
    bits = [words & 1 for _, words in _words(name + ".scale", seed, count, device)]
    return (torch.cat(bits) + base).to(torch.uint8).view(rows, columns // GROUP)


def _words(name: str, seed: int, count: int, device: str) -> Iterator[tuple[int, Tensor]]:
    """(first position, int64 words) in pieces: SplitMix64 of positions behind the name's own start.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), figure 17.
    """
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    start = int.from_bytes(key[:8], "little", signed=True)
    for begin in range(0, count, _PIECE):
        end = min(begin + _PIECE, count)
        word = torch.arange(begin + 1, end + 1, dtype=torch.int64, device=device)
        word = word * _signed(0x9E3779B97F4A7C15) + start
        word = (word ^ _shifted(word, 30)) * _signed(0xBF58476D1CE4E5B9)
        word = (word ^ _shifted(word, 27)) * _signed(0x94D049BB133111EB)
        yield begin, word ^ _shifted(word, 31)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shifted(word: Tensor, by: int) -> Tensor:
    """A logical shift to the right: int64 has only the arithmetic one."""
    return (word >> by) & ((1 << (64 - by)) - 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="kimi_k3.slices", description="slices of Kimi K3")
    parser.add_argument("name", choices=SLICES)
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="a device for all; default: every GPU, else the CPU")
    parser.add_argument(
        "--jobs", type=int, help=f"processes that write at once; default: {JOBS} with a GPU, else 1"
    )
    asked = parser.parse_args(arguments)
    try:
        count = torch.cuda.device_count()
        found = [asked.device] if asked.device else [f"cuda:{one}" for one in range(count)]
        found = found or ["cpu"]
        jobs = asked.jobs or (max(JOBS, len(found)) if found[0].startswith("cuda") else 1)
        devices = [device for _, device in zip(range(jobs), itertools.cycle(found), strict=False)]
        write(SLICES[asked.name], asked.folder, asked.seed, devices)
    except (CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

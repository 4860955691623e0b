"""Protects the slices that GPUs run: the released names and formats, sane weights, the same bytes.

A small configuration stands for the large ones, whose shapes alone are checked.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from kimi_k3 import slices
from kimi_k3.checkpoint import CheckpointError, digest
from kimi_k3.dims import Dims
from kimi_k3.presets import NANO_13
from kimi_k3.reference import decoder
from kimi_k3.reference.weights import MODEL, PREFIX, layer_prefix, shapes
from kimi_k3.tokenizer import tokenizer

DIMS = Dims.from_config(NANO_13)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A written checkpoint."""
    made = tmp_path_factory.mktemp("slice") / "small"
    slices.write(NANO_13, made)
    return made


def read(folder: Path) -> dict[str, Tensor]:
    """All tensors, through the index."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    found = {}
    for name, file in index.items():
        with safe_open(folder / file, framework="pt") as tensors:
            found[name] = tensors.get_tensor(name)
    return found


def dequantised(packed: Tensor, exponents: Tensor) -> Tensor:
    """float32 [rows, columns] of codes and exponents."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).long()
    scales = torch.exp2(exponents.float() - 127).repeat_interleave(32, dim=1)
    return E2M1[codes] * scales


def test_names_and_formats_are_the_released_ones(folder: Path) -> None:
    found = read(folder)
    wanted = {}
    for name, shape in shapes(DIMS).items():
        plain = name.removeprefix(PREFIX)
        if ".experts." in plain:
            rows, columns = shape
            stem = plain.removesuffix("weight")
            wanted[stem + "weight_packed"] = (torch.uint8, (rows, columns // 2))
            wanted[stem + "weight_scale"] = (torch.uint8, (rows, columns // 32))
        else:
            exact = plain.endswith(("A_log", "dt_bias", "conv1d.weight", "correction_bias"))
            wanted[plain] = (torch.float32 if exact else torch.bfloat16, shape)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in found.items()} == wanted
    config = json.loads((folder / "config.json").read_text())
    ours, stock = config["architectures"]
    assert (ours, stock) == ("FasttrackKimiLinearForCausalLM", "KimiLinearForCausalLM")
    assert config["quantization_config"]["format"] == "mxfp4-pack-quantized"


def test_rows_have_a_norm_near_one(folder: Path) -> None:
    found = read(folder)
    stem = "model.layers.1.block_sparse_moe."
    expert = f"{stem}experts.3.w1."
    maps = [
        found[f"{stem}gate.weight"].float(),
        found["model.layers.1.self_attn.o_proj.weight"].float() / slices.CALM,
        dequantised(found[expert + "weight_packed"], found[expert + "weight_scale"]),
    ]
    for weight in maps:
        norms = weight.norm(dim=1)
        assert 0.6 < norms.mean() < 1.6
        assert abs(weight.mean()) < 0.2 * weight.std()
    assert len({tuple(t.flatten()[:8].tolist()) for n, t in found.items() if "packed" in n}) == sum(
        "packed" in name for name in found
    )


def whole(folder: Path) -> dict[str, Tensor]:
    """float32 weights, as the reference names them."""
    found = read(folder)
    codes = [name for name in found if name.endswith("_packed")]
    for name in codes:
        exponents = found.pop(name.replace("_packed", "_scale"))
        found[name.removesuffix("_packed")] = dequantised(found.pop(name), exponents)
    return {PREFIX + name: tensor.float() for name, tensor in found.items()}


def test_answers_tell_of_a_layer_left_out_and_little_of_last_bits(folder: Path) -> None:
    weights = whole(folder)
    ids = torch.randint(0, DIMS.vocab, (64,), generator=torch.Generator().manual_seed(0))

    def said(**other: Tensor) -> Tensor:
        state = decoder.State.empty(DIMS)
        logits = decoder.extend(weights | other, DIMS, state, ids)
        return logits.log_softmax(dim=-1)

    def moved(name: str, factor: Tensor | float) -> float:
        """Nats, of the likeliest token, in the middle of the sequence's tokens."""
        now, top = said(**{name: weights[name] * factor}), plain.argmax(dim=-1, keepdim=True)
        return float((now - plain).gather(1, top).abs().median())

    plain = said()
    table = MODEL + "embed_tokens.weight"
    bits = torch.randint(-1, 2, weights[table].shape, generator=torch.Generator().manual_seed(1))
    last_bits = moved(table, 1 + bits * 2**-9)
    assert last_bits < 0.05
    for name in ("self_attn.o_proj", "block_sparse_moe.routed_expert_up_proj"):
        assert moved(f"{layer_prefix(5)}{name}.weight", 0.0) > 3 * last_bits


def test_seed_and_nothing_else_decides_the_bytes(folder: Path, tmp_path: Path) -> None:
    slices.write(NANO_13, tmp_path / "again", devices=("cpu", "cpu"))
    slices.write(NANO_13, tmp_path / "other", seed=1)
    assert digest(tmp_path / "again") == digest(folder) != digest(tmp_path / "other")


@pytest.mark.parametrize("piece", [64, 1000])
def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    whole = slices._values("a.weight", (40, 50), 0, "cpu", torch.float32)
    monkeypatch.setattr(slices, "_PIECE", piece)
    assert torch.equal(slices._values("a.weight", (40, 50), 0, "cpu", torch.float32), whole)


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    before = digest(folder)
    with pytest.raises(CheckpointError, match="not empty"):
        slices.write(NANO_13, folder)
    assert digest(folder) == before


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("k3-slice", 1), ("k3-slice-deep", 1), ("k3-slice2", 2), ("k3-slice8", 8)],
)
def test_a_rank_of_the_slices_has_the_shapes_of_a_rank_of_eight(name: str, ranks: int) -> None:
    dims = Dims.from_config(slices.SLICES[name])
    rank = dims.rank(ranks)
    assert (rank.kda_heads, rank.mla_heads, rank.expert_inter) == (12, 12, 384)
    assert (rank.shared_inter, rank.dense_inter, rank.vocab) == (768, 4224, 20480)
    assert (dims.hidden, dims.latent, dims.experts, dims.top_k) == (7168, 3584, 896, 16)
    # Without it vLLM divides the hidden size by the heads, and transformers refuses an odd number.
    assert slices.SLICES[name]["head_dim"] == 192
    kinds = set(dims.layer_kinds)
    assert kinds == {"kda", "mla"}
    assert dims.layers > dims.block or ranks == 8


def test_whatever_a_slice_says_is_text_at_once() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_str(json.dumps(tokenizer(20480, words=True)))
    assert made.get_vocab_size() == 20480
    prompt = made.encode("any prompt, \u00e9 too").ids
    assert prompt == list("any prompt, \u00e9 too".encode())
    stream = tokenizers.decoders.DecodeStream(ids=prompt, skip_special_tokens=True)
    said = [stream.step(made, number) for number in range(262, 20480, 997)]
    assert all(said) and "".join(said).split()[0] == "w0"


def test_of_specials_alone_nothing_is_text() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_str(json.dumps(tokenizer(20480)))
    stream = tokenizers.decoders.DecodeStream(ids=[65], skip_special_tokens=True)
    assert not any(stream.step(made, number) for number in range(262, 20480, 997))

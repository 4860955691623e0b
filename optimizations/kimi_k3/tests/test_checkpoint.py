"""Protects: a checkpoint is the same everywhere, whole, and not taken for another."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fasttrack.evals.tasks import long_chain, mrcr_synthetic
from fasttrack.evals.tasks.dialogue import Turn, render, tokens
from kimi_k3 import checkpoint
from kimi_k3.checkpoint import (
    PINNED,
    SHIPPED,
    WRITABLE,
    CheckpointError,
    digest,
    main,
    verify,
    write,
)
from kimi_k3.dims import Dims
from kimi_k3.presets import NANO, NANO_13
from kimi_k3.reference import decoder
from kimi_k3.reference.weights import load, shapes
from kimi_k3.training.data import encode

Q_PROJ = "language_model.model.layers.0.self_attn.q_proj.weight"
A_LOG = "language_model.model.layers.0.self_attn.A_log"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A written k3-nano. Tests that change it work on a copy."""
    path = tmp_path_factory.mktemp("checkpoint") / "k3-nano"
    write("k3-nano", path)
    return path


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A written k3-nano-random."""
    path = tmp_path_factory.mktemp("checkpoint") / "k3-nano-random"
    write("k3-nano-random", path)
    return path


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


# ---- same bytes everywhere ----------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITABLE)
def test_digest_is_the_pinned_one(name: str, tmp_path: Path) -> None:
    assert set(PINNED) == set(WRITABLE)
    assert write(name, tmp_path / name) == PINNED[name] == digest(tmp_path / name)


def test_digest_is_the_documented_formula(folder: Path) -> None:
    lines = [
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()} {len(path.read_bytes())}\n"
        for path in folder.iterdir()
    ]
    assert digest(folder) == hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def test_weights_are_recomputed_by_scalar_arithmetic() -> None:
    """The vectorised path equals plain Python floats, so no library routine can have rounded."""
    made = checkpoint.weights(Dims.from_config(NANO))[Q_PROJ].ravel()
    key = hashlib.sha256(f"0:{Q_PROJ}".encode()).digest()[:16]
    raw = np.random.PCG64(int.from_bytes(key, "big")).random_raw(50)
    for value, bits in zip(made.tolist(), raw.tolist(), strict=False):
        total = sum((bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48)) - 131070
        wanted = total / math.sqrt((2.0**32 - 1.0) / 3.0) * (1.0 / math.sqrt(128.0))
        assert value == struct.unpack("<f", struct.pack("<f", wanted))[0]


def test_each_tensor_has_its_own_stream() -> None:
    nano = checkpoint.weights(Dims.from_config(NANO))
    other_model = checkpoint.weights(Dims.from_config(NANO_13))
    other_seed = checkpoint.weights(Dims.from_config(NANO), seed=1)
    assert np.array_equal(nano[Q_PROJ], other_model[Q_PROJ]), "another depth moved a tensor"
    assert not np.array_equal(nano[Q_PROJ], other_seed[Q_PROJ])
    assert not np.array_equal(nano[Q_PROJ], nano[Q_PROJ.replace("q_proj", "k_proj")])


def test_normals_have_the_moments_of_normals() -> None:
    embedding = checkpoint.weights(Dims.from_config(NANO))[
        "language_model.model.embed_tokens.weight"
    ]
    assert abs(float(embedding.mean())) < 0.02
    assert abs(float(embedding.std()) - 1.0) < 0.02
    assert 3.0 < float(np.abs(embedding).max()) < 3.47


def test_a_log_is_exact_and_longer_than_the_heads(generated: Path) -> None:
    stored = load_file(generated / "model.safetensors")[A_LOG]
    assert stored.shape == (8,)
    assert not stored[4:].any() and torch.equal(stored * 16, (stored * 16).round())
    dims, loaded = load(generated)
    assert loaded[A_LOG].shape == (dims.kda_heads,)


# ---- the folder ---------------------------------------------------------------------------------


def test_second_write_keeps_the_folder(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert write("k3-nano", folder) == PINNED["k3-nano"]
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_another_seed_is_another_checkpoint_and_is_kept_too(tmp_path: Path) -> None:
    made = write("k3-nano-13", tmp_path / "out", seed=7)
    assert made != PINNED["k3-nano-13"]
    assert write("k3-nano-13", tmp_path / "out", seed=7) == made
    with pytest.raises(CheckpointError, match="not k3-nano-13 at seed 8"):
        write("k3-nano-13", tmp_path / "out", seed=8)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "a temporary folder was left"


def test_empty_folder_is_filled(tmp_path: Path) -> None:
    assert write("k3-nano-13", tmp_path) == PINNED["k3-nano-13"]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Any] = {
    "flipped bit": lambda folder: _flip(folder / "model.safetensors"),
    "file gone": lambda folder: (folder / "tokenizer.json").unlink(),
    "file added": lambda folder: (folder / "notes.txt").write_text("x"),
    "file renamed": lambda folder: (folder / "config.json").rename(folder / "config2.json"),
}


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_damaged_folder_is_refused_and_left_alone(
    damage: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE[damage](copied)
    before = digest(copied)
    assert main(["k3-nano", str(copied)]) == 2
    assert main(["k3-nano", str(copied), "--check"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "remove it or name another folder" in shown.err
    assert "Traceback" not in shown.err
    assert digest(copied) == before


def test_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(CheckpointError, match="not a folder"):
        write("k3-nano", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("name", ["k3", "K3-nano", ""])
def test_unknown_name_is_refused(name: str, tmp_path: Path) -> None:
    assert main([name, str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_unwritable_parent_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["k3-nano", str(tmp_path / "file" / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_other_arithmetic_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose weights differ in one bit must not publish them under the pinned name."""
    honest = checkpoint._normal
    monkeypatch.setattr(checkpoint, "_normal", lambda raw: honest(raw) * (1.0 + 1e-7))
    with pytest.raises(CheckpointError, match="is pinned"):
        write("k3-nano-random", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_trained_weights_have_no_seed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="k3-nano-random has"):
        write("k3-nano", tmp_path / "out", seed=1)


@pytest.mark.parametrize("fault", ["one bit", "cut short", "gone"])
def test_a_damaged_shipped_file_makes_no_checkpoint(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a large-file pointer in place of the file, or a merge that touched it."""
    path, content = tmp_path / "weights.safetensors", bytearray(SHIPPED.read_bytes())
    content[-1] ^= 1
    if fault != "gone":
        path.write_bytes(content if fault == "one bit" else content[:130])
    monkeypatch.setattr(checkpoint, "SHIPPED", path)
    with pytest.raises(CheckpointError, match=r"shipped weights changed|cannot read"):
        write("k3-nano", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command_prints_only_the_digest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k3-nano", str(folder)]) == 0
    assert main(["k3-nano", str(folder), "--check"]) == 0
    assert capsys.readouterr().out == f"{PINNED['k3-nano']}\n" * 2


def test_check_of_an_unpinned_name_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no digest is pinned"):
        verify("k3", folder)


# ---- readable by others -------------------------------------------------------------------------


def test_safetensors_file_is_complete(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        assert tensors.metadata() == {"format": "pt"}
        assert set(tensors.keys()) == set(shapes(Dims.from_config(NANO)))
    (length,) = struct.unpack("<Q", (folder / "model.safetensors").open("rb").read(8))
    assert length % 8 == 0


def test_written_weights_are_the_shipped_ones(folder: Path) -> None:
    stored, shipped = load_file(folder / "model.safetensors"), load_file(SHIPPED)
    assert stored.keys() == shipped.keys()
    for name, tensor in shipped.items():
        kept = stored[name][: len(tensor)]
        assert kept.dtype == torch.float32 and torch.equal(kept, tensor.float()), name
        assert not stored[name][len(tensor) :].any(), name
    facts = json.loads(SHIPPED.with_name("config.json").read_text())
    assert facts["weights_sha256"] == hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    assert SHIPPED.stat().st_size < 20e6


def test_written_weights_are_the_generated_ones(generated: Path) -> None:
    stored = load_file(generated / "model.safetensors")
    for name, array in checkpoint.weights(Dims.from_config(NANO)).items():
        assert torch.equal(stored[name], torch.from_numpy(array)), name


def test_every_id_decodes_and_bytes_are_their_own_ids(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert len(tokenizer) == 512
    assert all(tokenizer.decode([number]) for number in range(512))
    text = 'Zwölf Boxer\n\tjagen 🦊 {"a": 1}  '
    assert tokenizer(text).input_ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (256, 257)


def test_chat_template(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert text == "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
    assert [n for n in tokenizer(text).input_ids if n > 255] == [260, 261, 258, 261, 259]
    stops = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.convert_ids_to_tokens(stops) == ["<|eos|>", "<|end|>"]


def test_eval_prompts_are_what_the_chat_path_gives(folder: Path) -> None:
    """Evals send rendered text or messages: the model must see the tokens it was trained on."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    rng = random.Random(1)
    dialogue = mrcr_synthetic.turns(mrcr_synthetic.haystack(rng, 6, 2))
    asked = [Turn("user", long_chain.chain(rng, 5).question)]
    for turns in ([*dialogue, Turn("user", "prepend x to poem 2 about tea")], asked):
        talk = [{"role": turn.role, "content": turn.text} for turn in turns]
        text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        assert text == render(turns)
        assert tokenizer(text, add_special_tokens=False).input_ids == encode(text)
        assert len(encode(text)) == tokens(text)


# ---- loading refuses wrong checkpoints ----------------------------------------------------------


def test_every_wrong_tensor_is_named_at_once(copied: Path) -> None:
    path = copied / "model.safetensors"
    tensors = load_file(path)
    del tensors["language_model.model.norm.weight"]
    del tensors["language_model.model.layers.20.self_attn.kv_b_proj.weight"]
    tensors[Q_PROJ] = tensors[Q_PROJ].t()[:5].contiguous()
    tensors[A_LOG] = tensors[A_LOG][:3].contiguous()
    tensors["language_model.model.layers.21.input_layernorm.weight"] = torch.ones(128)
    save_file(tensors, path)
    with pytest.raises(ValueError) as caught:
        load(copied)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("  - ")]
    assert len(lines) == 5
    for wanted in ("missing: language_model.model.norm", "kv_b_proj", "[5, 128]", "[3]", "unknown"):
        assert wanted in str(caught.value)


UNREADABLE: dict[str, Any] = {
    "no config": lambda folder: (folder / "config.json").unlink(),
    "config not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "config a list": lambda folder: (folder / "config.json").write_text("[]"),
    "weights cut short": lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" * 99),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
}


@pytest.mark.parametrize("fault", sorted(UNREADABLE))
def test_unreadable_checkpoint_is_a_value_error(fault: str, copied: Path) -> None:
    UNREADABLE[fault](copied)
    with pytest.raises(ValueError, match=r"cannot read|not a JSON object|missing"):
        load(copied)


def test_missing_folder_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        load(tmp_path / "nowhere")


# ---- fit for purpose ----------------------------------------------------------------------------

PROMPTS = (
    "A",
    "Hi",
    "The",
    "Hello",
    "Kimi K3 decodes on",
    "What is the capital of France? Answer briefly.",
    "0123456789" * 6,
    "def add(a, b):\n    return a + b\n",
    "Write a poem.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 2,
)


def test_greedy_decode_neither_collapses_nor_meets_near_ties(
    nano: tuple[Dims, dict[str, Tensor]],
) -> None:
    """Token comparisons on k3-nano mean something: varied output, no choice within FP32 noise."""
    dims, weights = nano
    states = [decoder.State.empty(dims) for _ in PROMPTS]
    last = [
        decoder.extend(weights, dims, state, list(text.encode()))[-1]
        for state, text in zip(states, PROMPTS, strict=True)
    ]
    logits = torch.stack(last)
    tokens, gaps = [], []
    for _ in range(16):
        top = logits.topk(2)
        gaps.append(float((top.values[:, 0] - top.values[:, 1]).min()))
        tokens.append(top.indices[:, 0])
        hidden = decoder.decode(weights, dims, states, decoder.embed(weights, tokens[-1]))
        logits = decoder.logits(weights, hidden)
    assert min(gaps) > 1e-3
    per_prompt = torch.stack(tokens, 1)
    assert min(len(row.unique()) for row in per_prompt) >= 12
    assert len(per_prompt.unique()) > 100

"""Protects training: the differentiable forms equal the reference, rows teach what evals ask, and a
run cut short goes on as if it had not been."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from fasttrack.evals.tasks import long_chain, mrcr_synthetic
from fasttrack.evals.tasks.dialogue import render, tokens
from kimi_k3.checkpoint import SHIPPED
from kimi_k3.dims import Dims
from kimi_k3.presets import NANO
from kimi_k3.reference import decoder, kda
from kimi_k3.reference.weights import shapes
from kimi_k3.tokenizer import END
from kimi_k3.tokenizer import tokenizer as tokenizer_json
from kimi_k3.training import data, evaluate, plot, train
from kimi_k3.training import weights as trained
from kimi_k3.training.delta import CHUNK, delta_rule, unit_inverse
from kimi_k3.training.forward import Decoder
from kimi_k3.training.optimiser import Optimiser, orthogonal

SMALL = NANO | {
    "num_hidden_layers": 5,
    "attn_res_block_size": 2,
    "num_experts": 8,
    "linear_attn_config": NANO["linear_attn_config"]
    | {"kda_layers": [1, 2, 3], "full_attn_layers": [4, 5]},
}
"""A partial last block, both kinds of layer, dense and MoE, in a fifth of the time."""


@pytest.fixture(autouse=True)
def _gradients(_no_gradients: None) -> Iterator[None]:
    with torch.enable_grad():
        yield


def delta_inputs(length: int, decay: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    shape = (2, length, 3, 8)
    q, k, v, u = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4))
    k = k / k.norm(dim=-1, keepdim=True)
    beta = torch.rand(shape[:3], generator=generator, dtype=torch.float64)
    return [t.requires_grad_() for t in (q, k, v, -decay * torch.sigmoid(u), beta)]


def by_steps(q, k, v, log_decay, beta):
    state = q.new_zeros(q.shape[0], q.shape[2], v.shape[-1], k.shape[-1])
    outputs = []
    for t in range(q.shape[1]):
        o, state = kda.delta_step(q[:, t], k[:, t], v[:, t], log_decay[:, t], beta[:, t], state)
        outputs.append(o)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize(("length", "decay"), [(16, 0.1), (48, 1.0), (112, 5.0)])
def test_delta_rule_and_its_gradients_equal_the_recurrence(length: int, decay: float) -> None:
    inputs = delta_inputs(length, decay)
    fast, slow = delta_rule(*inputs), by_steps(*inputs)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    seen = torch.randn_like(fast)
    ours = torch.autograd.grad((fast * seen).sum(), inputs)
    theirs = torch.autograd.grad((slow * seen).sum(), inputs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


def test_strongest_decay_stays_finite_in_fp32() -> None:
    q, k, v, log_decay, beta = (t.detach().float() for t in delta_inputs(32, 1.0))
    inputs = [q, k, v, torch.full_like(log_decay, -5.0), beta]
    for tensor in inputs:
        tensor.requires_grad_()
    fast = delta_rule(*inputs)
    torch.testing.assert_close(fast, by_steps(*inputs), rtol=1e-4, atol=1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(fast.sum(), inputs))


def test_inverse_is_accurate_where_keys_are_nearly_parallel() -> None:
    strict = torch.ones(1, CHUNK, CHUNK).tril(-1)
    unit = torch.eye(CHUNK) + strict
    torch.testing.assert_close(unit_inverse(strict) @ unit, torch.eye(CHUNK).unsqueeze(0))


def test_decoder_equals_the_reference() -> None:
    dims = Dims.from_config(SMALL)
    stacked = {name: t.double() for name, t in trained.initial(dims, 1).items()}
    for name, tensor in stacked.items():
        if name.endswith((trained.BIAS, "res_proj.weight")):  # zero at the start of training
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2)) / 9)
    ids = torch.randint(0, 256, (2, 48), generator=torch.Generator().manual_seed(3))
    flat = trained.unstack(stacked, dims)
    wanted = torch.stack([decoder.forward(flat, dims, row) for row in ids])
    torch.testing.assert_close(Decoder(dims, stacked).logits(ids), wanted, rtol=1e-9, atol=1e-10)


def test_stacking_is_undone_and_precisions_are_those_of_the_released_model() -> None:
    dims = Dims.from_config(SMALL)
    stacked = trained.initial(dims, 0)
    again = trained.stack(trained.unstack(stacked, dims))
    assert again.keys() == stacked.keys()
    assert all(torch.equal(again[name], stacked[name]) for name in stacked)
    kept = {n for n, t in trained.shipped(stacked, dims).items() if t.dtype == torch.float32}
    assert kept == {n for n in trained.unstack(stacked, dims) if n.endswith(trained.KEPT_FP32)}


def test_orthogonal_update_has_singular_values_near_one() -> None:
    made = orthogonal(torch.randn(3, 48, 32, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.6 and values.max() < 1.3


def test_balance_moves_bias_against_load_and_leaves_it_without_gradient() -> None:
    dims = Dims.from_config(SMALL)
    weights = trained.initial(dims, 0)
    for name, tensor in weights.items():
        tensor.requires_grad_(not name.endswith(trained.BIAS))
        tensor.grad = None if name.endswith(trained.BIAS) else torch.zeros_like(tensor)
    load = torch.ones(len(dims.moe_layers), dims.experts)
    load[0, 3], load[0, 4] = 2.0, 0.5
    Optimiser(weights, balance=0.25).step(torch.tensor(0.1), load)
    bias = next(t for name, t in weights.items() if name.endswith(trained.BIAS))
    assert bias.tolist() == [0.0, 0.0, 0.0, -0.25, 0.25, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("make", [data.mrcr_row, data.chain_row])
def test_targets_are_answers_and_their_end(make) -> None:
    row = make(random.Random(5), 600)
    said = bytes(i if i < 256 else 0 for i, t in zip(row.ids, row.target, strict=True) if t)
    text = "".join(chr(i) if i < 256 else f"<{i}>" for i in row.ids)
    answers = [part for part in said.decode().split("\0") if part]
    assert answers and all(f"<{data.MARKERS['assistant']}>{one}<{END}>" in text for one in answers)
    for asked, answer in zip(text.split("prepend ")[1:], answers, strict=False):
        assert answer.startswith(asked[: mrcr_synthetic.PREFIX])


def test_batches_depend_on_their_number_only() -> None:
    mixture = data.Mixture(256, 3, 0.5)
    first = data.Steps(mixture, 7, range(10))[4]
    second = data.Steps(mixture, 7, range(4, 9))[0]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], data.Steps(mixture, 7, range(10))[5][0])


def test_encoding_is_the_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(NANO["vocab_size"])))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for item in (mrcr_synthetic.items(0, 1, 2, 200, 400)[0], long_chain.items(0, 1, 4)[0]):
        ids = data.encode(item.prompt)
        assert ids == tokenizer.encode(item.prompt, add_special_tokens=False)
        assert len(ids) == tokens(item.prompt)
        turns = [part.split("|>") for part in item.prompt.split("<|end|>")[:-1]]
        messages = [{"role": r.removeprefix("<|"), "content": text} for r, text in turns]
        assert render([data.Turn(m["role"], m["content"]) for m in messages]) == item.prompt


class Oracle(Decoder):
    """Predicts every token of the rows it is given, but for those equal to `blind`."""

    def __init__(self, blind: int = -1) -> None:
        self.blind = blind

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        following = ids.roll(-1, 1)
        following[following == self.blind] = 0
        return torch.nn.functional.one_hot(following, 512).float()


def test_exact_answers_need_every_token() -> None:
    items = long_chain.items(0, 5, 4) + long_chain.items(0, 2, 8)
    device = torch.device("cpu")
    assert evaluate.exact(Oracle(), items, device) == (1.0, 1.0)
    whole, token = evaluate.exact(Oracle(blind=END), items, device)
    assert whole == 0.0 and 0.9 < token < 1.0


def small_run(steps: int) -> train.Run:
    settings = train.Settings((train.Stage(256, 2, steps),), 1e-2, 0.5, 0, None)
    return train.Run(settings, torch.device("cpu"), preset=SMALL)


def test_a_run_cut_short_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(train, "score", lambda *_: {})
    whole = small_run(3)
    train.train(whole, tmp_path, None, workers=0, eval_seconds=1e9)
    first = small_run(3)
    monkeypatch.setattr(train.Run, "progress", property(lambda run: 1.0 if run.step == 2 else 0.0))
    train.train(first, tmp_path, tmp_path / "state", workers=0, eval_seconds=1e9)
    monkeypatch.undo()
    monkeypatch.setattr(train, "score", lambda *_: {})
    second = small_run(3)
    second.resume(tmp_path / "state")
    assert second.step == 2
    train.train(second, tmp_path, None, workers=0, eval_seconds=1e9)
    assert second.step == 3 and second.tokens == whole.tokens
    # Two whole runs differ by 1e-7, with where memory happens to lie; a step is 1e-2.
    for name, weight in whole.weights.items():
        torch.testing.assert_close(second.weights[name], weight, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="other settings"):
        small_run(4).resume(tmp_path / "state")
    train.write(second, tmp_path, 1, 256)
    stored = load_file(tmp_path / "weights.safetensors")
    assert stored.keys() == trained.unstack(whole.weights, whole.dims).keys()
    assert (tmp_path / "curve.csv").read_text().startswith("step,seconds,tokens")


# ---- what is shipped ----------------------------------------------------------------------------

BAND, TOKEN_BAND = 0.1, 0.002
"""How far a sample's shares may lie from those of all 200 items: its own chance, and an answer that
another machine's rounding turns."""
SAMPLE = {
    "mrcr-synthetic/2": slice(0, 100, 10),
    "long-chain/8": slice(0, 200, 10),
    "long-chain/24": slice(0, 200, 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("suite", SAMPLE)
@torch.no_grad()
def test_shipped_scores_are_computed_again(suite: str) -> None:
    """On items among those that were scored, with the shipped weights, in FP32 on this CPU."""
    stated = json.loads(SHIPPED.with_name("scores.json").read_text())[suite]
    dims = Dims.from_config(NANO)
    stored = load_file(SHIPPED)
    weights = trained.stack({name: stored[name].float() for name in shapes(dims)})
    items = evaluate.suites(stated["items"])[suite][SAMPLE[suite]]
    whole, token = evaluate.exact(Decoder(dims, weights), items, torch.device("cpu"))
    assert whole == pytest.approx(stated["exact"], abs=BAND)
    assert token == pytest.approx(stated["token"], abs=TOKEN_BAND)


def test_the_shipped_run_is_the_scripts_own() -> None:
    facts = json.loads(SHIPPED.with_name("config.json").read_text())
    settings = train.Settings(train.PLAN, 3e-3, 0.35, 0, None)
    assert facts["settings"] == json.loads(json.dumps(asdict(settings)))
    assert facts["steps"] == sum(stage.steps for stage in train.PLAN)


def test_the_curve_is_drawn_from_the_shipped_numbers() -> None:
    folder = SHIPPED.parent
    assert plot.draw(*plot.read(folder)) == (folder / "curve.svg").read_text()


def test_a_folder_without_a_run_has_no_curve(tmp_path: Path, capsys) -> None:
    assert plot.main([str(tmp_path)]) == 2
    assert "no curve to draw" in capsys.readouterr().err

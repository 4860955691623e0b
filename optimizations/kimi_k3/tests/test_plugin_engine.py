"""The model in the real vLLM engine, against the plain FP64 reference.

Protects: greedy tokens of the stock path, with every engine feature we claim, equal the
reference's; the specialised path's equal them too; evidence says which path ran; refusals and
broken checkpoints end the start with one message.

One child process runs every scenario, because importing the engine costs more than running it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kimi_k3 import checkpoint
from kimi_k3.reference import decoder, moe, weights

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

SMALLEST_GAP = 5e-4
"""Top-two logit gap of every checked token. FP32 noise stays below 1e-4 on these models."""
SMALLEST_MARGIN = 2e-6
"""Gap between the last chosen and the first unchosen expert, of every token and layer. FP32 noise
on a router score is about 1e-7, and another expert changes everything after it."""

_random = random.Random(5)
TEN = [
    [_random.randrange(256) for _ in range(length)]
    for length in (1, 2, 3, 5, 17, 64, 130, 33, 16, 32)
]
LONG = [_random.randrange(256) for _ in range(300)]
_other = random.Random(9)
REPEATS = [
    *([_other.randrange(256) for _ in range(length)] * 3 for length in (2, 5, 9, 20)),
    # Admitted beside running requests, the engine pads these with drafts it then rejects.
    *([_other.randrange(256)] for _ in range(3)),
]
GROWING = [[_random.randrange(256) for _ in range(120)] for _ in range(4)]

ON = {"additional_config": {"decode_backend": "latency_specialized"}}
DRAFTS = {
    "enable_prefix_caching": False,
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    },
}


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "nano"
    checkpoint.write("k3-nano-random", folder)
    return folder


def variant(nano: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy of the checkpoint with changed tensors."""
    folder = nano.parent / name
    shutil.copytree(nano, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def quiet(tensors: dict[str, torch.Tensor]) -> None:
    """Let the current token dominate, so that greedy output falls into loops drafts can guess."""
    for name in tensors:
        if name.endswith((".o_proj.weight", ".down_proj.weight", "routed_expert_up_proj.weight")):
            tensors[name] *= 0.1


def spoil(tensors: dict[str, torch.Tensor]) -> None:
    """Four different defects."""
    del tensors["language_model.model.norm.weight"]
    del tensors["language_model.model.layers.3.self_attn.kv_b_proj.weight"]
    wide = "language_model.model.layers.1.block_sparse_moe.experts.2.w1.weight"
    tensors[wide] = tensors[wide][:, :-1].contiguous()
    tensors["language_model.model.layers.0.self_attn.z_proj.weight"] = torch.zeros(2, 2)


def batch(prompts: list[list[int]], tokens: int, every: int = 0) -> dict[str, Any]:
    return {"prompts": prompts, "max_tokens": tokens, "every": every}


def run_child(scenarios: list[dict[str, Any]], folder: Path, **environment: str) -> dict[str, Any]:
    """Results of the scenarios by name."""
    asked, found = folder / "scenarios.json", folder / "results.json"
    asked.write_text(json.dumps(scenarios), encoding="utf-8")
    child = Path(__file__).with_name("_plugin_child.py")
    done = subprocess.run(
        [sys.executable, str(child), str(asked), str(found)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    results: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return results


@pytest.fixture(scope="module")
def scenarios(nano: Path) -> dict[str, dict[str, Any]]:
    loops, broken = variant(nano, "loops", quiet), variant(nano, "broken", spoil)
    listed = [
        # Not eager: the engine then makes one profile run, which must not touch any cache.
        ("stock", nano, {"enforce_eager": False}, [batch(TEN, 16), *[batch([LONG], 8)] * 2]),
        (
            "chunked",
            nano,
            {"max_num_batched_tokens": 48, "max_num_seqs": 4},
            [batch(TEN, 12, every=2)],
        ),
        ("preempted", nano, {"num_gpu_blocks_override": 22}, [batch(GROWING, 20)]),
        (
            "specialised",
            nano,
            ON | {"max_num_batched_tokens": 160},
            [batch(TEN, 16), batch(TEN, 16, every=2), *[batch([LONG], 8)] * 2],
        ),
        (
            "refused",
            nano,
            {
                "dtype": "bfloat16",
                "kv_cache_dtype": "fp8",
                "pipeline_parallel_size": 2,
                "additional_config": {"decode_backend": "latency_specialized", "kimi_k3": 1},
            },
            [],
        ),
        ("broken", broken, {}, []),
        # Last: after an engine with drafts, this one cannot start another in its process.
        # A request alone verifies a uniform step each time it has drafts.
        (
            "drafts",
            loops,
            ON | DRAFTS,
            [batch(REPEATS, 24), batch(REPEATS, 24, every=2), batch(REPEATS[:1], 24)],
        ),
    ]
    return {
        name: {"name": name, "engine": {"model": str(model)} | engine, "batches": batches}
        for name, model, engine, batches in listed
    }


@pytest.fixture(scope="module")
def results(
    scenarios: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    return run_child(list(scenarios.values()), tmp_path_factory.mktemp("run"))


class Oracle:
    """Checks greedy tokens against the reference of one checkpoint."""

    def __init__(self, model: str) -> None:
        self.dims, self.weights = weights.load(model, torch.float64)
        self.gap = self.margin = float("inf")
        self._seen: set[tuple[int, ...]] = set()

    def check(self, prompt: list[int], tokens: list[int]) -> None:
        """Every token is the reference's choice after the ones before it."""
        if (key := (*prompt, -1, *tokens)) in self._seen:
            return
        self._seen.add(key)
        ids = torch.tensor(prompt + tokens[:-1])
        logits = decoder.forward(self.weights, self.dims, ids)[len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == tokens
        top = logits.topk(2).values
        self.gap = min(self.gap, float((top[:, 0] - top[:, 1]).min()))


@pytest.fixture
def check(
    scenarios: dict[str, Any], results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """`check(name)` compares every token of a scenario with the reference, and returns it."""
    margins: list[float] = []
    route = moe.route

    def watched(logits: Any, bias: Any, top_k: int, scaling: float) -> Any:
        key = (torch.sigmoid(logits) + bias).sort(dim=-1, descending=True).values
        margins.append(float((key[..., top_k - 1] - key[..., top_k]).min()))
        return route(logits, bias, top_k, scaling)

    monkeypatch.setattr(moe, "route", watched)

    def run(name: str) -> dict[str, Any]:
        found: dict[str, Any] = results[name]
        assert found["error"] is None
        oracle = Oracle(scenarios[name]["engine"]["model"])
        for asked, got in zip(scenarios[name]["batches"], found["batches"], strict=True):
            for prompt, output in zip(asked["prompts"], got, strict=True):
                assert len(output["tokens"]) == asked["max_tokens"]
                oracle.check(prompt, output["tokens"])
        # Without these the comparison above could fail, or pass, by chance.
        assert oracle.gap > SMALLEST_GAP and min(margins) > SMALLEST_MARGIN
        return found

    yield run


def counters(found: dict[str, Any]) -> dict[str, int]:
    counted: dict[str, int] = found["evidence"][0]["counters"]
    return counted


def test_stock_equals_the_reference_and_prefixes_are_reused(check: Any) -> None:
    found = check("stock")
    assert [output["cached"] for output in found["batches"][2]] == [256]
    evidence = found["evidence"][0]
    assert (evidence["switch"], evidence["prepared_batches"]) == ("auto", [])
    assert "path:specialised" not in evidence["counters"]
    profile, *steps = evidence["log"]
    assert (profile["path"], profile["wrote"]) == ("profile", {"kda_slots": "", "mla_rows": ""})
    assert all(entry["reason"] == "switched off" for entry in steps)


def test_chunked_prefill_and_late_admission(check: Any) -> None:
    log = check("chunked")["evidence"][0]["log"]
    assert max(entry["tokens"] for entry in log) <= 48
    assert any(0 < entry["prefill_tokens"] < entry["tokens"] for entry in log)


def test_preempted_requests_recompute_their_states(check: Any) -> None:
    assert check("preempted")["metrics"]["num_preemptions"] > 0


def test_specialised_equals_the_reference_and_never_runs_prefill(check: Any) -> None:
    found = check("specialised")
    evidence = found["evidence"][0]
    assert counters(found)["path:specialised"] > 20
    for entry in evidence["log"]:
        assert (entry["path"] == "specialised") == (entry["prefill_tokens"] == 0), entry
    assert {"reason:prefill", "reason:prefill and decode mixed"} <= set(counters(found))
    assert evidence["extra_bytes"] > 0 and max(evidence["prepared_batches"]) >= 16
    assert [output["cached"] for output in found["batches"][3]] == [256]


def test_drafts_are_verified_exactly_between_specialised_steps(check: Any) -> None:
    found = check("drafts")
    metrics = found["metrics"]
    accepted = metrics["spec_decode_num_accepted_tokens"]
    assert 0 < accepted < metrics["spec_decode_num_draft_tokens"]
    assert counters(found)["reason:draft verification"] > 0
    assert counters(found)["reason:uniform draft verification"] > 0
    assert counters(found)["reason:pure decode"] > 0
    for entry in found["evidence"][0]["log"]:
        if entry["reason"] == "uniform draft verification":
            assert entry["path"] == "specialised" and entry["prefill_tokens"] == 0
            assert entry["tokens"] in {entry["requests"] * q for q in (2, 3, 4)}


def test_logged_writes_are_the_rows_of_the_step(results: dict[str, Any]) -> None:
    for name in ("stock", "specialised", "drafts"):
        for entry in results[name]["evidence"][0]["log"]:
            assert _count(entry["wrote"]["mla_rows"]) == entry["tokens"]
            slots = _count(entry["wrote"]["kda_slots"])
            assert slots >= entry["requests"] and slots % 3 == 0  # three groups of KDA layers


def _count(text: str) -> int:
    spans = [span.partition("-") for span in text.split(",") if span]
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans)


def test_a_refused_start_names_every_reason(results: dict[str, Any]) -> None:
    error = results["refused"]["error"]
    for words in (
        "decode_backend='latency_specialized'",
        "unknown option 'kimi_k3'",
        "pipeline parallelism",
        "cache dtype",
        "dtype must be float32",
    ):
        assert words in error


def test_a_broken_checkpoint_names_every_defect(results: dict[str, Any]) -> None:
    error = results["broken"]["error"]
    assert error.startswith("CheckpointError: checkpoint does not match its config")
    for words in (
        "missing: language_model.model.norm.weight",
        "missing: language_model.model.layers.3.self_attn.kv_b_proj.weight",
        "unknown: language_model.model.layers.0.self_attn.z_proj.weight",
        "experts.2.w1.weight: got [64, 63], want [64, 64]",
    ):
        assert words in error


@pytest.mark.parametrize(
    "ranks",
    [
        2,
        pytest.param(
            4,
            marks=pytest.mark.skipif(
                (os.cpu_count() or 1) < 4, reason="minutes on fewer than 4 cores"
            ),
        ),
    ],
)
def test_ranks_equal_one(nano: Path, tmp_path: Path, ranks: int) -> None:
    """Stock and specialised on tensor-parallel processes, which must agree on every step."""
    engine = {"model": str(nano), "tensor_parallel_size": ranks, "max_num_batched_tokens": 96}
    asked = [
        {"name": name, "engine": engine | more, "batches": [batch(TEN, 8)]}
        for name, more in (("stock", {}), ("specialised", ON))
    ]
    # More ranks than cores: none is bound to one.
    found = run_child(asked, tmp_path, VLLM_CPU_OMP_THREADS_BIND="nobind")
    oracle = Oracle(str(nano))
    for name, result in found.items():
        assert result["error"] is None
        for prompt, output in zip(TEN, result["batches"][0], strict=True):
            oracle.check(prompt, output["tokens"])
        evidence = result["evidence"]
        assert [(e["rank"], e["size"]) for e in evidence] == [(n, ranks) for n in range(ranks)]
        assert all(e["log"] == evidence[0]["log"] for e in evidence)
        for e in evidence:
            assert ("path:specialised" in e["counters"]) == (name == "specialised")

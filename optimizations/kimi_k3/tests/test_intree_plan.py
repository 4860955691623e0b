"""Over vLLM's own model: what of a decode graph is ours, which path a step took, what is refused.

Protects: the table of ops, the words and counts by which the harness tells one path from the other,
and that a setting nobody ran this with ends the start with a sentence. No vLLM model is imported.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kimi_k3.intree import plan, support
from kimi_k3.intree.capture import Capture
from kimi_k3.intree.evidence import GraphRecorder, facts_of
from kimi_k3.runtime.plan import StepFacts
from kimi_k3.slices import SLICES
from kimi_k3.support import RefusedError

ON = {"fasttrack_decode": "latency_specialized"}


# ---- the table -----------------------------------------------------------------------------------


def test_an_op_is_ours_up_to_its_batch() -> None:
    largest: Any = {"attn_res": 64, "kda": 32, "moe": 8, "shared": 4, "latent_up": 64}
    assert plan.ours(1, largest) == set(plan.OPS) - {"mla", "exchange", "tail"}
    assert plan.ours(8, largest) == {"attn_res", "kda", "moe", "latent_up"}
    assert plan.ours(33, largest) == {"attn_res"}
    assert plan.ours(65, largest) == plan.ours(0, largest) == frozenset()


def test_the_experts_way_back_is_not_ours_without_the_experts() -> None:
    assert plan.ours(16, {"moe": 8, "latent_up": 64, "shared": 64}) == frozenset()


def test_mailboxes_are_for_several_ranks_between_two_parts_of_ours() -> None:
    largest: Any = {"attn_res": 64, "kda": 8, "exchange": 16}
    assert plan.ours(8, largest, ranks=2) == {"attn_res", "kda", "exchange"}
    assert plan.ours(16, largest, ranks=2) == {"attn_res", "exchange"}
    assert plan.ours(8, largest) == {"attn_res", "kda"}
    assert plan.ours(8, {**largest, "attn_res": 0}, ranks=2) == {"kda"}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rows", [4, 8, 64])
def test_with_several_rows_of_a_request_only_ops_by_row_are_ours(rows: int, ranks: int) -> None:
    for table in plan.TABLES.values():
        plain = plan.ours(rows, table, ranks)
        assert plan.ours(rows, table, ranks, each=4) == plain - {"kda", "mla", "exchange"}
        assert plain >= {"kda", "mla", "attn_res", "moe", "shared"}


@pytest.mark.parametrize(
    ("sizes", "requests", "each", "rows"),
    [
        ([1, 2, 4, 8, 16, 32, 64], 64, 1, (1, 2, 4, 8, 16, 32, 64)),
        ([1, 2, 4, 8, 16, 32, 64], 8, 1, (1, 2, 4, 8)),
        ([1, 2, 4, 8, 16, 32, 64], 8, 4, (4, 8, 16, 32)),
        ([1, 2, 4, 8, 16, 32, 64], 8, 8, (8, 16, 32, 64)),
        # Whole requests only: 64 rows would be 66, above the largest size.
        ([1, 2, 4, 8, 16, 32, 64], 64, 3, (3, 6, 9, 18, 33)),
        ([4], 8, 8, ()),
        ([], 8, 4, ()),
    ],
)
def test_graphs_have_whole_requests(
    sizes: list[int], requests: int, each: int, rows: tuple[int, ...]
) -> None:
    assert plan.graphs(sizes, requests, each) == rows


@pytest.mark.parametrize("table", plan.TABLES.values(), ids=plan.TABLES)
def test_a_table_names_every_op_and_no_other(table: Any) -> None:
    assert set(table) == set(plan.OPS)
    assert all(0 <= most <= plan.LARGEST_BATCH for most in table.values())


def test_mailboxes_between_gpus_are_not_released() -> None:
    for batch in range(1, 65):
        assert "exchange" not in plan.ours(batch, ranks=2)
        assert plan.ours(batch) >= {"attn_res", "kda", "moe", "shared"}


# ---- capturing -----------------------------------------------------------------------------------


def _mla(requests: int, tokens: int, prefills: int = 0) -> Any:
    """What vLLM's metadata of an MLA layer says: a verification is a decode of several tokens."""
    return SimpleNamespace(num_prefills=prefills, num_decodes=requests, num_decode_tokens=tokens)


def _kda(decodes: int, drafted: int = 0, each: int = 1) -> Any:
    """The same of a KDA layer, which tells the two apart."""
    return SimpleNamespace(
        num_prefills=0, num_decodes=decodes, num_decode_tokens=decodes,
        num_spec_decodes=drafted, num_spec_decode_tokens=drafted * each,
    )  # fmt: skip


@pytest.fixture
def capture() -> Capture:
    return Capture([64, 8, 1], {"attn_res": 64, "kda": 8})


def test_only_batches_with_an_op_of_ours_are_taken(capture: Capture) -> None:
    assert capture.ours == {1: {"attn_res", "kda"}, 8: {"attn_res", "kda"}, 64: {"attn_res"}}
    for batch in (1, 8, 64):
        assert capture.takes(batch, True, False, [_mla(batch, batch), _kda(batch)])
    assert not capture.takes(2, True, False, [_mla(2, 2)])
    capture.choose({})
    assert not capture.takes(1, True, False, [_mla(1, 1)])


@pytest.mark.parametrize(
    ("capturing", "piecewise", "steps"),
    [
        (False, False, [_mla(8, 8)]),
        (True, True, [_mla(8, 8)]),
        (True, False, [_mla(8, 8), None]),
        (True, False, [_mla(8, 8), _mla(8, 8, prefills=1)]),
        (True, False, [_mla(8, 8), _kda(0, 2, 4)]),
        (True, False, [_kda(8), _mla(2, 8)]),
    ],
    ids=["eager", "piecewise", "no metadata", "prefill", "drafts", "drafts where MLA is alone"],
)
def test_all_other_forwards_are_vllms(
    capture: Capture, capturing: bool, piecewise: bool, steps: list[Any]
) -> None:
    assert not capture.takes(8, capturing, piecewise, steps)


@pytest.fixture
def verifying() -> Capture:
    """Of an engine whose requests have four rows each."""
    return Capture([4, 8, 64], {"attn_res": 64, "kda": 64, "mla": 64, "moe": 8}, each=4)


def test_a_graph_of_verifications_is_taken_for_what_is_by_row(verifying: Capture) -> None:
    by_row = {4: {"attn_res", "moe"}, 8: {"attn_res", "moe"}, 64: {"attn_res"}}
    assert verifying.ours == by_row
    for rows in by_row:
        assert verifying.takes(rows, True, False, [_kda(0, rows // 4, 4), _mla(rows // 4, rows)])


@pytest.mark.parametrize(
    "steps",
    [
        [_kda(8), _mla(8, 8)],
        [_kda(0, 2, 4), _mla(8, 8)],
        [_kda(4, 1, 4), _mla(5, 8)],
        [_kda(0, 4, 2), _mla(4, 8)],
        [_kda(0, 1, 4), _mla(1, 4)],
        [_kda(0, 2, 4), _mla(1, 4, prefills=1)],
        [_mla(3, 8)],
    ],
    ids=[
        "one row each", "one row each where MLA is alone", "both kinds", "fewer drafts",
        "not all rows", "prefill", "rows of no whole requests",
    ],
)  # fmt: skip
def test_with_drafts_all_other_forwards_are_vllms(verifying: Capture, steps: list[Any]) -> None:
    assert not verifying.takes(8, True, False, steps)


# ---- the path of a step --------------------------------------------------------------------------

DECODE = StepFacts(requests=3, tokens=3, decode_rows=3, verify_rows=0)
RAN = ("pure decode", "uniform draft verification", "last token of a prompt in a decode graph")


@pytest.mark.parametrize(
    ("facts", "switch", "graph", "reason"),
    [
        (DECODE, "latency_specialized", 4, "pure decode"),
        (DECODE, "auto", 4, "switched off"),
        (DECODE, "latency_specialized", None, "not in a full CUDA graph"),
        (DECODE, "latency_specialized", 64, "graph captured stock"),
        (StepFacts(2, 40, 0, 0), "latency_specialized", None, "prefill"),
        (StepFacts(2, 40, 1, 0), "latency_specialized", None, "prefill and decode mixed"),
        (StepFacts(2, 8, 0, 2, 4), "latency_specialized", 8, "uniform draft verification"),
        (StepFacts(2, 8, 0, 2, 4), "latency_specialized", None, "not in a full CUDA graph"),
        (StepFacts(2, 8, 0, 2, 4), "latency_specialized", 16, "graph captured stock"),
        (StepFacts(2, 6, 0, 2), "latency_specialized", None, "draft verification"),
        (
            StepFacts(2, 2, 1, 0),
            "latency_specialized",
            2,
            "last token of a prompt in a decode graph",
        ),
        (StepFacts(2, 2, 1, 0), "latency_specialized", 64, "prefill and decode mixed"),
        (StepFacts(2, 5, 1, 1), "latency_specialized", None, "draft verification"),
        (StepFacts(0, 0, 0, 0), "latency_specialized", 4, "no rows"),
        (None, "latency_specialized", 4, "no request metadata"),
    ],
)
def test_every_step_has_a_path_and_a_reason(
    facts: StepFacts | None, switch: Any, graph: int | None, reason: str
) -> None:
    found = plan.plan(facts, switch, {1, 2, 4, 8}, graph)
    assert found.reason == reason
    assert (found.path == "specialised") == (graph in {2, 4, 8} and reason in RAN)


def _batch(lengths: list[int], prefilling: list[bool]) -> Any:
    """As vLLM's runner pads it: arrays are longer than there are requests."""
    return SimpleNamespace(
        num_reqs=len(lengths),
        num_scheduled_tokens=np.array([*lengths, 9, 9], dtype=np.int32),
        is_prefilling_np=np.array([*prefilling, True, False]),
    )


def test_facts_are_those_of_requests_and_not_of_padding() -> None:
    assert facts_of(_batch([1, 1], [False, False])) == StepFacts(2, 2, 2, 0)
    assert facts_of(_batch([5, 1], [True, False])) == StepFacts(2, 6, 1, 0)
    assert facts_of(_batch([1], [True])).prefill_rows == 1


@pytest.mark.parametrize(
    ("lengths", "prefilling", "facts"),
    [
        ([4, 4], [False, False], StepFacts(2, 8, 0, 2, 4)),
        ([4, 2], [False, False], StepFacts(2, 6, 0, 2)),
        ([4, 1], [False, False], StepFacts(2, 5, 1, 1)),
        ([4, 4], [False, True], StepFacts(2, 8, 0, 1)),
        ([1, 1], [False, False], StepFacts(2, 2, 2, 0)),
    ],
)
def test_verifications_are_alike_or_they_are_not(
    lengths: list[int], prefilling: list[bool], facts: StepFacts
) -> None:
    assert facts_of(_batch(lengths, prefilling)) == facts


def test_a_uniform_verification_prefills_nothing() -> None:
    """As the scheduler counts it; a step that has a prompt beside it does."""
    assert facts_of(_batch([4, 4], [False, False])).prefill_tokens == 0
    assert facts_of(_batch([4, 4], [False, True])).prefill_tokens == 8


def test_the_device_counts_for_itself() -> None:
    recorder = GraphRecorder(0, 1, "latency_specialized")
    recorder.executed = torch.zeros(1, dtype=torch.int64)
    taken = plan.plan(DECODE, "latency_specialized", {4}, 4)
    for _ in range(3):
        recorder.record(taken, DECODE)
        recorder.executed += 1
    recorder.executed += 1  # a replay that no step asked for shows
    found = recorder.drain()
    assert found["counters"]["path:specialised"] == 3
    assert found["graph_steps"] == 4
    assert recorder.drain()["graph_steps"] == 0


# ---- refusals ------------------------------------------------------------------------------------


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A configuration that is served, on the machine and the release it was run on."""
    monkeypatch.setattr(support, "version", lambda: support.VERSIONS[0] + "+cu130")
    monkeypatch.setattr(support, "device_capability", lambda: (9, 0))
    text = SimpleNamespace(**copy.deepcopy(dict(SLICES["k3-slice"])))
    return SimpleNamespace(
        additional_config=dict(ON),
        model_config=SimpleNamespace(
            hf_text_config=text, dtype=torch.bfloat16, quantization="mxfp4", enforce_eager=False,
            enable_sleep_mode=False,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1,
            decode_context_parallel_size=1, enable_expert_parallel=False,
        ),
        cache_config=SimpleNamespace(
            use_replayssm=False, mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto"
        ),
        load_config=SimpleNamespace(load_format="auto"),
        lora_config=None,
        speculative_config=None,
    )  # fmt: skip


def test_a_rank_with_less_than_its_share_of_the_experts_is_refused(config: Any) -> None:
    config.additional_config = ON | {"fasttrack_table": "measured"}
    config.parallel_config.tensor_parallel_size = 2
    (reason,) = support.reasons(config)
    assert "moe_intermediate_size 384 instead of 768" in reason


def test_what_it_was_run_on_is_served(config: Any) -> None:
    support.refuse_unsupported(config)


def test_another_release_is_refused_by_name(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "version", lambda: "0.34.0")
    with pytest.raises(RefusedError, match=r"vLLM 0\.34\.0: this path was run on 0\.33\.0 only"):
        support.refuse_unsupported(config)


@pytest.mark.parametrize(
    ("capability", "told"), [(None, "no CUDA GPU"), ((10, 0), "compute capability 10.0")]
)
def test_another_device_is_refused(
    config: Any, monkeypatch: pytest.MonkeyPatch, capability: Any, told: str
) -> None:
    monkeypatch.setattr(support, "device_capability", lambda: capability)
    (reason,) = support.reasons(config)
    assert told in reason


def _drafts(**other: Any) -> Any:
    """vLLM's settings for drafts, as they are supported."""
    plain = {
        "method": "ngram_gpu", "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": None,
    }  # fmt: skip
    return SimpleNamespace(**plain | other)


SPOILT: list[tuple[str, Any, str]] = [
    ("model_config.dtype", torch.float16, "dtype"),
    ("model_config.quantization", None, "MXFP4"),
    ("model_config.enforce_eager", True, "enforce_eager"),
    ("model_config.enable_sleep_mode", True, "sleep mode"),
    ("model_config.hf_text_config.hidden_size", 4096, "hidden_size 4096 instead of 7168"),
    ("model_config.hf_text_config.moe_intermediate_size", 3072, "moe_intermediate_size"),
    ("parallel_config.pipeline_parallel_size", 2, "pipeline parallelism"),
    ("parallel_config.data_parallel_size", 2, "data parallelism"),
    ("parallel_config.decode_context_parallel_size", 2, "decode context parallelism"),
    ("parallel_config.enable_expert_parallel", True, "expert parallelism"),
    ("cache_config.use_replayssm", True, "use_replayssm"),
    ("cache_config.mamba_ssm_cache_dtype", "bfloat16", "float32"),
    ("load_config.load_format", "dummy", "dummy"),
    ("lora_config", object(), "LoRA"),
    ("speculative_config", _drafts(method="mtp"), "drafts by mtp"),
]
"""Each alone is refused with one sentence."""


def _spoil(config: Any, path: str, value: Any) -> None:
    *owners, name = path.split(".")
    for owner in owners:
        config = getattr(config, owner)
    setattr(config, name, value)


@pytest.mark.parametrize(("path", "value", "told"), SPOILT, ids=[path for path, _, _ in SPOILT])
def test_each_setting_is_refused_with_its_own_sentence(
    config: Any, path: str, value: Any, told: str
) -> None:
    _spoil(config, path, value)
    (reason,) = support.reasons(config)
    assert told in reason


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
@pytest.mark.parametrize("count", [1, 3, 7, 63])
def test_drafts_that_read_nothing_of_the_model_are_served(
    config: Any, method: str, count: int
) -> None:
    config.speculative_config = _drafts(method=method, num_speculative_tokens=count)
    assert support.reasons(config) == []


@pytest.mark.parametrize(
    ("other", "told"),
    [
        *[
            ({"method": method}, f"drafts by {method}: only those that read nothing of the model")
            for method in (
                "mtp", "eagle", "eagle3", "dspark", "dflash", "extract_hidden_states",
                "draft_model", "custom_class", "suffix",
            )
        ],
        ({"num_speculative_tokens": 64}, "64 drafts: a request has more than 64 rows"),
        (
            {"num_speculative_tokens_per_batch_size": [(1, 4, 3), (5, 8, 1)]},
            "num_speculative_tokens_per_batch_size",
        ),
    ],
)  # fmt: skip
def test_other_drafts_are_refused_with_a_sentence(
    config: Any, other: dict[str, Any], told: str
) -> None:
    config.speculative_config = _drafts(**other)
    (reason,) = support.reasons(config)
    assert told in reason


def test_drafts_on_several_ranks_are_refused(config: Any) -> None:
    config.additional_config = ON | {"fasttrack_table": "measured"}
    config.parallel_config.tensor_parallel_size = 2
    config.model_config.hf_text_config.moe_intermediate_size *= 2
    config.speculative_config = _drafts()
    (reason,) = support.reasons(config)
    assert "drafts with tensor parallelism of size 2" in reason


def test_recovered_states_are_refused_with_drafts_too(config: Any) -> None:
    """vLLM keeps one state of a request then, and folds accepted rows in behind the step."""
    config.speculative_config = _drafts()
    config.cache_config.use_replayssm = True
    (reason,) = support.reasons(config)
    assert "use_replayssm" in reason


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_several_ranks_of_the_right_shape_are_served_by_the_measured_table(
    config: Any, ranks: int
) -> None:
    text = config.model_config.hf_text_config
    config.parallel_config.tensor_parallel_size = ranks
    config.parallel_config.decode_context_parallel_size = ranks
    text.moe_intermediate_size *= ranks
    (reason,) = support.reasons(config)
    assert f"tensor parallelism of size {ranks}" in reason and "one GPU only" in reason
    assert f"decode context parallelism of size {ranks}" in reason
    config.additional_config = ON | {"fasttrack_table": "measured"}
    assert support.reasons(config) == []


def test_all_reasons_are_told_at_once(config: Any) -> None:
    for path, value, _ in SPOILT:
        _spoil(config, path, value)
    with pytest.raises(RefusedError) as caught:
        support.refuse_unsupported(config)
    for told in ("dtype", "pipeline parallelism", "LoRA", "dummy", "sleep mode"):
        assert told in str(caught.value)


def test_nothing_is_asked_while_the_option_is_off(config: Any) -> None:
    for path, value, _ in SPOILT:
        _spoil(config, path, value)
    for options in ({}, {"fasttrack_decode": "auto"}, None):
        config.additional_config = options
        assert support.reasons(config) == []


@pytest.mark.parametrize("key", ["fasttrack_decod", "fasttrack-decode", "fasttrack_backend"])
def test_a_misspelt_option_is_never_ignored(config: Any, key: str) -> None:
    config.additional_config = {key: "latency_specialized"}
    (reason,) = support.reasons(config)
    assert f"unknown option {key!r}" in reason


def test_another_table_is_asked_for_by_its_name(config: Any) -> None:
    assert support.table_of(config) == "shipped"
    config.additional_config = ON | {"fasttrack_table": "measured"}
    assert support.reasons(config) == [] and support.table_of(config) == "measured"
    config.additional_config = ON | {"fasttrack_table": "fastest"}
    (reason,) = support.reasons(config)
    assert "fasttrack_table must be one of shipped, measured, got 'fastest'" in reason


def test_experts_are_read_in_place_unless_a_copy_is_asked_for(config: Any) -> None:
    assert support.in_place(config)
    config.additional_config = ON | {"fasttrack_experts": "kept"}
    assert support.reasons(config) == [] and not support.in_place(config)
    config.additional_config = ON | {"fasttrack_experts": "once"}
    (reason,) = support.reasons(config)
    assert "fasttrack_experts must be one of in_place, kept, got 'once'" in reason


def test_vllms_own_option_is_not_ours(config: Any) -> None:
    config.additional_config = {"decode_backend": "auto", "kda_prefill_backend": "triton"}
    assert support.reasons(config) == []

"""Start-up refusals: all reasons at once, none for what is supported.

Protects: an unsupported setting never starts and never hides another one; `auto` refuses only what
the model itself cannot do; other plugins' options are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kimi_k3 import support
from kimi_k3.dims import Dims
from kimi_k3.presets import NANO

ON = {"decode_backend": "latency_specialized"}


def config(options: Any = None) -> Any:
    """The parts of a vLLM configuration that the tables read, all supported."""
    return SimpleNamespace(
        additional_config={} if options is None else options,
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(dims=lambda: Dims.from_config(NANO)),
            dtype=torch.float32,
            quantization=None,
            enable_prompt_embeds=False,
            enable_sleep_mode=False,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            enable_expert_parallel=False,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=True),
        offload_config=None,
        lora_config=None,
        speculative_config=None,
        kv_transfer_config=None,
    )


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "_on_cpu", lambda: True)


def with_(path: str, value: Any) -> Callable[[Any], None]:
    """A change of one setting of a configuration."""

    def change(found: Any) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            found = getattr(found, parent)
        setattr(found, name, value)

    return change


def drafts(found: Any) -> None:
    """ngram speculation, with prefix caching left on."""
    found.speculative_config = SimpleNamespace(num_speculative_tokens=3)


MODEL = {
    "does not divide": with_("parallel_config.tensor_parallel_size", 3),
    "pipeline parallelism": with_("parallel_config.pipeline_parallel_size", 2),
    "decode context parallelism": with_("parallel_config.decode_context_parallel_size", 2),
    "expert parallelism": with_("parallel_config.enable_expert_parallel", True),
    "quantisation": with_("model_config.quantization", "fp8"),
    "LoRA": with_("lora_config", object()),
    "cache dtype": with_("cache_config.cache_dtype", "fp8"),
    "prefix caching": drafts,
}
SPECIALISED = {
    "dtype must be float32": with_("model_config.dtype", torch.bfloat16),
    "data parallelism": with_("parallel_config.data_parallel_size", 2),
    "KV cache transfer": with_("kv_transfer_config", object()),
    "weight offloading": with_(
        "offload_config", SimpleNamespace(uva=SimpleNamespace(cpu_offload_gb=4))
    ),
    "prompt embeddings": with_("model_config.enable_prompt_embeds", True),
    "sleep mode": with_("model_config.enable_sleep_mode", True),
}


@pytest.mark.parametrize("options", [None, ON, {"decode_backend": "auto"}, {"other_plugin": 1}])
def test_supported_configurations_start(options: Any) -> None:
    support.refuse_unsupported(config(options))


@pytest.mark.parametrize("words", MODEL)
@pytest.mark.parametrize("options", [None, ON])
def test_the_model_refuses_on_every_path(words: str, options: Any) -> None:
    found = config(options)
    MODEL[words](found)
    (reason,) = support.reasons(found)
    assert words in reason


@pytest.mark.parametrize("words", SPECIALISED)
def test_the_specialised_path_refuses_more(words: str) -> None:
    found = config(ON)
    SPECIALISED[words](found)
    (reason,) = support.reasons(found)
    assert words in reason
    found.additional_config = {}
    assert support.reasons(found) == []


@pytest.mark.parametrize("options", [None, ON])
def test_another_platform_is_refused(monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    monkeypatch.setattr(support, "_on_cpu", lambda: False)
    (reason,) = support.reasons(config(options))
    assert "CPU" in reason


def test_all_reasons_at_once() -> None:
    found = config(ON | {"decode-backend": "x"})
    for change in (MODEL | SPECIALISED).values():
        change(found)
    with pytest.raises(ValueError) as error:
        support.refuse_unsupported(found)
    for words in [*MODEL, *SPECIALISED, "unknown option 'decode-backend'"]:
        assert words in str(error.value)
    assert str(error.value).count("\n  - ") == len(MODEL) + len(SPECIALISED) + 1


@pytest.mark.parametrize(
    "options",
    [
        {"decode_backend": "latency_specialised"},
        {"decode_backend": "fast"},
        {"decode_backend": None},
        {"decode_backed": "latency_specialized"},
        {"Decode-Backend": "latency_specialized"},
        {"kimi_k3": {"decode_backend": "auto"}},
        {"latency_specialized": True},
    ],
)
def test_misspelt_options_never_start_silently_as_stock(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="decode_backend"):
        support.refuse_unsupported(config(options))


def test_a_config_of_one_kind_of_layer_is_refused() -> None:
    only = NANO | {"num_hidden_layers": 2}
    only["linear_attn_config"] = NANO["linear_attn_config"] | {
        "kda_layers": [1, 2],
        "full_attn_layers": [],
    }
    found = config()
    found.model_config.hf_config = SimpleNamespace(dims=lambda: Dims.from_config(only))
    (reason,) = support.reasons(found)
    assert "KDA and MLA" in reason

"""What this package refuses to start with, every reason at once.

Owns: the two tables of refusals and the reading of our one option. Does not own: which path a step
takes (`runtime.plan`) or checkpoint checks (`layers.loading`). Read by: vLLM, through the start-up
hook `plugin` registers, and the model.

`MODEL` lists what the model cannot do on any path; `SPECIALISED` adds what the latency-specialised
decode cannot do. A setting that merely makes single steps fall back to stock is in neither.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import torch

from kimi_k3.runtime.plan import Switch

OPTION = "decode_backend"
DEFAULT: Switch = "auto"
SWITCHES: tuple[Switch, ...] = get_args(Switch)

Check = Callable[[Any], str | None]
"""Takes a vLLM config; returns the reason to refuse it, or None."""


def _dims(config: Any) -> str | None:
    tp = config.parallel_config.tensor_parallel_size
    try:
        dims = config.model_config.hf_config.dims()
        dims.rank(tp)
    except ValueError as error:
        return str(error)
    if not dims.kda_layers or not dims.mla_layers:
        return "the model must have KDA and MLA layers: its cache is the hybrid one"
    return None


def _pipeline(config: Any) -> str | None:
    size = config.parallel_config.pipeline_parallel_size
    return f"pipeline parallelism is not supported (size {size})" if size > 1 else None


def _context_parallel(config: Any) -> str | None:
    size = getattr(config.parallel_config, "decode_context_parallel_size", 1)
    return f"decode context parallelism is not supported (size {size})" if size > 1 else None


def experts_parallel(config: Any) -> str | None:
    """Refuses expert parallelism."""
    on = config.parallel_config.enable_expert_parallel
    return "expert parallelism is not supported" if on else None


def _quantised(config: Any) -> str | None:
    method = config.model_config.quantization
    return f"quantisation is not supported ({method})" if method else None


def lora(config: Any) -> str | None:
    """Refuses LoRA adapters."""
    return "LoRA adapters are not supported" if config.lora_config is not None else None


def _cache_dtype(config: Any) -> str | None:
    found = str(config.cache_config.cache_dtype)
    allowed = {"auto", str(config.model_config.dtype).removeprefix("torch.")}
    if found in allowed:
        return None
    return f"cache dtype must be {' or '.join(sorted(allowed))}, got {found}"


def _drafts_with_prefix_caching(config: Any) -> str | None:
    if config.speculative_config is None or not config.cache_config.enable_prefix_caching:
        return None
    return (
        "speculative decoding with prefix caching needs state copies that this engine has for GPUs "
        "only: set enable_prefix_caching=False"
    )


def _platform(_: Any) -> str | None:
    return None if _on_cpu() else "only the CPU platform is supported"


MODEL: tuple[Check, ...] = (
    _platform,
    _dims,
    _pipeline,
    _context_parallel,
    experts_parallel,
    _quantised,
    lora,
    _cache_dtype,
    _drafts_with_prefix_caching,
)


def _dtype(config: Any) -> str | None:
    dtype = config.model_config.dtype
    return f"dtype must be float32, got {dtype}" if dtype != torch.float32 else None


def _data_parallel(config: Any) -> str | None:
    size = config.parallel_config.data_parallel_size
    return f"data parallelism is not supported (size {size})" if size > 1 else None


def _transfer(config: Any) -> str | None:
    on = config.kv_transfer_config is not None
    return "KV cache transfer between engines is not supported" if on else None


def _offload(config: Any) -> str | None:
    offload = getattr(config, "offload_config", None)
    amount = getattr(getattr(offload, "uva", None), "cpu_offload_gb", 0)
    amount = amount or getattr(config.cache_config, "cpu_offload_gb", 0)
    return f"weight offloading is not supported ({amount} GB)" if amount else None


def _embeddings(config: Any) -> str | None:
    on = config.model_config.enable_prompt_embeds
    return "prompt embeddings are not supported" if on else None


def _sleep(config: Any) -> str | None:
    on = config.model_config.enable_sleep_mode
    return "sleep mode is not supported: packed weights would not sleep" if on else None


SPECIALISED: tuple[Check, ...] = (
    _dtype,
    _data_parallel,
    _transfer,
    _offload,
    _embeddings,
    _sleep,
)


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """Problems with our part of `additional_config`: a wrong value, or a key that looks like ours.

    Other keys belong to other plugins and are left alone.
    """
    problems = []
    value = options.get(OPTION, DEFAULT)
    if value not in SWITCHES:
        problems.append(f"{OPTION} must be one of {', '.join(SWITCHES)}, got {value!r}")
    for key in options:
        if key != OPTION and _resembles(str(key)):
            problems.append(f"unknown option {key!r}; did you mean {OPTION!r}?")
    return problems


def _resembles(key: str) -> bool:
    plain = key.lower().replace("-", "_")
    if plain.startswith(("kimi_k3", "latency_speciali")):
        return True
    return bool(difflib.get_close_matches(plain, [OPTION], cutoff=0.75))


def options_of(config: Any) -> Mapping[str, Any]:
    """`additional_config` as a mapping; it may also be an object of another plugin, or absent."""
    options = config.additional_config
    return options if isinstance(options, Mapping) else {}


def switch_of(config: Any) -> Switch:
    """The effective value of our option, once `refuse_unsupported` has passed."""
    value: Switch = options_of(config).get(OPTION, DEFAULT)
    return value


def reasons(config: Any) -> list[str]:
    """Every reason not to start with `config`, in table order; empty if there is none."""
    options = options_of(config)
    found = option_problems(options)
    wanted = options.get(OPTION, DEFAULT) != DEFAULT
    for check in MODEL + (SPECIALISED if wanted else ()):
        reason = check(config)
        if reason:
            found.append(reason)
    return found


class RefusedError(ValueError):
    """A configuration this package does not serve; the message lists every reason."""


def refuse(option: str, value: object, found: Sequence[str]) -> None:
    """Raise one `RefusedError` with all of `found`, reasons not to start; return without any."""
    if found:
        lines = "\n  - ".join(found)
        raise RefusedError(f"kimi_k3 cannot start with {option}={value!r}:\n  - {lines}")


def refuse_unsupported(config: Any) -> None:
    """Raise one `RefusedError` naming every unsupported setting of `config`, or return."""
    refuse(OPTION, options_of(config).get(OPTION, DEFAULT), reasons(config))


class StartupCheck:
    """vLLM's per-architecture configuration hook: refuses in the front end, before any worker."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Raise `RefusedError` if the configuration is not supported; change nothing."""
        refuse_unsupported(vllm_config)

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Nothing to check before the other settings are known."""

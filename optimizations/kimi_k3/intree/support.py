"""What the decode path over vLLM's own Kimi K3 refuses to start with, every reason at once.

Owns: its option, the versions it was run on, the table of refusals. Does not own: which step is
ours (`plan`). Read by: vLLM, through the start-up hook `plugin` registers, and the model.

The option is not `decode_backend`: vLLM's model reads that key itself, for a path of its own that
needs another GPU.
"""

from __future__ import annotations

import difflib
from typing import Any, get_args

import torch

from kimi_k3.intree.plan import LARGEST_BATCH, TABLES, Table
from kimi_k3.runtime.plan import Switch
from kimi_k3.support import Check, RefusedError, experts_parallel, lora, options_of, refuse

ARCHITECTURE = "FasttrackKimiLinearForCausalLM"
"""vLLM's `KimiLinearForCausalLM` with our path. A checkpoint that names both runs stock where this
package is not installed."""
OPTION = "fasttrack_decode"
TABLE_OPTION = "fasttrack_table"
"""Which table of ops; `measured` is for measuring, it holds ops that are not released."""
EXPERTS_OPTION = "fasttrack_experts"
"""Whether the routed experts are read in a copy of ours or where vLLM has them."""
EXPERTS: tuple[str, ...] = ("in_place", "kept")
DEFAULT: Switch = "auto"
SWITCHES: tuple[Switch, ...] = get_args(Switch)
VERSIONS = ("0.33.0",)
"""vLLM releases this path was run on. Its classes and their attributes are no public interface."""
CAPABILITY = (9, 0)
RELEASED_RANKS = 1
"""GPUs the released table was run on. Nothing in the path knows their number: the measured table
takes any that divides the shapes. With decode context parallelism MLA layers stay vLLM's."""

DRAFTERS = ("ngram", "ngram_gpu")
"""Ways to make drafts that read nothing of the model. Others take hidden states, some of them of
layers in between, which a step of ours does not give out."""


def version() -> str:
    """Of the vLLM that is installed."""
    import vllm

    return str(vllm.__version__)


def device_capability() -> tuple[int, int] | None:
    """Of the first GPU, None without one. Asks no CUDA context into being."""
    from vllm.platforms import current_platform

    found = current_platform.get_device_capability() if current_platform.is_cuda() else None
    return None if found is None else (found.major, found.minor)


def _version(_: Any) -> str | None:
    found = version().partition("+")[0]
    if found in VERSIONS:
        return None
    return f"vLLM {found}: this path was run on {', '.join(VERSIONS)} only"


def _device(_: Any) -> str | None:
    found = device_capability()
    if found == CAPABILITY:
        return None
    name = "no CUDA GPU" if found is None else f"a GPU of compute capability {found[0]}.{found[1]}"
    return f"{name}: the kernels were run on compute capability 9.0 only"


_SHAPE: dict[str, Any] = {
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "hidden_size": 7168,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "routed_scaling_factor": 1.0,
    "routed_expert_hidden_size": 3584,
    "latent_moe_use_norm": True,
}
"""Keys of the configuration with the only values there is code for."""
_OF_A_RANK = {"moe_intermediate_size": 384}
"""The same for a rank's share: that of a rank of eight of Kimi K3."""


def _shape(config: Any) -> str | None:
    text, ranks = config.model_config.hf_text_config, config.parallel_config.tensor_parallel_size
    wanted = _SHAPE | {key: ranks * value for key, value in _OF_A_RANK.items()}
    other = [
        f"{key} {getattr(text, key, None)!r} instead of {value!r}"
        for key, value in wanted.items()
        if getattr(text, key, None) != value
    ]
    return f"shapes there are no kernels for: {', '.join(other)}" if other else None


def _dtype(config: Any) -> str | None:
    dtype = config.model_config.dtype
    return None if dtype == torch.bfloat16 else f"dtype must be bfloat16, got {dtype}"


def _quantised(config: Any) -> str | None:
    found = config.model_config.quantization
    return None if found == "mxfp4" else f"routed experts must be MXFP4, quantization is {found}"


def _sizes(config: Any) -> str | None:
    parallel = config.parallel_config
    names = {
        "pipeline parallelism": parallel.pipeline_parallel_size,
        "data parallelism": parallel.data_parallel_size,
    }
    other = [f"{name} of size {size}" for name, size in names.items() if size > 1]
    return f"{', '.join(other)}: there is no such path" if other else None


def _ranks(config: Any) -> str | None:
    parallel = config.parallel_config
    names = {
        "tensor parallelism": parallel.tensor_parallel_size,
        "decode context parallelism": parallel.decode_context_parallel_size,
    }
    other = [f"{name} of size {size}" for name, size in names.items() if size > RELEASED_RANKS]
    if not other or table_of(config) != "shipped":
        return None
    told = f"this path was run on one GPU only; {TABLE_OPTION} measured takes several of one host"
    return f"{', '.join(other)}: {told}"


def _drafter(config: Any) -> str | None:
    found = config.speculative_config
    if found is None or found.method in DRAFTERS:
        return None
    told = "only those that read nothing of the model are supported"
    return f"drafts by {found.method}: {told}, {' and '.join(DRAFTERS)}"


def _many_drafts(config: Any) -> str | None:
    found = config.speculative_config
    if found is None or found.num_speculative_tokens < LARGEST_BATCH:
        return None
    told = f"a request has more than {LARGEST_BATCH} rows, the most a launch of ours takes"
    return f"{found.num_speculative_tokens} drafts: {told}"


def _changing_drafts(config: Any) -> str | None:
    found = config.speculative_config
    if found is None or found.num_speculative_tokens_per_batch_size is None:
        return None
    return (
        "numbers of drafts that change with the batch (num_speculative_tokens_per_batch_size): "
        "graphs of ours are known by their rows alone"
    )


def _ranks_with_drafts(config: Any) -> str | None:
    size = config.parallel_config.tensor_parallel_size
    if config.speculative_config is None or size == 1:
        return None
    return f"drafts with tensor parallelism of size {size}: this was written for one GPU"


def _replay(config: Any) -> str | None:
    on = getattr(config.cache_config, "use_replayssm", False)
    return "replayed KDA states (use_replayssm) are not supported" if on else None


def _state_dtype(config: Any) -> str | None:
    cache = config.cache_config
    conv, state = cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype
    if conv in ("auto", "bfloat16") and state in ("auto", "float32"):
        return None
    return f"KDA states must be bfloat16 and float32, got {conv} and {state}"


def _dummy(config: Any) -> str | None:
    found = str(config.load_config.load_format)
    if found != "dummy":
        return None
    return "load_format dummy: no checkpoint is read, so its experts cannot be kept as they are"


def _eager(config: Any) -> str | None:
    on = config.model_config.enforce_eager
    return "enforce_eager: the path exists in CUDA graphs only" if on else None


def _sleep(config: Any) -> str | None:
    on = config.model_config.enable_sleep_mode
    return "sleep mode is not supported: kept weights would not sleep" if on else None


REFUSED: tuple[Check, ...] = (
    _version,
    _device,
    _shape,
    _dtype,
    _quantised,
    _sizes,
    _ranks,
    experts_parallel,
    lora,
    _drafter,
    _many_drafts,
    _changing_drafts,
    _ranks_with_drafts,
    _replay,
    _state_dtype,
    _dummy,
    _eager,
    _sleep,
)


def switch_of(config: Any) -> Switch:
    """The value of our option."""
    value: Switch = options_of(config).get(OPTION, DEFAULT)
    return value


def table_of(config: Any) -> Table:
    """Which table of ops is asked for."""
    value: Table = options_of(config).get(TABLE_OPTION, "shipped")
    return value


def in_place(config: Any) -> bool:
    """Whether the routed experts are to be read where vLLM has them."""
    return bool(options_of(config).get(EXPERTS_OPTION, EXPERTS[0]) == "in_place")


def reasons(config: Any) -> list[str]:
    """Every reason not to start with `config`; none while the option is off."""
    options = options_of(config)
    found = []
    value = options.get(OPTION, DEFAULT)
    if value not in SWITCHES:
        found.append(f"{OPTION} must be one of {', '.join(SWITCHES)}, got {value!r}")
    if table_of(config) not in TABLES:
        asked = options[TABLE_OPTION]
        found.append(f"{TABLE_OPTION} must be one of {', '.join(TABLES)}, got {asked!r}")
    if (asked := options.get(EXPERTS_OPTION, EXPERTS[0])) not in EXPERTS:
        found.append(f"{EXPERTS_OPTION} must be one of {', '.join(EXPERTS)}, got {asked!r}")
    for key in options:
        plain = str(key).lower().replace("-", "_")
        if key not in (OPTION, TABLE_OPTION, EXPERTS_OPTION) and (
            plain.startswith("fasttrack") or difflib.get_close_matches(plain, [OPTION], cutoff=0.75)
        ):
            found.append(f"unknown option {key!r}; did you mean {OPTION!r}?")
    if value == DEFAULT:
        return found
    return found + [reason for check in REFUSED if (reason := check(config))]


def refuse_unsupported(config: Any) -> None:
    """Raise one `RefusedError` naming every unsupported setting of `config`, or return."""
    refuse(OPTION, options_of(config).get(OPTION, DEFAULT), reasons(config))


def refuse_graphs(config: Any) -> None:
    """Raise `RefusedError` unless full graphs of decode steps are captured apart from all others.

    Known only where the engine has settled its graph mode. A graph that may replay a prefill must
    not hold launches for one token per request.
    """
    from vllm.config import CUDAGraphMode

    mode = config.compilation_config.cudagraph_mode
    if (
        mode is None
        or mode.decode_mode() != CUDAGraphMode.FULL
        or mode.mixed_mode() == CUDAGraphMode.FULL
    ):
        raise RefusedError(f"cudagraph_mode {mode}: decode needs full graphs of its own")
    if not config.use_v2_model_runner:
        raise RefusedError("the first model runner of vLLM tells a model nothing of its steps")


class StartupCheck:
    """vLLM's per-architecture configuration hook: refuses in the front end, before any worker."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Raise `RefusedError` if the configuration is not supported; change nothing."""
        refuse_unsupported(vllm_config)

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Nothing to check before the other settings are known."""

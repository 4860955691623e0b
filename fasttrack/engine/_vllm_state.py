"""What a vLLM process consists of beside its weights: code, operators, settings, hooks.

Each fact is a name and a short text that is equal in every boot of the same engine; the isolation
stage compares boots. Runs in the child of the vLLM engine only.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import hashlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from fasttrack.engine import loaded

PER_BOOT = frozenset({"VLLM_DIST_IDENT", "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"})
"""Variables in which vLLM keeps a name it makes up anew at every start."""
TELLS_WHO_ASKED = "vllm.platforms:_init_trace"
"""The stack that asked for the platform first, kept for a message: its lines and files are no code
of the engine's."""
CHOOSES_PLUGINS = "VLLM_PLUGINS"
"""Set by the harness itself, and the one difference between the boots."""
TORCH_MODULES = ("torch", "torch.functional", "torch._tensor", "torch._ops", "torch.library",
                 "torch.overrides", "torch.storage", "torch.utils._python_dispatch",
                 "torch.distributed.distributed_c10d")  # fmt: skip
TORCH_ROOMS = ("torch.nn.", "torch.autograd.", "torch.cuda.", "torch.backends.", "torch._library.")
"""What a model's arithmetic goes through; torch's compiler and tools are left out."""


def facts(plugin_root: str | None) -> dict[str, dict[str, str]]:
    """Group -> name -> text; `plugin_root` is the optimization's package, if there is one."""
    chosen = {
        name: module
        for name, module in list(sys.modules.items())
        if name in TORCH_MODULES or name.startswith(TORCH_ROOMS)
    }
    # The engine moves start-up objects out of the collector's sight; only what it sees is listed.
    gc.unfreeze()
    code = loaded.code(sys.modules, "vllm") | loaded.code(chosen, "torch")
    code.pop(TELLS_WHO_ASKED, None)
    return {
        "code": code,
        "objects": loaded.objects("vllm"),
        "operators": _operators(),
        "architectures": _architectures(),
        "environment": _environment(),
        "torch": _flags(),
        "hooks": _hooks(),
        "modules": _own_modules(plugin_root) if plugin_root else {},
    }


def _sha(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _operators() -> dict[str, str]:
    """Every registered operator with where its kernels come from."""
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        try:
            found[name] = _sha(torch._C._dispatch_dump(name))
        except RuntimeError:
            found[name] = "declared"
    return found


def _architectures() -> dict[str, str]:
    from vllm import ModelRegistry

    return {
        name: f"{getattr(model, 'module_name', '')}:{getattr(model, 'class_name', model)}"
        for name, model in ModelRegistry.models.items()
    }


def _environment() -> dict[str, str]:
    return {
        name: _sha(value)
        for name, value in os.environ.items()
        if name not in PER_BOOT and name != CHOOSES_PLUGINS
    }


def _flags() -> dict[str, str]:
    backends = torch.backends
    readers: Mapping[str, Any] = {
        "default_dtype": torch.get_default_dtype,
        "default_device": torch.get_default_device,
        "grad_enabled": torch.is_grad_enabled,
        "inference_mode": torch.is_inference_mode_enabled,
        "anomaly_mode": torch.is_anomaly_enabled,
        "autocast_cpu": lambda: torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "deterministic_debug": torch.get_deterministic_debug_mode,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "threads": torch.get_num_threads,
        "interop_threads": torch.get_num_interop_threads,
        "flush_denormal": lambda: torch.tensor([1e-310], dtype=torch.float64).mul(1).item(),
        "mkldnn": lambda: backends.mkldnn.enabled,
        "cudnn": lambda: (backends.cudnn.enabled, backends.cudnn.benchmark,
                          backends.cudnn.deterministic, backends.cudnn.allow_tf32),
        "cuda.matmul": lambda: (
            backends.cuda.matmul.allow_tf32,
            backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        ),
        "sdp": lambda: (backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled(),
                        backends.cuda.mem_efficient_sdp_enabled()),
    }  # fmt: skip
    return {name: str(read()) for name, read in readers.items()}


def _hooks() -> dict[str, str]:
    """What would run without being called."""
    module = torch.nn.modules.module
    found = {
        f"builtins.{name}": loaded.text(value) for name, value in vars(builtins).items()
        if name != "_"
    } | {
        "sys.meta_path": str([_kind(one) for one in sys.meta_path]),
        "sys.path_hooks": str([_kind(one) for one in sys.path_hooks]),
        "sys.trace": str((sys.gettrace(), sys.getprofile())),
        "sys.excepthook": loaded.text(sys.excepthook),
        "atexit": str(atexit._ncallbacks()),
        "threads": str(sorted({_plain(one.name) for one in threading.enumerate()})),
        "warnings": str(len(warnings.filters)),
        "cores": str(sorted(os.sched_getaffinity(0))),
        "folder": _sha(os.getcwd()),
        "module hooks": str([
            len(getattr(module, name))
            for name in ("_global_forward_hooks", "_global_forward_pre_hooks",
                         "_global_backward_hooks")
        ]),
        "torch modes": str((torch._C._len_torch_dispatch_stack(),
                            torch._C._len_torch_function_stack())),
    }  # fmt: skip
    for name in ("", "vllm", "torch"):
        logger = logging.getLogger(name)
        found[f"logging.{name or 'root'}"] = str(
            (logger.level, logger.disabled, [_kind(h) for h in logger.handlers + logger.filters])
        )
    for number in sorted(signal.valid_signals()):
        handler = signal.getsignal(number)
        if callable(handler):
            found[f"signal {number}"] = loaded.text(handler)
    return found


def _kind(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _plain(name: str) -> str:
    """A thread's name without its number."""
    return name.rstrip("0123456789").rstrip("-_")


def _own_modules(root: str) -> dict[str, str]:
    """The optimization's loaded modules and the files they come from."""
    return {
        name: getattr(module, "__file__", None) or ""
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] == root
    }

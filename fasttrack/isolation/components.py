"""Leaf, data: files that no optimization of one model may change, and why.

Patterns are paths from the root of a repository; `*` stands for any number of folders. The same
list serves a checkout of vLLM and a repository of optimizations.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Component:
    """A part that others rely on."""

    name: str
    why: str
    patterns: tuple[str, ...]
    open_to_new_files: bool = False
    """Whether files that did not exist before are none of this component."""

    def holds(self, path: str) -> bool:
        """Whether a file belongs to it."""
        return any(fnmatchcase(path, pattern) for pattern in self.patterns)


MODELS = "other models"
COMPONENTS = (
    Component(
        "scheduler", "it decides for every model which requests run in a step",
        ("vllm/v1/core/sched/*", "vllm/v1/request.py", "vllm/v1/engine/*"),
    ),
    Component(
        "KV-cache management", "its blocks and slots hold every model's state",
        ("vllm/v1/core/*", "vllm/v1/kv_cache_*.py", "vllm/v1/kv_offload/*",
         "vllm/v1/simple_kv_offload/*", "vllm/v1/worker/*block_table.py",
         "vllm/v1/worker/mamba_utils.py", "vllm/distributed/kv_transfer/*"),
    ),
    Component(
        "sampling", "it turns every model's logits into tokens",
        ("vllm/v1/sample/*", "vllm/v1/worker/gpu/sample/*", "vllm/v1/structured_output/*",
         "vllm/v1/spec_decode/*", "vllm/v1/worker/gpu/spec_decode/*", "vllm/sampling_params.py",
         "vllm/logits_process.py", "vllm/model_executor/layers/logits_processor.py"),
    ),
    Component(
        "input preparation", "it builds every model's inputs and attention metadata",
        ("vllm/v1/worker/*input_batch.py", "vllm/v1/worker/*model_runner.py",
         "vllm/v1/worker/gpu/*", "vllm/v1/worker/cpu/*", "vllm/v1/worker/*worker*.py",
         "vllm/v1/worker/utils.py", "vllm/v1/attention/backend.py",
         "vllm/v1/attention/backends/utils.py", "vllm/forward_context.py", "vllm/inputs/*"),
    ),
    Component(
        "engine configuration", "every model starts from it",
        ("vllm/config/*", "vllm/envs.py", "vllm/env_override.py", "vllm/platforms/*",
         "vllm/plugins/*", "vllm/engine/*", "vllm/entrypoints/*"),
    ),
    Component(
        "shared model code", "every model is registered, loaded and built with it",
        ("vllm/model_executor/models/registry.py", "vllm/model_executor/models/config.py",
         "vllm/model_executor/models/interfaces*.py", "vllm/model_executor/models/utils.py",
         "vllm/model_executor/models/adapters.py", "vllm/model_executor/model_loader/*",
         "vllm/model_executor/layers/*", "vllm/_custom_ops.py", "csrc/*"),
        open_to_new_files=True,
    ),
    Component(
        MODELS, "it is not the claimed model",
        ("vllm/model_executor/models/*", "vllm/models/*", "optimizations/*"),
        open_to_new_files=True,
    ),
    Component(
        "the harness", "what judges a change is not part of it",
        ("fasttrack/*", "submissions/policy.toml", "submissions/allowed_signers",
         "submissions/github_keys.json"),
    ),
)  # fmt: skip
"""The first one that holds a file is the one that is told."""


def component_of(path: str, *, is_new: bool) -> Component | None:
    """The protected component a changed file belongs to, if any."""
    for component in COMPONENTS:
        if component.holds(path) and not (is_new and component.open_to_new_files):
            return component
    return None

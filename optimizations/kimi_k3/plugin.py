"""Entry point of the vLLM plugin: makes the architecture known, and does nothing else.

Owns: registration. Does not own: the model (named by a string, imported by vLLM only when a
checkpoint asks for it). vLLM calls `register` once in every process it starts.

Registering adds one model type, two architectures and a start-up check of each, all under our own
names; no operator, environment variable or table entry of another model is touched.
"""

from __future__ import annotations


def register() -> None:
    """Make both architectures loadable: `FasttrackKimiK3ForCausalLM`, a model of our own, and
    `FasttrackKimiLinearForCausalLM`, vLLM's own with our path. Safe to call any number of times."""
    from transformers import AutoConfig
    from vllm import ModelRegistry
    from vllm.model_executor.models import config as model_configs

    from kimi_k3.config import ARCHITECTURE, MODEL_TYPE, KimiK3Config
    from kimi_k3.intree.support import ARCHITECTURE as OVER_VLLMS
    from kimi_k3.intree.support import StartupCheck as OverVllmsCheck
    from kimi_k3.support import StartupCheck

    AutoConfig.register(MODEL_TYPE, KimiK3Config, exist_ok=True)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"kimi_k3.model:{ARCHITECTURE}")
    model_configs.MODELS_CONFIG_MAP.setdefault(ARCHITECTURE, StartupCheck)
    if OVER_VLLMS not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(OVER_VLLMS, f"kimi_k3.intree.model:{OVER_VLLMS}")
    model_configs.MODELS_CONFIG_MAP.setdefault(OVER_VLLMS, OverVllmsCheck)

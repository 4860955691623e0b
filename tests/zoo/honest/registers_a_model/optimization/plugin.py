"""The entry point: makes one architecture known."""

from __future__ import annotations

import logging

ARCHITECTURE = "ZooForCausalLM"
LOG = logging.getLogger(__name__)


def register() -> None:
    """Safe to call any number of times."""
    from vllm import ModelRegistry
    from vllm.model_executor.models import config

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"zoo.model:{ARCHITECTURE}")
    config.MODELS_CONFIG_MAP.setdefault(ARCHITECTURE, object)
    LOG.info("registered %s", ARCHITECTURE)

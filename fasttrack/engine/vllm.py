"""The real engine: vLLM in a child process. The child module alone imports vLLM.

Environment: one process and one thread per rank, so that step times are the model's and not the
scheduler's fight for two cores; no network look-ups. Several ranks on a CPU share its cores: vLLM's
own binding wants a memory node for each.
"""

from __future__ import annotations

from fasttrack.engine.base import Engine

ENGINE = Engine(
    name="vllm",
    module="fasttrack.engine._vllm_child",
    server="fasttrack.engine._vllm_server_child",
    requires=(("vllm", "cpu"), ("torch", "cpu")),
    env={
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    },
)

"""Child process of the plugin tests: runs engine scenarios from a file, one after another.

    python _plugin_child.py SCENARIOS RESULTS

SCENARIOS is a JSON list of {"name", "engine": keyword arguments of vllm.LLM, "batches"}. A batch is
{"prompts": [[token]], "max_tokens", "every"}; "every" n admits one prompt per n steps, 0 all at
once.
RESULTS gets a JSON object by scenario name, rewritten after each: "error" (of the start-up, or
null), "batches" (per prompt: tokens, cached prompt tokens), "evidence" (per rank), "metrics" (the
engine's own).
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}


def run(scenario: dict[str, Any]) -> dict[str, Any]:
    """Start one engine, run its batches, stop it."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    found: dict[str, Any] = {"error": None, "batches": [], "evidence": [], "metrics": {}}
    options = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "disable_log_stats": False,
        "worker_extension_cls": "kimi_k3.runtime.evidence.WorkerExtension",
    }
    try:
        llm = LLM(**(options | scenario["engine"]))
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
        return found
    try:
        found["batches"] = [generate(llm, **batch) for batch in scenario["batches"]]
        found["evidence"] = llm.collective_rpc("fasttrack_evidence")
        found["metrics"] = {
            metric.name.rpartition(":")[2]: metric.value
            for metric in llm.get_metrics()
            if hasattr(metric, "value")
        }
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()
    return found


def generate(
    llm: Any, prompts: list[list[int]], max_tokens: int, every: int = 0
) -> list[dict[str, Any]]:
    """Greedy tokens of each prompt, in the order of `prompts`."""
    from vllm import SamplingParams

    greedy = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    engine, waiting, done, step = llm.llm_engine, list(enumerate(prompts)), {}, 0
    while waiting or engine.has_unfinished_requests():
        while waiting and (not every or step % every == 0):
            number, tokens = waiting.pop(0)
            engine.add_request(str(number), {"prompt_token_ids": tokens}, greedy)
            if every:
                break
        for output in engine.step():
            if output.finished:
                done[int(output.request_id.partition("-")[0])] = output
        step += 1
    return [
        {"tokens": list(done[n].outputs[0].token_ids), "cached": done[n].num_cached_tokens}
        for n in range(len(prompts))
    ]


def main() -> None:
    """Run every scenario of the file named first into the file named second."""
    scenarios = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results: dict[str, Any] = {}
    for scenario in scenarios:
        results[scenario["name"]] = run(scenario)
        Path(sys.argv[2]).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":  # vLLM's workers import this module again
    main()

"""What makes stock against stock look like a claim: the worker extension of `equal_arms`.

Both arms run stock. Base is told as base; of the candidate, decode steps are told as specialised,
so that its windows count. Named in the benchmark's claim, imported in the engine's workers.
"""

from __future__ import annotations

from typing import Any

from kimi_k3.runtime.evidence import WorkerExtension


class Extension(WorkerExtension):
    """The plugin's evidence with the arm in the switch's place."""

    def fasttrack_evidence(self, clear: bool = True) -> dict[str, Any]:
        """As the plugin's, but for the lie this benchmark needs."""
        found = super().fasttrack_evidence(clear)
        found["switch"] = self.model_runner.vllm_config.additional_config["equal_arms"]
        if found["switch"] == "candidate":
            for entry in found["log"]:
                if not entry["prefill_tokens"]:
                    entry["path"] = "specialised"
        return found

"""Child that keeps vLLM's OpenAI-compatible server: starts it, asks it what is no completion, and
tells when it is dead. The server is a process of this child's group and ends with it.

It listens on this machine alone. Completions are asked by the harness, through lm-eval.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fasttrack.engine._vllm_child import Backend
from fasttrack.engine.base import SessionInfo
from fasttrack.engine.serve import Coded, serve
from fasttrack.engine.vllm_arguments import flags
from fasttrack.schema import Target
from fasttrack.schema.claim import Plugin

MODEL = "served"
ANSWER_S = 60.0
END_S = 20.0
POLL_S = 0.2
RESETS = 50
WATCHED = "fasttrack.engine._vllm_served"


class Server(Backend):
    """One server and its process."""

    def start(
        self,
        session: str,
        arm: str,
        target: dict[str, Any],
        additional_config: dict[str, Any],
        plugin: dict[str, Any] | None,
        checkpoint: str | None,
        count_nans: bool = False,
        forces: bool = False,
    ) -> dict[str, Any]:
        """Boot the server with the arguments of the engine itself.

        Codes: ENG-002 plugin raised at import, else ENG-001.
        """
        self._target = Target.model_validate(target)
        self._plugin = Plugin.model_validate(plugin) if plugin else None
        os.environ["VLLM_PLUGINS"] = ",".join(self._plugin.vllm_plugins if self._plugin else ())
        if self._plugin:
            self._import_plugin(self._plugin)
        arguments = self._arguments(additional_config, checkpoint)
        own = arguments.pop("worker_extension_cls", "")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._steps_file = Path(tempfile.mkdtemp(prefix="fasttrack-server-")) / "steps"
        self._url = f"http://127.0.0.1:{port}"
        environment = {
            **os.environ,
            "VLLM_SERVER_DEV_MODE": "1",  # for what is asked below
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "FASTTRACK_EXTENSION": own,
            "FASTTRACK_STEPS": str(self._steps_file),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags(arguments),
             *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL),
             *("--worker-extension-cls", f"{WATCHED}.Extension"),
             *("--scheduler-cls", f"{WATCHED}.Watched", "--no-async-scheduling"),
             "--enable-prompt-tokens-details"],
            env=environment,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        while not self._healthy():
            time.sleep(POLL_S)
        told = self.told()
        return SessionInfo(
            switch=told["switch"],
            fingerprint=told["fingerprint"],
            prepared_batches=tuple(told["prepared_batches"]),
        ).json_value()

    def address(self) -> dict[str, Any]:
        """Where completions are asked, and the model's name there."""
        return {"url": f"{self._url}/v1/chat/completions", "model": MODEL}

    def tokenize(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> dict[str, Any]:
        """Token ids of conversations as the server renders them."""
        asked = ({"model": MODEL, "messages": list(one)} for one in conversations)
        return {"ids": [self._ask("/tokenize", body)["tokens"] for body in asked]}

    def reset_prefix_cache(self) -> dict[str, Any]:
        """Forget cached prefixes, and steps of requests that nobody waited for."""
        for _ in range(RESETS):
            if self._ask("/reset_prefix_cache", {}).get("success"):
                self.told()
                return {}
            time.sleep(POLL_S)  # blocks of the last answers may still be held
        raise Coded("ENG-006", "the server did not reset its prefix cache")

    def told(self) -> dict[str, Any]:
        """What `Extension.fasttrack_served` tells, and the scheduler's steps since the last time.

        ENG-003 where the server is dead.
        """
        asked = {"method": "fasttrack_served"}
        told = dict(self._ask("/collective_rpc", asked)["results"][0])
        lines = self._steps_file.read_text().splitlines() if self._steps_file.exists() else []
        self._steps_file.unlink(missing_ok=True)
        steps = [tuple(map(int, line.split())) for line in lines]
        return {
            **told,
            "scheduled": [step[:2] for step in steps],
            "drafted": [index for index, step in enumerate(steps) if step[2]],
        }

    def end(self) -> dict[str, Any]:
        """Stop the server; its memory is not known here."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)  # then it is killed with its group
        shutil.rmtree(self._steps_file.parent, ignore_errors=True)
        return {"peak_rss_mib": None}

    def _healthy(self) -> bool:
        if self._process.poll() is not None:
            raise Coded("ENG-001", f"the server ended with status {self._process.returncode}")
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=ANSWER_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer to a question; ENG-003 where it is dead, ENG-006 for an error."""
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise Coded("ENG-006", f"{path}: {error}: {error.read()[:300]!r}") from error
        except OSError as error:
            status = self._ended()
            if status is not None:
                raise Coded("ENG-003", f"the server ended with status {status}") from error
            raise Coded("ENG-006", f"{path}: {error}") from error
        return dict(json.loads(content)) if content else {}

    def _ended(self) -> int | None:
        """Status of a server that has ended, or is about to: it closes its sockets first."""
        try:
            return self._process.wait(POLL_S * 5)
        except subprocess.TimeoutExpired:
            return None


if __name__ == "__main__":
    server = Server()
    serve(
        {
            "start": server.start,
            "address": server.address,
            "tokenize": server.tokenize,
            "reset_prefix_cache": server.reset_prefix_cache,
            "told": server.told,
            "end": server.end,
        },
        default_code="ENG-006",
        # The server would outlive a harness that was killed. Its processes are of this group.
        left_alone=lambda: os.killpg(os.getpgrp(), signal.SIGKILL),
    )

"""compute-sanitizer over one call of an op on CUDA: memory, races, barriers, uninitialised reads.

Owns: running NVIDIA's tool on a child of its own and reading its summary. One call at the op's
smallest regime, for the tools slow a kernel down a hundredfold. Read by the stage.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

from fasttrack.engine.setting import Setting
from fasttrack.schema import SanitizerRecord

MODULE = "fasttrack.correctness._sanitized"
Tool = Literal["memcheck", "racecheck", "synccheck", "initcheck"]
TOOLS: Sequence[Tool] = get_args(Tool)
FOUND = 86
"""Exit status asked of the tool when it finds something."""
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def run(
    setting: Setting, op: str, regimes: Sequence[Mapping[str, int]]
) -> Iterator[SanitizerRecord]:
    """One record per tool."""
    regime = min(regimes, key=lambda one: math.prod(max(1, value) for value in one.values()))
    program = shutil.which("compute-sanitizer")
    if program is None:
        for tool in TOOLS:
            yield SanitizerRecord(op=op, regime=regime, tool=tool, status="not_installed")
        return
    setting.say(f"{op}: compute-sanitizer {', '.join(TOOLS)}")
    with ThreadPoolExecutor(len(TOOLS)) as pool:  # each is a process that takes its time
        yield from pool.map(lambda tool: _run(setting, program, op, regime, tool), TOOLS)


def _run(
    setting: Setting, program: str, op: str, regime: Mapping[str, int], tool: Tool
) -> SanitizerRecord:
    plugin = setting.claim.plugin
    wanted = {
        "distribution": plugin.distribution, "fallback": plugin.cases,
        "folder": str(setting.folder.resolve()), "op": op, "regime": dict(regime),
        "seed": setting.seed,
    }  # fmt: skip
    # Of memcheck, what kernels do: calls that fail are no news, for libraries probe the driver so.
    calls = ["--report-api-errors", "no"] if tool == "memcheck" else []
    command = [program, "--tool", tool, *calls, "--error-exitcode", str(FOUND),
               "--print-limit", "20", sys.executable, "-m", MODULE, json.dumps(wanted)]  # fmt: skip
    # Without torch's own caching an access past a tensor is an access past an allocation.
    env = {**os.environ, **setting.engine.env, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, errors="replace",
            timeout=setting.timeout_s, check=False,
        )  # fmt: skip
        output, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        output, status = f"no answer within {setting.timeout_s:g} s", -1
    setting.logs.mkdir(parents=True, exist_ok=True)
    (setting.logs / f"sanitizer-{op}-{tool}.log").write_text(output)
    summaries = [int(count) for count in _SUMMARY.findall(output)]
    errors = max(summaries, default=0)
    told = [line for line in output.splitlines() if line.startswith("=========")]
    if status == FOUND or errors:
        first = next((line for line in told if "rror" in line or "hazard" in line.lower()), "")
        message = first.removeprefix("=========").strip()
        return SanitizerRecord(op=op, regime=regime, tool=tool, status="errors",
                               errors=max(1, errors), message=message[:500])  # fmt: skip
    if status != 0 or not summaries:
        last = output.strip().splitlines()[-1:] or ["it printed nothing"]
        return SanitizerRecord(op=op, regime=regime, tool=tool, status="failed",
                               message=f"exit status {status}: {last[0]}"[:500])  # fmt: skip
    return SanitizerRecord(op=op, regime=regime, tool=tool, status="clean")

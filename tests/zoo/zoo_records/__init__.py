"""Builds records of invented runs: an honest one, and the pieces to spoil it with.

Two cells, one op, one eval, all five stages. Everything is seeded; a builder's defaults are honest,
and each test changes the one thing it is about. Nothing here runs an engine.
"""

from __future__ import annotations

from zoo_records._agent import TEMPLATE_TOKENS, TREES, agent, agent_turns, replay, totals
from zoo_records._evals import answers, evals, item
from zoo_records._features import feature, features
from zoo_records._isolation import finding, isolation
from zoo_records._kernels import (
    absent_kernel,
    compiled,
    compiled_kernel,
    conduct,
    early_access,
    errors,
    failed_kernel,
    kernels,
    not_compiled,
    planted_kernels,
    probed,
)
from zoo_records._path import ROUND, Scheduled, path, path_step, session
from zoo_records._perf import engine_steps, evenly, marks, perf, routing, sample, skewed
from zoo_records._proofs import CODE, FAST, STOCK, TURNS, answer, of_ranks, parted, proofs
from zoo_records._run import (
    ARMS,
    CONTROLS,
    FEATURES,
    REPEATS,
    SWITCH,
    WINDOW,
    case,
    changed,
    claim,
    decide,
    found,
    run_info,
    self_test,
)
from zoo_records._whole import agent_run, honest_run, moved, retold, too_fast, watched

__all__ = [
    "ARMS",
    "CODE",
    "CONTROLS",
    "FAST",
    "FEATURES",
    "REPEATS",
    "ROUND",
    "STOCK",
    "SWITCH",
    "TEMPLATE_TOKENS",
    "TREES",
    "TURNS",
    "WINDOW",
    "Scheduled",
    "absent_kernel",
    "agent",
    "agent_run",
    "agent_turns",
    "answer",
    "answers",
    "case",
    "changed",
    "claim",
    "compiled",
    "compiled_kernel",
    "conduct",
    "decide",
    "early_access",
    "engine_steps",
    "errors",
    "evals",
    "evenly",
    "failed_kernel",
    "feature",
    "features",
    "finding",
    "found",
    "honest_run",
    "isolation",
    "item",
    "kernels",
    "marks",
    "moved",
    "not_compiled",
    "of_ranks",
    "parted",
    "path",
    "path_step",
    "perf",
    "planted_kernels",
    "probed",
    "proofs",
    "replay",
    "retold",
    "routing",
    "run_info",
    "sample",
    "self_test",
    "session",
    "skewed",
    "too_fast",
    "totals",
    "watched",
]

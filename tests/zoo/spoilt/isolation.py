"""Findings of the isolation stage."""

from __future__ import annotations

import zoo_records as zoo

from fasttrack.schema import (
    State,
)
from spoilt.cheat import Cheat


def isolated(name: str, subject: str, code: str, where: str = "zoo/ops.py:7",
             exempt: str = "") -> Cheat:  # fmt: skip
    """A finding of the isolation stage."""
    found = [(subject, zoo.finding(code, where, exempt))]
    return Cheat(name, zoo.honest_run(isolation=zoo.isolation(found=found)), subject, State.FAIL,
                 code, f"{where}: planted")  # fmt: skip


ISOLATION = (
    isolated("scope_escape", "scope", "ISO-SCOPE", "other/x.py"),
    isolated("protected_component", "protected", "ISO-PROTECTED", "vllm/v1/sample/sampler.py"),
    isolated("import_side_effect", "imports", "ISO-IMPORT"),
    isolated("monkey_patches_sampler", "patches", "ISO-PATCH"),
    isolated("env_write", "environment", "ISO-ENV"),
    isolated("torch_flag", "torch", "ISO-TORCH"),
    isolated("declares_what_policy_does_not_let_be", "patches", "ISO-PATCH", exempt="It is so."),
    Cheat("no_file_read", zoo.honest_run(isolation=zoo.isolation(files=0)), "imports", State.FAIL,
          "ISO-IMPORT", "files: 0"),
    isolated("patched_before_the_switch", "code", "ISO-CODE", "vllm.v1.sample.sampler:Sampler"),
    isolated("patches_only_when_switched_on", "switched-on", "ISO-ON", "vllm.v1.core:f"),
    isolated("patches_around_its_model", "model", "ISO-SPREAD", "vllm.v1.core:f"),
    isolated("runs_other_files_than_were_judged", "model", "ISO-COPY", "zoo/ops.py"),
    Cheat("neighbour_changed", zoo.honest_run(isolation=zoo.isolation(tokens_equal=3)),
          "neighbour", State.FAIL, "ISO-DIFF", "tokens_equal: 3"),
    Cheat("op_registered", zoo.honest_run(isolation=zoo.isolation(ops="b2")), "neighbour",
          State.FAIL, "ISO-DIFF", "ops: 'b2'"),
    Cheat("value_gone", zoo.honest_run(isolation=zoo.isolation(ops=None)), "neighbour",
          State.FAIL, "ISO-DIFF", "ops: None"),
    Cheat("never_checked", zoo.honest_run(isolation=zoo.isolation()[:6]), "neighbour",
          State.MISSING, "NO-RECORDS"),
)  # fmt: skip

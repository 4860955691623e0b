"""Protects the launch lines for 8 and 16 GPUs: docs/scale-out.md shows what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import fasttrack, optimization

PAGE = Path(__file__).parents[2] / "docs" / "scale-out.md"
TARGETS = re.compile(r"```toml\n(.*?)```", re.DOTALL)
SHOWN = re.compile(r"`fasttrack (plan demo --target \w+ --launch)`\n```sh\n(.*?)\n?```", re.DOTALL)


def test_the_page_shows_the_lines_that_are_printed(tmp_path: Path) -> None:
    text = PAGE.read_text()
    claim = optimization(tmp_path) / "claim.toml"
    (targets,) = TARGETS.findall(text)
    claim.write_text(f"{claim.read_text()}\n{targets}")
    shown = SHOWN.findall(text)
    assert len(shown) == 2
    for command, lines in shown:
        ran = fasttrack(tmp_path, *command.split())
        assert (ran.status, ran.out) == (0, f"{lines}\n"), ran.out


@pytest.mark.engine
def test_vllm_knows_every_word_of_the_lines() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    lines = re.findall(r"vllm serve (.*)", PAGE.read_text())
    assert len(lines) == 4
    for line in lines:
        parsed = parser.parse_args(shlex.split(line))
        assert parsed.tensor_parallel_size in (8, 16)


def test_an_engine_without_a_command_line_is_refused(tmp_path: Path) -> None:
    optimization(tmp_path)
    ran = fasttrack(tmp_path, "plan", "demo", "--launch", "--json")
    assert (ran.status, ran.error["code"]) == (2, "USE-001")

"""Protects authors: a bad claim is refused before anything runs, with code, every problem, and a
hint at the nearest known key."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrack import claim
from fasttrack.errors import FasttrackError, UsageError
from fasttrack.schema import Policy

GOOD = """\
schema = "fasttrack.claim/v1"
name = "demo"
title = "Demo"
summary = "A claim for tests."

[scope]
models = ["DemoForCausalLM"]
paths = ["demo/**"]
ops = ["mix"]

[switch]
key = "additional_config.decode_backend"
base = "auto"
candidate = "latency_specialized"

[plugin]
distribution = "demo"
module = "demo"

[speed]
sentence = "slower_nowhere"
slower_margin_percent = 3.0

[targets.fake]
engine = "fake"
role = "development"
max_model_len = 1024
max_num_seqs = 16

[targets.fake.grid]
batch = [1, 8]
context_tokens = [64]
"""


def refused(tmp_path: Path, text: str | bytes) -> FasttrackError:
    """The error for a claim.toml of this text."""
    data = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "claim.toml").write_bytes(data)
    with pytest.raises(UsageError) as caught:
        claim.load(tmp_path)
    assert caught.value.exit_status == 2
    assert "claim.toml" in caught.value.cause
    return caught.value


def edited(old: str, new: str) -> str:
    """The good claim with one edit."""
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_a_good_claim_is_read_with_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "claim.toml"
    path.write_text(GOOD)
    by_folder, by_file = claim.load(tmp_path), claim.load(path)
    assert by_folder == by_file
    assert by_folder.source == GOOD.encode()
    assert by_folder.folder == tmp_path
    assert by_folder.claim.name == "demo"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        claim.load(tmp_path / "nowhere")
    assert caught.value.code == "CLM-001"
    assert "No such file" in caught.value.cause
    assert caught.value.next_step.startswith("fasttrack init")


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "claim.toml").mkdir()
    with pytest.raises(UsageError) as caught:
        claim.load(tmp_path)
    assert caught.value.code == "CLM-001"


@pytest.mark.parametrize(
    "text",
    [
        "{ not toml",
        GOOD + "\n[scope]\n",
        GOOD + '\nname = "twice"\n[',
        b"\xff\xfe",
        b"a = '\x00'",
        "x = " + "[" * 50_000,
    ],
    ids=["braces", "table_twice", "open", "not_utf8", "nul", "nested"],
)
def test_not_toml(tmp_path: Path, text: str | bytes) -> None:
    assert refused(tmp_path, text).code == "CLM-002"


def test_a_huge_file_is_not_even_parsed(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD + "# " + "x" * claim.MAX_BYTES)
    assert error.code == "CLM-002"
    assert "larger than" in error.cause


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("max_model_len", "max_model_length", "did you mean 'max_model_len'?"),
        ("slower_margin_percent", "slower_margin_permil", "did you mean 'slower_margin_percent'?"),
        ("context_tokens", "context_kilotokens", "did you mean 'context_tokens'?"),
        ("candidate =", "candidat =", "switch.candidate: required"),
        ("module = ", "modul = ", "did you mean 'module'?"),
        ('title = "Demo"', "xyzzy = 1", "xyzzy: unknown key"),
        ("[plugin]", "[plugins]", "did you mean 'plugin'?"),
        ('engine = "fake"', "engine = 7", "targets.fake.engine"),
        ('role = "development"', 'role = "dev"', "targets.fake.role"),
        ('name = "demo"', 'name = "De mo"', "name: "),
        ('"slower_nowhere"', '"never_slower"', "speed.sentence"),
        ("= 3.0", "= 30.0", "speed.slower_margin_percent"),
        ("= 3.0", "= nan", "speed.slower_margin_percent"),
        ("[1, 8]", '["one", 8]', "targets.fake.grid.batch"),
        ('schema = "fasttrack.claim/v1"', 'schema = "fasttrack.claim/v9"', "schema"),
        ("[targets.fake]", '[targets."../up"]', "targets"),
    ],
)  # fmt: skip
def test_unknown_keys_units_and_values(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = GOOD.replace(old, new, 1)
    if old == "[targets.fake]":
        text = text.replace("[targets.fake.grid]", '[targets."../up".grid]')
    error = refused(tmp_path, text)
    assert error.code == "CLM-003"
    assert says in error.cause


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    text = edited("max_num_seqs = 16", "max_seqs = 16").replace("module =", "modul =")
    cause = refused(tmp_path, text).cause
    assert "plugin.modul: unknown key" in cause
    assert "plugin.module: required" in cause
    assert "targets.fake.max_seqs: unknown key" in cause


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[1, 8]", "[1, 32]", "batch 32 is above max_num_seqs 16"),
        ("[64]", "[1024]", "context_tokens 1024 does not fit max_model_len 1024"),
        ("[1, 8]", "[]", "grid.batch"),
        ("[64]", "[0]", "grid.context_tokens"),
        ("[1, 8]", "[1, -8]", "grid.batch"),
        ("[1, 8]", "[8, 8]", "names a value twice"),
    ],
)
def test_impossible_grids(tmp_path: Path, old: str, new: str, says: str) -> None:
    error = refused(tmp_path, edited(old, new))
    assert error.code == "CLM-005"
    assert says in error.cause


def test_a_grid_beside_another_mistake_is_not_called_impossible(tmp_path: Path) -> None:
    error = refused(tmp_path, edited("[1, 8]", "[8, 8]").replace("module =", "modul ="))
    assert error.code == "CLM-003"


# Policies


def test_the_built_in_policy_is_the_default() -> None:
    assert claim.load_policy(None) == Policy()


def test_a_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("version = 2\n[speed]\nlook_pairs = [5]\n")
    policy = claim.load_policy(path)
    assert (policy.version, policy.speed.look_pairs) == (2, (5,))
    assert policy.numerics == Policy().numerics


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("[speed]\nlook_pair = [5]\n", "CLM-003", "did you mean 'look_pairs'?"),
        ("[speed]\nlook_pairs = [1]\n", "CLM-003", "speed.look_pairs"),
        ("[speed", "CLM-002", "policy.toml"),
    ],
)
def test_a_bad_policy_file(tmp_path: Path, text: str, code: str, says: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        claim.load_policy(path)
    assert caught.value.code == code
    assert says in caught.value.cause


def test_a_missing_policy_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        claim.load_policy(tmp_path / "policy.toml")
    assert caught.value.code == "CLM-001"
    assert "init" not in caught.value.next_step

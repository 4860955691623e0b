"""Protects external evals: the user's own file, frozen items, lm-eval's scores, and every item
accounted for whatever the engine does. Files are small and in the official forms; lm-eval is real.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from command_line import Ran, fasttrack, optimization, records, run_folders

from fasttrack import claim, engine
from fasttrack.bundle.reader import open_bundle
from fasttrack.checkpoints import ensure
from fasttrack.engine.base import Session
from fasttrack.engine.setting import Setting
from fasttrack.errors import VerificationFailed
from fasttrack.evals import manifest
from fasttrack.evals import run as evals
from fasttrack.evals.external.asker import MAX_BOOTS
from fasttrack.evals.external.prepare import prepare
from fasttrack.rules.path import mismatch
from fasttrack.schema import ItemRecord, MonitorRecord, PathRecord, SessionRecord
from fasttrack.schema.claim import ExternalEval
from fasttrack.verify.answers import check as check_answers
from fasttrack.verify.recompute import read_records

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.slow

AIME = [
    {"problem": "Find the sum of all integer bases $b > 9$ for which $17_b$ divides $97_b$.",
     "answer": "70"},
    {"problem": "Find the remainder of $2^{10}$ divided by $1000$.", "answer": 24},
]  # fmt: skip


GSM = [
    {"id": 3, "instance": 0, "question": "Ann has 3 pears and eats 1. How many are left?",
     "answer": "3 - 1 = 2\n#### 2"},
    {"id": 3, "instance": 1, "question": "Bo has 9 figs and eats 4. How many are left?",
     "answer": "9 - 4 = 5\n#### 5"},
]  # fmt: skip


def conversation(needle: int) -> dict[str, Any]:
    """A row of openai/mrcr with two needles."""
    poems = ["Owls are old and owls are bold.", "Brooks run cold; owls look on."]
    said = [
        {"role": "user", "content": "write a poem about owls"},
        {"role": "assistant", "content": poems[0]},
        {"role": "user", "content": "write a riddle about rain"},
        {"role": "assistant", "content": "I fall and never rise."},
        {"role": "user", "content": "write a poem about owls"},
        {"role": "assistant", "content": poems[1]},
        {"role": "user", "content": f"Prepend aYooSG8CQg to poem {needle} about owls."},
    ]
    return {
        "prompt": json.dumps(said),
        "answer": f"aYooSG8CQg{poems[needle - 1]}",
        "random_string_to_prepend": "aYooSG8CQg",
        "n_needles": 2,
        "desired_msg_index": 4 * needle - 3,
        "total_messages": len(said),
        "n_chars": len(json.dumps(said)),
    }


def write_data(folder: Path) -> None:
    """Both data files."""
    import datasets

    (folder / "aime.jsonl").write_text("".join(json.dumps(row) + "\n" for row in AIME))
    (folder / "gsm.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GSM))
    rows = [conversation(1), conversation(2)]
    datasets.Dataset.from_list(rows).to_parquet(str(folder / "mrcr.parquet"))


def claimed(folder: Path, evals: str, *edits: tuple[str, str], **fake: Any) -> Path:
    """A claim with external evals and its data files."""
    made = optimization(
        folder, *edits, ("[targets.fake.grid]", f"{evals}\n[targets.fake.grid]"), **fake
    )
    write_data(made)
    return made


AIME_EVAL = """[targets.fake.evals.aime25]
file = "aime.jsonl"
answer_tokens = 12
"""
SAMPLED = AIME_EVAL + "samples = 3\ntemperature = 0.6\n"
GSM_EVAL = """[targets.fake.evals.gsm-symbolic]
file = "gsm.jsonl"
answer_tokens = 12
"""
MRCR_EVAL = """[targets.fake.evals.mrcr]
file = "mrcr.parquet"
answer_tokens = 12
"""


def run(folder: Path, *more: object) -> Ran:
    """The evals stage."""
    return fasttrack(folder, "validate", "demo", "--only", "evals", "--json", *more)


def answers(folder: Path, unit: str) -> list[ItemRecord]:
    """Items of one unit of the one run."""
    (made,) = run_folders(folder)
    return [r for r in records(made, f"evals/{unit}") if isinstance(r, ItemRecord)]


def test_both_run_end_to_end_and_verify(tmp_path: Path) -> None:
    made = claimed(tmp_path, SAMPLED + MRCR_EVAL + GSM_EVAL)
    # The official file may lie anywhere on this machine.
    (made / "gsm.jsonl").rename(tmp_path / "elsewhere.jsonl")
    elsewhere = "--data", "gsm-symbolic=elsewhere.jsonl"
    ran = run(tmp_path, *elsewhere)
    assert (ran.status, ran.error["code"]) == (2, "EVL-005")
    assert "fasttrack evals prepare" in ran.error["next"]

    ran = fasttrack(tmp_path, "evals", "prepare", "demo", "--json")
    assert (ran.status, ran.error["code"]) == (2, "EVL-001")
    ran = fasttrack(tmp_path, "evals", "prepare", "demo", "--json", *elsewhere)
    assert ran.status == 0, ran.err
    aime, gsm, mrcr = ran.json["evals"]
    assert (gsm["eval"], gsm["scorer"]) == ("gsm-symbolic", "gsm-symbolic-last-number/1")
    assert (aime["items"], aime["samples"]) == (2, 3)
    assert (mrcr["scorer"], mrcr["bins"]) == ("mrcr-card/1", {"1-4096": 2})
    data = (made / "aime.jsonl").read_bytes()
    assert aime["data_sha256"] == hashlib.sha256(data).hexdigest()

    ran = run(tmp_path, *elsewhere)
    assert ran.status in (0, 3), ran.err
    assert not {"EVAL-INCOMPLETE", "EVAL-DIVERGED"} & ran.codes
    for arm in ("base", "candidate"):
        found = answers(tmp_path, f"aime25-{arm}")
        assert len(found) == 12
        assert len({r.seed for r in found}) == 6
        assert {r.item.partition("#")[0] for r in found} == {"aime25-0", "aime25-1"}
        assert len(answers(tmp_path, f"mrcr-{arm}")) == 4
        assert {r.eval for r in answers(tmp_path, f"gsm-symbolic-{arm}")} == {"gsm-symbolic"}
    bundle = ran.json["bundle"]
    checked = fasttrack(tmp_path, "verify", bundle)
    assert checked.status == 0, checked.err
    with open_bundle(tmp_path / bundle) as opened:
        honest = read_records(opened)
        for change, code in (
            ({"score": 0.5}, "VER-093"),
            ({"prompt_sha256": "0" * 64}, "VER-094"),
            ({"item": "aime25-7#0"}, "VER-094"),
            ({"token_ids": [1] * 13}, "VER-094"),
        ):
            tampered = list(honest)
            at = next(i for i, (name, r) in enumerate(honest)
                      if "aime25" in name and isinstance(r, ItemRecord))  # fmt: skip
            tampered[at] = (honest[at][0], honest[at][1].model_copy(update=change))
            with pytest.raises(VerificationFailed) as refused:
                check_answers(opened, tampered)
            assert refused.value.code == code


def test_a_manifest_of_something_else_is_refused(tmp_path: Path) -> None:
    made = claimed(tmp_path, AIME_EVAL)
    assert fasttrack(tmp_path, "evals", "prepare", "demo").status == 0
    frozen = made / "evals" / "aime25.fake.json"
    whole = frozen.read_text()
    for old, new in (('"answer_tokens":12', '"answer_tokens":13'), ("aime25-integer/1", "other/1")):
        frozen.write_text(whole.replace(old, new))
        assert run(tmp_path).error["code"] == "EVL-006"
    frozen.write_text(whole)
    (made / "aime.jsonl").write_text(json.dumps(AIME[0]) + "\n")
    assert run(tmp_path).error["code"] == "EVL-006"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (('file = "aime.jsonl"', 'file = "absent.jsonl"'), "EVL-001"),
        (('file = "aime.jsonl"', f'file = "aime.jsonl"\nsha256 = "{"0" * 64}"'), "EVL-002"),
        (('file = "aime.jsonl"', 'file = "mrcr.parquet"'), "EVL-003"),
        (('file = "aime.jsonl"', 'file = "claim.toml"'), "EVL-003"),
        (("answer_tokens = 12", "answer_tokens = 4090"), "EVL-004"),
        (("answer_tokens = 12", "answer_tokens = 12\nsamples = 4"), "CLM-003"),
    ],
)
def test_bad_input_has_a_code_before_anything_runs(
    tmp_path: Path, edit: tuple[str, str], code: str
) -> None:
    claimed(tmp_path, AIME_EVAL.replace(*edit))
    ran = fasttrack(tmp_path, "evals", "prepare", "demo", "--json")
    assert (ran.status, ran.error["code"]) == (2, code), ran.error
    assert "Traceback" not in ran.err
    assert not (tmp_path / "demo" / "evals").exists()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("fails_in_external_evals", "ENG-006"),
        ("dies_in_external_evals", "ENG-003"),
        ("shed_load", "no answer"),
        ("echoes", "the prompt again"),
        ("ignores_max_tokens", "were asked for"),
        ("cuts_prompts", "prompt tokens were computed"),
        ("ignores_temperature", "are all equal"),
    ],
)
def test_an_engine_that_fails_leaves_every_item_with_its_error(
    tmp_path: Path, fault: str, told: str
) -> None:
    claimed(tmp_path, SAMPLED.replace("12", "40"), fault=fault)
    assert fasttrack(tmp_path, "evals", "prepare", "demo").status == 0
    ran = run(tmp_path, "--skip", "isolation")
    assert "EVAL-INCOMPLETE" in ran.codes, ran.err
    found = answers(tmp_path, "aime25-candidate")
    assert len({(r.item, r.repeat) for r in found}) == len(found) == 12
    assert any(told in r.error for r in found), [r.error for r in found]


def test_a_dead_engine_is_booted_again_for_the_rest(tmp_path: Path) -> None:
    claimed(tmp_path, SAMPLED, fault="dies_in_external_evals")
    assert fasttrack(tmp_path, "evals", "prepare", "demo").status == 0
    run(tmp_path)
    (made,) = run_folders(tmp_path)
    found = records(made, "evals/aime25-candidate")
    (counted,) = [r for r in found if isinstance(r, MonitorRecord)]
    sessions = [r.session for r in found if isinstance(r, SessionRecord)]
    # The fault kills every boot in its second call, until none is left: still nothing is dropped.
    assert counted.values["boots"] == len(sessions) == MAX_BOOTS
    items = [r for r in found if isinstance(r, ItemRecord)]
    assert len({(r.item, r.repeat) for r in items}) == len(items) == 12
    assert sum(not r.error for r in items) == 6
    assert sessions[1] == "evals-aime25-candidate-2"


def test_an_item_that_never_ends_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    # The fault starves the first request of every call; the simulated clock waits for its limit.
    claimed(tmp_path, SAMPLED, fault="never_ends")
    assert fasttrack(tmp_path, "evals", "prepare", "demo").status == 0
    ran = run(tmp_path)
    assert "EVAL-INCOMPLETE" in ran.codes, ran.err
    assert "EVL-007: no end within 900 s, given up at 3 tokens" in ran.out
    external = answers(tmp_path, "aime25-candidate")
    assert len({(r.item, r.repeat) for r in external}) == len(external) == 12
    assert sum(not r.error for r in external) == 3
    embedded = answers(tmp_path, "candidate")
    late = [r for r in embedded if r.error.startswith("EVL-007")]
    whole = [r for r in embedded if not r.error]
    assert {r.repeat for r in late} == {"main", "control", "replay"} == {
        "control", *(r.repeat for r in whole)
    }  # fmt: skip
    assert len({(r.eval, r.item, r.repeat) for r in embedded}) == len(embedded)
    assert all(len(r.token_ids) == 3 and r.finish_reason == "aborted" for r in late)
    assert fasttrack(tmp_path, "verify", ran.json["bundle"]).status == 0


def test_another_template_in_one_arm_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    claimed(tmp_path, AIME_EVAL, fault="changes_template")
    assert fasttrack(tmp_path, "evals", "prepare", "demo").status == 0
    ran = run(tmp_path)
    assert (ran.status, ran.error["code"]) == (2, "EVL-006")
    assert "candidate" in ran.error["cause"]


def test_answered_items_are_not_asked_again(tmp_path: Path) -> None:
    claimed(tmp_path, SAMPLED)
    assert fasttrack(tmp_path, "evals", "prepare", "demo").status == 0
    generate, calls = Session.generate, []

    def interrupted(self: Session, requests: Any, **more: Any) -> Any:
        if len(requests) == 2 and requests[0].sampling.seed is not None:
            calls.append([r.sampling.seed for r in requests])
            if len(calls) == 2:
                raise KeyboardInterrupt
        return generate(self, requests, **more)

    with mock.patch.object(Session, "generate", interrupted):
        ran = run(tmp_path)
        assert (ran.status, ran.error["code"]) == (130, "RUN-001")
        again = run(tmp_path)
    assert again.status in (0, 3), again.err
    asked = [seed for call in calls for seed in call]
    twice = {seed for seed in calls[1]}
    # Both arms ask every seed; only the call that was interrupted is repeated, in base.
    assert all(asked.count(seed) == 2 + (seed in twice) for seed in asked)
    (made,) = run_folders(tmp_path)
    (counted,) = [r for r in records(made, "evals/aime25-base") if isinstance(r, MonitorRecord)]
    assert counted.values == {"boots": 2, "resumed_answers": 2}
    assert fasttrack(tmp_path, "verify", again.json["bundle"]).status == 0


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("preloaded")
def test_the_real_engine_answers_through_the_models_chat_template(tmp_path: Path) -> None:
    pytest.importorskip("kimi_k3")
    root = Path(__file__).resolve().parents[2]
    known = claim.load(root / "optimizations" / "kimi_k3").claim
    target = known.targets["cpu-nano"]
    assert target.checkpoint is not None
    weights, digest = ensure(target.checkpoint, root / ".cache" / "checkpoints", tmp_path)
    wanted = {
        "aime25": ExternalEval(
            file="aime.jsonl", answer_tokens=16, samples=2, temperature=0.8, top_p=0.95
        ),
        "mrcr": ExternalEval(file="mrcr.parquet", answer_tokens=16),
        "gsm-symbolic": ExternalEval(file="gsm.jsonl", answer_tokens=16, server=True),
    }
    targets = {"cpu-nano": target.model_copy(update={"evals": wanted})}
    write_data(tmp_path)
    said: list[str] = []
    setting = Setting(
        claim=known.model_copy(update={"targets": targets}),
        target_name="cpu-nano",
        engine=engine.get("vllm"),
        checkpoint=weights,
        checkpoint_sha256=digest,
        source_sha256=lambda: "0" * 64,
        logs=tmp_path / "logs",
        folder=tmp_path,
        seed=0,
        timeout_s=400.0,
        say=said.append,
    )
    for one in prepare(setting):
        manifest.write(one, tmp_path)
    # The last one through a server, which renders and schedules by itself.
    for name, count in (("aime25", 4), ("mrcr", 2), ("gsm-symbolic", 2)):
        made = evals.run(setting, {"arm": "candidate", "external": name})
        found = [r for r in made if isinstance(r, ItemRecord)]
        assert len({(r.item, r.repeat) for r in found}) == len(found) == 2 * count
        assert {r.error for r in found} == {""}
        assert {r.score for r in found} <= {0.0, 1.0} or name == "mrcr"
        assert all(0 < len(r.token_ids) <= 16 for r in found)
        paths = [r for r in made if isinstance(r, PathRecord)]
        assert "specialised" in {step.path for record in paths for step in record.steps}
        assert [mismatch(record) for record in paths] == [""] * len(paths)
        assert all(record.scheduled for record in paths)
        assert {len(r.logprobs) - len(r.token_ids) for r in found} == {0}
        (session,) = [r for r in made if isinstance(r, SessionRecord)]
        assert session.variant == ("server" if wanted[name].server else "")
        assert session.fingerprint["engine"] == "vllm"
        assert any(f"{name} (candidate, main): {count} of {count}, score" in one for one in said)

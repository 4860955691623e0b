"""Protects the protected branch: in real repositories, each way a change can lack evidence has its
own code and exit status, and honest evidence survives what does not concern it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import gate_lab
import pytest
from command_line import fasttrack
from gate_lab import MAIN, Keys, Lab, maker

from fasttrack.bundle import sign
from fasttrack.claim import parse_policy
from fasttrack.gate import change, waiver
from fasttrack.gate.findings import DEMANDS, GateResult
from fasttrack.schema import Tier

VLLM = {
    "claim_path": "optimizations/k3/claim.toml",
    "code": "vllm/models/kimi_k3/specialized_decode",
    "source": maker.SOURCE.replace("optimizations/demo/**", "vllm/models/kimi_k3/**"),
}
LAYOUTS: dict[str, dict[str, str]] = {"in-tree": {}, "vllm": VLLM}
LOOSE = "[numerics]\n" + "".join(
    f"{name} = 90.0\n"
    for name in ("ratio_rms", "ratio_q999", "ratio_worst_slice_rms", "ratio_max", "bias_ratio",
                 "hard_cap")
)  # fmt: skip


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """The people of these tests."""
    return gate_lab.make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(params=LAYOUTS)
def lab(request: pytest.FixtureRequest, tmp_path: Path, keys: Keys) -> Lab:
    """A repository of each layout with a change in the optimization's code."""
    return gate_lab.make(tmp_path, keys, **LAYOUTS[request.param])


@pytest.fixture
def plain(tmp_path: Path, keys: Keys) -> Lab:
    """A repository of the usual layout."""
    return gate_lab.make(tmp_path, keys)


def judge(lab: Lab, **options: Any) -> GateResult:
    """The gate's answer about the change."""
    return change.gate(lab.root, MAIN, "change", **options)


def told(result: GateResult) -> tuple[int, set[str]]:
    """Exit status, and codes of what stands in the way."""
    return result.status, {
        f.code for decision in result.decisions for f in decision.findings if not f.waived
    }


def text(result: GateResult, code: str) -> str:
    """What was said under a code."""
    return " ".join(f.text for d in result.decisions for f in d.findings if f.code == code)


# Evidence -----------------------------------------------------------------------------------------


def test_fresh_evidence_is_green(lab: Lab) -> None:
    lab.bring(lab.measure())
    assert told(judge(lab)) == (0, set())


def test_missing(lab: Lab) -> None:
    assert told(judge(lab)) == (3, {"GAT-001"})


def test_stale_after_an_edit_in_scope(lab: Lab) -> None:
    lab.bring(lab.measure())
    lab.commit({f"{lab.code}/decode.py": "x = 3\n"})
    found = judge(lab)
    assert told(found) == (3, {"GAT-005"})
    assert f"{lab.code}/decode.py" in text(found, "GAT-005")


def test_stale_after_a_new_file_or_a_mode_in_scope(plain: Lab) -> None:
    plain.bring(plain.measure())
    new = plain.commit({f"{plain.code}/helper.py": ""})
    assert told(judge(plain)) == (3, {"GAT-005"})
    plain.git("reset", "-q", "--hard", f"{new}~1")
    (plain.root / plain.code / "decode.py").chmod(0o755)
    plain.commit({})
    assert told(judge(plain)) == (3, {"GAT-005"})


def test_still_fresh_after_a_rebase_that_leaves_the_scope_alone(lab: Lab) -> None:
    lab.bring(lab.measure())
    lab.commit({"engine/scheduler.py": "y = 2\n", "README.md": "# New\n"}, MAIN)
    assert told(judge(lab)) == (0, set())
    lab.git("checkout", "-q", "change")
    lab.git("rebase", "-q", MAIN)
    assert told(judge(lab)) == (0, set())


def test_stale_after_a_rebase_and_an_edit(plain: Lab) -> None:
    """The measured commit is gone from the history; its files are recognised."""
    plain.bring(plain.measure())
    plain.commit({"README.md": "# New\n"}, MAIN)
    plain.git("checkout", "-q", "change")
    plain.git("rebase", "-q", MAIN)
    plain.commit({f"{plain.code}/decode.py": "x = 3\n"})
    found = judge(plain)
    assert told(found) == (3, {"GAT-005"})
    assert f"{plain.code}/decode.py" in text(found, "GAT-005")


def test_what_a_merge_would_give_was_never_measured(lab: Lab) -> None:
    lab.bring(lab.measure())
    lab.commit({f"{lab.code}/other.py": "z = 1\n"}, MAIN)
    found = judge(lab)
    assert told(found) == (3, {"GAT-008"})
    assert f"{lab.code}/other.py" in text(found, "GAT-008")
    lab.git("checkout", "-q", "change")
    lab.git("merge", "-q", MAIN, "-m", "merge")
    assert told(judge(lab)) == (3, {"GAT-005"})
    lab.bring(lab.measure())
    stale = [d.name for d in judge(lab).decisions if d.status]
    lab.commit({name: None for name in stale})
    assert told(judge(lab)) == (0, set())


def test_same_change_on_both_branches_is_no_conflict(plain: Lab) -> None:
    plain.bring(plain.measure())
    plain.commit({f"{plain.code}/decode.py": "x = 2\n"}, MAIN)
    assert told(judge(plain)) == (0, set())


def test_evidence_of_another_claim(plain: Lab) -> None:
    with mock.patch.object(plain, "source", plain.source.replace('"demo"', '"other"')):
        made = plain.measure()
    plain.bring(made)
    assert told(judge(plain)) == (3, {"GAT-001", "GAT-006"})


def test_evidence_of_another_change(plain: Lab) -> None:
    """The same claim, measured by somebody else from other code."""
    plain.git("checkout", "-q", "-b", "foreign", MAIN)
    plain.commit({f"{plain.code}/decode.py": "x = 99\n"}, "foreign")
    made = plain.measure()
    plain.git("checkout", "-q", "change")
    plain.bring(made)
    found = judge(plain)
    assert told(found) == (3, {"GAT-006"})
    assert "this change never had" in text(found, "GAT-006")


def test_claim_edited_after_measuring(plain: Lab) -> None:
    plain.bring(plain.measure())
    edited = plain.source.replace("faster_everywhere", "slower_nowhere")
    plain.commit({plain.claim_path: edited})
    assert told(judge(plain)) == (3, {"GAT-005", "GAT-007"})


def test_unsigned(plain: Lab) -> None:
    made = plain.measure()
    members = maker.remanifest(maker.explode(made))
    plain.bring(maker.assemble(members, made))
    found = judge(plain)
    assert told(found) == (6, {"GAT-019"})
    assert "VER-030" in text(found, "GAT-019")


def test_tampered(plain: Lab) -> None:
    made = plain.measure()
    raw = bytearray(made.read_bytes())
    raw[raw.index(b'"kind":"item"')] ^= 1
    made.write_bytes(bytes(raw))
    plain.bring(made)
    found = judge(plain)
    assert told(found) == (6, {"GAT-019"})
    assert "VER-007" in text(found, "GAT-019")


def test_signed_by_a_stranger_who_lists_himself(plain: Lab) -> None:
    made = plain.measure(key=plain.keys.stranger)
    listed = f"{maker.PRINCIPAL} {maker.public_line(plain.keys.stranger)}\n"
    plain.bring(made, **{"submissions/allowed_signers": listed})
    found = judge(plain)
    assert told(found) == (6, {"GAT-009", "GAT-019"})
    assert "VER-041" in text(found, "GAT-019")


def test_no_list_of_signers_on_the_protected_branch(plain: Lab) -> None:
    plain.commit({"submissions/allowed_signers": None}, MAIN)
    plain.git("checkout", "-q", "change")
    plain.git("rebase", "-q", MAIN)
    plain.bring(plain.measure())
    assert told(judge(plain)) == (3, {"GAT-018"})


def test_tier_that_policy_does_not_admit(plain: Lab) -> None:
    plain.bring(plain.measure(run={"tier": Tier.SMOKE}))
    assert told(judge(plain)) == (3, {"GAT-013"})


def test_measured_from_a_changed_working_tree(plain: Lab) -> None:
    (plain.root / plain.code / "decode.py").write_text("x = 5\n")
    made = plain.measure()
    plain.git("checkout", "-q", "--", ".")
    plain.bring(made)
    assert told(judge(plain)) == (3, {"GAT-016"})


def broken_kernel(record: Any) -> Any:
    """A candidate five times worse than stock."""
    if record.kind == "kernel" and record.control is None:
        return record.model_copy(update={"candidate": maker.errors(5.0)})
    return record


def test_policy_loosened_in_the_change(plain: Lab) -> None:
    """The evidence passes under the author's policy and the change brings that policy along."""
    loose = parse_policy(LOOSE.encode(), "loose")
    made = plain.measure(edit=broken_kernel, policy=loose)
    plain.bring(made, **{"submissions/policy.toml": LOOSE})
    found = judge(plain)
    assert told(found) == (1, {"GAT-009", "GAT-010"})
    assert "submissions/policy.toml" in text(found, "GAT-009")


def test_policy_of_the_protected_branch_counts(tmp_path: Path, keys: Keys) -> None:
    lab = gate_lab.make(tmp_path, keys, policy=LOOSE)
    lab.bring(lab.measure(edit=broken_kernel, policy=parse_policy(LOOSE.encode(), "loose")))
    assert told(judge(lab)) == (0, set())


def test_rules_changed_beside_good_evidence(plain: Lab) -> None:
    plain.bring(plain.measure(), **{"submissions/policy.toml": LOOSE})
    assert told(judge(plain)) == (3, {"GAT-009"})


def test_cherry_picking_does_not_help(plain: Lab) -> None:
    """Every result file that a change brings counts, not the best one."""
    good, bad = plain.measure(), plain.measure(edit=broken_kernel)
    plain.bring(good, **{f"submissions/{bad.name}": bad.read_bytes()})
    assert told(judge(plain)) == (1, {"GAT-010"})


def test_reproducers_can_be_demanded_by_policy(tmp_path: Path, keys: Keys) -> None:
    signers = "".join(
        f"{name} {maker.public_line(key)}\n"
        for name, key in ((maker.PRINCIPAL, keys.author), ("bob", keys.stranger))
    )
    lab = gate_lab.make(tmp_path, keys, policy="[gate]\nreproducers = 1\n")
    lab.commit({"submissions/allowed_signers": signers}, MAIN)
    lab.git("checkout", "-q", "change")
    made = lab.measure()
    lab.bring(made)
    assert told(judge(lab)) == (3, {"GAT-017"})
    sign.sign(made, key=keys.stranger, principal="bob", role="reproducer")
    lab.bring(made)
    assert told(judge(lab)) == (0, set())


def test_evidence_there_before_serves_a_revert(plain: Lab) -> None:
    """The code goes back to a state whose evidence lies on the protected branch."""
    plain.bring(plain.measure())
    plain.git("checkout", "-q", MAIN)
    plain.git("merge", "-q", "--ff-only", "change")
    plain.commit({f"{plain.code}/decode.py": "x = 7\n"}, MAIN)
    plain.git("checkout", "-q", "-B", "change", MAIN)
    plain.commit({f"{plain.code}/decode.py": "x = 2\n"})
    assert told(judge(plain)) == (0, set())
    plain.commit({f"{plain.code}/decode.py": "x = 8\n"})
    assert told(judge(plain)) == (3, {"GAT-005"})


def test_evidence_alone_is_judged_too(plain: Lab) -> None:
    plain.git("checkout", "-q", MAIN)
    plain.git("merge", "-q", "--ff-only", "change")
    made = plain.measure()
    plain.git("checkout", "-q", "-B", "change", MAIN)
    plain.bring(made)
    found = judge(plain)
    assert told(found) == (0, set())
    assert [d.kind for d in found.decisions] == ["change", "optimization", "file"]


# Scope --------------------------------------------------------------------------------------------


def test_files_outside_the_scope(lab: Lab) -> None:
    lab.bring(lab.measure(), **{"engine/scheduler.py": "y = 3\n"})
    found = judge(lab)
    assert told(found) == (3, {"GAT-003"})
    assert "engine/scheduler.py" in text(found, "GAT-003")


def test_companions_may_change_together(lab: Lab) -> None:
    lab.bring(lab.measure(), **{"README.md": "# More\n", "docs/x/page.md": "text"})
    assert told(judge(lab)) == (0, set())


def test_no_optimization_touched(lab: Lab) -> None:
    lab.git("checkout", "-q", "-B", "change", MAIN)
    lab.commit({"engine/scheduler.py": "y = 4\n", ".github/workflows/x.yml": "on: push"})
    assert told(judge(lab)) == (0, set())


def test_guarded_file_without_a_claim(plain: Lab) -> None:
    plain.git("checkout", "-q", "-B", "change", MAIN)
    plain.commit({"optimizations/smuggled/ops.py": "import os\n"})
    assert told(judge(plain)) == (3, {"GAT-002"})


def test_claim_removed_while_its_code_stays(lab: Lab) -> None:
    lab.git("checkout", "-q", "-B", "change", MAIN)
    lab.commit({lab.claim_path: None})
    found = judge(lab)
    assert told(found) == (3, {"GAT-002"})
    assert f"{lab.code}/decode.py" in text(found, "GAT-002")
    lab.commit({f"{lab.code}/decode.py": None})
    assert told(judge(lab)) == (0, set())


def test_scope_narrowed_so_that_code_falls_out(lab: Lab) -> None:
    narrowed = lab.source.replace("/**", "/nothing/**")
    lab.git("checkout", "-q", "-B", "change", MAIN)
    lab.commit({lab.claim_path: narrowed})
    assert "GAT-002" in told(judge(lab))[1]


def test_claim_that_cannot_be_read(lab: Lab) -> None:
    lab.commit({lab.claim_path: "schema = 7"})
    assert "GAT-004" in told(judge(lab))[1]


def test_two_claims_of_one_name(plain: Lab) -> None:
    plain.commit({"optimizations/copy/claim.toml": plain.source})
    plain.bring(plain.measure())
    assert "GAT-004" in told(judge(plain))[1]


def test_a_new_optimization(plain: Lab) -> None:
    source = plain.source.replace("demo", "fresh")
    plain.git("checkout", "-q", "-B", "change", MAIN)
    plain.commit({"optimizations/fresh/claim.toml": source, "optimizations/fresh/a.py": "a = 1"})
    assert told(judge(plain)) == (3, {"GAT-001"})
    with mock.patch.object(plain, "source", source):
        plain.bring(plain.measure())
    assert told(judge(plain)) == (0, set())


# Waivers ------------------------------------------------------------------------------------------


def waive(
    lab: Lab, *, key: Path | None = None, namespace: str = waiver.NAMESPACE, **fields: str
) -> None:
    """Commit a signed waiver of the missing evidence, with fields changed for tests."""
    values = {
        "schema": '"fasttrack.waiver/v1"', "rule": '"GAT-001"',
        "change_sha256": f'"{dict(judge(lab).facts)["digest for waivers"]}"',
        "reason": '"Only a comment changed; carol read the diff."', "approver": '"carol"',
        "expires": (datetime.now(UTC) + timedelta(days=2)).date().isoformat(),
    } | fields  # fmt: skip
    path = lab.scratch / "comment.waiver.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    signature = Path(f"{path}.sig")
    signature.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key or lab.keys.maintainer), "-n", namespace,
         str(path)], check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    lab.commit(
        {
            "submissions/2026-11-demo/comment.waiver.toml": path.read_bytes(),
            "submissions/2026-11-demo/comment.waiver.toml.sig": signature.read_bytes(),
        }
    )


def test_good_waiver(lab: Lab) -> None:
    waive(lab)
    found = judge(lab)
    assert told(found) == (0, set())
    (waived,) = [f for d in found.decisions for f in d.findings]
    assert "waived by carol" in waived.waived and "read the diff" in waived.waived


def test_waiver_is_for_exactly_this_change(lab: Lab) -> None:
    waive(lab)
    lab.commit({f"{lab.code}/decode.py": "x = 4\n"})
    assert told(judge(lab)) == (3, {"GAT-001", "GAT-025"})


def test_old_waivers_do_nothing(plain: Lab) -> None:
    waive(plain)
    plain.git("checkout", "-q", MAIN)
    plain.git("merge", "-q", "--ff-only", "change")
    plain.git("checkout", "-q", "-B", "change", MAIN)
    plain.commit({f"{plain.code}/decode.py": "x = 9\n"})
    assert told(judge(plain)) == (3, {"GAT-001"})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"expires": "2026-01-01"}, "GAT-021"),
        ({"rule": '"GAT-999"'}, "GAT-022"),
        ({"rule": '"GAT-019"'}, "GAT-022"),
        ({"rule": '"speed"'}, "GAT-020"),
        ({"reason": '"ok"'}, "GAT-020"),
        ({"note": '"x"'}, "GAT-020"),
        ({"approver": '"mallory"'}, "GAT-023"),
        ({"approver": f'"{maker.PRINCIPAL}"'}, "GAT-023"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_waiver_that_does_not_count(plain: Lab, fields: dict[str, str], code: str) -> None:
    waive(plain, **fields)
    assert told(judge(plain)) == (3, {"GAT-001", code})


def test_waiver_signed_by_the_author_in_a_maintainers_name(plain: Lab) -> None:
    waive(plain, key=plain.keys.author)
    assert told(judge(plain)) == (3, {"GAT-001", "GAT-023"})


def test_waiver_signed_for_another_purpose(plain: Lab) -> None:
    waive(plain, namespace="git")
    assert told(judge(plain)) == (3, {"GAT-001", "GAT-023"})


def test_waiver_edited_after_signing(plain: Lab) -> None:
    waive(plain)
    name = "submissions/2026-11-demo/comment.waiver.toml"
    edited = (plain.root / name).read_text().replace("carol read", "nobody read")
    plain.commit({name: edited})
    assert told(judge(plain)) == (3, {"GAT-001", "GAT-023"})


def test_waiver_without_a_signature(plain: Lab) -> None:
    waive(plain)
    plain.commit({"submissions/2026-11-demo/comment.waiver.toml.sig": None})
    assert told(judge(plain)) == (3, {"GAT-001", "GAT-020"})


def test_nobody_waives_for_their_own_evidence(plain: Lab) -> None:
    """A maintainer measured, and waives that the tier is too low."""
    both = (
        'carol namespaces="fasttrack-validation-v1@fasttrack.dev,'
        f'fasttrack-waiver-v1@fasttrack.dev" {maker.public_line(plain.keys.maintainer)}\n'
    )
    plain.commit({"submissions/allowed_signers": both}, MAIN)
    plain.git("checkout", "-q", "change")
    with mock.patch.object(maker, "PRINCIPAL", "carol"):
        plain.bring(plain.measure(key=plain.keys.maintainer, run={"tier": Tier.SMOKE}))
    waive(plain, rule='"GAT-013"')
    assert told(judge(plain)) == (3, {"GAT-013", "GAT-024"})


# Outputs ------------------------------------------------------------------------------------------


def test_command_writes_every_output(plain: Lab, tmp_path: Path) -> None:
    made = plain.measure()
    plain.bring(made, **{"engine/scheduler.py": "y = 3\n"})
    summary, comment, junit = (tmp_path / name for name in ("s.md", "c.md", "j.xml"))
    arguments = ("gate", "--base", MAIN, "--head", "change", "--repo", plain.root,
                 "--summary", summary, "--comment", comment, "--junit", junit)  # fmt: skip
    ran = fasttrack(tmp_path, *arguments, "--json")
    assert ran.status == ran.json["status"] == 3
    assert [d["kind"] for d in ran.json["decisions"]] == ["change", "optimization", "file"]
    assert summary.read_text() == comment.read_text()
    assert "GAT-003" in comment.read_text() and len(comment.read_text()) <= 65_536
    suite = ElementTree.parse(junit).getroot()
    assert suite.get("failures") == "1"
    assert "GAT-003" in ran.err and "Traceback" not in ran.err


def test_long_lists_stay_within_limits(plain: Lab, tmp_path: Path) -> None:
    plain.commit({f"engine/{'x' * 80}{index}.py": "" for index in range(300)})
    comment = tmp_path / "c.md"
    ran = fasttrack(plain.root, "gate", "--base", MAIN, "--head", "change", "--comment", comment)
    assert ran.status == 3
    assert "and 292 more" in comment.read_text() and len(comment.read_text()) <= 65_536


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--base", MAIN), "USE-001"),
        (("--base", "", "--head", "change"), "USE-001"),
        (("--base", "nowhere", "--head", "change"), "USE-003"),
        (("--base", "--help", "--head", "change"), "USE-003"),
        (("--base", MAIN, "--head", "change", "x.ftb"), "USE-001"),
        (("--base", MAIN, "--head", "change", "--policy", "p.toml"), "USE-001"),
        (("--base", MAIN, "--head", "change", "--allowed-signers", "a"), "USE-001"),
        (("--base", MAIN, "--head", "change", "--repo", "/"), "USE-003"),
        ((), "USE-001"),
    ],
)
def test_usage(plain: Lab, arguments: tuple[str, ...], code: str) -> None:
    ran = fasttrack(plain.root, "gate", *arguments, "--json")
    assert (ran.status, ran.error["code"]) == (2, code)


def test_rules_that_cannot_be_read_stop_everything(plain: Lab) -> None:
    for name, text, code in (
        ("submissions/policy.toml", "lenient = true", "CLM-003"),
        ("submissions/allowed_signers", "carol what", "USE-001"),
    ):
        plain.commit({name: text}, MAIN)
        ran = fasttrack(plain.root, "gate", "--base", MAIN, "--head", "change", "--json")
        assert (ran.status, ran.error["code"]) == (2, code)
        assert name in ran.error["cause"]
        plain.git("reset", "-q", "--hard", "HEAD~1")


def test_every_demand_is_tested_somewhere(repo: Path) -> None:
    tests = [repo / "tests/integration/test_gate_git.py", repo / "tests/unit/gate/test_evidence.py"]
    text = "".join(path.read_text() for path in tests)
    assert {code for code in DEMANDS if code not in text} == set()

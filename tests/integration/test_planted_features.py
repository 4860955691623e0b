"""Protects users of the real engine: a fault in what they rely on is caught by the row for it.

Base runs four features once; the candidate runs them without a fault and under planted ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fasttrack import claim, engine
from fasttrack.checkpoints import ensure
from fasttrack.correctness import features
from fasttrack.engine.setting import Setting
from fasttrack.schema import FeatureRecord

REPO = Path(__file__).resolve().parents[2]
pytest.importorskip("kimi_k3")
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("preloaded")]

ROWS = {
    "top_k": ("sampling", "letters_after_one_beginning_under_top_k"),
    "stop": ("stop_strings", "finish_reasons"),
    "stale_prefix": ("prefix_cache", "same_answer_after_others"),
    "null_slot": ("batch_edges", "null_block_not_written"),
}
"""Planted fault: the row that catches it, and one of its checks that must not hold."""
Run = Callable[..., dict[str, FeatureRecord]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the stage in one arm; base has been run."""
    folder = tmp_path_factory.mktemp("features")
    frozen = claim.load(REPO / "optimizations" / "kimi_k3")
    target = frozen.claim.targets["cpu-nano"]
    assert target.checkpoint is not None
    weights, digest = ensure(target.checkpoint, REPO / ".cache" / "checkpoints", folder)
    setting = Setting(
        claim=frozen.claim,
        target_name="cpu-nano",
        engine=engine.get("vllm"),
        checkpoint=weights,
        checkpoint_sha256=digest,
        source_sha256=lambda: "0" * 64,
        logs=folder / "logs",
        folder=frozen.folder,
        seed=0,
        timeout_s=240.0,
        say=lambda text: None,
    )
    four = tuple(f for f in features.registry() if f.name in {row for row, _ in ROWS.values()})

    def observed(arm: str, *names: str) -> dict[str, FeatureRecord]:
        chosen = tuple(f for f in four if not names or f.name in names)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(features, "registry", lambda: chosen)
            records: list[Any] = features.run(setting, {"arm": arm})
        return {r.feature: r for r in records if isinstance(r, FeatureRecord)}

    assert all(not broken(record) for record in observed("base").values())
    return observed


def broken(record: FeatureRecord) -> list[str]:
    """Names of the checks that do not hold."""
    assert record.status == "observed", record.message
    return [check.name for check in record.checks if not check.holds]


def test_without_a_fault_every_row_holds(run: Run) -> None:
    found = run("candidate")
    assert set(found) == {row for row, _ in ROWS.values()}
    assert {name: broken(record) for name, record in found.items()} == {name: [] for name in found}


@pytest.mark.parametrize("plants", [("top_k", "stop", "null_slot"), ("stale_prefix",)])
def test_planted_faults_are_caught_each_by_its_row(
    run: Run, plants: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The three do not touch each other's rows; a stale prefix also shows where rows are shared.
    monkeypatch.setenv("FASTTRACK_TEST_PLANT", ",".join(plants))
    monkeypatch.setenv("PYTHONPATH", str(REPO / "tests" / "plants"), prepend=":")
    rows = [ROWS[plant] for plant in plants]
    found = run("candidate", *(row for row, _ in rows))
    for row, check in rows:
        assert check in broken(found[row]), found[row].checks

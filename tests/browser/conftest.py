"""A browser for the folder, or a skip that says why there is none; and pages to open in it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "reject"))

import bundle_maker
from chromium import Chromium, find

from fasttrack.bundle.reader import open_bundle
from fasttrack.cli.site import site
from fasttrack.report import html
from fasttrack.report.build import build
from fasttrack.schema import EngineStep, Record

GRID = "batch = [1, 2, 4, 8, 16, 32, 64], context_tokens = [64, 2048]"
SPEED_UPS = {1: 2.1, 2: 1.9, 4: 1.6, 8: 1.3, 16: 1.05, 32: 1.0, 64: 0.9}
"""Of the eventful run, by batch; long contexts are noisy."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One Chromium for all tests."""
    program = find()
    if program is None:
        pytest.skip("no Chromium here: install Debian's package chromium, or Chrome")
    chromium = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture(scope="session")
def screenshots(repo: Path) -> Path:
    """Where pictures go, for people to look at."""
    return repo / ".cache" / "screenshots"


def eventful(where: Path, key: Path) -> Path:
    """A run of a large grid whose verdicts are of every kind: good, noisy, lost, too far off."""

    def steps(clock: bundle_maker.Clock, arm: str, batch: int, prompt: int) -> list[EngineStep]:
        noise = 0.3 if prompt > 1024 * batch else 0.004
        pace = 2e-3 / (SPEED_UPS[batch] if arm == "candidate" else 1.0)
        pace *= 1 + noise * clock.random.random()
        made = []
        for index in range(bundle_maker.WARM_AND_WINDOW + 1):
            decode, prefill = (batch, 0) if index else (0, prompt)
            took = pace if index else 0.01
            made.append(
                EngineStep(start_s=clock.now_s, duration_s=took, decode_tokens=decode,
                           prefill_tokens=prefill)
            )  # fmt: skip
            clock.now_s += took + 1e-5
        return made

    def edit(record: Record) -> Record | None:
        if record.kind == "kernel" and record.control is None and record.regime["batch"] == 2:
            return record.model_copy(update={"candidate": bundle_maker.errors(5.0)})
        return None if record.kind == "feature" and record.feature == "sampling" else record

    source = bundle_maker.SOURCE.replace("batch = [1, 2], context_tokens = [64]", GRID)
    source = source.replace("max_model_len = 512", "max_model_len = 4096")
    with mock.patch.multiple(bundle_maker, SOURCE=source, steps=steps):
        return bundle_maker.honest(where, key, edit=edit)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An honest report, a report with much to say, and an index of three files."""
    where = tmp_path_factory.mktemp("pages")
    key = bundle_maker.write_key(where / "key")
    good = bundle_maker.honest(where / "good", key)
    bad = eventful(where / "bad", key)
    made = {}
    for name, file in (("good", good), ("bad", bad)):
        with open_bundle(file) as bundle:
            made[name] = where / f"{name}.html"
            made[name].write_text(html.render(build(bundle)), encoding="utf-8")
    files = where / "submissions" / "2026-11-a-rather-long-name-of-a-folder"
    files.mkdir(parents=True)
    for file in (good, bad):
        shutil.copy(file, files)
    (files / "damaged<b>.ftb").write_bytes(good.read_bytes()[:-9])
    assert site(where / "submissions", out=where / "site") == 0
    return {**made, "site": where / "site" / "index.html"}

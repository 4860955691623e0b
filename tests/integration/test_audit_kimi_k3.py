"""Protects the GPU kernels of the bundled optimization where there is no GPU: each compiles for
Hopper and Blackwell, and reads no step data ahead of the grid-dependency wait.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrack.audit import stage
from fasttrack.audit.toolchain import Source, Toolchain
from fasttrack.claim import load
from fasttrack.rules.hoist import finding_among


@pytest.mark.slow
@pytest.mark.cute
@pytest.mark.timeout(900)
# sm_103a has the instructions of sm_100a; the kernels stage compiles and audits for it too.
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_every_kernel_compiles_and_waits(arch: str, cute: Path, repo: Path) -> None:
    folder = repo / "optimizations" / "kimi_k3"
    plugin = load(folder).claim.plugin
    source = Source(plugin.distribution, plugin.compiled_kernels, folder)
    records = list(stage.audit(source, Toolchain(), f"compiled/*/{arch}", first=arch))
    own = [record for record in records if record.control is None]
    found = {record.cell: finding_among(record, records)[1] for record in own}
    assert set(found.values()) == {"OK"}, found
    ops = {cell.split("/")[1].partition(".")[0] for cell in found}
    attention = {"mla_query", "mla_core", "mla_value"}
    experts = {"experts", "moe"}
    assert ops == {"attn_res", "projection", "kda", "oproj", "prefetch", *attention, *experts}

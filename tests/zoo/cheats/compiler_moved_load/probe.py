"""The machine code of one kernel for Hopper and Blackwell, as it was compiled."""

from collections.abc import Iterator
from pathlib import Path

from fasttrack.audit.facts import facts_of
from fasttrack.audit.listing import read
from fasttrack.rules.hoist import finding
from fasttrack.schema import CompiledRecord


def probe(scratch: Path) -> Iterator[tuple[str, str]]:
    """What the audit says against it, with `w` declared static."""
    for listing in sorted(Path(__file__).parent.glob("*.sass")):
        (kernel,) = read(listing.read_text())
        facts = facts_of(kernel, ("x", "w", "y", "n"), ("w",))
        _, reason, detail = finding(CompiledRecord(cell=kernel.arch, **facts))
        if reason != "OK":
            yield reason, f"{kernel.arch}: {detail}"

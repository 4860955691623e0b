"""Write the generated pages beside this script: `make docs`. CI diffs them against the program."""

from __future__ import annotations

import sys
from pathlib import Path

import power

from fasttrack.cli.explain import explanations

HERE = Path(__file__).resolve().parent


def codes() -> str:
    """`codes.md`: every code that `fasttrack explain` knows."""
    lines = [
        "# Codes",
        "",
        "Written by `make docs`; do not edit. `fasttrack explain CODE` prints the same.",
        "",
        "| code | what it means | how to go on |",
        "|---|---|---|",
    ]
    for code, item in explanations().items():
        meaning, investigate = (
            text.replace("|", "\\|") for text in (item.meaning, item.investigate)
        )
        lines.append(f"| `{code}` | {meaning} | {investigate} |")
    return "\n".join(lines) + "\n"


PAGES = {"codes.md": codes, "power.md": power.page, "power.svg": power.figure}


def main() -> int:
    """Write every page; with --check, report those that are out of date instead."""
    stale = []
    for name, make in PAGES.items():
        path, text = HERE / name, make()
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())

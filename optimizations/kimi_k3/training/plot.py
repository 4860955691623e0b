"""Draws the course of a training run: loss and eval scores over time, as one SVG.

    python -m kimi_k3.training.plot FOLDER

Reads `curve.csv` and `evals.jsonl` of FOLDER, writes `curve.svg` there. Owns the picture only; the
numbers are the training script's.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

WIDTH, PANEL, LEFT, RIGHT, GAP, TOP = 760, 200, 56, 190, 44, 34
"""Pixels: a panel is WIDTH - LEFT - RIGHT by PANEL; names of lines stand to its right."""
COLOURS = ("#0b6e99", "#c4500b", "#3d7a2a", "#7a3d8f", "#a3302a", "#5f6b76", "#b38600", "#00796b")

Line = Sequence[tuple[float, float]]


def read(folder: Path) -> tuple[Line, dict[str, Line]]:
    """(seconds and loss, seconds and exact share by suite).

    Raises OSError, ValueError or KeyError where the files are not those of a run.
    """
    with (folder / "curve.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    seconds = {int(row["step"]): float(row["seconds"]) for row in rows}
    suites: dict[str, list[tuple[float, float]]] = {}
    for text in (folder / "evals.jsonl").read_text().splitlines():
        entry = json.loads(text)
        # A score taken between two rows of the curve stands at the earlier one.
        when = max(value for step, value in seconds.items() if step <= entry["step"])
        for name, found in entry["scores"].items():
            suites.setdefault(name, []).append((when, found["exact"]))
    return [(float(row["seconds"]), float(row["loss"])) for row in rows], dict(suites)


def draw(loss: Line, suites: Mapping[str, Line]) -> str:
    """The picture: loss on a logarithmic axis above, exact answers below, one time axis."""
    last = max(when for when, _ in loss)
    low = math.floor(math.log10(min(value for _, value in loss)))
    high = math.ceil(math.log10(max(value for _, value in loss)))
    powers = [(f"{10.0**power:g}", float(power)) for power in range(low, high + 1)]
    shares = [(f"{share:.0%}", share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    logs = {"": [(when, math.log10(value)) for when, value in loss]}
    below = TOP + PANEL + GAP
    height = below + PANEL + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="12"><title>Training of k3-nano</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *_panel("Loss (nats per answer token)", TOP, last, powers, logs),
        *_panel("Eval items answered exactly", below, last, shares, suites),
        _text((LEFT + WIDTH - RIGHT) / 2, height - 6, "seconds of training", "middle"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(
    title: str,
    top: float,
    last: float,
    ticks: Sequence[tuple[str, float]],
    lines: Mapping[str, Line],
) -> Iterator[str]:
    low, high = ticks[0][1], ticks[-1][1]
    right, bottom = WIDTH - RIGHT, top + PANEL

    def place(when: float, value: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * when / last, bottom - PANEL * (value - low) / (high - low)

    yield _text(LEFT, top - 10, title)
    for label, value in ticks:
        y = place(0.0, value)[1]
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>'
        yield _text(LEFT - 6, y + 4, label, "end")
    for when in range(0, int(last) + 1, 100):
        yield _text(place(when, low)[0], bottom + 16, str(when), "middle")
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = "L".join("{:.1f} {:.1f}".format(*place(*point)) for point in points)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        if name:
            y = top + 14 + 20 * number
            yield f'<path d="M{right + 12} {y - 4}h18" stroke="{colour}" stroke-width="3"/>'
            yield _text(right + 36, y, f"{name}: {points[-1][1]:.2f}")


def _text(x: float, y: float, value: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{value}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="kimi_k3.training.plot", description="draw a curve")
    parser.add_argument("folder", type=Path, help="folder of a training run")
    folder = parser.parse_args(arguments).folder
    try:
        picture = draw(*read(folder))
    except (OSError, ValueError, KeyError) as error:
        print(f"error: no curve to draw in {folder}: {error}", file=sys.stderr)
        return 2
    (folder / "curve.svg").write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Trains k3-nano on the synthetic tasks and writes what is shipped: the script.

    python -m kimi_k3.training.train OUT                      the plan whose result is shipped
    python -m kimi_k3.training.train OUT --stage 512:64:200   another plan, LENGTH:ROWS:STEPS each

Writes to OUT: `weights.safetensors`, `config.json` (plan, versions, device), `curve.csv` (loss and
share of targets predicted over steps), `evals.jsonl` (scores on the way) and `scores.json`. With
`--state FILE` progress is kept in FILE and taken up from there. With `--minutes` the plan is
stretched over that time at most: rate and stage then follow the clock instead of the step count,
and the result is as good as time allows but not repeatable.

Owns: the plan, the loop, the files. Runs on one CUDA device, or on a CPU for a try.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.presets import NANO
from kimi_k3.training import evaluate
from kimi_k3.training import weights as trained
from kimi_k3.training.data import Mixture, Steps
from kimi_k3.training.forward import Decoder
from kimi_k3.training.optimiser import Optimiser

WARMUP = 100
"""Steps over which the learning rate rises."""
HOLD = 0.4
"""Share of the run at the full learning rate; from there it falls linearly to `FLOOR` of it."""
FLOOR = 0.01
MATMUL_PRECISION = "high"
"""Of FP32 matrix products in training, which is TF32 on a GPU; scores are computed without it."""
LOG_STEPS = 25
INTERIM_ITEMS = 48
EAGER_STEPS = 3
"""Steps of a stage before its graph is captured: they compile and allocate."""


@dataclass(frozen=True)
class Stage:
    """A stretch of steps with rows of one length."""

    length: int
    rows: int
    steps: int


PLAN = (Stage(512, 32, 2400), Stage(2048, 16, 2700))
"""The plan whose result is shipped. Short rows first: copying is learnt there much sooner. Few of
them in a step: many small steps learn it sooner than few large ones."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result, besides the code."""

    plan: tuple[Stage, ...]
    rate: float
    chains: float
    seed: int
    minutes: float | None


class Run:
    """One training run: weights, optimiser, clock and curve."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        compiled: bool = False,
        preset: Mapping[str, Any] = NANO,
    ) -> None:
        """Initial weights of `preset` on `device`."""
        self.settings, self.device = settings, device
        self.dims = Dims.from_config(preset)
        start = trained.initial(self.dims, settings.seed)
        self.weights = {name: tensor.to(device) for name, tensor in start.items()}
        for name, tensor in self.weights.items():
            tensor.requires_grad_(not name.endswith(trained.BIAS))
        self.optimiser = Optimiser(self.weights)
        self.decoder = Decoder(self.dims, self.weights, compiled)
        self.rate = torch.zeros((), device=device)
        self.meter = torch.zeros(2, device=device)
        self.step, self.tokens, self.spent = 0, 0, 0.0
        self.begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time spent on this run, earlier parts of it included."""
        return self.spent + time.monotonic() - self.begun

    @property
    def progress(self) -> float:
        """Share of the run that is done: of its steps, or of its minutes where those are nearer."""
        done = self.step / sum(stage.steps for stage in self.settings.plan)
        minutes = self.settings.minutes
        return done if minutes is None else max(done, self.seconds / (60.0 * minutes))

    def learning_rate(self) -> float:
        """Rate of the coming step."""
        rise = min(1.0, (self.step + 1) / WARMUP)
        fall = max(FLOOR, 1.0 - max(0.0, self.progress - HOLD) / (1.0 - HOLD))
        return self.settings.rate * min(rise, fall)

    def update(self, ids: Tensor, target: Tensor) -> None:
        """Forward, backward and update on one batch, as tensor operations only."""
        on_cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=on_cuda):
            loss, right, load = self.decoder.loss(ids, target)
        loss.backward()
        self.optimiser.step(self.rate, load)
        self.meter.add_(torch.stack((loss.detach(), right.detach())))

    def clear(self) -> None:
        """Drop gradients, so that the next backward allocates its own."""
        for tensor in self.weights.values():
            tensor.grad = None

    def save(self, path: Path) -> None:
        """Write everything a later run needs to go on, whole or not at all."""
        unfinished = path.with_name(path.name + ".part")
        state = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        tensors = {"weights": self.weights, "optimiser": self.optimiser.state()}
        torch.save({**state, **tensors, "settings": asdict(self.settings)}, unfinished)
        unfinished.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a saved state. Raises ValueError if it is of other settings."""
        found = torch.load(path, map_location=self.device, weights_only=True)
        if found["settings"] != asdict(self.settings):
            raise ValueError(f"{path} was saved with other settings: {found['settings']}")
        self.step, self.tokens, self.spent = found["step"], found["tokens"], found["seconds"]
        with torch.no_grad():
            for name, tensor in self.weights.items():
                tensor.copy_(found["weights"][name])
            for name, tensors in self.optimiser.state().items():
                for tensor, saved in zip(tensors, found["optimiser"][name], strict=True):
                    tensor.copy_(saved)


def stage_updates(run: Run, mixture: Mixture) -> Callable[[Tensor, Tensor], None]:
    """A function doing one update per batch: on CUDA, from its fourth call on, a graph replay."""
    ids = torch.zeros(mixture.rows, mixture.length + 1, dtype=torch.int64, device=run.device)
    target = torch.zeros(mixture.rows, mixture.length, device=run.device)
    graph: torch.cuda.CUDAGraph | None = None
    calls = 0

    def update(new_ids: Tensor, new_target: Tensor) -> None:
        nonlocal graph, calls
        ids.copy_(new_ids, non_blocking=True)
        target.copy_(new_target, non_blocking=True)
        calls += 1
        if run.device.type != "cuda" or calls <= EAGER_STEPS:
            run.clear()
            run.update(ids, target)
            return
        if graph is None:
            run.clear()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Thread-local, for the loader pins memory in a thread of its own meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                run.update(ids, target)
        graph.replay()

    return update


def batches(run: Run, mixture: Mixture, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches from the run's present step on, without end."""
    loader = torch.utils.data.DataLoader(
        Steps(mixture, run.settings.seed, range(run.step, 1 << 30)),
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        pin_memory=run.device.type == "cuda",
    )
    return iter(loader)


def train(run: Run, out: Path, state: Path | None, workers: int, eval_seconds: float) -> None:
    """All stages, or what is left of them; writes the curve and the scores on the way."""
    total = sum(stage.steps for stage in run.settings.plan)
    curve = (out / "curve.csv").open("a", newline="")
    table = csv.writer(curve)
    if not curve.tell():
        table.writerow(("step", "seconds", "tokens", "length", "rate", "loss", "right"))
    ends, scored = 0, run.seconds
    for stage in run.settings.plan:
        ends += stage.steps
        # Rounding must not begin a stage that has no step left.
        if run.progress >= ends / total - 1e-9:
            continue
        mixture = Mixture(stage.length, stage.rows, run.settings.chains)
        update, logged = stage_updates(run, mixture), run.step
        for ids, target in batches(run, mixture, workers):
            run.rate.fill_(run.learning_rate())
            update(ids, target)
            run.step += 1
            run.tokens += target.numel()
            over = run.progress >= ends / total - 1e-9
            if over or run.step % LOG_STEPS == 0:
                loss, right = (run.meter / (run.step - logged)).tolist()
                run.meter.zero_()
                logged = run.step
                row = (run.step, round(run.seconds, 2), run.tokens, stage.length)
                table.writerow((*row, f"{run.rate.item():.3e}", f"{loss:.5f}", f"{right:.5f}"))
                curve.flush()
                print(f"{row} loss {loss:.4f} right {right:.4f}", flush=True)
            if over or run.seconds - scored > eval_seconds:
                scored = run.seconds
                found = score(run, INTERIM_ITEMS, stage.length)
                with (out / "evals.jsonl").open("a") as stream:
                    stream.write(json.dumps({"step": run.step, "scores": found}) + "\n")
                print(brief(found), flush=True)
                if state is not None:
                    run.save(state)
            if over:
                break
        run.clear()
    curve.close()


def score(run: Run, count: int, longest: int) -> dict[str, dict[str, float]]:
    """Scores of the weights as they would be shipped: rounded to BF16, computed in FP32."""
    rounded = {
        name: tensor.float().to(run.device)
        for name, tensor in trained.stack(trained.shipped(run.weights, run.dims)).items()
    }
    torch.set_float32_matmul_precision("highest")
    found = evaluate.scores(Decoder(run.dims, rounded), count, longest, run.device)
    torch.set_float32_matmul_precision(MATMUL_PRECISION)
    return found


def brief(found: dict[str, dict[str, float]]) -> str:
    """Scores in one line."""
    return "  ".join(f"{k} {v['exact']:.3f} ({v['token']:.3f})" for k, v in found.items())


def write(run: Run, out: Path, count: int, longest: int) -> dict[str, dict[str, float]]:
    """Write weights, config and final scores to `out`; returns the scores."""
    shipped = out / "weights.safetensors"
    save_file(trained.shipped(run.weights, run.dims), shipped)
    device = torch.cuda.get_device_name() if run.device.type == "cuda" else "cpu"
    facts: dict[str, Any] = {
        "settings": asdict(run.settings),
        "steps": run.step,
        "tokens": run.tokens,
        "seconds": round(run.seconds, 1),
        "device": device,
        "torch": torch.__version__,
        "weights_sha256": hashlib.sha256(shipped.read_bytes()).hexdigest(),
    }
    (out / "config.json").write_text(json.dumps(facts, indent=1) + "\n")
    found = score(run, count, longest)
    (out / "scores.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def _stage(text: str) -> Stage:
    length, rows, steps = (int(part) for part in text.split(":"))
    return Stage(length, rows, steps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="kimi_k3.training.train", description="train k3-nano")
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--stage", type=_stage, action="append", help="LENGTH:ROWS:STEPS")
    parser.add_argument("--rate", type=float, default=3e-3, help="full learning rate")
    parser.add_argument("--chains", type=float, default=0.35, help="share of chain rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="stretch the plan over at most this long")
    parser.add_argument("--state", type=Path, help="file to save progress in and go on from")
    parser.add_argument("--items", type=int, default=200, help="items of each final score")
    parser.add_argument("--eval-seconds", type=float, default=100.0, help="time between scores")
    parser.add_argument("--workers", type=int, default=8, help="processes that make rows")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true", help="leave operations unfused")
    options = parser.parse_args(arguments)
    torch.set_float32_matmul_precision(MATMUL_PRECISION)
    device = torch.device(options.device)
    plan = tuple(options.stage or PLAN)
    settings = Settings(plan, options.rate, options.chains, options.seed, options.minutes)
    run = Run(settings, device, compiled=device.type == "cuda" and not options.no_compile)
    if options.state is not None and options.state.exists():
        run.resume(options.state)
    options.out.mkdir(parents=True, exist_ok=True)
    train(run, options.out, options.state, options.workers, options.eval_seconds)
    longest = max(stage.length for stage in plan)
    print("final", brief(write(run, options.out, options.items, longest)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

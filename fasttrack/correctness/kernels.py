"""Stage 3: the kernel referee. Every op x regime x seed, candidate against reference and stock.

The candidate runs in its own child and gets nothing but inputs; reference and stock come from a
second child; comparison happens here. A case that raises, hangs or dies becomes a record and the
stage goes on with a new child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Literal

import numpy as np

from fasttrack.correctness.case import UNTOUCHED
from fasttrack.correctness.compare import Array, error_stats, larger, rounding_rms, same_bits
from fasttrack.correctness.controls import CONTROLS
from fasttrack.engine.channel import Child
from fasttrack.engine.setting import Setting
from fasttrack.errors import FasttrackError, UsageError
from fasttrack.schema import ErrorStats, KernelRecord, Record

MODULE = "fasttrack.correctness._case_child"
MAX_REGIMES = 256
STATUS: dict[str, Literal["raised", "hung", "killed", "malformed"]] = {
    "ENG-003": "killed",
    "ENG-004": "hung",
    "ENG-005": "malformed",
    "ENG-006": "raised",
}
NOTHING = ErrorStats(
    rms=0.0, q999=0.0, max=0.0, worst_slice_rms=0.0, worst_slice="", mean_signed=0.0, nonfinite=0
)


@dataclass(frozen=True)
class Outputs:
    """Arrays by name, with the dtype each was computed in, and digests of repeats."""

    arrays: Mapping[str, Array]
    dtypes: Mapping[str, str]
    digest: str = ""
    repeats: tuple[str, ...] = ()


class Worker:
    """A case child that is started again after it died."""

    def __init__(self, setting: Setting, role: str) -> None:
        self._setting = setting
        self._role = role
        self._child: Child | None = None
        self.cases: dict[str, dict[str, Any]] = {}

    def ready(self) -> Child:
        """A living child that has loaded the cases; raises coded errors."""
        if self._child is None or not self._child.alive:
            log = self._setting.logs / f"kernels-{self._role}.log"
            self._child = Child(MODULE, log=log, env=self._setting.engine.env, cell=self._role)
            try:
                answer, _ = self._child.call(
                    "load",
                    self._setting.timeout_s,
                    distribution=self._setting.claim.plugin.distribution,
                    fallback=self._setting.claim.plugin.cases,
                    folder=str(self._setting.folder.resolve()),
                )
            except BaseException:
                # A child without cases must not be taken for one that is ready.
                self._child.kill()
                raise
            self.cases = {case["op"]: case for case in answer["cases"]}
        return self._child

    def call(self, call: str, **arguments: Any) -> tuple[dict[str, Any], list[bytes]]:
        """One call, in a living child; raises coded errors."""
        return self.ready().call(call, self._setting.timeout_s, **arguments)

    def close(self) -> None:
        """Stop the child."""
        if self._child is not None:
            self._child.close()


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """All cells of one op.

    Raises `UsageError` CAS-001 when the op has no case, CAS-002 when its regimes cannot be cells.
    """
    referee, candidate = Worker(setting, "referee"), Worker(setting, "candidate")
    try:
        return measure(setting, spec, referee, candidate)
    finally:
        referee.close()
        candidate.close()


def measure(
    setting: Setting, spec: Mapping[str, Any], referee: Worker, candidate: Worker
) -> list[Record]:
    """All cells of one op, by children that the caller keeps. Raises as `run` does."""
    op = spec["op"]
    referee.ready()
    if op not in referee.cases:
        raise UsageError(
            "CAS-001",
            f"{setting.claim.plugin.distribution} offers no kernel case for {op!r}; it has "
            f"{', '.join(referee.cases) or 'none'}",
        )
    case = referee.cases[op]
    records: list[Record] = []
    regimes = _checked(op, case["regimes"])
    for index, regime in enumerate(regimes):
        name = cell_id(op, regime)
        if setting.cell and not fnmatch(name, setting.cell):
            continue
        setting.say(f"{name} ({index + 1}/{len(regimes)})")
        for seed in range(setting.seed, setting.seed + spec["seeds"]):
            records.extend(_cell(referee, candidate, case, name, regime, seed, spec["repeats"]))
            if isinstance(last := records[-1], KernelRecord) and last.status == "hung":
                # One hang decides the op; each further one would cost a whole time-out.
                return records
    return records


def _checked(op: str, regimes: list[Any]) -> list[dict[str, int]]:
    """The regimes, none of them left out in silence."""
    named = all(
        isinstance(regime, dict) and all(type(value) is int for value in regime.values())
        for regime in regimes
    )
    ids = {cell_id(op, regime) for regime in regimes} if named else set()
    if not named or len(ids) < len(regimes) or not 0 < len(regimes) <= MAX_REGIMES:
        raise UsageError(
            "CAS-002",
            f"the case of {op!r} has {len(regimes)} regimes, {len(ids)} of them usable and "
            f"distinct; 1 to {MAX_REGIMES} are run",
            cell=op,
        )
    return regimes


def cell_id(op: str, regime: Mapping[str, int]) -> str:
    """``kda/batch=3/context=128``."""
    return "/".join([op, *(f"{key}={value}" for key, value in regime.items())])


def _cell(
    referee: Worker,
    candidate: Worker,
    case: Mapping[str, Any],
    cell: str,
    regime: Mapping[str, int],
    seed: int,
    repeats: int,
) -> Iterator[KernelRecord]:
    op = case["op"]

    def outputs(worker: Worker, what: str, count: int = 0) -> Outputs:
        answer, data = worker.call(
            "run", op=op, what=what, arrays=arrays, repeats=count, blobs=blobs
        )
        return _unpack(answer, data)

    part = "inputs"
    try:
        described, blobs = referee.call("inputs", op=op, regime=dict(regime), seed=seed)
        arrays = described["arrays"]
        part = "reference"
        reference = outputs(referee, "reference")
        part = "stock"
        stock = outputs(referee, "stock")
        part = "stock_variant"
        variant = outputs(referee, "stock_variant")
        part = "candidate"
        mine = outputs(candidate, "candidate", repeats)
        problem = _malformed(mine, reference, stock, variant, case["outputs"])
        status: Literal["raised", "hung", "killed", "malformed"] = "malformed"
    except FasttrackError as error:
        problem, status = f"{part}: {error}", STATUS.get(error.code, "raised")
    except (KeyError, TypeError, ValueError) as error:
        problem, status = f"{part}: {type(error).__name__}: {error}", "malformed"
    if problem:
        yield KernelRecord(
            op=op,
            cell=cell,
            regime=regime,
            seed=seed,
            output="*",
            status=status,
            message=problem[:2000],
        )
        return
    equal = sum(digest == mine.digest for digest in mine.repeats)
    for output, axes in case["outputs"].items():
        if output == UNTOUCHED:
            yield KernelRecord(
                op=op, cell=cell, regime=regime, seed=seed, output=output, status="ok",
                stock=NOTHING, candidate=NOTHING,
                untouched_equal=same_bits(mine.arrays[output], stock.arrays[output]),
            )  # fmt: skip
            continue
        truth = reference.arrays[output].astype(np.float64)
        dtype = stock.dtypes[output]
        yours = larger(
            error_stats(stock.arrays[output], truth, tuple(axes)),
            error_stats(variant.arrays[output], truth, tuple(axes)),
        )
        floor = rounding_rms(truth, dtype)

        def record(
            value: ErrorStats,
            control: str | None = None,
            *,
            output: str = output,
            yours: ErrorStats = yours,
            floor: float = floor,
        ) -> KernelRecord:
            return KernelRecord(
                op=op,
                cell=cell,
                regime=regime,
                seed=seed,
                output=output,
                status="ok",
                control=control,
                stock=yours,
                candidate=value,
                rounding_rms=floor,
                repeats=0 if control else len(mine.repeats),
                repeats_equal=0 if control else equal,
            )

        yield record(error_stats(mine.arrays[output], truth, tuple(axes)))
        base = stock.arrays[output].astype(np.float64)
        for name, plant in CONTROLS.items():
            yield record(error_stats(plant(base, dtype), truth, tuple(axes)), name)


def _unpack(answer: Mapping[str, Any], data: list[bytes]) -> Outputs:
    arrays, dtypes = {}, {}
    for entry, blob in zip(answer["arrays"], data, strict=True):
        dtype = entry["dtype"]
        if dtype == "bfloat16":
            bits = np.frombuffer(blob, np.uint16).astype(np.uint32) << 16
            flat: Array = bits.view(np.float32)
        else:
            flat = np.frombuffer(blob, dtype)
        # A scalar is a vector of one: the first axis of an output names its slices.
        arrays[entry["name"]] = flat.reshape(entry["shape"] or (1,))
        dtypes[entry["name"]] = dtype
    return Outputs(arrays, dtypes, answer["digest"], tuple(answer["digests"]))


def _malformed(
    mine: Outputs,
    reference: Outputs,
    stock: Outputs,
    variant: Outputs,
    expected: Mapping[str, Any],
) -> str:
    """Why the outputs cannot be compared; empty when they can."""
    if not set(expected) - {UNTOUCHED}:
        return "the case names no output to compare"
    for name in expected:
        made = {"stock": stock, "candidate": mine}
        if name != UNTOUCHED:
            made |= {"reference": reference, "stock_variant": variant}
        for part, outputs in made.items():
            if name not in outputs.arrays:
                return f"{part}: output {name!r} is missing"
            if outputs.arrays[name].shape != stock.arrays[name].shape:
                shapes = f"{outputs.arrays[name].shape}, stock's {stock.arrays[name].shape}"
                return f"{part}: shape of {name} is {shapes}"
        if not stock.arrays[name].size:
            return f"output {name!r} is empty"
        if mine.dtypes[name] != stock.dtypes[name]:
            dtypes = f"{mine.dtypes[name]}, stock's {stock.dtypes[name]}"
            return f"candidate: dtype of {name} is {dtypes}"
    return ""

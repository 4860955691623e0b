"""Protects the kernel referee: a case that raises, hangs, dies or returns something else becomes a
record, the stage goes on, and what is measured is what the case returned.

The cases of an invented optimization run in real children, two for the whole module.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import zoo_records as zoo
from case_setting import setting

from fasttrack.errors import FasttrackError
from fasttrack.schema import ConductRecord, KernelRecord, Record

if any(importlib.util.find_spec(name) is None for name in ("torch", "numpy")):
    pytest.skip("torch is not installed", allow_module_level=True)

from fasttrack.correctness import kernels
from fasttrack.correctness.cell import CellRun
from fasttrack.correctness.controls import CONTROLS
from fasttrack.correctness.worker import Worker

CASES = """
import os, signal, sys, time
import torch

class Case:
    outputs = {"y": ("row", "column")}

    def __init__(self, op, **parts):
        self.op = op
        self.parts = parts
        self.outputs = parts.pop("outputs", self.outputs)

    def regimes(self):
        return self.parts.get("regimes", [{"batch": 2}])

    def inputs(self, regime, seed):
        if "inputs" in self.parts:
            return self.parts["inputs"]()
        generator = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(regime["batch"], 64, generator=generator)}

    def reference(self, inputs):
        if "reference" in self.parts:
            return self.parts["reference"](inputs["x"])
        return {"y": inputs["x"].double() * 3, "z": inputs["x"].double()}

    def stock(self, inputs):
        if "stock" in self.parts:
            return self.parts["stock"](inputs["x"])
        return {"y": inputs["x"] * 3, "z": inputs["x"], "untouched": torch.zeros(4)}

    def stock_variant(self, inputs):
        if "variant" in self.parts:
            return self.parts["variant"](inputs["x"])
        return self.stock(inputs)

    def candidate(self, inputs):
        return self.parts["run"](inputs["x"])

def raises(x):
    raise ValueError("planted")

def hangs(x):
    time.sleep(600)

def dies(x):
    os.kill(os.getpid(), signal.SIGKILL)

def exits(x):
    os._exit(7)

def chatters(x):
    print('{"nonce": "x"}' * 1000); sys.stdout.flush(); os.write(2, b"\\\\xff" * 1000)
    return honest(x)

def in_place(x):
    y = x * 3
    x.zero_()
    return {"y": y}

def honest(x):
    return {"y": x * 3}

count = 0
def flaky(x):
    global count
    count += 1
    return {"y": x * 3 + (1e-3 if count % 2 else 0)}

touch = {"y": ("row", "column"), "untouched": ("row",)}

def cases():
    many = {
        "honest": honest, "raises": raises, "hangs": hangs, "dies": dies, "exits": exits,
        "chatters": chatters, "in_place": in_place, "flaky": flaky,
        "leaves": lambda x: sys.exit(0),
        "wrong_shape": lambda x: {"y": x[:1] * 3},
        "wrong_dtype": lambda x: {"y": (x * 3).to(torch.bfloat16)},
        "missing": lambda x: {"other": x * 3},
        "none": lambda x: None,
        "list": lambda x: {"y": [1.0, 2.0]},
        "makes_nan": lambda x: {"y": torch.where(x == x.max(), float("nan"), x * 3)},
        "off": lambda x: {"y": x * 3.01},
        "transposed": lambda x: {"y": (x * 3).t().contiguous().t()},
    }
    made = [Case(op, run=run) for op, run in many.items()]
    made += [
        Case("keeps", run=lambda x: {"y": x * 3, "untouched": torch.zeros(4)}, outputs=touch),
        Case("touches", run=lambda x: {"y": x * 3, "untouched": torch.ones(4)}, outputs=touch),
        Case("bad_reference", run=honest, reference=raises),
        Case("bad_stock", run=honest, stock=lambda x: {"z": x}),
        Case("bad_variant", run=honest, variant=lambda x: {"y": x[:1]}),
        Case("wider_variant", run=honest, variant=lambda x: {"y": x * 3.01}),
        Case("bad_inputs", run=honest, inputs=lambda: 1 / 0),
        Case("short_reference", run=honest, reference=lambda x: {"y": x.double()[:1] * 3}),
        Case("empty", run=lambda x: {"y": x[:0]}, stock=lambda x: {"y": x[:0]},
             reference=lambda x: {"y": x[:0].double()}),
        Case("no_outputs", run=honest, outputs={}),
        Case("only_untouched", run=lambda x: {"untouched": torch.zeros(4)},
             outputs={"untouched": ("row",)}),
        Case("scalar", run=lambda x: {"y": (x * 3).sum()},
             reference=lambda x: {"y": (x.double() * 3).sum()},
             stock=lambda x: {"y": (x * 3).sum()}, outputs={"y": ()}),
        Case("zero_reference", run=lambda x: {"y": x * 1},
             reference=lambda x: {"y": x.double() * 0}, stock=lambda x: {"y": x * 0}),
        Case("bf16", run=lambda x: {"y": (x * 3).to(torch.bfloat16)},
             stock=lambda x: {"y": (x * 3).to(torch.bfloat16)}),
        Case("integers", run=lambda x: {"y": x.argsort(-1)},
             stock=lambda x: {"y": x.argsort(-1)},
             reference=lambda x: {"y": x.double().argsort(-1)}),
        Case("no_regimes", run=honest, regimes=[]),
        Case("twice", run=honest, regimes=[{"batch": 1}, {"batch": 1}]),
        Case("named", run=honest, regimes=[{"dtype": "bf16"}]),
        Case("crowd", run=honest, regimes=[{"batch": n} for n in range(1, 300)]),
        Case("two", run=honest, regimes=[{"batch": 1}, {"batch": 3}]),
    ]
    return made
"""
BROKEN = "raise ImportError('planted: no such thing')\n"


Workers = tuple[Worker, Worker]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The invented optimization."""
    made = tmp_path_factory.mktemp("optimization")
    (made / "zoo_cases.py").write_text(CASES.replace("\\\\", "\\"))
    (made / "broken_cases.py").write_text(BROKEN)
    return made


@pytest.fixture(scope="module")
def workers(folder: Path) -> Iterator[Workers]:
    """Referee and candidate; a dead one is started again by itself."""
    chosen = setting(folder)
    made = (Worker(chosen, "referee"), Worker(chosen, "candidate"))
    made[0].ready()
    yield made
    for worker in made:
        worker.close()


def judge(
    workers: Workers, op: str, seed: int = 0, repeats: int = 2, seeds: int = 1
) -> list[Record]:
    """Records of one cell."""
    referee, candidate = workers
    case = referee.cases[op]
    regime = case["regimes"][0]
    name = kernels.cell_id(op, regime)
    cell = CellRun(referee, candidate, case, name, regime, repeats)
    return list(cell.run(range(seed, seed + seeds)))


def real(records: list[Record], output: str = "y") -> KernelRecord:
    """The one record of an output that is neither control nor probe."""
    (record,) = [
        r
        for r in records
        if isinstance(r, KernelRecord)
        and r.control is None
        and r.probe is None
        and r.output == output
    ]
    return record


def test_an_honest_case(workers: Workers) -> None:
    records = judge(workers, "honest", seed=3)
    record = real(records)
    assert (record.status, record.seed, record.cell) == ("ok", 3, "honest/batch=2")
    assert (record.repeats, record.repeats_equal) == (2, 2)
    assert record.candidate == record.stock
    assert record.rounding_rms > 0
    assert {r.control for r in records if isinstance(r, KernelRecord)} - {None} == set(CONTROLS)
    (conduct,) = [r for r in records if isinstance(r, ConductRecord)]
    assert all(check.holds for check in conduct.checks)
    assert set(conduct.not_offered) >= {"permuted", "hostile", "padding", "floor"}


@pytest.mark.parametrize("op", ["chatters", "transposed"])
def test_liberties_a_candidate_may_take(workers: Workers, op: str) -> None:
    record = real(judge(workers, op))
    assert record.candidate == record.stock
    assert record.repeats_equal == record.repeats


@pytest.mark.parametrize(
    ("op", "status", "says"),
    [
        ("raises", "raised", "candidate: ENG-006: ValueError: planted"),
        ("leaves", "raised", "SystemExit"),
        ("none", "unfit", "candidate: the outputs are a NoneType, not a dict"),
        ("list", "unfit", "y is a list, not a tensor"),
        ("dies", "killed", "candidate: ENG-003: killed by SIGKILL"),
        ("exits", "killed", "candidate: ENG-003: ended with status 7"),
        ("wrong_shape", "malformed", "candidate: shape of y is (1, 64), stock's (2, 64)"),
        ("wrong_dtype", "malformed", "candidate: dtype of y is bfloat16, stock's float32"),
        ("missing", "malformed", "candidate: output 'y' is missing"),
        ("bad_reference", "unjudged", "reference: ENG-006: ValueError: planted"),
        ("bad_stock", "unjudged", "stock: output 'y' is missing"),
        ("bad_variant", "unjudged", "stock_variant: shape of y is (1, 64), stock's (2, 64)"),
        ("bad_inputs", "unjudged", "inputs: ENG-006: ZeroDivisionError"),
        ("short_reference", "unjudged", "reference: shape of y is (1, 64), stock's (2, 64)"),
        ("empty", "unjudged", "output 'y' is empty"),
        ("no_outputs", "unjudged", "the case names no output to compare"),
        ("only_untouched", "unjudged", "the case names no output to compare"),
    ],
)
def test_a_case_that_gives_nothing_to_compare_is_one_record(
    workers: Workers, op: str, status: str, says: str
) -> None:
    (record,) = judge(workers, op)
    assert isinstance(record, KernelRecord)
    assert record.status == status
    assert says in record.message
    assert (record.output, record.candidate) == ("*", None)


def test_after_a_death_the_next_case_runs(workers: Workers) -> None:
    judge(workers, "dies")
    assert real(judge(workers, "honest")).status == "ok"


def test_a_hang_is_stopped_and_ends_the_op(workers: Workers, folder: Path) -> None:
    _referee, candidate = workers
    candidate.ready()
    patient = candidate._setting
    candidate._setting = dataclasses.replace(patient, timeout_s=1.0)
    try:
        (record,) = judge(workers, "hangs")
    finally:
        candidate._setting = patient
    assert isinstance(record, KernelRecord)
    assert record.status == "hung"
    assert "no answer to 'go' within 1 s" in record.message


def test_differences_are_measured(workers: Workers) -> None:
    record = real(judge(workers, "off"))
    assert record.candidate is not None and record.candidate.rms is not None
    assert record.candidate.rms == pytest.approx(0.01 / 3, rel=1e-3)


def test_stock_s_yardstick_is_its_larger_error_over_compositions(workers: Workers) -> None:
    alone, wider = real(judge(workers, "honest")), real(judge(workers, "wider_variant"))
    assert alone.stock is not None and wider.stock is not None
    assert wider.stock.rms == pytest.approx(0.01 / 3, rel=1e-3)
    assert alone.stock.rms is not None and alone.stock.rms < 1e-6
    assert wider.candidate == alone.candidate


def test_nan_is_counted_and_placed(workers: Workers) -> None:
    record = real(judge(workers, "makes_nan"))
    assert record.candidate is not None
    assert record.candidate.nonfinite == 1
    assert record.candidate.first_bad.startswith("row=")


def test_a_flaky_case_shows_in_its_repeats(workers: Workers) -> None:
    record = real(judge(workers, "flaky", repeats=4))
    assert record.repeats == 4
    assert record.repeats_equal < 4


@pytest.mark.parametrize(("op", "kept"), [("keeps", True), ("touches", False)])
def test_untouched_rows_are_compared_bit_by_bit(workers: Workers, op: str, kept: bool) -> None:
    records = judge(workers, op)
    assert real(records, "untouched").untouched_equal is kept
    assert real(records).untouched_equal is None


@pytest.mark.parametrize("op", ["scalar", "bf16", "integers", "zero_reference"])
def test_unusual_outputs_are_compared(workers: Workers, op: str) -> None:
    record = real(judge(workers, op))
    assert record.status == "ok"
    assert record.json_value()
    if op != "zero_reference":
        assert record.candidate == record.stock


@pytest.mark.parametrize("op", ["no_regimes", "twice", "named", "crowd"])
def test_regimes_that_cannot_be_cells_are_one_record(
    folder: Path, workers: Workers, op: str
) -> None:
    (record,) = kernels.measure(setting(folder), {"op": op, "seeds": 1, "repeats": 1}, *workers)
    assert isinstance(record, KernelRecord)
    assert (record.status, record.cell) == ("absent", op)
    assert record.message.startswith("CAS-002")


def test_a_whole_op(folder: Path) -> None:
    told: list[str] = []
    chosen = setting(folder, say=told.append, seed=5)
    records = kernels.run(chosen, {"op": "two", "seeds": 2, "repeats": 1})
    cells = {(r.cell, r.seed) for r in records if isinstance(r, KernelRecord)}
    assert cells == {(f"two/batch={b}", s) for b in (1, 3) for s in (5, 6)}
    assert told == ["two/batch=1 (1/2)", "two/batch=3 (2/2)"]


def test_an_op_without_a_case(folder: Path) -> None:
    (record,) = kernels.run(setting(folder), {"op": "absent", "seeds": 1, "repeats": 1})
    assert isinstance(record, KernelRecord)
    assert record.status == "absent"
    assert record.message.startswith("CAS-001") and "honest" in record.message


def test_no_cases_at_all(folder: Path) -> None:
    claim = zoo.claim()
    chosen = setting(folder, claim=claim)
    (record,) = kernels.run(chosen, {"op": "mix", "seeds": 1, "repeats": 1})
    assert isinstance(record, KernelRecord)
    assert (record.status, record.cell) == ("absent", "mix")
    assert "it has none" in record.message


def test_a_worker_whose_cases_fail_to_load_is_not_taken_for_ready(folder: Path) -> None:
    worker = Worker(setting(folder, "broken_cases:cases"), "candidate")
    with pytest.raises(FasttrackError) as caught:
        worker.ready()
    assert caught.value.code == "ENG-002"
    assert "ImportError: planted: no such thing" in caught.value.cause
    assert worker._child is not None and not worker._child.alive
    worker.close()

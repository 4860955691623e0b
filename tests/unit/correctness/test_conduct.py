"""Protects the referee's watch over conduct and its probes: each fault meets its own reason, and
the honest code next to it passes.

The cases of an invented optimization run in real children, two for the whole module.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import zoo_records as zoo
from case_setting import setting

from fasttrack.schema import ConductRecord, Record, State, Tier, Verdict

if any(importlib.util.find_spec(name) is None for name in ("torch", "numpy")):
    pytest.skip("torch is not installed", allow_module_level=True)

from fasttrack.correctness import kernels
from fasttrack.correctness.worker import Worker
from fasttrack.rules import numerics

CASES = '''
import ctypes, itertools, threading, time
import torch

turn = itertools.count()

def mix(x, scale, pad, table):
    """Rows of x, each scaled, plus its row of a table found by an index."""
    return x * scale + table[pad[:, 0].long()][:, : x.shape[1]]

class Case:
    outputs = {"y": ("row", "column")}
    width = 48

    def __init__(self, op, run, **members):
        self.op, self.run = op, run
        self.__dict__.update(members)

    def regimes(self):
        return [{"batch": 5}]

    def inputs(self, regime, seed):
        g = torch.Generator().manual_seed(seed)
        table = torch.randn(9, 64, generator=g)
        table[:, self.width:] = float("nan")
        return {
            "x": torch.randn(regime["batch"], self.width, generator=g),
            "scale": torch.tensor(1.5 + seed),
            "pad": torch.randint(0, 9, (regime["batch"], 1), generator=g),
            "table": table,
        }

    def reference(self, inputs):
        wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
        return {"y": mix(**wide)}

    def stock(self, inputs):
        return {"y": mix(**inputs)}

    stock_variant = stock

    def candidate(self, inputs):
        return {"y": self.run(**inputs)}

class Able(Case):
    """Every ability but writing into buffers."""

    input_rows = {"x": 0, "pad": 0}
    output_rows = {"y": 0}

    def neighbours(self, regime):
        return [{"batch": regime["batch"] - 1}, {"batch": regime["batch"] + 1}]

    def other_padding(self, inputs, seed):
        table = inputs["table"].clone()
        table[:, self.width:] = float(seed + 1)
        return inputs | {"table": table}

    def other_scalars(self, inputs, seed):
        return inputs | {"scale": torch.tensor(0.25)}

    def faults(self, regime):
        return ["no_table"]

    def planted(self, fault, inputs):
        return {"y": inputs["x"] * inputs["scale"]}

    def work(self, regime):
        return {"bytes": 1.0, "flops": 1.0}

class Into(Able):
    def candidate_into(self, inputs, out):
        self.run(out["y"], **inputs)

class Blind(Able):
    def planted(self, fault, inputs):
        return self.stock(inputs)

class Light(Able):
    def work(self, regime):
        return {"bytes": 1e18, "flops": 0.0}

memo = {}
def by_address(x, **rest):
    return memo.setdefault(x.data_ptr(), mix(x, **rest)).clone()

samples = {}
def by_sample(x, scale, **rest):
    key = (float(x[0, 0]), float(x[-1, -1]), float(scale), tuple(x.shape))
    return samples.setdefault(key, mix(x, scale, **rest)).clone()

contents = {}
def by_content(x, scale, pad, table):
    key = (x.numpy().tobytes(), float(scale), pad.numpy().tobytes(), table.numpy().tobytes())
    if key not in contents:
        time.sleep(0.05)
        contents[key] = mix(x, scale, pad, table)
    return contents[key].clone()

def slow(**inputs):
    time.sleep(0.002)
    return mix(**inputs)

def mutates(x, **rest):
    y = mix(x, **rest)
    x[0, 0] += 1
    return y

def reaches_out(x, **rest):
    ctypes.memset(x.data_ptr() + x.numel() * 4, 0, 4)
    return mix(x, **rest)

def late(**inputs):
    y = torch.zeros_like(inputs["x"])
    threading.Timer(0.005, lambda: y.copy_(mix(**inputs))).start()
    return y

def joined(**inputs):
    y = torch.zeros_like(inputs["x"])
    thread = threading.Thread(target=lambda: y.copy_(mix(**inputs)))
    thread.start(), thread.join()
    return y

class Lazy(torch.Tensor):
    pass

def reads_padding(x, scale, pad, table):
    extra = torch.nan_to_num(table[:, 48:]).sum() * 1e-3
    return mix(x, scale, pad, table) + extra

def masked_padding(x, scale, pad, table):
    return mix(x, scale, pad, torch.where(torch.arange(64) < 48, table, 0.0))

def shared_scale(x, scale, pad, table):
    """Rounds each row to a step that depends on the rows before it."""
    step = x.abs().cummax(0).values.amax(1, keepdim=True) * 1e-3
    return mix(torch.round(x / step) * step, scale, pad, table)

def skips_if_benign(x, **rest):
    return mix(x, **rest) if not (x == 0).all(1).any() else mix(x * 0 + x.mean(), **rest)

def flushes(x, **rest):
    return mix(torch.where((x != 0) & (x.abs() < 1e-30), float("nan"), x), **rest)

frozen = {}
def freezes_scale(x, scale, **rest):
    """The scale of a row's content is kept by a sum that other_scalars leaves alone."""
    return mix(x, frozen.setdefault(float(x.double().sum()), scale.clone()), **rest)

def wrong_at_four(x, **rest):
    y = mix(x, **rest)
    return y + 1 if len(x) == 4 else y

def fills(y, **inputs):
    y.copy_(mix(**inputs))

def misses_tail(y, **inputs):
    y[:, :-1] = mix(**inputs)[:, :-1]

def overruns(y, **inputs):
    fills(y, **inputs)
    ctypes.memset(y.data_ptr() + y.numel() * 4, 0, 1)

def hoards(x, **rest):
    torch.zeros(2**42, dtype=torch.uint8)

def wobbles(x, **rest):
    """One of the smallest elements off by its last bit, another one in every call."""
    y = mix(x, **rest)
    y.view(-1)[y.abs().view(-1).argsort()[next(turn) % 4]] *= 1 + 2**-23
    return y

def staggers(x, **rest):
    return mix(x, **rest) * (1 + torch.rand(()) * 1e-6)

def flies(x, **rest):
    return mix(x, **rest)

def lazy(**inputs):
    return mix(**inputs).as_subclass(Lazy)

def bears_gifts(**inputs):
    y = mix(**inputs)
    y.numpy_ = 1
    return y

def expands(**inputs):
    return mix(**inputs)[:1].expand(len(inputs["x"]), 48)

def aliases(x, **rest):
    return x.copy_(mix(x, **rest))

def conjugates(**inputs):
    return torch.complex(mix(**inputs), mix(**inputs)).conj()

def elsewhere(**inputs):
    return mix(**inputs).to("meta")

def sparse(**inputs):
    return mix(**inputs).to_sparse()

def cases():
    plain = dict(honest=mix, by_address=by_address, mutates=mutates, reaches_out=reaches_out,
                 late=late, joined=joined, lazy=lazy, bears_gifts=bears_gifts, expands=expands,
                 aliases=aliases, conjugates=conjugates, elsewhere=elsewhere, sparse=sparse,
                 hoards=hoards, wobbles=wobbles, slow=slow)
    able = dict(able=mix, by_sample=by_sample, by_content=by_content, reads_padding=reads_padding,
                masked_padding=masked_padding, skips_if_benign=skips_if_benign,
                freezes_scale=freezes_scale, wrong_at_four=wrong_at_four,
                shared_scale=shared_scale, able_slow=slow)
    into = dict(fills=fills, misses_tail=misses_tail, overruns=overruns)
    made = [Case(op, run) for op, run in plain.items()]
    made += [Able(op, run) for op, run in able.items()]
    made += [Into(op, run) for op, run in into.items()]
    made += [Case("declared", aliases, in_place=("x",)), Blind("blind", mix), Light("light", mix),
             Case("free", wobbles, nondeterministic=True),
             Case("too_free", staggers, nondeterministic=True),
             Case("other_reference", mix, reference=lambda i: {"y": -mix(**i).double()}),
             Able("flushes", flushes, regimes=lambda: [{"batch": 8}]),
             Able("unvaried", mix, other_padding=lambda i, s: i),
             Able("bad_padding", mix, other_padding=lambda i, s: i | {"x": i["x"] + 1}),
             Able("bad_rows", mix, input_rows={"x": 0, "table": 0})]
    return made
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The invented optimization."""
    made = tmp_path_factory.mktemp("optimization")
    (made / "zoo_cases.py").write_text(CASES)
    return made


@pytest.fixture(scope="module")
def workers(folder: Path) -> Iterator[dict[str, Worker]]:
    """Referee and candidate."""
    made = {role: Worker(setting(folder), role) for role in ("referee", "candidate")}
    yield made
    for worker in made.values():
        worker.close()


def judge(folder: Path, workers: dict[str, Worker], op: str) -> tuple[Verdict, list[Record]]:
    """The verdict on an op's one cell, and its records."""
    spec = {"op": op, "seeds": 3, "repeats": 4}
    records = kernels.measure(setting(folder), spec, **workers)
    case = zoo.case(records, tier=Tier.SMOKE)
    (verdict,) = [v for v in numerics.judge(case) if v.cell.startswith(f"{op}/")]
    return verdict, records


@pytest.mark.parametrize(
    "op",
    ["honest", "joined", "slow", "declared", "able", "masked_padding", "fills", "free",
     "able_slow"],
)  # fmt: skip
def test_honest_conduct_passes(folder: Path, workers: dict[str, Worker], op: str) -> None:
    verdict, _ = judge(folder, workers, op)
    assert verdict.state is State.PASS, verdict


@pytest.mark.parametrize(
    ("op", "reason", "says"),
    [
        ("by_address", "NUM-STALE", "did not follow its inputs"),
        ("by_sample", "NUM-STALE", "did not follow its inputs"),
        ("by_content", "NUM-PACE", "new content takes"),
        ("mutates", "NUM-MUTATED", "first x: "),
        ("reaches_out", "NUM-GUARD", "first around x: 4 bytes"),
        ("late", "NUM-LATE", "first y[row=0,column=0]"),
        ("lazy", "NUM-OUTPUT", "y is a Lazy, a subclass of tensor"),
        ("bears_gifts", "NUM-OUTPUT", "attributes of its own: numpy_"),
        ("expands", "NUM-OUTPUT", "overlaps itself"),
        ("aliases", "NUM-OUTPUT", "y shares memory with the input x"),
        ("conjugates", "NUM-OUTPUT", "lazily conjugated"),
        ("elsewhere", "NUM-OUTPUT", "y is on meta, not on cpu"),
        ("sparse", "NUM-OUTPUT", "plain strides"),
        ("hoards", "NUM-MEMORY", "candidate: ENG-008"),
        ("wobbles", "NUM-REPEAT", "of 4 repeats differ"),
        ("too_free", "NUM-SPREAD", "repeats differ by"),
        ("reads_padding", "NUM-PADDING", "first y[row=0,column=0]"),
        ("skips_if_benign", "NUM-HOSTILE", "able.y"),
        ("flushes", "NUM-HOSTILE", "elements, first at"),
        ("freezes_scale", "NUM-FROZEN", "scalars: "),
        ("wrong_at_four", "NUM-SHAPE", "neighbours:batch=4"),
        ("misses_tail", "NUM-UNWRITTEN", "column=47"),
        ("overruns", "NUM-GUARD", "around output y: 1 bytes"),
        ("light", "NUM-SPEED", "the device needs at least"),
    ],
)
def test_a_fault_of_conduct_has_its_own_reason(
    folder: Path, workers: dict[str, Worker], op: str, reason: str, says: str
) -> None:
    verdict, _ = judge(folder, workers, op)
    assert (verdict.state, verdict.reason) == (State.FAIL, reason), verdict.detail
    assert says.replace("able.y", f"{op}.y") in verdict.detail
    assert verdict.next.endswith(f"--only kernels --cell '{verdict.cell}'")


@pytest.mark.parametrize(
    ("op", "state", "reason", "says"),
    [
        ("blind", State.INSENSITIVE, "NUM-INSENSITIVE", "case:no_table"),
        ("other_reference", State.INVALID, "NUM-REFERENCE", "stock's own error"),
        ("bad_padding", State.INVALID, "NUM-UNJUDGED", "other_padding changes stock's own y"),
        ("bad_rows", State.INVALID, "NUM-UNJUDGED", "input_rows disagree"),
    ],
)
def test_a_case_at_fault_is_not_the_candidate_s_fault(
    folder: Path, workers: dict[str, Worker], op: str, state: State, reason: str, says: str
) -> None:
    verdict, _ = judge(folder, workers, op)
    assert (verdict.state, verdict.reason) == (state, reason), verdict.detail
    assert says in verdict.detail


def test_what_was_not_offered_is_told(folder: Path, workers: dict[str, Worker]) -> None:
    needing = {"permuted", "hostile", "padding", "floor"}
    for op, missing in (("honest", needing), ("unvaried", {"padding"}), ("able", set())):
        verdict, records = judge(folder, workers, op)
        (conduct,) = [r for r in records if isinstance(r, ConductRecord)]
        assert set(conduct.not_offered) - {"guards_of_outputs", "unwritten"} >= missing
        assert all(name in verdict.detail for name in conduct.not_offered)
        assert conduct.times_s["fastest"] > 0 and conduct.calls >= 7

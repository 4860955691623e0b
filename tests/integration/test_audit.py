"""Protects the audit of compiled kernels from end to end: declared, compiled, followed, judged.

Where `make cute` found a Python 3.12, CuTe DSL really compiles here, for Hopper and Blackwell and
without a GPU. The rest runs everywhere, from the committed listings.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_line import Ran, fasttrack, optimization

from fasttrack.audit import stage
from fasttrack.audit.facts import facts_of
from fasttrack.audit.flow import trace
from fasttrack.audit.listing import read
from fasttrack.audit.toolchain import Toolchain
from fasttrack.claim import load
from fasttrack.engine import get as get_engine
from fasttrack.engine.setting import Setting
from fasttrack.rules.hoist import CONTROLS, finding, finding_among
from fasttrack.schema import CompiledRecord, Record

UNIT = Path(__file__).parents[1] / "unit" / "audit" / "listings"
CUTE = Path(__file__).parents[2] / ".venv-cute" / "bin" / "python"
ARCHS = ("sm_90a", "sm_100a", "sm_103a")

KERNELS = """
import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.runtime import make_fake_compact_tensor

from fasttrack.audit.declare import CompiledKernel


@cute.kernel
def scale(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, early: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * 64 + thread
    weight = w[i]
    held = x[i] if cutlass.const_expr(early) else Float32(0.0)
    cute.arch.griddepcontrol_wait()
    if cutlass.const_expr(not early):
        held = x[i]
    y[i] = weight * held
    cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def launch(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, early: cutlass.Constexpr):
    scale(x, w, y, early).launch(grid=(4, 1, 1), block=(64, 1, 1), use_pdl=True)


def made(early):
    def compile(arch):
        vectors = [make_fake_compact_tensor(Float32, (256,)) for _ in range(3)]
        return cute.compile(launch, *vectors, early).artifacts.CUBIN
    return compile


def broken(arch):
    raise RuntimeError("no such tile")


ARCHS = ("sm_90a", "sm_100a", "sm_103a")
XWY = ("x", "w", "y")


def both():
    return [
        CompiledKernel("late", ARCHS, made(False), XWY, ("w",)),
        CompiledKernel("early", ARCHS, made(True), XWY, ("w",)),
    ]


def unusable():
    return [
        CompiledKernel("raises", ("sm_90a",), broken, XWY, ("w",)),
        CompiledKernel("no_cubin", ("sm_90a",), lambda arch: b"PTX", XWY, ("w",)),
        CompiledKernel("two_names", ("sm_90a",), made(False), ("x", "w"), ("w",)),
        CompiledKernel("other_name", ("sm_90a",), made(False), XWY, ("weight",)),
        CompiledKernel("other_entry", ("sm_90a",), made(False), XWY, ("w",), entry="shift"),
    ]


def nothing():
    return []


def not_kernels():
    return ["scale"]
"""


def declaring(folder: Path, function: str) -> Path:
    """An optimization that lists its compiled kernels in a function."""
    made = optimization(folder)
    (made / "gpu_kernels.py").write_text(KERNELS)
    claim = made / "claim.toml"
    claim.write_text(
        claim.read_text().replace(
            "[plugin]\n", f'[plugin]\ncompiled_kernels = "gpu_kernels:{function}"\n'
        )
    )
    return made


def audited(folder: Path) -> list[Record]:
    """Records of the audit's unit."""
    frozen = load(folder)
    setting = Setting(
        claim=frozen.claim, target_name="fake", engine=get_engine("fake"), checkpoint=None,
        checkpoint_sha256="none", source_sha256=lambda: "0" * 64, logs=folder / "logs",
        folder=folder, seed=0, timeout_s=240.0, say=lambda text: None,
    )  # fmt: skip
    return stage.run(setting, {"check": "compiled"})


def judged(records: list[Record]) -> dict[str, str]:
    """Reason by cell of the optimization's own kernels."""
    own = [record for record in records if isinstance(record, CompiledRecord)]
    return {r.cell: finding_among(r, own)[1] for r in own if r.control is None}


# With the compiler


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The audit of a kernel that reads x behind the wait, and of the same with the load ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTTRACK_CUTE_PYTHON", str(CUTE))
        return audited(declaring(tmp_path_factory.mktemp("audit"), "both"))


@pytest.mark.cute
def test_a_load_ahead_of_the_wait_fails_and_the_same_behind_it_passes(both: list[Record]) -> None:
    assert judged(both) == {
        **{f"compiled/late/{arch}": "OK" for arch in ARCHS},
        **{f"compiled/early/{arch}": "HOIST-EARLY-LOAD" for arch in ARCHS},
    }
    for record in both:
        assert isinstance(record, CompiledRecord)
        if record.kernel == "early":
            assert "parameter x" in finding_among(record, [record])[2]


@pytest.mark.cute
def test_every_architecture_has_its_planted_kernels(both: list[Record]) -> None:
    planted = [r for r in both if isinstance(r, CompiledRecord) and r.control]
    assert {(r.control, r.arch) for r in planted} == {(c, a) for c in CONTROLS for a in ARCHS}
    assert all("nvidia-cutlass-dsl 4.8.1, nvdisasm V" in r.tool for r in planted)


@pytest.mark.cute
def test_the_command_audits_one_architecture(tmp_path: Path, cute: Path) -> None:
    declaring(tmp_path, "both")
    chosen = ("--arch", "sm_103a", "--kernel", "early", "--python", cute)
    ran = fasttrack(tmp_path, "audit", "demo", *chosen)
    assert ran.status == 1, ran.err
    assert ran.out.startswith("FAIL HOIST-EARLY-LOAD compiled/early/sm_103a\n")
    assert "before the wait, allowed: load from w" in ran.out
    assert "before the wait, not allowed: load from x" in ran.out


@pytest.mark.cute
def test_what_cannot_be_compiled_or_named_is_told_and_the_rest_goes_on(
    tmp_path: Path, cute: Path
) -> None:
    records = audited(declaring(tmp_path, "unusable"))
    assert set(judged(records).values()) == {"HOIST-UNREADABLE"}
    told = {r.kernel: r.message for r in records if isinstance(r, CompiledRecord) and not r.control}
    assert "RuntimeError: no such tile" in told["raises"]
    assert "no cubin" in told["no_cubin"]
    assert "3 parameters, the declaration names 2" in told["two_names"]
    assert "no parameter 'weight'; there is x, w, y" in told["other_name"]
    assert "0 of the cubin's kernels fit 'shift'" in told["other_entry"]


@pytest.mark.cute
@pytest.mark.parametrize(
    ("function", "says"),
    [("nothing", "lists no kernel"), ("not_kernels", "not a CompiledKernel")],
)
def test_a_list_that_is_none_fails(tmp_path: Path, cute: Path, function: str, says: str) -> None:
    records = audited(declaring(tmp_path, function))
    assert judged(records) == {"compiled": "HOIST-UNREADABLE"}
    assert isinstance(records[0], CompiledRecord)
    assert says in records[0].message


@pytest.mark.cute
def test_the_committed_listings_are_what_the_locked_compiler_makes(cute: Path) -> None:
    toolchain = Toolchain()
    cubin = toolchain.build(None, "sm_103a").plants[0].cubin
    reduced = module(UNIT / "build.py").reduced(toolchain.disassemble(cubin))
    assert reduced == (UNIT / "sm_103a.sass").read_text()


def module(path: Path) -> ModuleType:
    """A Python file that is no part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.cute
def test_the_run_time_variant_compiles_and_differs_by_the_load(tmp_path: Path, cute: Path) -> None:
    """What it shows needs a device; that it would show it can be read off its machine code."""
    script = (
        "from fasttrack.audit import runtime\n"
        "for early in (True, False):\n"
        "    cubin = runtime.compiled(early).artifacts.CUBIN\n"
        "    open(f'{early}.cubin', 'wb').write(cubin)\n"
    )
    env = {**os.environ, "CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_KEEP_CUBIN": "1",
           "CUTE_DSL_DUMP_DIR": str(tmp_path),
           "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
    subprocess.run([cute, "-c", script], cwd=tmp_path, env=env, check=True, timeout=240)
    toolchain = Toolchain()
    toolchain.build(None, "sm_90a")
    for early, reason in ((True, "HOIST-EARLY-LOAD"), (False, "OK")):
        text = toolchain.disassemble((tmp_path / f"{early}.cubin").read_bytes())
        kernels = {kernel.name.split("__")[1][:4]: kernel for kernel in read(text)}
        producer = trace(kernels.pop("slow"))
        assert producer.launches
        assert not producer.waits
        (consumer,) = kernels.values()
        facts = facts_of(consumer, ("x", "w", "y"), ("w",))
        assert finding(CompiledRecord(cell="c", **facts))[1] == reason


@pytest.mark.gpu
def test_poison_shows_where_a_kernel_reads_too_early() -> None:
    if not importlib.util.find_spec("cutlass"):
        pytest.skip("CuTe DSL is not installed")
    command = [sys.executable, "-m", "fasttrack.audit.runtime"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Without it


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """This interpreter, which need not have CuTe DSL."""
    if importlib.util.find_spec("cutlass"):
        pytest.skip("this interpreter has CuTe DSL")
    monkeypatch.setenv("FASTTRACK_CUTE_PYTHON", sys.executable)


def test_without_a_compiler_the_run_goes_on_and_stays_open(
    tmp_path: Path, no_compiler: None
) -> None:
    assert judged(audited(declaring(tmp_path, "both"))) == {"compiled": "HOIST-TOOLS"}


def test_without_a_compiler_the_command_says_how_to_get_one(
    tmp_path: Path, no_compiler: None
) -> None:
    declaring(tmp_path, "both")
    ran = fasttrack(tmp_path, "audit", "demo", "--python", sys.executable, "--json")
    assert ran.status == 4
    assert ran.error["code"] == "ENV-007"
    assert "make cute" in str(ran.error["next"])
    missing = fasttrack(tmp_path, "audit", "demo", "--python", tmp_path / "no-python", "--json")
    assert (missing.status, missing.error["code"]) == (4, "ENV-007")


def test_without_a_disassembler_a_cubin_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("fasttrack.audit._compile_child.nvdisasm", lambda: "")
    (tmp_path / "kernel.cubin").write_bytes(b"\x7fELF")
    ran = fasttrack(tmp_path, "audit", "kernel.cubin", "--json")
    assert (ran.status, ran.error["code"]) == (4, "ENV-007")


def test_a_failing_disassembler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasttrack.audit._compile_child.nvdisasm", lambda: "/bin/false")
    (tmp_path / "kernel.cubin").write_bytes(b"\x7fELF")
    ran = fasttrack(tmp_path, "audit", "kernel.cubin", "--json")
    assert (ran.status, ran.error["code"]) == (5, "ENG-006")


def listing(folder: Path, *arguments: Any) -> Ran:
    """`fasttrack audit` on a committed listing."""
    shutil.copy(UNIT / "sm_103a.sass", folder / "kernels.sass")
    return fasttrack(folder, "audit", "kernels.sass", *arguments)


def test_a_listing_is_judged_by_itself(tmp_path: Path) -> None:
    passed = listing(tmp_path, "--kernel", "*late_load*")
    assert passed.status == 0, passed.err
    assert passed.out.startswith("PASS OK kernel_cutlass__late_load")
    failed = listing(tmp_path, "--kernel", "*static_weight*", "--json")
    assert failed.status == 1
    (found,) = failed.json
    assert (found["reason"], found["arch"]) == ("HOIST-EARLY-LOAD", "sm_103a")
    assert listing(tmp_path, "--kernel", "*static_weight*", "--static", "1").status == 0
    assert listing(tmp_path, "--kernel", "*early_store*", "--static", "1", "--own", "2").status == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--kernel", "nothing"), "holds no such kernel"), (("--static", "w"), "no parameter 'w'")],
)
def test_what_fits_no_kernel_is_told(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:  # fmt: skip
    ran = listing(tmp_path, *arguments, "--json")
    assert (ran.status, ran.error["code"]) == (2, "USE-001")
    assert says in str(ran.error["cause"])


def test_what_is_no_listing_is_told(tmp_path: Path) -> None:
    (tmp_path / "kernels.sass").write_text("not a listing")
    ran = fasttrack(tmp_path, "audit", "kernels.sass", "--json")
    assert (ran.status, ran.error["code"]) == (2, "USE-001")
    gone = fasttrack(tmp_path, "audit", "gone.cubin", "--json")
    assert (gone.status, gone.error["code"]) == (2, "USE-001")


def test_sources_that_look_like_kernels_must_declare_them(tmp_path: Path) -> None:
    folder = optimization(tmp_path)
    assert judged(audited(folder)) == {"compiled": "HOIST-NONE"}
    (folder / "fast.py").write_text("kernel.launch(grid=(1, 1, 1), use_pdl=True)\n")
    (folder / "notes.md").write_text("griddepcontrol.wait\n")
    (record,) = audited(folder)
    assert isinstance(record, CompiledRecord)
    assert finding_among(record, [record])[1] == "HOIST-UNDECLARED"
    assert "fast.py" in record.message
    assert "notes.md" not in record.message
    ran = fasttrack(tmp_path, "audit", "demo")
    assert ran.status == 1
    assert "HOIST-UNDECLARED" in ran.out

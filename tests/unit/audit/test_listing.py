"""Protects the reader of nvdisasm's text: it understands all of it, or says that it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrack.audit.listing import ListingError, Parameter, read

SASS = (Path(__file__).parent / "listings" / "sm_90a.sass").read_text()


def test_kernels_parameters_and_places() -> None:
    kernels = {kernel.name.split("__")[1]: kernel for kernel in read(SASS)}
    tma = next(kernel for name, kernel in kernels.items() if name.startswith("tma"))
    assert tma.parameters == (Parameter(0, 48, 128), Parameter(1, 176, 8))
    assert (tma.bank, tma.arch) == (0x210, "sm_90a")
    assert tma.parameter_at(47) is None
    assert tma.parameter_at(175) == Parameter(0, 48, 128)
    assert all(kernel.instructions[0].offset == 0 for kernel in kernels.values())


def test_an_instruction_has_guard_opcode_operands_and_targets() -> None:
    code = [line for kernel in read(SASS) for line in kernel.instructions]
    branch = next(line for line in code if line.guard and line.base == "BRA")
    assert branch.targets
    assert branch.text.startswith(f"@{branch.guard} BRA")
    load = next(line for line in code if line.opcode == "LDG.E.CONSTANT")
    assert load.operands == ("R3", "desc[UR4][R6.64]")
    assert load.modifiers == {"E", "CONSTANT"}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: "", "does not name its architecture"),
        (lambda text: text.replace(".target", ".rest"), "does not name its architecture"),
        (lambda text: text.replace("STO_CUDA_ENTRY", "STO"), "no entry function"),
        (lambda text: text.replace("        /*", "        *"), "has no instructions"),
        (lambda text: text.replace("EIATTR_PARAM_CBANK", "EIATTR_X"), "without a place"),
        (lambda text: text.replace(".short\t0x0001", ".short\t0x0009"), "numbered from 0"),
        (lambda text: text.replace(".byte\t0x00, 0xf0", ".byte\t0xf0"), "cut short"),
    ],
)
def test_another_text_is_refused(spoil: object, says: str) -> None:
    with pytest.raises(ListingError, match=says):
        read(spoil(SASS))  # type: ignore[operator]


def test_a_cubin_of_cuda_12_names_its_architecture_by_flags() -> None:
    flags = '.headerflags\t@"EF_CUDA_64BIT_ADDRESS EF_CUDA_ACCELERATORS EF_CUDA_SM90"'
    assert {kernel.arch for kernel in read(SASS.replace(".target\tsm_90a", flags))} == {"sm_90a"}
    plain = flags.replace("EF_CUDA_ACCELERATORS ", "")
    assert {kernel.arch for kernel in read(SASS.replace(".target\tsm_90a", plain))} == {"sm_90"}


def test_half_a_listing_never_reads_as_clean() -> None:
    """Cut anywhere, it is refused or every kernel still has all of its head."""
    whole = {kernel.name: kernel for kernel in read(SASS)}
    for cut in range(0, len(SASS), 997):
        try:
            kernels = read(SASS[:cut])
        except ListingError:
            continue
        for kernel in kernels:
            assert (
                kernel.instructions == whole[kernel.name].instructions[: len(kernel.instructions)]
            )

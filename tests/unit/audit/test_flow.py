"""Protects the walk: what counts as before the wait, and where an address comes from.

Small listings written by hand around one question each, in the form nvdisasm prints.
"""

from __future__ import annotations

import pytest

from fasttrack.audit.facts import early_accesses, facts_of
from fasttrack.audit.flow import trace
from fasttrack.audit.listing import Kernel, read

SIZES = (8, 8, 8, 4)
"""x, w, y: pointers; n: a 32-bit scalar."""


def listing(code: str, sizes: tuple[int, ...] = SIZES, bank: int = 0x210) -> str:
    """A whole listing around instructions, one a line; a word with a colon is a label."""
    blocks, offset = [], 0
    for index, size in enumerate(sizes):
        word = (size << 18 | 0xF000).to_bytes(4, "little")
        blocks.append(
            "\t//----- nvinfo : EIATTR_KPARAM_INFO\n\t.byte 0x04, 0x17\n\t.short (.L_1 - .L_0)\n"
            f"\t.word 0x00000000\n\t.short {index:#06x}\n\t.short {offset:#06x}\n"
            f"\t.byte {', '.join(f'{byte:#04x}' for byte in word)}\n"
        )
        offset += 8 if size < 8 else size
    blocks.append(
        "\t//----- nvinfo : EIATTR_PARAM_CBANK\n\t.byte 0x04, 0x0a\n\t.short (.L_3 - .L_2)\n"
        f"\t.word index@(.nv.constant0.k)\n\t.short {bank:#06x}\n\t.short {offset:#06x}\n"
    )
    lines, at = [], 0
    for line in filter(None, map(str.strip, code.splitlines())):
        if line.endswith(":"):
            lines.append(line)
        else:
            lines.append(f"        /*{at:04x}*/                   {line} ;")
            at += 16
    return (
        "\t.target\tsm_90a\n"
        "//--------------------- .nv.info.k  --------------------------\n"
        + "".join(blocks)
        + "//--------------------- .text.k  --------------------------\n"
        '        .other          k,@"STO_CUDA_ENTRY STV_DEFAULT"\n'
        + "\n".join(["k:", *lines])
        + "\n"
    )


def kernel(code: str, **kind: object) -> Kernel:
    """The kernel of a listing."""
    (found,) = read(listing(code, **kind))  # type: ignore[arg-type]
    return found


X = "LDC.64 R2, c[0x0][0x210]"
W = "LDC.64 R4, c[0x0][0x218]"
LOAD_X = "LDG.E R6, desc[UR4][R2.64]"
LOAD_W = "LDG.E R6, desc[UR4][R4.64]"
END = "ACQBULK\nEXIT"


def early(code: str, **kind: object) -> list[tuple[str, tuple[int, ...], str]]:
    """(access, parameters, why unresolved) of what comes before the wait."""
    made = kernel(code, **kind)
    return [
        (found.access, tuple(found.parameters), found.unresolved)
        for found in early_accesses(made, trace(made).touches)
    ]


def only(code: str, **kind: object) -> tuple[tuple[int, ...], str]:
    """Parameters and doubt of the one load before the wait."""
    ((access, parameters, unresolved),) = early(code, **kind)
    assert access == "load"
    return parameters, unresolved


# Control flow


def test_order_decides() -> None:
    assert early(f"{X}\n{LOAD_X}\n{END}") == [("load", (0,), "")]
    assert early(f"{X}\nACQBULK\n{LOAD_X}\nEXIT") == []


def test_a_wait_in_one_branch_is_no_wait_for_the_other() -> None:
    code = f"{X}\n@P0 BRA `(.L_1)\nACQBULK\n.L_1:\n{LOAD_X}\nEXIT"
    assert only(code) == ((0,), "")


def test_a_wait_in_both_branches_is_a_wait() -> None:
    code = f"{X}\n@P0 BRA `(.L_1)\nACQBULK\nBRA `(.L_2)\n.L_1:\nACQBULK\n.L_2:\n{LOAD_X}\nEXIT"
    assert early(code) == []


def test_a_wait_under_a_predicate_is_no_wait() -> None:
    made = kernel(f"{X}\n@P0 ACQBULK\n{LOAD_X}\nEXIT")
    found = trace(made)
    assert (found.waits, found.guarded_waits, len(found.touches)) == ([], [0x10], 1)


def test_the_first_round_of_a_loop_counts() -> None:
    code = f"{X}\n.L_1:\n{LOAD_X}\nACQBULK\n@P0 BRA `(.L_1)\nEXIT"
    assert only(code) == ((0,), "")


def test_a_load_reached_backwards_counts() -> None:
    code = f"{X}\nBRA `(.L_2)\n.L_1:\n{LOAD_X}\nACQBULK\nEXIT\n.L_2:\nBRA `(.L_1)"
    assert only(code) == ((0,), "")


def test_code_nothing_leads_to_does_not_count() -> None:
    assert early(f"{X}\nBRA `(.L_1)\n{LOAD_X}\n.L_1:\n{END}") == []


def test_a_uniform_branch_has_two_ways() -> None:
    code = f"{X}\nBRA.U !UP0, `(.L_1)\nACQBULK\n.L_1:\n{LOAD_X}\nEXIT"
    assert only(code) == ((0,), "")


def test_a_barrier_leads_where_it_was_set() -> None:
    """Threads that left a divergent region by its barrier go on behind it, unwaited."""
    code = f"""
        {X}
        BSSY B0, `(.L_2)
        @P0 BRA `(.L_1)
        BSYNC B0
        .L_1:
        ACQBULK
        BRA `(.L_3)
        .L_2:
        {LOAD_X}
        .L_3:
        EXIT"""
    assert only(code) == ((0,), "")


def test_a_call_returns() -> None:
    """What the callee leaves in registers is known behind the call; a wait in it counts."""
    code = f"""
        {X}
        CALL.REL.NOINC `($k$f)
        {LOAD_X}
        ACQBULK
        EXIT
        $k$f:
        MOV R2, R4
        RET.REL.NODEC R20 `(k)"""
    assert only(code) == ((0,), "")
    assert early(code.replace("MOV R2, R4", "ACQBULK")) == []


@pytest.mark.parametrize("jump", ["BRX R8 -0x10", "CALL.ABS.NOINC `(vprintf)", "JMX R8"])
def test_a_jump_to_nowhere_known_leaves_nothing_certain(jump: str) -> None:
    facts = facts_of(kernel(f"{X}\n{jump}\n{END}"))
    assert facts["status"] == "unreadable"
    assert jump in facts["message"]
    # Behind the wait it does not matter.
    assert facts_of(kernel(f"{X}\nACQBULK\n{jump}\nEXIT"))["status"] == "ok"


def test_a_listed_indirect_jump_is_followed() -> None:
    code = f'{X}\nBRX R8 -0x10 (*"BRANCH_TARGETS .L_1,.L_2"*)\n.L_1:\n{LOAD_X}\n.L_2:\n{END}'
    assert only(code) == ((0,), "")


def test_falling_off_the_end_is_a_problem() -> None:
    assert "past the last" in facts_of(kernel(X))["message"]


def test_launching_dependents_is_only_noted() -> None:
    assert trace(kernel(f"PREEXIT\n{END}")).launches == [0]


# What touches memory


@pytest.mark.parametrize(
    ("instruction", "access"),
    [
        ("LDG.E.128 R8, desc[UR4][R2.64+0x10]", "load"),
        ("LD.E R8, desc[UR4][R2.64]", "load"),
        ("LDGSTS.E.BYPASS.128 [R7+0x480], desc[UR4][R2.64]", "load"),
        ("@P0 LDG.E R8, desc[UR4][R2.64]", "load"),
        ("STG.E desc[UR4][R2.64], R8", "store"),
        ("REDG.E.ADD.S32.STRONG.GPU desc[UR4][R2.64], R8", "store"),
        ("ATOMG.E.ADD.STRONG.GPU PT, R8, desc[UR4][R2.64], R9", "atomic"),
        ("NEWLD R8, desc[UR4][R2.64]", "unknown"),
        ("TLD.LZ R8, R8, R2, UR4, 2D, 0x1", "unknown"),
    ],
)
def test_an_access_is_seen(instruction: str, access: str) -> None:
    ((found, parameters, _),) = early(f"{X}\n{instruction}\n{END}")
    assert found == access
    assert parameters in ((0,), ())


@pytest.mark.parametrize(
    "instruction",
    [
        "LDS R8, [R2]",
        "@!PT LDG.E R8, desc[UR4][R2.64]",
        "@!PT LDS RZ, [RZ]",
        "STS [R2], R8",
        "LDC R8, c[0x0][R9+0x210]",
        "LDL R8, [R1]",
        "CCTL.E.PF2 [R2]",
        "UTMAPF.L2.2D [UR8], [UR6]",
        "UBLKPF [UR4], UR6",
        "UTMACCTL.PF [UR6]",
        "SYNCS.EXCH.64 URZ, [UR9], UR4",
        "UBLKCP.S.S [UR8], [UR4], UR6",
        "HGMMA.64x64x16.F32 R24, gdesc[UR4], R24",
    ],
)
def test_what_stays_on_the_chip_or_only_prefetches_is_not(instruction: str) -> None:
    assert early(f"{X}\n{instruction}\n{END}") == []


def test_bulk_copies_are_read_by_their_direction() -> None:
    bulk = "ULDC.64 UR4, c[0x0][0x218]\nUBLKCP.{} [{}], [{}], UR6\n" + END
    assert early(bulk.format("S.G", "UR8", "UR4")) == [("load", (1,), "")]
    assert early(bulk.format("G.S", "UR4", "UR8")) == [("store", (1,), "")]


# Where addresses come from


def test_arithmetic_keeps_the_pointer() -> None:
    code = f"""
        S2R R9, SR_TID.X
        {W}
        LDC R10, c[0x0][0x228]
        IMAD R9, R10, 0x80, R9
        IMAD.WIDE R4, R9, 0x4, R4
        LEA R12, P0, R9, R4, 0x2
        LEA.HI.X R13, R9, R5, R10, 0x2, P0
        IADD3 R14, P0, R12, 0x40, RZ
        IADD3.X R15, RZ, R13, RZ, P0, !PT
        LDG.E R6, desc[UR4][R14.64]
        {END}"""
    assert only(code) == ((1,), "")


def test_uniform_registers_are_followed() -> None:
    code = f"""
        ULDC.64 UR6, c[0x0][0x218]
        UIADD3 UR6, UP0, UR6, 0x20, URZ
        UIADD3.X UR7, URZ, UR7, URZ, UP0, !UPT
        MOV R8, UR6
        IMAD.U32 R9, RZ, RZ, UR7
        LDG.E R6, desc[UR4][R8.64]
        {END}"""
    assert only(code) == ((1,), "")
    assert only(f"ULDC.64 UR6, c[0x0][0x218]\nLDG.E R6, desc[UR4][UR6.64]\n{END}") == ((1,), "")


def test_both_pointers_of_a_choice_count() -> None:
    code = f"{X}\n{W}\nSEL R8, R2, R4, P0\nSEL R9, R3, R5, P0\n"
    assert only(f"{code}LDG.E R6, desc[UR4][R8.64]\n{END}") == ((0, 1), "")


def test_a_predicated_move_may_not_happen() -> None:
    code = f"{X}\n{W}\n@P0 MOV R4, R2\n@P0 MOV R5, R3\n{LOAD_W}\n{END}"
    assert only(code) == ((0, 1), "")


def test_a_pointer_carried_round_a_loop_is_seen() -> None:
    """The first round reads w, the second x: one walk over the loop would miss it."""
    code = f"{X}\n{W}\n.L_1:\n{LOAD_W}\nMOV R4, R2\nMOV R5, R3\n@P0 BRA `(.L_1)\n{END}"
    assert only(code) == ((0, 1), "")


def test_overwritten_registers_forget() -> None:
    wide = f"{X}\n{W}\nLDS.128 R4, [R9]\n{LOAD_W}\n{END}"
    assert only(wide) == ((), "a pointer read from memory")
    assert only(f"{W}\nDADD R4, R8, R10\n{LOAD_W}\n{END}") == ((), "no kernel parameter")


def test_an_index_from_memory_is_no_pointer() -> None:
    code = f"{X}\n{W}\n{LOAD_X}\nIMAD.WIDE R8, R6, 0x4, R4\nLDG.E R7, desc[UR4][R8.64]\n{END}"
    assert early(code) == [("load", (0,), ""), ("load", (1,), "")]


def test_a_pointer_from_memory_is_nobodys() -> None:
    code = f"{W}\nLDG.E.64 R8, desc[UR4][R4.64]\nLDG.E R7, desc[UR4][R8.64]\n{END}"
    assert early(code) == [("load", (1,), ""), ("load", (), "a pointer read from memory")]


@pytest.mark.parametrize(
    "made",
    [
        "LDC.64 R8, c[0x4][0x10]",
        "LDC.64 R8, c[0x0][R4+0x210]",
        "MYSTERY R8, R2",
        "HMMA.16816.F32.BF16 R8, R12, R16, RZ",
    ],
)
def test_what_is_not_modelled_is_nobodys(made: str) -> None:
    _, doubt = only(f"{X}\n{made}\nLDG.E R7, desc[UR4][R8.64]\n{END}")
    assert doubt


def test_a_scalar_alone_is_no_address() -> None:
    code = f"LDC R8, c[0x0][0x228]\nMOV R9, RZ\nLDG.E R7, desc[UR4][R8.64]\n{END}"
    assert only(code) == ((), "no kernel parameter")


def test_a_wide_unknown_result_taints_its_neighbours() -> None:
    parameters, doubt = only(f"{W}\nHGMMA.64x64x16.F32 R0, gdesc[UR4], R0\n{LOAD_W}\n{END}")
    assert parameters == (1,)
    assert "the value made at" in doubt


# TMA descriptors in the parameter area

TMA = {"sizes": (128, 128, 8)}


@pytest.mark.parametrize(("bank", "window"), [(0x210, 0x198), (0x380, 0x348)])
def test_a_descriptor_passed_by_value_is_its_parameter(bank: int, window: int) -> None:
    load = "UTMALDG.2D [UR8], [UR6], desc[URZ]"
    plain = f"ULDC.64 UR6, c[0x0][{window:#x}]\n"
    add = "UIADD3 UR6, UP0, UR6, 0x80, URZ\nUIADD3.X UR7, URZ, UR7, URZ, UP0, !UPT\n"
    assert only(f"{plain}{load}\n{END}", bank=bank, **TMA) == ((0,), "")
    assert only(f"{plain}{add}{load}\n{END}", bank=bank, **TMA) == ((1,), "")
    near = load.replace("[UR6]", "[UR6+0x80]")
    assert only(f"{plain}{near}\n{END}", bank=bank, **TMA) == ((1,), "")


def test_a_descriptor_chosen_by_an_index_is_nobodys() -> None:
    code = "ULDC.64 UR6, c[0x0][0x198]\nULEA UR6, UR9, UR6, 0x7\n"
    _, doubt = only(f"{code}UTMALDG.2D [UR8], [UR6], desc[URZ]\n{END}", **TMA)
    assert doubt == "somewhere in the parameter area"


def test_either_of_two_descriptors_counts() -> None:
    code = "ULDC.64 UR6, c[0x0][0x198]\n@UP0 UIADD3 UR6, UP1, UR6, 0x80, URZ\n"
    assert only(f"{code}UTMALDG.2D [UR8], [UR6], desc[URZ]\n{END}", **TMA) == ((0, 1), "")

"""Protects that a reader of a timeline sees kernels and not their template arguments."""

from __future__ import annotations

import pytest

from fasttrack.report.names import short


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("aten::bmm", "aten::bmm"),
        ("_attn_res_kernel", "_attn_res_kernel"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT"),
        ("void fused_a_gemm_kernel<1, 1536>(__nv_bfloat16*, int)", "fused_a_gemm_kernel"),
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)", "rms_norm_kernel"),
        ("void (anonymous namespace)::kda_decode_kernel<true, 12>(int)", "kda_decode_kernel"),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<2>>>",
            "FlashAttnFwdSm90",
        ),
        ("void cutlass::device_kernel<3>(int)", "device_kernel"),
        (
            "kernel_cutlass_kernel_kimi_k3kernelsprojectionkernelProjection_object_at__CopyAtom_Thr",
            "Projection",
        ),
        ("kernel_cutlass_kernel_vllmcute_dsl_ll_bf16LLBf16Dot_object_at__tensorptr", "LLBf16Dot"),
        ("kernel_cutlass_kernel_only_small_object_at__tensor", "only_small"),
        ("", ""),
        ("<lambda>", "<lambda>"),
        ("(x)", "(x)"),
    ],
)
def test_names_are_those_a_person_would_say(name: str, wanted: str) -> None:
    assert short(name) == wanted

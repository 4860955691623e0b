"""What the audit of compiled kernels compiles: every kernel, at real shapes of one rank of eight.

Owns: the list. Read by: the harness, in a child that has CuTe DSL and no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fasttrack.audit.declare import CompiledKernel
from kimi_k3.kernels import gpu
from kimi_k3.kernels.attn_res.kernel import AttnRes, Delta, Site
from kimi_k3.kernels.kda.form import pitch
from kimi_k3.kernels.kda.launch import kda
from kimi_k3.kernels.mla import launch as mla
from kimi_k3.kernels.moe import launch as moe
from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.oproj.launch import collect, publish
from kimi_k3.kernels.prefetch.kernel import Prefetch, Range
from kimi_k3.kernels.projection.form import DEVICES, Device
from kimi_k3.kernels.projection.launch import projection

ARCHS = tuple(DEVICES)
HIDDEN, BLOCKS, HEADS, EPS, BOUND = 7168, 8, 12, 1e-5, -5.0
MAPS = {
    "kda_in": (pitch(HEADS), HIDDEN),
    "mla_in": (3648, HIDDEN),
    "q_b": (2304, 1536),
    "out": (HIDDEN, HEADS * 128),
}
"""Packed maps of a rank: outputs, inputs."""

SITES: tuple[tuple[int, Delta, bool, bool], ...] = (
    (0, "none", True, False),
    (7, "add", True, False),
    (1, "restart", False, False),
    (8, "add", False, True),
)
"""Sources, what happens to the prefix, whether it is stored, whether it is the last site."""
HEADS_BATCH_TOKENS = ((12, 1, 1), (12, 64, 1), (12, 4, 8), (6, 1, 1), (96, 1, 1))
MLA_QUERIES = ((12, 1, False), (12, 1, True), (12, 64, False), (6, 8, False))
"""Heads, tokens, whether the cache is FP8."""
MLA_CORES = ((12, 1, 1, False), (12, 1, 1, True), (12, 8, 4, False), (12, 8, 4, True))
"""Heads, batch, tokens, whether the cache is FP8."""
MLA_VALUES = ((12, 1, 128), (12, 64, 4), (6, 5, 8))
"""Heads, tokens, parts."""
CACHE_ROWS, PAGE, PAGES = 1 << 20, 64, 512
EXPERT_BATCHES = (1, 64)
EXCHANGES = ((8, 12, 1), (8, 12, 64), (16, 6, 1), (3, 12, 1))
"""Ranks, heads of each, batch."""
Make = Callable[[Device], gpu.Kernel]


def _forms() -> Iterator[tuple[str, Make]]:
    """Name and maker of every kernel that is audited."""
    for sources, delta, write, final in SITES:
        site = Site(HIDDEN, 4, BLOCKS, sources, delta, write, EPS, final)
        yield f"attn_res.{sources}.{delta}", partial(_site, site)
    for name, (outputs, inputs) in MAPS.items():
        for batch in (1, 64):
            yield f"projection.{name}.{batch}", partial(projection, outputs, inputs, batch)
    for heads, batch, tokens in HEADS_BATCH_TOKENS:
        yield f"kda.{heads}.{batch}.{tokens}", partial(_kda, heads, batch, tokens)
    for heads, rows, fp8 in MLA_QUERIES:
        made = partial(mla.queries, heads, rows, CACHE_ROWS, fp8, EPS)
        yield f"mla_query.{heads}.{rows}{'.fp8' * fp8}", partial(_any, made)
    for heads, batch, tokens, fp8 in MLA_CORES:
        core = partial(mla.core, heads, batch, tokens, CACHE_ROWS, PAGE, PAGES, fp8)
        yield f"mla_core.{heads}.{batch}.{tokens}{'.fp8' * fp8}", partial(_any, core)
    for heads, rows, parts in MLA_VALUES:
        yield (
            f"mla_value.{heads}.{rows}.{parts}",
            partial(_any, partial(mla.values, heads, rows, parts)),
        )
    for batch in EXPERT_BATCHES:
        yield f"experts.{batch}", partial(moe.experts, batch, moe.EXPERTS)
        yield f"experts.repacked.{batch}", partial(moe.repacked_experts, batch, moe.EXPERTS)
    yield from _moe_forms()
    yield "prefetch.out", partial(_any, partial(Prefetch, Range(*MAPS["out"], 32)))
    for ranks, heads, batch in EXCHANGES:
        exchange = Exchange(ranks, HIDDEN, 64)
        yield f"oproj.publish.{ranks}.{batch}", partial(publish, heads * 128, batch, exchange)
        for sources, delta in ((4, "add"), (1, "restart")):
            site = Site(HIDDEN, batch, BLOCKS, sources, delta, False, EPS)
            yield f"oproj.collect.{ranks}.{batch}.{delta}", partial(_collect, site, exchange)


def _moe_forms() -> Iterator[tuple[str, Make]]:
    """Those around the experts."""
    front = moe.front_exchange(moe.EXPERTS, moe.LATENT, 8)
    latent, row = Exchange(8, moe.LATENT, 64), Exchange(8, HIDDEN // 8, 64)
    site = Site(HIDDEN, 1, BLOCKS, 4, "add", False, EPS)
    made: dict[str, Callable[[], gpu.Kernel]] = {
        "experts.finalize": partial(moe.finalize, 1),
        "moe.publish_front": partial(moe.publish_front, HIDDEN, moe.EXPERTS, moe.LATENT, 1, front),
        "moe.publish_front_and_shared": partial(
            moe.publish_front, HIDDEN, moe.EXPERTS, moe.LATENT, 1, front, shared=768
        ),
        "moe.route": partial(moe.route, moe.EXPERTS, moe.LATENT, 1, front),
        "moe.route_and_activate": partial(moe.route, moe.EXPERTS, moe.LATENT, 1, front, shared=768),
        "moe.publish_latent": partial(moe.publish_latent, 1, latent),
        "moe.norm_latent": partial(moe.norm_latent, 1, latent, EPS),
        "moe.activate": partial(moe.activate, 1, 768),
        "moe.publish_shares": partial(moe.publish_shares, 768, 1, row),
        "moe.publish_row": partial(moe.publish_row, moe.LATENT, 1, row),
        "moe.collect_row": partial(moe.collect_row, site, row),
    }
    for name, make in made.items():
        yield name, partial(_any, make)


def _any(make: Callable[[], gpu.Kernel], device: Device) -> gpu.Kernel:
    """A kernel that is cut alike for every device."""
    return make()


def _site(site: Site, device: Device) -> gpu.Kernel:
    return AttnRes(site)


def _kda(heads: int, batch: int, tokens: int, device: Device) -> gpu.Kernel:
    return kda(heads, batch, tokens, 1 + batch * tokens, BOUND)


def _collect(site: Site, exchange: Exchange, device: Device) -> gpu.Kernel:
    return collect(site, exchange)


def _declared(name: str, make: Make) -> CompiledKernel:
    arguments = make(DEVICES[ARCHS[0]]).arguments()
    names = list(arguments)
    if name.startswith("projection"):  # TMA descriptors in the order of use, the batch of x, y
        names = ["w", "x", "batch", "y"]
    if name in ("moe.publish_front", "moe.publish_shares") or name.startswith("oproj.publish"):
        names = ["w", "x", "batch", "peers", "turn"]
    if name == "moe.publish_front_and_shared":
        names = ["w", "x", "batch", "peers", "turn", "gate_up"]
    if name == "moe.publish_row":
        names = ["w", "x", "batch", "peers", "turn", "shares", "shares_turn"]
    if name.startswith("experts.") and "w13" in arguments:  # descriptors first
        names = ["w13", "w2", "z", "ids", "gains", "s13", "s2", "slots", "inbox"]
    if name.startswith("experts.repacked"):
        names = ["w13", "s13", "w2", "s2", "z", "ids", "gains", "slots", "inbox"]
    kinds = {key: one.kind for key, one in arguments.items()}

    def compile_(arch: str) -> Any:
        return gpu.compile_kernel(make(DEVICES[arch])).artifacts.CUBIN

    return CompiledKernel(
        name,
        ARCHS,
        compile_,
        parameters=tuple(names),
        static=tuple(key for key in names if kinds.get(key) == "static"),
        own=tuple(key for key in names if kinds.get(key) == "own"),
        dependent=not name.startswith("prefetch"),
    )


def kernels() -> list[CompiledKernel]:
    """All of them."""
    return [_declared(name, make) for name, make in _forms()]


def mixture() -> list[CompiledKernel]:
    """Those of the expert half."""
    return [one for one in kernels() if one.name.startswith(("experts.", "moe."))]

"""What products of pairs in vectors are charged, by the CPU that they run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.kernel import BF16, Call, Kernel
from tianyuan.ops.attention import Attention
from tianyuan.ops.attrs import Relayout
from tianyuan.ops.conv import Conv2dFused
from tianyuan.ops.matmul import MatmulFused
from tianyuan.ops.pool import Pool2d
from tianyuan_x86 import native
from tianyuan_x86._tier import Tier
from tianyuan_x86.kernels import all_kernels

pytestmark = pytest.mark.skipif(
    "bf16" not in {tier.name for tier in native.load().tiers},
    reason="the machine has no AVX512-BF16",
)

ONE = (1, 1, 1, 1)
# image, outputs, kernel, stride, padding, groups
CONVOLUTIONS = (
    ((1, 64, 56, 56), 64, (3, 3), 1, ONE, 1),
    ((1, 64, 56, 56), 256, (1, 1), 1, (0, 0, 0, 0), 1),
    ((1, 512, 14, 14), 512, (3, 3), 2, ONE, 1),
    ((1, 3, 224, 224), 64, (7, 7), 2, (3, 3, 3, 3), 1),
    ((1, 180, 28, 28), 240, (1, 1), 1, (0, 0, 0, 0), 3),
)


def pairs_of(features: dict[str, bool]) -> list[Kernel]:
    """Return the kernels of the tier on a CPU with these features but without tiles' kernels."""
    return all_kernels((Tier("bf16", native.load().functions, features),))


def calls(call_of: Callable[..., Call]) -> list[Call]:
    """Return calls in which arithmetic outweighs all else."""
    found = []
    for shape, outputs, kernel, stride, padding, groups in CONVOLUTIONS:
        arrays = [np.empty(shape, np.float32),
                  np.empty((outputs, shape[1] // groups, *kernel), np.float32)]  # fmt: skip
        attrs = Conv2dFused((stride, stride), padding, groups=groups, activation="relu")
        found.append(call_of("conv2d_fused", arrays, attrs))
    for m, n, k in ((128, 512, 512), (1, 1000, 2048), (49, 48, 64)):
        product = [np.empty((m, k), np.float32), np.empty((k, n), np.float32)]
        found.append(call_of("matmul_fused", product, MatmulFused(activation="relu")))
    heads = [np.empty((1, 8, 128, 64), np.float32)] * 3
    return [*found, call_of("attention", heads, Attention(scale=0.125))]


def cheapest(kernels: list[Kernel], call: Call) -> float:
    """Return what the cheapest of the kernels that serve a call costs."""
    return min(
        kernel.cost(call)
        for kernel in kernels
        if kernel.op == call.op.name and registry.refusal(kernel, call) is None
    )


@pytest.mark.parametrize(
    ("features", "pays"), [({"amx_tile": True}, False), ({"amx_tile": False}, True), ({}, True)]
)
def test_pairs_in_vectors_do_not_pay_beside_tiles(
    features: dict[str, bool], pays: bool, call_of: Any
) -> None:
    """Where a product of pairs takes longer than one of float32, float32 is cheaper."""
    for call in calls(call_of):
        exact = [k for k in registry.candidates(call.op.name, "cpu", "x86") if k.precision != BF16]
        costs = cheapest(pairs_of(features), call), cheapest(exact, call)
        # Products of one row wait for memory, and Winograd's have fewer operations.
        few = call.inputs[0].shape in ((1, 2048), CONVOLUTIONS[0][0], CONVOLUTIONS[3][0])
        assert (costs[0] < costs[1]) == pays or (pays and few), (call.inputs, costs)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_first_layer_of_a_resnet_and_its_pooling_are_the_same_ones_on_all_threads(
    threads: int, call_of: Any
) -> None:
    """By Winograd's method and rounded behind pooling, or in bfloat16 from the start."""
    if "avx512" not in {tier.name for tier in native.load().tiers}:
        pytest.skip("the machine has no AVX-512 for float32")
    shape, outputs, kernel, stride, padding, _ = CONVOLUTIONS[3]
    arrays = [np.empty(shape, np.float32), np.empty((outputs, shape[1], *kernel), np.float32)]
    attrs = Conv2dFused((stride, stride), padding, activation="relu")
    wide, pooled = np.empty((1, 64, 112, 112), np.float32), np.empty((1, 64, 56, 56), np.float32)
    first = call_of("conv2d_fused", arrays, attrs, threads)
    pool = call_of("max_pool2d", [wide], Pool2d((3, 3), (2, 2), ONE), threads)
    narrow = call_of("relayout", [pooled], Relayout("nchw16c", "nchw16c_bf16"), threads)
    calls = {
        "conv2d_fused_f32__avx512_winograd_first_unbiased": first,
        "max_pool2d_f32__avx512_blocked": pool,
        "relayout_bf16__bf16_narrow": narrow,
        "conv2d_fused_bf16__bf16_first_unbiased": first,
        "max_pool2d_bf16__bf16_blocked": pool,
    }
    costs = []
    for name, call in calls.items():
        known = {k.name: k for k in registry.candidates(call.op.name, "cpu", "x86")}
        costs.append(known[name].cost(call))
    assert sum(costs[:3]) < sum(costs[3:])

"""Bottlenecks against the separate convolutions of the same tier, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import functional as F  # noqa: N812
from tianyuan import jit, registry
from tianyuan.kernel import Kernel
from tianyuan.ops.bottleneck import Bottleneck
from tianyuan.ops.conv import Conv2dFused
from tianyuan.testing.cases import cases_of

KERNELS = [k for k in registry.candidates("bottleneck", "cpu", "x86") if k.is_native]
NONE = (0, 0, 0, 0)


def _separate(
    tier: str, arrays: list[np.ndarray], attrs: Bottleneck, run: Any, call_of: Any
) -> Any:
    """Run the convolutions one by one with the kernels on blocked images."""
    y, rest = arrays[0], list(arrays[1:])
    names = (attrs.expanded, attrs.filtered, attrs.projected)
    for step, (name, lower, upper) in enumerate(zip(names, attrs.lower, attrs.upper, strict=True)):
        if step == 0 and not attrs.expands:
            continue
        w, bias = rest.pop(0), rest.pop(0)
        residual = rest if step == 2 else []
        fused = Conv2dFused(
            stride=attrs.stride if step == 1 else (1, 1),
            padding=attrs.padding if step == 1 else NONE,
            groups=len(w) if step == 1 else 1,
            has_bias=True,
            has_residual=bool(residual),
            activation=name,
            lower=lower,
            upper=upper,
        )
        variant = "depthwise" if step == 1 else "direct"
        kernel = next(
            k
            for k in registry.candidates("conv2d_fused", "cpu", "x86")
            if k.name == f"conv2d_fused_f32__{tier}_{variant}"
        )
        inputs = [y, w, bias, *residual]
        y = run(kernel, call_of("conv2d_fused", inputs, fused), inputs)[0]
    return y


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_equals_the_separate_convolutions(kernel: Kernel, run: Any, call_of: Any) -> None:
    count = 0
    for seed, case in enumerate(cases_of("bottleneck")):
        arrays = case.arrays(seed)
        if arrays[0].dtype != np.float32:
            continue
        calls = [call_of("bottleneck", arrays, case.attrs, threads) for threads in (1, 3)]
        if kernel.supports(calls[0]) is not None:
            continue
        count += 1
        tier = kernel.isa
        want = _separate(tier, arrays, case.attrs, run, call_of)
        for call in calls:
            got = run(kernel, call, arrays)[0]
            np.testing.assert_array_equal(got, want, f"{case} on {call.threads} threads")
    assert count >= 10


def test_a_network_uses_them_where_wide_planes_leave_the_cache() -> None:
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Any:
        return ty.Tensor(rng.standard_normal(shape).astype(np.float32) / shape[1] ** 0.5)

    parts = [
        (weight(96, 16, 1, 1), weight(1, 96, 1, 1)),
        (weight(96, 1, 1, 3, 3), weight(1, 96, 1, 1)),
        (weight(16, 96, 1, 1), weight(1, 16, 1, 1)),
    ]

    def block(x: Any) -> Any:
        y = F.relu6(F.conv2d(x, *parts[0]))
        y = F.relu6(F.conv2d(y, *parts[1], padding=1, groups=96))
        return F.conv2d(y, *parts[2]) + x

    x = ty.Tensor(rng.standard_normal((1, 16, 48, 48)).astype(np.float32))
    want = block(x).numpy()
    fast = jit.trace(block, capture_as_const=True)
    fast(x)
    np.testing.assert_allclose(fast(x).numpy(), want, rtol=1e-4, atol=1e-4)
    assert any("bottleneck" in str(step.kernel) for step in fast.explain().steps)

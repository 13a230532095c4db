"""Quantisation next to halves and at the ends, and residuals of integer convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.imperative.dispatch import run_kernel
from tianyuan.kernel import Call, Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.quantized import Quantize
from tianyuan.ops.quantized_product import Conv2dQuantized

ops.register_all()


def _kernels(op: str, part: str) -> list[Kernel]:
    return [k for k in registry.candidates(op, "cpu", "x86") if part in k.name]


def _call(name: str, arrays: list[np.ndarray], attrs: object) -> Call:
    op = registry.get_op(name)
    specs = tuple(TensorSpec(a.shape, a.dtype) for a in arrays)
    return Call(op, specs, op.infer(specs, attrs), attrs, 2)


@pytest.mark.parametrize("kernel", _kernels("quantize", "_flat"), ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scale", [0.0123456, 1.0 / 3.0, 7.7, 2.0**-120, 3e35])
def test_quotients_next_to_halves_round_as_divisions_do(
    kernel: Kernel, dtype: str, scale: float
) -> None:
    """A product with the reciprocal would round some of these to the other side."""
    info, s = np.iinfo(dtype), np.float32(scale)
    zero = int(info.min) + 77
    with np.errstate(over="ignore", under="ignore"):
        halves = (np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)) * s
        steps = [halves]
        for direction in (np.float32(np.inf), np.float32(-np.inf)):
            near = halves
            for _ in range(2):
                near = np.nextafter(near, direction)
                steps.append(near)
        ends = np.array([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-42, np.nan], np.float32)
        x = np.concatenate([*steps, np.tile(ends, 9)])
        quotient = np.rint(x / s)
    bounded = np.clip(np.nan_to_num(quotient, nan=-1e9), info.min - zero, info.max - zero)
    want = (bounded + zero).astype(dtype)
    attrs = Quantize(scales=(float(s),), zero_points=(zero,), axis=-1, dtype=dtype)
    call = _call("quantize", [x], attrs)
    assert registry.refusal(kernel, call) is None
    (got,) = run_kernel(kernel, call, [x])
    np.testing.assert_array_equal(got, want)


_DIRECT = [k for k in _kernels("conv2d_quantized", "_direct") if "_direct_g" not in k.name]


@pytest.mark.parametrize("kernel", _DIRECT, ids=str)
@pytest.mark.parametrize("outputs", [5, 24, 48, 130])
@pytest.mark.parametrize("factor", [2.0**-11, 0.375])
def test_residuals_are_added_before_rounding(kernel: Kernel, outputs: int, factor: float) -> None:
    """Sums that fit an int32 with their residual are finished in registers, others one by one."""
    rng = np.random.default_rng(outputs)
    x = rng.integers(0, 256, (2, 20, 5, 7)).astype(np.uint8)
    w = rng.integers(-128, 128, (outputs, 20, 1, 1)).astype(np.int8)
    bias = rng.integers(-(2**12), 2**12, outputs).astype(np.int32)
    has_bias = "unbiased" not in kernel.name
    for dtype, low in (("int8", -128), ("uint8", 0)):
        residual = rng.integers(low, low + 256, (2, outputs, 5, 7)).astype(dtype)
        attrs = Conv2dQuantized(
            stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1, has_bias=has_bias,
            has_residual=True, x_zero_point=11, w_zero_points=(0,), multipliers=(factor,),
            residual_zero_point=low + 40, residual_multiplier=0.8125, scale=1.0,
            zero_point=low + 30, dtype=dtype, lower=low + 30, upper=low + 255,
        )  # fmt: skip
        sums = np.einsum("nchw,oc->nohw", x.astype(np.int64) - 11, w[:, :, 0, 0].astype(np.int64))
        if has_bias:
            sums = sums + bias[:, None, None]
        centred = (residual.astype(np.int64) - (low + 40)).astype(np.float32)
        t = sums.astype(np.float32) * np.float32(factor) + centred * np.float32(0.8125)
        want = np.clip(np.rint(t).astype(np.int64) + low + 30, low + 30, low + 255).astype(dtype)
        arrays = [x, w, bias, residual] if has_bias else [x, w, residual]
        call = _call("conv2d_quantized", arrays, attrs)
        assert registry.refusal(kernel, call) is None
        (got,) = run_kernel(kernel, call, arrays)
        np.testing.assert_array_equal(got, want)

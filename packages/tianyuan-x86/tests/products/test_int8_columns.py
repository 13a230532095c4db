"""Integer convolutions of few channels against sums in int64."""

from __future__ import annotations

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.imperative.dispatch import run_kernel
from tianyuan.kernel import Call, Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.quantized_product import Conv2dQuantized

ops.register_all()

KERNELS = [k for k in registry.candidates("conv2d_quantized", "cpu", "x86") if "columns" in k.name]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("c", "o", "size", "stride", "apart"),
    [
        (3, 24, 7, 2, 1), (2, 9, 5, 1, 1), (1, 16, 6, 3, 1), (3, 80, 3, 2, 1), (2, 16, 10, 1, 1),
        (3, 24, 3, 1, 2), (2, 17, 4, 2, 3),
    ],
)  # fmt: skip
def test_columns_of_rows_without_padding_between_pixels(
    kernel: Kernel, dtype: str, c: int, o: int, size: int, stride: int, apart: int
) -> None:
    """Every pixel of wide and of narrow images lands in its place, beside what surrounds it."""
    rng = np.random.default_rng(c)
    info = np.iinfo(dtype)
    for width in (7, 45):
        x = rng.integers(info.min, info.max, (2, c, 8, width), endpoint=True).astype(dtype)
        w = rng.integers(-128, 128, (o, c, size, size)).astype(np.int8)
        bias = rng.integers(-(2**15), 2**15, o).astype(np.int32)
        zero = int(info.max) - 100
        attrs = Conv2dQuantized(
            stride=(stride, stride), padding=(2, 3, 1, 2), dilation=(apart, 1), groups=1,
            has_bias=True, has_residual=False, x_zero_point=zero, w_zero_points=(0,),
            multipliers=(2.0**-10,), residual_zero_point=0, residual_multiplier=1.0, scale=1.0,
            zero_point=3, dtype="uint8", lower=0, upper=250,
        )  # fmt: skip
        padded = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (2, 1), (3, 2)))
        reach = (size - 1) * apart + 1
        views = np.lib.stride_tricks.sliding_window_view(padded, (reach, size), axis=(2, 3))
        views = views[:, :, ::stride, ::stride, ::apart]
        sums = np.einsum("nchwij,ocij->nohw", views, w.astype(np.int64)) + bias[:, None, None]
        scaled = np.rint(sums.astype(np.float32) * np.float32(2.0**-10)).astype(np.int64)
        want = np.clip(scaled + 3, 0, 250).astype(np.uint8)
        specs = tuple(TensorSpec(a.shape, a.dtype) for a in (x, w, bias))
        op = registry.get_op("conv2d_quantized")
        for threads in (1, 2):
            call = Call(op, specs, op.infer(specs, attrs), attrs, threads)
            assert registry.refusal(kernel, call) is None
            (got,) = run_kernel(kernel, call, [x, w, bias])
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("height", [47, 64])
def test_bands_of_rows_meet(kernel: Kernel, height: int) -> None:
    """Columns of several bands, which begin anywhere in an image, with a residual beside them."""
    rng = np.random.default_rng(height)
    x = rng.integers(0, 256, (3, 3, height, 90)).astype(np.uint8)
    w = rng.integers(-128, 128, (20, 3, 7, 7)).astype(np.int8)
    attrs = Conv2dQuantized(
        stride=(1, 2), padding=(3, 3, 3, 3), dilation=(1, 1), groups=1,
        has_bias=True, has_residual=True, x_zero_point=117, w_zero_points=(0,),
        multipliers=(2.0**-11,), residual_zero_point=9, residual_multiplier=0.5, scale=1.0,
        zero_point=90, dtype="uint8", lower=0, upper=255,
    )  # fmt: skip
    padded = np.pad(x.astype(np.int64) - 117, ((0, 0), (0, 0), (3, 3), (3, 3)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), axis=(2, 3))[:, :, :, ::2]
    sums = np.einsum("nchwij,ocij->nohw", views, w.astype(np.int64))
    bias = rng.integers(-(2**12), 2**12, 20).astype(np.int32)
    residual = rng.integers(0, 256, sums.shape).astype(np.uint8)
    exact = (sums + bias[:, None, None]).astype(np.float32) * np.float32(2.0**-11)
    exact += (residual.astype(np.float32) - 9) * np.float32(0.5)
    want = np.clip(np.rint(exact).astype(np.int64) + 90, 0, 255).astype(np.uint8)
    arrays = (x, w, bias, residual)
    specs = tuple(TensorSpec(a.shape, a.dtype) for a in arrays)
    op = registry.get_op("conv2d_quantized")
    for threads in (1, 3):
        call = Call(op, specs, op.infer(specs, attrs), attrs, threads)
        assert kernel.workspace(call) < sums.size // 20 * 3 * 49 // 2, "all columns at once"
        (got,) = run_kernel(kernel, call, list(arrays))
        np.testing.assert_array_equal(got, want)

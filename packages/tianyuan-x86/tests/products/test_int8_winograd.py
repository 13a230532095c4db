"""Integer Winograd convolutions against sums in int64: every integer is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.imperative.dispatch import run_kernel
from tianyuan.kernel import Call, Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.quantized_product import Conv2dQuantized

ops.register_all()

KERNELS = [k for k in registry.candidates("conv2d_quantized", "cpu", "x86") if "winograd" in k.name]
ATTRS = Conv2dQuantized(
    stride=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1, has_bias=True,
    has_residual=False, x_zero_point=128, w_zero_points=(0,), multipliers=(2.0**-12,),
    residual_zero_point=3, residual_multiplier=0.75, scale=1.0, zero_point=-5, dtype="int8",
    lower=-128, upper=127,
)  # fmt: skip
# batch, channels, height, width, outputs, padding (top, left, bottom, right)
SHAPES = [
    (1, 64, 9, 10, 65, (1, 1, 1, 1)),
    (2, 20, 13, 14, 130, (1, 1, 1, 1)),
    (3, 5, 6, 5, 6, (0, 0, 0, 0)),
    (1, 48, 3, 20, 32, (2, 0, 1, 3)),
    (1, 300, 5, 6, 40, (1, 1, 1, 1)),
    (1, 16, 40, 44, 16, (1, 1, 1, 1)),
    (2, 24, 2, 1, 20, (1, 1, 1, 1)),  # short tiles only
    (2, 36, 30, 50, 68, (1, 1, 1, 1)),  # blocks of tiles of several kinds
    (1, 33, 12, 9, 40, (8, 9, 6, 7)),  # whole tiles beside the image
    (1, 7, 3, 65, 144, (0, 0, 0, 0)),
]


def _sums(x: np.ndarray, w: np.ndarray, padding: tuple[int, ...]) -> np.ndarray:
    """Sum products of centred values in int64, tap by tap."""
    top, left, bottom, right = padding
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    oh, ow = padded.shape[2] - 2, padded.shape[3] - 2
    sums = np.zeros((x.shape[0], w.shape[0], oh, ow), np.int64)
    for i in range(3):
        for j in range(3):
            part = padded[:, :, i : i + oh, j : j + ow].reshape(*x.shape[:2], -1)
            sums += (w[:, :, i, j].astype(np.int64) @ part).reshape(sums.shape)
    return sums


def _check(
    kernel: Kernel, x: np.ndarray, w: np.ndarray, rest: list[np.ndarray], attrs: Conv2dQuantized
) -> None:
    """Compare a kernel's results with scaled and rounded sums, for one thread and for two."""
    sums = _sums(x.astype(np.int64) - attrs.x_zero_point, w, attrs.padding)
    if attrs.has_bias:
        sums += rest[0][:, None, None]
    t = sums.astype(np.float32) * np.float32(attrs.multipliers[0])
    if attrs.has_residual:
        centred = (rest[-1].astype(np.int64) - attrs.residual_zero_point).astype(np.float32)
        t = t + centred * np.float32(attrs.residual_multiplier)
    want = np.clip(np.rint(t).astype(np.float64) + attrs.zero_point, attrs.lower, attrs.upper)
    arrays = [x, w, *rest]
    op = registry.get_op("conv2d_quantized")
    specs = tuple(TensorSpec(a.shape, a.dtype) for a in arrays)
    for threads in (1, 2):
        call = Call(op, specs, op.infer(specs, attrs), attrs, threads)
        assert registry.refusal(kernel, call) is None
        (got,) = run_kernel(kernel, call, arrays)
        np.testing.assert_array_equal(got, want.astype(attrs.dtype))


@pytest.mark.parametrize("kernel", [k for k in KERNELS if "unbiased" not in k.name], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_of_the_largest_values_are_exact(
    kernel: Kernel, shape: tuple[int, int, int, int, int, tuple[int, ...]], dtype: str
) -> None:
    """Transforms of values at both ends of the range fit; padding stands for the zero point."""
    n, c, h, width, o, padding = shape
    rng = np.random.default_rng(c + o)
    info = np.iinfo(dtype)
    x = rng.choice([info.min, info.max], (n, c, h, width)).astype(dtype)
    w = rng.choice([-128, 127], (o, c, 3, 3)).astype(np.int8)
    bias = rng.integers(-(2**20), 2**20, o).astype(np.int32)
    for zero in (info.min, info.max, int(info.min) + 130):
        _check(kernel, x, w, [bias], replace(ATTRS, x_zero_point=int(zero), padding=padding))


@pytest.mark.parametrize("kernel", [k for k in KERNELS if "unbiased" not in k.name], ids=str)
@pytest.mark.parametrize("c", [227, 228, 300])
def test_sums_at_the_ends_of_their_range_are_known(kernel: Kernel, c: int) -> None:
    """Up to 227 channels every sum lies near enough to its centre; beyond, products are direct."""
    x = np.full((1, c, 6, 6), 255, np.uint8)
    x[:, :, :, 3:] = 0
    w = np.full((18, c, 3, 3), -128, np.int8)
    w[1::2] = 127
    bias = np.zeros(18, np.int32)
    for zero in (0, 255):
        attrs = replace(ATTRS, x_zero_point=zero, multipliers=(2.0**-20,))
        _check(kernel, x, w, [bias], attrs)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("factor", [2.0**-12, 0.375, 1e9])
def test_residuals_and_large_multipliers(kernel: Kernel, factor: float) -> None:
    """Results are stored by way of 16 bits where they fit an int32, and else one by one."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (1, 24, 7, 9)).astype(np.uint8)
    w = rng.integers(-128, 128, (37, 24, 3, 3)).astype(np.int8)
    bias = rng.integers(-(2**20), 2**20, 37).astype(np.int32)
    residual = rng.integers(-128, 128, (1, 37, 7, 9)).astype(np.int8)
    has_bias = "unbiased" not in kernel.name
    rest = [bias, residual] if has_bias else [residual]
    attrs = replace(ATTRS, has_bias=has_bias, has_residual=True, multipliers=(factor,), lower=-90)
    _check(kernel, x, w, rest, attrs)


def test_unpacked_weights_are_the_packed_ones() -> None:
    """The layout holds the weight itself beside its transform, in blocks that are not full."""
    layout = registry.get_layout("q8_wino_f43")
    w = np.random.default_rng(0).integers(-128, 128, (19, 6, 3, 3)).astype(np.int8)
    packed = layout.pack(w)
    assert packed.shape == layout.extents(w.shape)
    np.testing.assert_array_equal(layout.unpack(packed, w.shape), w)

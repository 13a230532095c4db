"""Integer convolutions that leave out what lies beyond the image, against sums in int64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.ops.quantized_product import Conv2dQuantized

ops.register_all()

KERNELS = [
    kernel
    for kernel in registry.candidates("conv2d_quantized", "cpu", "x86")
    if kernel.name.endswith(("direct", "direct_unbiased"))
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("int8", -128), ("uint8", 3)])
@pytest.mark.parametrize(
    ("size", "window", "stride", "padding", "dilation", "groups"),
    [
        ((7, 7), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
        ((4, 14), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
        ((8, 28), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
        ((3, 7), (5, 2), (1, 1), (4, 1, 3, 0), (2, 1), 1),  # no row inside of some windows
        ((6, 4), (3, 5), (1, 1), (0, 3, 2, 4), (1, 1), 1),
        ((7, 7), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ],
)
def test_padding_that_is_zero_adds_nothing(
    kernel: Any, dtype: str, zero: int, size: Any, window: Any, stride: Any, padding: Any,
    dilation: Any, groups: int, call_of: Callable[..., Any], run: Callable[..., Any],
) -> None:  # fmt: skip
    """Rows of a multiple of 7 pixels, padded on each side, with outputs that fill tiles or not."""
    rng = np.random.default_rng(size[0])
    info, c, o = np.iinfo(dtype), 16 * groups, 80 * groups
    x = rng.integers(info.min, info.max, (2, c, *size), endpoint=True).astype(dtype)
    w = rng.integers(-128, 128, (o, c // groups, *window)).astype(np.int8)
    bias = rng.integers(-(2**12), 2**12, o).astype(np.int32)
    centred = x.astype(np.int64) - zero
    top, left, bottom, right = padding
    padded = np.pad(centred, ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    views = views[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    sums = np.concatenate(
        [
            np.einsum("nchwij,ocij->nohw", part, own.astype(np.int64))
            for part, own in zip(np.split(views, groups, 1), np.split(w, groups), strict=True)
        ],
        axis=1,
    )
    assert sums.shape[3] % 7 == 0
    biased = "unbiased" not in kernel.name
    residual = rng.integers(0, 256, sums.shape).astype(np.uint8)
    for has_residual in (False, True) if biased else (True,):
        attrs = Conv2dQuantized(
            stride=stride, padding=padding, dilation=dilation, groups=groups, has_bias=biased,
            has_residual=has_residual, x_zero_point=zero, w_zero_points=(0,),
            multipliers=(2.0**-9,), residual_zero_point=90, residual_multiplier=0.75, scale=1.0,
            zero_point=100, dtype="uint8", lower=0, upper=255,
        )  # fmt: skip
        t = (sums + bias[:, None, None] * biased).astype(np.float32) * np.float32(2.0**-9)
        if has_residual:
            t += (residual.astype(np.int64) - 90).astype(np.float32) * np.float32(0.75)
        want = np.clip(np.rint(t).astype(np.int64) + 100, 0, 255).astype(np.uint8)
        arrays = [x, w, *([bias] if biased else []), *([residual] if has_residual else [])]
        for threads in (1, 2):
            call = call_of("conv2d_quantized", arrays, attrs, threads)
            assert registry.refusal(kernel, call) is None
            (got,) = run(kernel, call, arrays)
            np.testing.assert_array_equal(got, want)

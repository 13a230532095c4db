"""Depthwise convolutions against sums in float64, at every width of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tianyuan import registry
from tianyuan.kernel import Kernel
from tianyuan.ops.conv import Conv2dFused

KERNELS = [
    k
    for k in registry.candidates("conv2d_fused", "cpu", "x86")
    if k.is_native and k.name.startswith("conv2d_fused_f32") and k.name.endswith("_depthwise")
]
CHANNELS = 20  # one block and a part of another


def _sums(x: np.ndarray, w: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Return the sums of each channel's windows."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    kh, kw = w.shape[-2:]
    oh, ow = (
        (extent - k) // stride + 1 for extent, k in zip(padded.shape[2:], (kh, kw), strict=True)
    )
    y = np.zeros((*x.shape[:2], oh, ow))
    for i in range(kh):
        for j in range(kw):
            rows = slice(i, i + (oh - 1) * stride + 1, stride)
            columns = slice(j, j + (ow - 1) * stride + 1, stride)
            y += padded[:, :, rows, columns] * w[:, 0, i, j].reshape(1, -1, 1, 1)
    return y


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel_rows", [3, 2])
def test_every_width_and_height(
    kernel: Kernel, stride: int, kernel_rows: int, run: Any, call_of: Any
) -> None:
    rng = np.random.default_rng(stride)
    w = rng.standard_normal((CHANNELS, 1, kernel_rows, 3)).astype(np.float32)
    bias = rng.standard_normal(CHANNELS).astype(np.float32)
    for width in range(3, 36):
        for padding in (0, 1):
            x = rng.standard_normal((1, CHANNELS, 4 + width % 5, width)).astype(np.float32)
            sums = _sums(x, w, stride, padding)
            residual = rng.standard_normal(sums.shape).astype(np.float32)
            attrs = Conv2dFused(
                stride=(stride, stride),
                padding=(padding,) * 4,
                groups=CHANNELS,
                has_bias=True,
                has_residual=True,
                activation="relu6" if width % 2 else "tanh",
            )
            inputs = [x, w, bias, residual]
            call = call_of("conv2d_fused", inputs, attrs)
            assert kernel.supports(call) is None
            want = sums + bias.reshape(1, -1, 1, 1) + residual
            want = np.clip(want, 0, 6) if width % 2 else np.tanh(want)
            got = run(kernel, call, inputs)[0]
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=f"{width}")

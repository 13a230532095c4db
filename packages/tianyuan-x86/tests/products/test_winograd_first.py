"""Winograd convolutions of 7 x 7 kernels and stride 2 against float64 sums, and direct ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import config, jit, registry
from tianyuan import functional as F
from tianyuan.kernel import Kernel
from tianyuan.ops.conv import Conv2d, Conv2dFused
from tianyuan_x86.kernels import winograd_first

THREE = (3, 3, 3, 3)
NONE = (0, 0, 0, 0)
# batch, channels, height, width, outputs, padding (top, left, bottom, right)
SHAPES = [
    (1, 3, 224, 224, 64, THREE),
    (2, 3, 33, 47, 21, THREE),
    (1, 1, 7, 7, 1, NONE),
    (1, 2, 8, 9, 17, NONE),
    (3, 4, 13, 14, 24, (2, 0, 1, 3)),
    (1, 3, 7, 300, 8, (4, 9, 0, 6)),
    (2, 8, 41, 10, 33, THREE),
    (1, 1, 8, 7, 5, (3, 5, 4, 20)),
    (1, 3, 31, 523, 16, THREE),
    (0, 3, 9, 9, 16, THREE),
]
ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "clip": lambda x: np.clip(x, -0.5, 0.7),
}


def kernels_of(op: str, part: str = "winograd_first") -> list[Kernel]:
    """Return the kernels of an op whose names hold a part, of every tier."""
    return [k for k in registry.candidates(op, "cpu", "x86") if part in k.name]


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@cache
def _case(index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, w and their convolution, summed tap by tap in float64."""
    n, c, h, width, o, (top, left, bottom, right) = SHAPES[index]
    rng = np.random.default_rng(index)
    x, w = _numbers(rng, n, c, h, width), _numbers(rng, o, c, 7, 7)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    oh, ow = (h + top + bottom - 7) // 2 + 1, (width + left + right - 7) // 2 + 1
    y = np.zeros((n, o, oh * ow))
    for i, j in product(range(7), range(7)):
        part = padded[:, :, i : i + 2 * oh - 1 : 2, j : j + 2 * ow - 1 : 2].reshape(n, c, oh * ow)
        y += w[:, :, i, j].astype(np.float64) @ part
    return x, w, y.reshape(n, o, oh, ow)


def _attrs(index: int) -> Conv2d:
    return Conv2d(stride=(2, 2), padding=SHAPES[index][5])


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
@pytest.mark.parametrize("index", range(len(SHAPES)), ids=[str(s) for s in SHAPES])
def test_error_stays_within_the_stated_bound(
    kernel: Kernel, index: int, run: Any, call_of: Any
) -> None:
    x, w, want = _case(index)
    assert kernel.tolerance is not None
    calls = [call_of("conv2d", (x, w), _attrs(index), threads) for threads in (1, 2, 3)]
    assert kernel.supports(calls[0]) is None
    results = [run(kernel, call, (x, w))[0] for call in calls]
    assert results[0].shape == want.shape
    error = np.max(np.abs(results[0] - want), initial=0.0)
    assert error <= kernel.tolerance * np.max(np.abs(want), initial=0.0)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_it_agrees_with_the_direct_kernel(isa: str, run: Any, call_of: Any) -> None:
    for kernel in kernels_of("conv2d", f"{isa}_winograd_first"):
        (direct,) = kernels_of("conv2d", f"{isa}_first")
        for index in (1, 4, 6):
            x, w, want = _case(index)
            call = call_of("conv2d", (x, w), _attrs(index))
            difference = run(kernel, call, (x, w))[0] - run(direct, call, (x, w))[0]
            assert np.abs(difference).max() <= 1e-5 * np.abs(want).max()


def _epilogues() -> Iterator[tuple[int, str, bool, bool]]:
    for index in (1, 3, 4, 7):
        for activation in ACTIVATIONS:
            for has_bias, has_residual in ((0, 0), (0, 1), (1, 0), (1, 1)):
                yield index, activation, bool(has_bias), bool(has_residual)


@pytest.mark.parametrize("kernel", kernels_of("conv2d_fused"), ids=str)
def test_epilogue(kernel: Kernel, run: Any, call_of: Any) -> None:
    count = 0
    for index, activation, has_bias, has_residual in _epilogues():
        x, w, want = _case(index)
        rng = np.random.default_rng(index)
        inputs = [x, w]
        if has_bias:
            inputs.append(_numbers(rng, w.shape[0]))
            want = want + inputs[-1][:, None, None]
        if has_residual:
            inputs.append(_numbers(rng, *want.shape))
            want = want + inputs[-1]
        attrs = Conv2dFused(
            stride=(2, 2),
            padding=SHAPES[index][5],
            has_bias=has_bias,
            has_residual=has_residual,
            activation=activation,
            lower=-0.5,
            upper=0.7,
        )
        call = call_of("conv2d_fused", inputs, attrs)
        if kernel.supports(call) is None:
            count += 1
            assert kernel.tolerance is not None
            # Against the size of the sums, from which a clipping activation hides the magnitude.
            error = np.abs(run(kernel, call, inputs)[0] - ACTIVATIONS[activation](want)).max()
            assert error <= 1.2 * kernel.tolerance * np.abs(want).max(), (SHAPES[index], attrs)
    assert count == 4 * len(ACTIVATIONS) * (1 if kernel.name.endswith("unbiased") else 3)


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
def test_an_image_does_not_depend_on_its_batch(kernel: Kernel, run: Any, call_of: Any) -> None:
    index = 4
    x, w, _ = _case(index)
    whole = run(kernel, call_of("conv2d", (x, w), _attrs(index)), (x, w))[0]
    for image in range(len(x)):
        one = x[image : image + 1]
        alone = run(kernel, call_of("conv2d", (one, w), _attrs(index)), (one, w))[0]
        np.testing.assert_array_equal(alone[0], whole[image])


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
def test_refusals_name_what_is_served(kernel: Kernel, call_of: Any) -> None:
    x = np.zeros((1, 8, 19, 19), np.float32)
    for attrs, shape, part in (
        (Conv2d(), (8, 8, 7, 7), "stride"),
        (Conv2d(stride=(2, 1)), (8, 8, 7, 7), "stride"),
        (Conv2d(stride=(2, 2), dilation=(1, 2)), (8, 8, 7, 7), "dilation"),
        (Conv2d(stride=(2, 2), groups=4), (8, 2, 7, 7), "groups"),
        (Conv2d(stride=(2, 2)), (8, 8, 5, 7), "7 x 7"),
    ):
        call = call_of("conv2d", (x, np.zeros(shape, np.float32)), attrs)
        assert part in (kernel.supports(call) or "")
    x = np.zeros((1, 9, 19, 19), np.float32)
    call = call_of("conv2d", (x, np.zeros((8, 9, 7, 7), np.float32)), Conv2d(stride=(2, 2)))
    assert "channels" in (kernel.supports(call) or "")
    # Of 49 taps such an image meets few, whose sums may be small.
    for size in ((1, 13), (19, 6)):
        x = np.zeros((1, 3, *size), np.float32)
        attrs = Conv2d(stride=(2, 2), padding=(7, 7, 7, 7))
        call = call_of("conv2d", (x, np.zeros((8, 3, 7, 7), np.float32)), attrs)
        assert "pixels" in (kernel.supports(call) or "")


def test_products_of_transformed_polynomials_interpolate_the_convolution() -> None:
    # Where G holds a kernel's values at points, it gives products of polynomials; divided by what
    # it scales by, rows of G are powers of the points, even and odd taps apart.
    g = winograd_first.kernel_transform()
    points = [1.0, -1.0, 2.0, -2.0, 0.25, -0.25]
    for row, p in enumerate(points):
        scale = np.prod([p - q for q in points if q != p])
        np.testing.assert_allclose(g[row] * scale, [1, 0, p, 0, p**2, 0, p**3], rtol=1e-12)
        np.testing.assert_allclose(g[7 + row] * scale, [0, 1, 0, p, 0, p**2, 0], rtol=1e-12)
    np.testing.assert_array_equal(g[6], [0, 0, 0, 0, 0, 0, 1])


def test_changing_weights_are_transformed_in_the_program() -> None:
    convolve = jit.trace(lambda v, w: F.conv2d(v, w, stride=2, padding=3))
    for index in (1, 0):
        x, w, want = _case(index)
        for sign in (1, -1):
            got = convolve(ty.tensor(x), ty.tensor(sign * w)).numpy()
            assert np.abs(sign * got - want).max() <= 1e-5 * np.abs(want).max()
    names = [str(step.kernel) for step in convolve.explain().steps]
    assert any("pack_wino_first" in name for name in names), names


@pytest.mark.usefixtures("switch")
def test_the_switch_leaves_winograd_out() -> None:
    x, w, want = _case(0)
    weight = ty.tensor(w)
    convolve = jit.trace(lambda v: F.conv2d(v, weight, stride=2, padding=3), capture_as_const=True)
    for wanted, bound in ((True, 1e-5), (False, 2e-6), (True, 1e-5)):
        config.winograd = wanted
        got = convolve(ty.tensor(x)).numpy()
        assert np.abs(got - want).max() <= bound * np.abs(want).max()
        assert any("winograd" in str(step.kernel) for step in convolve.explain().steps) == wanted

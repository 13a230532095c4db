"""Winograd convolutions against float64 sums: error bounds, edges, threads, weights, the switch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import config, jit, native, registry
from tianyuan import functional as F
from tianyuan.graph import lower, selection
from tianyuan.graph.graph import Constant, Graph
from tianyuan.graph.options import Options
from tianyuan.graph.slab import Slab
from tianyuan.kernel import Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.conv import Conv2d, Conv2dBackwardData, Conv2dFused
from tianyuan_x86 import native as x86
from tianyuan_x86.kernels import winograd

ONE = (1, 1, 1, 1)
# batch, channels, height, width, outputs, padding (top, left, bottom, right)
SHAPES = [
    (1, 64, 56, 56, 64, ONE),
    (1, 128, 28, 28, 128, ONE),
    (1, 256, 14, 14, 256, ONE),
    (1, 512, 7, 7, 512, ONE),
    (2, 17, 7, 9, 33, ONE),
    (1, 16, 5, 6, 16, (0, 0, 0, 0)),
    (3, 40, 13, 14, 24, (2, 0, 1, 3)),
    (2, 3, 1, 3, 5, ONE),
    (1, 5, 3, 3, 1, (0, 0, 0, 0)),
    (4, 8, 17, 31, 48, ONE),
    (0, 8, 6, 6, 16, ONE),
    (2, 32, 31, 30, 20, ONE),  # several blocks of tiles, of which last rows and columns are cut
    (1, 150, 15, 43, 8, ONE),
]
ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "clip": lambda x: np.clip(x, -0.5, 0.7),
}


def kernels_of(op: str) -> list[Kernel]:
    """Return the Winograd kernels of an op, of every tier."""
    return [k for k in registry.candidates(op, "cpu", "x86") if re.search(r"winograd_f\d", k.name)]


def _stride(kernel: Kernel) -> int:
    """Return the stride that a kernel serves."""
    return 2 if "s2" in kernel.name else 1


def _attrs(kernel: Kernel, index: int) -> Conv2d:
    stride = _stride(kernel)
    return Conv2d(stride=(stride, stride), padding=SHAPES[index][5])


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@cache
def _case(index: int, stride: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, w and their convolution, summed tap by tap in float64."""
    n, c, h, width, o, (top, left, bottom, right) = SHAPES[index]
    rng = np.random.default_rng(index)
    x, w = _numbers(rng, n, c, h, width), _numbers(rng, o, c, 3, 3)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    oh, ow = (h + top + bottom - 3) // stride + 1, (width + left + right - 3) // stride + 1
    y = np.zeros((n, o, oh, ow))
    for i in range(3):
        for j in range(3):
            part = padded[:, :, i::stride, j::stride][:, :, :oh, :ow].reshape(n, c, oh * ow)
            y += (w[:, :, i, j].astype(np.float64) @ part).reshape(y.shape)
    return x, w, y


def _assert_near(kernel: Kernel, got: np.ndarray, want: np.ndarray) -> None:
    assert kernel.tolerance is not None
    assert got.shape == want.shape
    error = np.max(np.abs(got - want), initial=0.0)
    assert error <= kernel.tolerance * np.max(np.abs(want), initial=0.0)


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
@pytest.mark.parametrize("index", range(len(SHAPES)), ids=[str(s) for s in SHAPES])
def test_error_stays_within_the_stated_bound(
    kernel: Kernel, index: int, run: Any, call_of: Any
) -> None:
    x, w, want = _case(index, _stride(kernel))
    attrs = _attrs(kernel, index)
    results = [
        run(kernel, call_of("conv2d", (x, w), attrs, threads), (x, w))[0] for threads in (1, 2, 5)
    ]
    _assert_near(kernel, results[0], want)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def _gradient(w: np.ndarray, g: np.ndarray, index: int) -> np.ndarray:
    """Return the gradient of the input, scattered tap by tap in float64."""
    n, c, h, width, _, (top, left, bottom, right) = SHAPES[index]
    oh, ow = g.shape[2:]
    padded = np.zeros((n, c, h + top + bottom, width + left + right))
    for i in range(3):
        for j in range(3):
            part = w[:, :, i, j].T.astype(np.float64) @ g.reshape(n, g.shape[1], oh * ow)
            padded[:, :, i : i + oh, j : j + ow] += part.reshape(n, c, oh, ow)
    return padded[:, :, top : top + h, left : left + width]


@pytest.mark.parametrize("kernel", kernels_of("conv2d_backward_data"), ids=str)
@pytest.mark.parametrize("index", range(len(SHAPES)), ids=[str(s) for s in SHAPES])
def test_error_of_the_gradient_stays_within_the_bound(
    kernel: Kernel, index: int, run: Any, call_of: Any
) -> None:
    x, w, y = _case(index)
    g = _numbers(np.random.default_rng(100 + index), *y.shape)
    attrs = Conv2dBackwardData(padding=SHAPES[index][5], size=x.shape[2:])
    results = [
        run(kernel, call_of("conv2d_backward_data", (g, w), attrs, threads), (g, w))[0]
        for threads in (1, 3)
    ]
    _assert_near(kernel, results[0], _gradient(w, g, index))
    np.testing.assert_array_equal(results[1], results[0])


def _epilogues() -> Iterator[tuple[int, str, bool, bool]]:
    for index in range(4, 8):
        for activation in ACTIVATIONS:
            for has_bias, has_residual in ((0, 0), (0, 1), (1, 0), (1, 1)):
                yield index, activation, bool(has_bias), bool(has_residual)


@pytest.mark.parametrize("kernel", kernels_of("conv2d_fused"), ids=str)
def test_epilogue(kernel: Kernel, run: Any, call_of: Any) -> None:
    count = 0
    for index, activation, has_bias, has_residual in _epilogues():
        x, w, want = _case(index, _stride(kernel))
        rng = np.random.default_rng(index)
        inputs = [x, w]
        if has_bias:
            inputs.append(_numbers(rng, w.shape[0]))
            want = want + inputs[-1][:, None, None]
        if has_residual:
            inputs.append(_numbers(rng, *want.shape))
            want = want + inputs[-1]
        attrs = Conv2dFused(
            stride=_attrs(kernel, index).stride,
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
            # Against the size of the sums, from which a clipping activation hides the magnitude.
            scale = np.abs(want).max()
            error = np.abs(run(kernel, call, inputs)[0] - ACTIVATIONS[activation](want)).max()
            assert error <= 1.2 * kernel.tolerance * scale, (SHAPES[index], attrs)
    assert count == 4 * len(ACTIVATIONS) * (1 if kernel.name.endswith("unbiased") else 3)


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
def test_an_image_does_not_depend_on_its_batch(kernel: Kernel, run: Any, call_of: Any) -> None:
    index = 9
    x, w, _ = _case(index)
    whole = run(kernel, call_of("conv2d", (x, w), _attrs(kernel, index)), (x, w))[0]
    for image in range(len(x)):
        one = x[image : image + 1]
        alone = run(kernel, call_of("conv2d", (one, w), _attrs(kernel, index)), (one, w))[0]
        np.testing.assert_array_equal(alone[0], whole[image])


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
def test_refusals_name_what_is_served(kernel: Kernel, call_of: Any) -> None:
    for attrs, shape, part in (
        (Conv2d(stride=(3 - _stride(kernel),) * 2), (8, 8, 3, 3), "stride"),
        (Conv2d(stride=(1, 2)), (8, 8, 3, 3), "stride"),
        (Conv2d(dilation=(1, 2)), (8, 8, 3, 3), "dilation"),
        (Conv2d(groups=4), (8, 2, 3, 3), "groups"),
        (Conv2d(), (8, 8, 5, 3), "3 x 3"),
        (Conv2d(), (8, 0, 3, 3), "0 channels"),
    ):
        x = np.zeros((1, shape[1] * attrs.groups, 9, 9), np.float32)
        call = call_of("conv2d", (x, np.zeros(shape, np.float32)), attrs)
        assert part in (kernel.supports(call) or "")


@pytest.mark.parametrize("channels", [21, 301])
@pytest.mark.parametrize("lanes", [8, 16])
def test_transformed_weights_are_those_of_the_paper(lanes: int, channels: int) -> None:
    # Lavin and Gray's G of F(2 x 2, 3 x 3), whose first row has the other sign in our convention.
    g = np.array([[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    w = _numbers(np.random.default_rng(0), 19, channels, 3, 3)
    packed = registry.get_layout(f"wino_f23_{lanes}i{lanes}o").pack(w)
    for o, c in ((0, 0), (18, 20), (7, 16), (3, channels - 1), (18, channels // 2)):
        found = packed[o // lanes, :, c // lanes, c % lanes, o % lanes]
        np.testing.assert_allclose(found, (g @ w[o, c] @ g.T).ravel(), rtol=1e-6, atol=1e-7)
    assert not packed[-1, :, :, :, 19 % lanes :].any()
    assert not packed[:, :, -1, channels % lanes :].any()


@pytest.mark.parametrize("variant", winograd.VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("lanes", [8, 16])
def test_weights_that_stay_are_rounded_once(lanes: int, variant: winograd.Variant) -> None:
    w = _numbers(np.random.default_rng(0), 19, 37, 3, 3)
    layout = winograd.Form(variant, lanes).name
    labelling = selection.Labelling(Graph(), {}, "cpu", Options(threads=2))
    packed = lower.packed(Constant(w, "w"), layout, labelling, Slab(())).array
    g = variant.kernel_transform()
    want = (g @ w.astype(np.float64) @ g.T).reshape(19, 37, -1)
    blocks = packed.transpose(0, 4, 2, 3, 1).reshape(-1, packed.shape[2] * lanes, len(g) ** 2)
    assert not blocks[19:].any()
    assert not blocks[:, 37:].any()
    errors = np.abs(blocks[:19, :37] - want)
    assert (errors <= 0.501 * np.spacing(np.abs(want).astype(np.float32)) + 1e-12).all()


def test_weights_that_change_are_transformed_by_the_cheapest() -> None:
    spec = TensorSpec((64, 64, 3, 3), np.dtype("float32"))
    for lanes in {tier.lanes for tier in x86.load().tiers}:
        layout = f"wino_f43_{lanes}i{lanes}o"
        stays, changes = (
            selection.relayout_kernel(spec, "plain", layout, "cpu", Options(), constant)
            for constant in (True, False)
        )
        assert stays is not None
        assert changes is not None
        assert (stays.tolerance, stays.is_native) == (None, True)
        assert changes.tolerance == 3e-7


@pytest.mark.parametrize("lanes", [8, 16])
def test_taps_between_meet_odd_samples_alone(lanes: int) -> None:
    # F(2, 2) of taps 0 and 2 at 0, 1 and infinity, then tap 1.
    g = np.array([[-1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0]])
    w = _numbers(np.random.default_rng(0), 19, 21, 3, 3)
    packed = registry.get_layout(f"wino_f22s2_{lanes}i{lanes}o").pack(w)
    for o, c in ((0, 0), (18, 20), (7, 16)):
        found = packed[o // lanes, :, c // lanes, c % lanes, o % lanes]
        np.testing.assert_allclose(found, (g @ w[o, c] @ g.T).ravel(), rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("switch")
def test_the_switch_leaves_winograd_out() -> None:
    x, w, want = _case(0)
    weight = ty.tensor(w)
    convolve = jit.trace(lambda v: F.conv2d(v, weight, padding=1), capture_as_const=True)
    for wanted, bound in ((True, 1e-4), (False, 1e-5), (True, 1e-4)):
        config.winograd = wanted
        got = convolve(ty.tensor(x)).numpy()
        assert np.abs(got - want).max() <= bound * np.abs(want).max()
        assert any("winograd" in str(step.kernel) for step in convolve.explain().steps) == wanted


def test_deterministic_results_depend_on_neither_batch_nor_threads() -> None:
    """Costs choose Winograd for some batches and thread counts only, so none of them."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((3, 48, 24, 20)).astype(np.float32)
    w = ty.tensor(rng.standard_normal((48, 48, 3, 3)).astype(np.float32))
    threads = native.get_num_threads()
    try:
        with config._override(deterministic_kernel=True):
            convolve = jit.trace(lambda v: F.conv2d(v, w, padding=1), capture_as_const=True)
            whole = convolve(ty.tensor(x)).numpy()
            for count in (1, 2, 7):
                native.set_num_threads(count)
                np.testing.assert_array_equal(convolve(ty.tensor(x)).numpy(), whole)
                for image in range(3):
                    alone = convolve(ty.tensor(x[image : image + 1])).numpy()
                    np.testing.assert_array_equal(alone[0], whole[image])
    finally:
        native.set_num_threads(threads)

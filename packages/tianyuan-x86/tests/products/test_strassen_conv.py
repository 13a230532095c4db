"""1 x 1 convolutions by Strassen's method against float64: error, epilogues, threads, choice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import config, jit, native, registry
from tianyuan import functional as F
from tianyuan.kernel import Kernel
from tianyuan.ops.conv import Conv2d, Conv2dFused

ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x: np.clip(x, -0.5, 0.7),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
# images, channels, size, outputs, stride: two pixels, halves and thirds of a panel, several units
# of pixels, several blocks of rows, more weights than pixels and the reverse.
SHAPES = [
    (1, 32, (1, 2), 32, 1),
    (2, 32, (3, 6), 64, 1),
    (1, 64, (14, 14), 96, 1),
    (3, 96, (13, 10), 160, 1),
    (1, 32, (29, 30), 32, 1),
    (2, 64, (15, 28), 64, 2),
    (1, 1056, (14, 14), 32, 1),
    (1, 64, (9, 4), 256, (1, 2)),
    (1, 992, (31, 26), 32, 2),
]
THREADS = (1, 2, 3, 5)


def kernels_of(op: str) -> list[Kernel]:
    """Return the convolutions of an op by this method, of every tier."""
    return [k for k in registry.candidates(op, "cpu", "x86") if "strassen" in k.name]


@pytest.fixture
def five_threads() -> Iterator[None]:
    """Let the pool have as many threads as the tests ask for."""
    before = native.get_num_threads()
    native.set_num_threads(max(THREADS))
    yield
    native.set_num_threads(before)


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _stride(stride: int | tuple[int, int]) -> tuple[int, int]:
    return stride if isinstance(stride, tuple) else (stride, stride)


def _case(shape: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return image, weight and the convolution in float64."""
    n, c, size, o, stride = shape
    rng = np.random.default_rng(n + c + o)
    x, w = _numbers(rng, n, c, *size), _numbers(rng, o, c, 1, 1)
    down, right = _stride(stride)
    want = np.einsum("nchw,oc->nohw", x[:, :, ::down, ::right].astype(np.float64), w[..., 0, 0])
    return x, w, want


def _assert_near(kernel: Kernel, got: np.ndarray, want: np.ndarray) -> None:
    assert kernel.tolerance is not None
    assert kernel.tolerance <= 1e-5
    assert got.shape == want.shape
    assert np.max(np.abs(got - want)) <= kernel.tolerance * np.max(np.abs(want))


def test_every_tier_has_them() -> None:
    tiers = {
        k.name.split("__")[1].split("_")[0] for k in registry.candidates("conv2d", "cpu", "x86")
    }
    names = {k.name for op in ("conv2d", "conv2d_fused") for k in kernels_of(op)}
    for tier in tiers & {"avx2", "avx512"}:
        assert f"conv2d_f32__{tier}_strassen_winograd" in names
        assert f"conv2d_fused_f32__{tier}_strassen_winograd_unbiased" in names


@pytest.mark.usefixtures("five_threads")
@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_stays_within_the_bound(kernel: Kernel, shape: Any, run: Any, call_of: Any) -> None:
    x, w, want = _case(shape)
    results = []
    for threads in THREADS:
        call = call_of("conv2d", (x, w), Conv2d(stride=_stride(shape[-1])), threads)
        assert kernel.supports(call) is None
        results.append(run(kernel, call, (x, w))[0])
    _assert_near(kernel, results[0], want)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("kernel", kernels_of("conv2d_fused"), ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogue(kernel: Kernel, activation: str, run: Any, call_of: Any) -> None:
    unbiased = kernel.name.endswith("unbiased")
    for shape in (SHAPES[3], SHAPES[5]):
        x, w, product = _case(shape)
        rng = np.random.default_rng(1)
        for has_bias, has_residual in ((True, False), (False, True), (True, True), (False, False)):
            inputs, total = [x, w], product
            if has_bias:
                inputs.append(_numbers(rng, w.shape[0]))
                total = total + inputs[-1][:, None, None]
            if has_residual:
                inputs.append(_numbers(rng, *product.shape))
                total = total + inputs[-1]
            attrs = Conv2dFused(
                stride=_stride(shape[-1]),
                has_bias=has_bias,
                has_residual=has_residual,
                activation=activation,
                lower=-0.5,
                upper=0.7,
            )
            call = call_of("conv2d_fused", inputs, attrs, 2)
            if unbiased != (has_residual and not has_bias):
                assert "bias" in (kernel.supports(call) or "")
                continue
            got = run(kernel, call, inputs)[0]
            # Against the size of the sums, from which a clipping activation hides the magnitude.
            error = np.abs(got - ACTIVATIONS[activation](total)).max()
            assert error <= 1.2 * kernel.tolerance * np.abs(total).max()


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
def test_an_image_does_not_depend_on_its_batch(kernel: Kernel, run: Any, call_of: Any) -> None:
    for shape in (SHAPES[3], SHAPES[5]):
        x, w, want = _case((3, *shape[1:]))
        attrs = Conv2d(stride=_stride(shape[-1]))
        alone = run(kernel, call_of("conv2d", (x[2:], w), attrs), (x[2:], w))[0]
        x[1] = np.nan
        for threads in (1, 2):
            got = run(kernel, call_of("conv2d", (x, w), attrs, threads), (x, w))[0]
            assert np.isnan(got[1]).all()
            _assert_near(kernel, got[::2], want[::2])
            np.testing.assert_array_equal(got[2:], alone)


@pytest.mark.parametrize("kernel", kernels_of("conv2d"), ids=str)
def test_refusals_name_what_is_served(kernel: Kernel, call_of: Any) -> None:
    for x, w, attrs, part in (
        ((1, 64, 4, 4), (64, 32, 1, 1), Conv2d(groups=2), "groups"),
        ((1, 32, 4, 4), (32, 32, 3, 3), Conv2d(), "1 x 1"),
        ((1, 32, 4, 4), (32, 32, 1, 1), Conv2d(padding=(0, 0, 1, 1)), "without padding"),
        ((1, 40, 4, 4), (32, 40, 1, 1), Conv2d(), "multiples"),
        ((1, 32, 4, 4), (56, 32, 1, 1), Conv2d(), "multiples"),
        ((1, 32, 7, 7), (32, 32, 1, 1), Conv2d(), "even number of pixels"),
    ):
        call = call_of("conv2d", (np.zeros(x, np.float32), np.zeros(w, np.float32)), attrs)
        assert part in (kernel.supports(call) or "")


@pytest.mark.usefixtures("switch")
def test_the_switch_of_winograd_leaves_it_out() -> None:
    rng = np.random.default_rng(5)
    x, u, v = (_numbers(rng, *s) for s in ((1, 512, 14, 14), (768, 512, 1, 1), (512, 768, 1, 1)))
    wide = np.einsum("nchw,oc->nohw", x.astype(np.float64), u[..., 0, 0])
    want = np.einsum("nchw,oc->nohw", wide, v[..., 0, 0])
    first, second = ty.tensor(u), ty.tensor(v)
    convolve = jit.trace(lambda x: F.conv2d(F.conv2d(x, first), second), capture_as_const=True)
    for wanted in (True, False, True):
        config.winograd = wanted
        got = convolve(ty.tensor(x)).numpy()
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        assert any("strassen" in str(step.kernel) for step in convolve.explain().steps) == wanted


def test_the_estimate_leaves_small_layers_to_the_direct_convolution(call_of: Any) -> None:
    by_name = {k.name: k for k in registry.candidates("conv2d", "cpu", "x86")}
    for kernel in kernels_of("conv2d"):
        direct = by_name[kernel.name.replace("strassen_winograd", "direct")]
        for c, size, o, wins in (
            (256, 14, 1024, True),
            (512, 28, 128, True),
            (64, 56, 64, False),
            (32, 112, 64, False),
            (64, 14, 384, False),
            (64, 1, 64, False),
        ):
            shapes = (1, c, size, 2 * size), (o, c, 1, 1)
            call = call_of("conv2d", [np.zeros(s, np.float32) for s in shapes], Conv2d())
            assert (kernel.cost(call) < direct.cost(call)) == wins, (kernel.name, c, size, o)
        assert math.isfinite(kernel.cost(call))

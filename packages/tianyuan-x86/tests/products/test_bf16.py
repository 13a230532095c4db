"""Products in bfloat16: kernels against float64 sums of rounded operands, and whole programs."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from ml_dtypes import bfloat16
from tianyuan import functional as F
from tianyuan import jit, registry
from tianyuan import module as M
from tianyuan.errors import AttrError
from tianyuan.kernel import BF16, FULL, Kernel
from tianyuan.ops.attention import Attention
from tianyuan.ops.conv import Conv2d, Conv2dFused
from tianyuan.ops.matmul import MatmulFused

ONE = (1, 1, 1, 1)
# A value kept in bfloat16 errs by half a unit of its last place; a float32 sum errs far less.
KEPT = 2.0**-8

# image, outputs, kernel, convolution
SHAPES: tuple[tuple[tuple[int, ...], int, tuple[int, int], Conv2d], ...] = (
    ((1, 64, 56, 56), 64, (3, 3), Conv2d(padding=ONE)),
    ((2, 512, 7, 7), 512, (3, 3), Conv2d(padding=ONE)),
    ((3, 33, 14, 15), 49, (1, 1), Conv2d()),
    ((2, 40, 27, 29), 72, (3, 3), Conv2d((2, 2), ONE)),
    ((1, 64, 28, 28), 128, (1, 1), Conv2d((2, 2))),
    ((1, 3, 64, 61), 64, (7, 7), Conv2d((2, 2), (3, 3, 3, 3))),
    ((4, 1, 28, 28), 6, (5, 5), Conv2d(padding=(2, 2, 2, 2))),
    ((2, 4, 9, 30), 17, (3, 4), Conv2d((1, 3), (0, 2, 1, 0))),
    ((2, 33, 13, 1), 40, (3, 3), Conv2d(padding=ONE)),
    ((2, 64, 11, 11), 96, (3, 3), Conv2d((1, 1), ONE, (1, 1), 2)),
    ((2, 30, 9, 8), 42, (1, 1), Conv2d(groups=3)),
    ((2, 50, 31, 33), 50, (3, 3), Conv2d((1, 1), ONE, (1, 1), 50)),
    ((1, 48, 30, 31), 48, (5, 5), Conv2d((2, 2), (2, 2, 2, 2), (1, 1), 48)),
    ((1, 20, 19, 18), 20, (3, 3), Conv2d((1, 1), (2, 2, 2, 2), (2, 2), 20)),
)
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "clip": lambda x: np.clip(x, -0.5, 0.7),
}


def rounded(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return standard normal float32 values that bfloat16 holds."""
    found: np.ndarray = rng.standard_normal(shape).astype(bfloat16).astype(np.float32)
    return found


def kernels_of(op: str) -> list[Kernel]:
    """Return the kernels of an op that round to bfloat16."""
    return [k for k in registry.candidates(op, "cpu", "x86") if k.precision == BF16]


pytestmark = pytest.mark.skipif(not kernels_of("conv2d"), reason="the machine has no AVX512-BF16")


def convolution(x: np.ndarray, w: np.ndarray, a: Conv2d) -> np.ndarray:
    """Return a convolution summed tap by tap in float64."""
    top, left, bottom, right = a.padding
    (sh, sw), (dh, dw) = a.stride, a.dilation
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, o, kernel = len(x), len(w), w.shape[2:]
    oh = (padded.shape[2] - (kernel[0] - 1) * dh - 1) // sh + 1
    ow = (padded.shape[3] - (kernel[1] - 1) * dw - 1) // sw + 1
    grouped = w.astype(np.float64).reshape(a.groups, o // a.groups, *w.shape[1:])
    y = np.zeros((n, a.groups, o // a.groups, oh, ow))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            part = padded[:, :, i * dh :, j * dw :][:, :, : (oh - 1) * sh + 1 : sh]
            part = part[..., : (ow - 1) * sw + 1 : sw].reshape(n, a.groups, -1, oh, ow)
            y += np.einsum("ngchw,goc->ngohw", part, grouped[..., i, j])
    return y.reshape(n, o, oh, ow)


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_convolutions_against_float64(index: int, call_of: Any, run: Any) -> None:
    """Each kernel that takes a shape errs by no more than what keeps its result."""
    shape, outputs, kernel, attrs = SHAPES[index]
    rng = np.random.default_rng(index)
    x, w = rounded(rng, *shape), rounded(rng, outputs, shape[1] // attrs.groups, *kernel)
    want = convolution(x, w, attrs)
    call, served = call_of("conv2d", [x, w], attrs, threads=2), 0
    for found in kernels_of("conv2d"):
        if registry.refusal(found, call) is None:
            (got,) = run(found, call, [x, w])
            assert np.abs(got - want).max() <= KEPT * np.abs(want).max(), found.name
            served += 1
    assert served, "no kernel in bfloat16 takes the shape"


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("index", [5, 6, 7, 10])
def test_infinities_meet_the_outputs_that_read_them(
    index: int, value: float, call_of: Any, run: Any
) -> None:
    """Neither zeros that pad runs of few channels nor those between groups meet an infinity."""
    shape, outputs, kernel, attrs = SHAPES[index]
    rng = np.random.default_rng(index)
    x, w = rounded(rng, *shape), rounded(rng, outputs, shape[1] // attrs.groups, *kernel)
    x[0, shape[1] // 2, 3, 3] = value
    want = convolution(x, w, attrs)
    call, served = call_of("conv2d", [x, w], attrs, threads=2), set()
    for found in registry.candidates("conv2d", "cpu", "x86"):
        if "winograd" in found.name or registry.refusal(found, call) is not None:
            continue
        (got,) = run(found, call, [x, w])
        served.add(found.precision)
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite], found.name)
        error = np.abs(got[finite] - want[finite]).max()
        assert error <= KEPT * np.abs(want[finite]).max(), found.name
    assert served == {FULL, BF16}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("index", [3, 5, 8, 10, 11])
def test_epilogues_are_computed_before_rounding(
    index: int, activation: str, call_of: Any, run: Any
) -> None:
    """Bias, residual and activation join the float32 sum, with and without a bias."""
    shape, outputs, kernel, attrs = SHAPES[index]
    rng = np.random.default_rng(index)
    x, w = rounded(rng, *shape), rounded(rng, outputs, shape[1] // attrs.groups, *kernel)
    plain = convolution(x, w, attrs)
    bias, residual = rounded(rng, outputs), rounded(rng, *plain.shape)
    served = 0
    for has_bias in (True, False):
        fused = Conv2dFused(
            *(attrs.stride, attrs.padding, attrs.dilation, attrs.groups),
            has_bias=has_bias,
            has_residual=True,
            activation=activation,
            lower=-0.5,
            upper=0.7,
        )
        arrays = [x, w, *([bias] if has_bias else []), residual]
        total = plain + residual + (bias[:, None, None] if has_bias else 0)
        want = ACTIVATIONS[activation](total)
        call = call_of("conv2d_fused", arrays, fused, threads=2)
        for found in kernels_of("conv2d_fused"):
            if registry.refusal(found, call) is None:
                (got,) = run(found, call, arrays)
                assert np.abs(got - want).max() <= KEPT * np.abs(want).max(), found.name
                served += 1
    assert served


@pytest.mark.parametrize("rows", [1, 2, 15, 131])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 31), (96, 200), (17, 513)])
@pytest.mark.parametrize("activation", ["identity", "silu"])
def test_products_against_float64(
    rows: int, n: int, k: int, activation: str, call_of: Any, run: Any
) -> None:
    """Results stay in float32, so that they are those of a float32 product of rounded operands."""
    rng = np.random.default_rng(rows * n + k)
    a, b, bias = rounded(rng, 2, rows, k), rounded(rng, n, k), rounded(rng, n)
    want = ACTIVATIONS[activation](a.astype(np.float64) @ b.T + bias)
    served = 0
    for transposed in (False, True):
        right = b if transposed else np.ascontiguousarray(b.T)
        attrs = MatmulFused(transpose_b=transposed, has_bias=True, activation=activation)
        call = call_of("matmul_fused", [a, right, bias], attrs, threads=2)
        for found in kernels_of("matmul_fused"):  # rows that stay in pairs: test_bf16_rows.py
            if found.layouts.outputs == found.layouts.inputs[:1] == ("plain",) and (
                registry.refusal(found, call) is None
            ):
                (got,) = run(found, call, [a, right, bias])
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * (k + 8))
                served += 1
    assert served == 2


def test_gelu_meets_its_limits(call_of: Any, run: Any) -> None:
    """Far from zero GELU is zero or its argument, also where that is infinite."""
    x = np.array([[-np.inf], [-3e38], [-1e4], [1e4], [np.inf]], np.float32)
    one, attrs, served = np.ones((1, 1), np.float32), MatmulFused(activation="gelu"), 0
    call = call_of("matmul_fused", [x, one], attrs)
    for found in kernels_of("matmul_fused"):
        if registry.refusal(found, call) is None:
            (got,) = run(found, call, [x, one])
            np.testing.assert_allclose(got, np.maximum(x, 0), rtol=KEPT, atol=2e-4)
            served += 1
    assert served


def test_gelu_comes_close(call_of: Any, run: Any) -> None:
    """Within 4 its error is far below what a result of 1 is rounded by, small ones keep digits."""
    x = np.linspace(-6, 6, 4001).astype(bfloat16).astype(np.float32)[:, None]
    one, attrs, served = np.ones((1, 1), np.float32), MatmulFused(activation="gelu"), 0
    want = [0.5 * v * (1 + erf(v / 2**0.5)) for v in x[:, 0].astype(np.float64)]
    call = call_of("matmul_fused", [x, one], attrs)
    for found in kernels_of("matmul_fused"):
        if registry.refusal(found, call) is None:
            (got,) = run(found, call, [x, one])
            error = np.abs(got[:, 0] - want)
            assert error[np.abs(x[:, 0]) < 4].max() < 3e-5
            assert error.max() < 1.4e-4
            assert (error[np.abs(x[:, 0]) < 1e-2] <= 1e-4 * np.abs(x[np.abs(x) < 1e-2])).all()
            served += 1
    assert served


class Net(M.Module):
    """A little of all: strides, a residual, groups, depthwise, shuffling, pooling, a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = M.Conv2d(3, 32, 3, 2, 1)
        self.same = M.Conv2d(32, 32, 3, 1, 1)
        self.narrow = M.Conv2d(32, 20, 1)
        self.depthwise = M.Conv2d(20, 20, 3, 1, 1, groups=20)
        self.grouped = M.Conv2d(40, 60, 1, groups=2)
        self.down = M.Conv2d(60, 130, 3, 2, 1)
        self.last = M.Linear(130, 37)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = self.narrow(F.relu(self.same(x) + x))
        x = F.concat([x, F.relu(self.depthwise(x))], axis=1)
        n, c, h, w = x.shape
        x = x.reshape(n, 2, c // 2, h, w).transpose(0, 2, 1, 3, 4).reshape(n, c, h, w)
        x = F.avg_pool2d(F.relu(self.down(F.silu(self.grouped(x)))), 2)
        return self.last(F.mean(x, axis=(2, 3)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a network."""
    ty.random.seed(7)
    net = Net()
    net.eval()
    traced = jit.trace(lambda x: net(x), capture_as_const=True)
    traced(ty.Tensor(np.zeros((3, 3, 61, 64), np.float32)))
    path = tmp_path_factory.mktemp("model") / "net.tym"
    traced.dump(path)
    return path


def precisions(model: Any) -> set[str]:
    """Return the precisions of the kernels that a model's steps have."""
    return {step.kernel.precision for step in model.program().steps}


def test_programs_come_close_to_float32(model: Path) -> None:
    """A program that may use bfloat16 does so, says so, and stays near the one that may not."""
    x = np.random.default_rng(1).standard_normal((3, 3, 61, 64)).astype(np.float32)
    exact, fast = jit.load(model, threads=1), jit.load(model, threads=1, precision="bf16")
    want, got = exact(x), fast(x)
    assert got.dtype == np.float32
    assert precisions(fast) >= {BF16}
    assert precisions(exact) == {FULL}
    assert "conv2d_fused_bf16__bf16_direct " in str(fast.explain())
    cosine = np.sum(want * got) / np.sqrt(np.sum(want**2) * np.sum(got**2))
    assert 0.9999 < cosine < 1.0
    assert np.abs(want - got).max() < 2e-2 * np.abs(want).max()


def test_float32_runs_where_bfloat16_cannot(model: Path) -> None:
    """Precision permits and does not order: below the tier, and on another backend, bits agree."""
    x = np.random.default_rng(2).standard_normal((3, 3, 61, 64)).astype(np.float32)
    for backend, cap in ((None, "vnni"), ("numpy", None)):
        with registry.use_isa(cap):
            want = jit.load(model, backend=backend)(x)
            got = jit.load(model, backend=backend, precision="bf16")(x)
        np.testing.assert_array_equal(got, want)


def test_threads_do_not_change_the_result(model: Path) -> None:
    """Sums are the same whoever computes them."""
    x = np.random.default_rng(3).standard_normal((3, 3, 61, 64)).astype(np.float32)
    one, two = (jit.load(model, threads=t, precision="bf16")(x) for t in (1, 2))
    np.testing.assert_allclose(one, two, rtol=0, atol=2e-2 * np.abs(one).max())


def test_traces_take_the_precision() -> None:
    """A traced function is compiled like a loaded file; eager calls stay in float32."""
    rng = np.random.default_rng(4)
    w = ty.Tensor(rng.standard_normal((256, 256)).astype(np.float32))
    x = ty.Tensor(rng.standard_normal((64, 256)).astype(np.float32))
    traced = jit.trace(lambda x: F.matmul(x, w), capture_as_const=True, precision="bf16")
    eager = F.matmul(x, w).numpy()
    error = np.abs(traced(x).numpy() - eager).max()
    assert 1e-3 < error < 2e-2 * np.abs(eager).max()
    exact = x.numpy().astype(np.float64) @ w.numpy()
    assert np.abs(eager - exact).max() < 1e-3


def test_unknown_precisions_are_refused(model: Path) -> None:
    """Neither files nor functions take another name."""
    with pytest.raises(
        AttrError, match="unknown precision, got 'half', expected one of full, bf16"
    ):
        jit.load(model, precision="half")
    with pytest.raises(AttrError, match="unknown precision"):
        jit.trace(lambda x: x, precision="half")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("batch", "rows", "keys", "depth", "width"),
    [
        ((2, 3), 17, 33, 19, 37),
        ((1, 6), 128, 128, 64, 64),
        ((1,), 8, 1, 1, 3),
        ((5,), 29, 300, 32, 16),
    ],
)
def test_attention_against_float64(
    batch: tuple[int, ...], rows: int, keys: int, depth: int, width: int, masked: bool,
    call_of: Any, run: Any,
) -> None:  # fmt: skip
    """Weights are rounded relative to the largest, so an output errs by a part of its values."""
    rng = np.random.default_rng(rows * keys)
    q, k = rounded(rng, *batch, rows, depth), rounded(rng, *batch, keys, depth)
    v = rounded(rng, *batch, keys, width)
    mask = rounded(rng, rows, keys)
    arrays = [q, k, v, *([mask] if masked else [])]
    scores = q.astype(np.float64) @ np.swapaxes(k, -1, -2) * 0.3 + (mask if masked else 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    call = call_of("attention", arrays, Attention(scale=0.3), threads=2)
    (found,) = kernels_of("attention")
    assert registry.refusal(found, call) is None
    (got,) = run(found, call, arrays)
    limit = KEPT * (weights @ np.abs(v))
    assert np.max(np.abs(got - weights @ v) / limit) < 1.0

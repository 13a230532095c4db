"""Products by Strassen's method against float64: error, epilogues, blocks, threads, choice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import config, jit, registry
from tianyuan import functional as F
from tianyuan.kernel import Kernel
from tianyuan.ops.matmul import Matmul, MatmulFused

_erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x: np.clip(x, -3.0, 4.0),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
# batch, rows, terms, columns: even parts of a tile, several blocks of rows and of terms, rows that
# lie 4 KiB apart.
SHAPES = [
    (1, 2, 2, 64),
    (1, 128, 384, 384),
    (3, 30, 50, 128),
    (2, 74, 1540, 64),
    (1, 350, 90, 192),
    (1, 16, 1024, 64),
]


def kernels_of(op: str) -> list[Kernel]:
    """Return the kernels of an op by this method on packed operands, of every tier."""
    found = [k for k in registry.candidates(op, "cpu", "x86") if "strassen" in k.name]
    return [k for k in found if not k.name.endswith("_plain")]


def _transposed(kernel: Kernel) -> bool:
    return kernel.name.endswith("_transposed")


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _assert_near(kernel: Kernel, got: np.ndarray, want: np.ndarray) -> None:
    assert kernel.tolerance is not None
    assert kernel.tolerance <= 1e-5
    assert got.shape == want.shape
    assert np.max(np.abs(got - want)) <= kernel.tolerance * np.max(np.abs(want))


def _operands(
    kernel: Kernel, shape: tuple[int, int, int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both operands and their product in float64."""
    batch, m, k, n = shape
    rng = np.random.default_rng(sum(shape))
    a, b = _numbers(rng, batch, m, k), _numbers(rng, k, n)
    want = a.astype(np.float64) @ b.astype(np.float64)
    return a, np.ascontiguousarray(b.T) if _transposed(kernel) else b, want


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_stays_within_the_bound(
    kernel: Kernel, shape: tuple[int, int, int, int], run: Any, call_of: Any
) -> None:
    a, b, want = _operands(kernel, shape)
    attrs = Matmul(False, _transposed(kernel))
    results = []
    for threads in (1, 2, 4, 5, 6):
        call = call_of("matmul", (a, b), attrs, threads)
        assert kernel.supports(call) is None
        results.append(run(kernel, call, (a, b))[0])
    _assert_near(kernel, results[0], want)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("kernel", kernels_of("matmul_fused"), ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogue(kernel: Kernel, activation: str, run: Any, call_of: Any) -> None:
    for shape in SHAPES[2:4]:
        a, b, product = _operands(kernel, shape)
        rng = np.random.default_rng(1)
        for has_bias, has_residual in ((True, False), (False, True), (True, True), (False, False)):
            inputs, total = [a, b], product
            if has_bias:
                inputs.append(_numbers(rng, shape[3]))
                total = total + inputs[-1]
            if has_residual:
                inputs.append(_numbers(rng, *product.shape))
                total = total + inputs[-1]
            attrs = MatmulFused(
                False, _transposed(kernel), has_bias, has_residual, activation, -3.0, 4.0
            )
            got = run(kernel, call_of("matmul_fused", inputs, attrs, 2), inputs)[0]
            # Against the size of the sums, from which a clipping activation hides the magnitude.
            error = np.abs(got - ACTIVATIONS[activation](total)).max()
            assert error <= 1.2 * kernel.tolerance * np.abs(total).max()


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
def test_an_item_does_not_depend_on_its_batch(kernel: Kernel, run: Any, call_of: Any) -> None:
    a, b, want = _operands(kernel, (3, 30, 50, 128))
    attrs = Matmul(False, _transposed(kernel))
    a[1] = np.nan
    got = run(kernel, call_of("matmul", (a, b), attrs), (a, b))[0]
    assert np.isnan(got[1]).all()
    _assert_near(kernel, got[::2], want[::2])


@pytest.mark.parametrize("kernel", kernels_of("matmul_fused"), ids=str)
@pytest.mark.parametrize("factor", [np.nan, np.inf, 1e5, 1e-5, 0.0, 1e36])
def test_a_row_does_not_depend_on_others(
    kernel: Kernel, factor: float, run: Any, call_of: Any
) -> None:
    """Rows may be of different samples, as in (sequence, batch, columns)."""
    for shape, spoilt in (((2, 74, 1540, 64), 3), ((1, 350, 90, 192), 300), ((1, 16, 1024, 64), 8)):
        a, b, _ = _operands(kernel, shape)
        a[0, spoilt] = np.float32(factor) * np.abs(a[0, spoilt])
        residual = _numbers(np.random.default_rng(1), shape[0], shape[1], shape[3])
        residual[0, spoilt] = 0
        right = b.T if _transposed(kernel) else b
        with np.errstate(invalid="ignore"):
            want = a.astype(np.float64) @ right + residual
        attrs = MatmulFused(False, _transposed(kernel), False, True, "relu")
        results = []
        for threads in (1, 4, 5):
            call = call_of("matmul_fused", (a, b, residual), attrs, threads)
            results.append(run(kernel, call, (a, b, residual))[0])
        for got in results:
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            np.testing.assert_array_equal(got, results[0])
        sums, got = np.maximum(want, 0), results[0]
        exact = (got == sums) | np.isnan(sums)
        with np.errstate(invalid="ignore"):
            error = np.where(exact, 0, np.abs(got - sums))
        # Of its own row's magnitude, not of the largest one's.
        bound = 16 * kernel.tolerance * np.abs(want).max(axis=-1, keepdims=True)
        assert (exact | (error <= bound)).all()


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
def test_refusals_name_what_is_served(kernel: Kernel, call_of: Any) -> None:
    other = _transposed(kernel)
    for a, b, attrs, part in (
        ((1, 30, 8), (8, 64), Matmul(False, not other), "transposed"),
        ((1, 8, 30), (8, 64), Matmul(True, other), "left operand that is not transposed"),
        ((30, 8), (8, 64), Matmul(False, other), "3 axes"),
        ((1, 31, 8), (8, 64), Matmul(False, other), "even m and k"),
        ((1, 30, 7), (7, 64), Matmul(False, other), "even m and k"),
        ((1, 30, 8), (8, 72), Matmul(False, other), "multiples"),
    ):
        right = b[::-1] if attrs.transpose_b else b
        call = call_of("matmul", (np.zeros(a, np.float32), np.zeros(right, np.float32)), attrs)
        assert part in (kernel.supports(call) or "")


@pytest.mark.usefixtures("switch")
def test_the_switch_of_winograd_leaves_it_out() -> None:
    rng = np.random.default_rng(5)
    x, w = _numbers(rng, 1, 128, 256), _numbers(rng, 256, 256)
    want = x.astype(np.float64) @ w.astype(np.float64)
    weight = ty.tensor(w)
    multiply = jit.trace(lambda v: F.matmul(v, weight), capture_as_const=True)
    for wanted in (True, False, True):
        config.winograd = wanted
        got = multiply(ty.tensor(x)).numpy()
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        assert any("strassen" in str(step.kernel) for step in multiply.explain().steps) == wanted

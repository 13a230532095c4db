"""Strassen's products of operands of two axes against float64: rows and columns may be samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import config, jit, registry
from tianyuan import functional as F  # noqa: N812
from tianyuan.kernel import Kernel
from tianyuan.ops.matmul import Matmul, MatmulFused

# rows, terms, columns: even parts of a tile, two blocks of terms, rows that lie 4 KiB apart, terms
# that no vector holds whole.
SHAPES = [(2, 2, 64), (72, 384, 192), (30, 50, 128), (74, 1540, 64), (16, 1024, 128), (66, 90, 320)]
FACTORS = [np.nan, np.inf, 1e5, 1e-5, 0.0, 1e36, 1e-36]


def kernels_of(op: str) -> list[Kernel]:
    """Return the kernels of an op by this method on plain operands, of every tier."""
    found = registry.candidates(op, "cpu", "x86")
    return [k for k in found if k.name.endswith("strassen_winograd_plain")]


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _operands(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    m, k, n = shape
    rng = np.random.default_rng(sum(shape))
    return _numbers(rng, m, k), _numbers(rng, k, n)


def _results(
    kernel: Kernel, inputs: list[np.ndarray], attrs: Any, run: Any, call_of: Any
) -> np.ndarray:
    """Return the result, which must not depend on the number of threads."""
    found = []
    for threads in (1, 2, 5):
        call = call_of(kernel.op, inputs, attrs, threads)
        assert kernel.supports(call) is None
        found.append(run(kernel, call, inputs)[0])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    return found[0]


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_stays_within_the_bound(
    kernel: Kernel, transposed: bool, shape: tuple[int, int, int], run: Any, call_of: Any
) -> None:
    a, b = _operands(shape)
    want = a.astype(np.float64) @ b
    right = np.ascontiguousarray(b.T) if transposed else b
    got = _results(kernel, [a, right], Matmul(False, transposed), run, call_of)
    assert kernel.tolerance is not None
    assert kernel.tolerance <= 1e-5
    assert np.abs(got - want).max() <= kernel.tolerance * np.abs(want).max()


@pytest.mark.parametrize("kernel", kernels_of("matmul_fused"), ids=str)
@pytest.mark.parametrize("activation", ["identity", "relu", "tanh"])
def test_epilogue(kernel: Kernel, activation: str, run: Any, call_of: Any) -> None:
    after = {"identity": lambda x: x, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}
    for shape in ((30, 50, 128), (74, 1540, 64)):
        a, b = _operands(shape)
        a *= np.exp2(np.arange(len(a)) % 30 - 15)[:, None].astype(np.float32)
        rng = np.random.default_rng(1)
        bias, residual = _numbers(rng, shape[2]), _numbers(rng, shape[0], shape[2])
        total = a.astype(np.float64) @ b + bias + residual
        attrs = MatmulFused(False, False, True, True, activation)
        got = _results(kernel, [a, b, bias, residual], attrs, run, call_of)
        # Of each row's own magnitude: powers of two bring rows to one size and back.
        bound = 2 * kernel.tolerance * np.abs(total).max(axis=1, keepdims=True)
        assert (np.abs(got - after[activation](total)) <= bound).all()


def _assert_independent(got: np.ndarray, want: np.ndarray, tolerance: float, axis: int) -> None:
    """Check errors against the magnitude of each row, or of each column."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    exact = (got == want) | np.isnan(want)
    with np.errstate(invalid="ignore"):
        error = np.where(exact, 0, np.abs(got - want))
        bound = 16 * tolerance * np.abs(want).max(axis=axis, keepdims=True)
    assert (exact | (error <= bound) | (np.abs(want) > 1e38)).all()


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
@pytest.mark.parametrize("factor", FACTORS)
def test_a_row_does_not_depend_on_others(
    kernel: Kernel, factor: float, run: Any, call_of: Any
) -> None:
    for shape, spoilt in (((74, 1540, 64), 3), ((66, 90, 320), 40), ((16, 1024, 128), 8)):
        a, b = _operands(shape)
        a[spoilt] = np.float32(factor) * np.abs(a[spoilt])
        with np.errstate(invalid="ignore", over="ignore"):
            want = (a.astype(np.float64) @ b).astype(np.float32)
        got = _results(kernel, [a, b], Matmul(), run, call_of)
        _assert_independent(got, want, kernel.tolerance, axis=1)
        if factor == 0:
            assert not got[spoilt].any()


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_column_does_not_depend_on_others(
    kernel: Kernel, factor: float, transposed: bool, run: Any, call_of: Any
) -> None:
    for shape, spoilt in (((74, 1540, 64), 3), ((66, 90, 320), 230), ((16, 1024, 128), 17)):
        a, b = _operands(shape)
        b[:, spoilt] = np.float32(factor) * np.abs(b[:, spoilt])
        with np.errstate(invalid="ignore", over="ignore"):
            want = (a.astype(np.float64) @ b).astype(np.float32)
        right = np.ascontiguousarray(b.T) if transposed else b
        got = _results(kernel, [a, right], Matmul(False, transposed), run, call_of)
        _assert_independent(got, want, kernel.tolerance, axis=0)


@pytest.mark.parametrize("kernel", kernels_of("matmul"), ids=str)
def test_refusals_name_what_is_served(kernel: Kernel, call_of: Any) -> None:
    for a, b, attrs, part in (
        ((1, 30, 8), (8, 64), Matmul(), "2 axes"),
        ((30, 8), (1, 8, 64), Matmul(), "2 axes"),
        ((8, 30), (8, 64), Matmul(True, False), "not transposed"),
        ((31, 8), (8, 64), Matmul(), "even m and k"),
        ((30, 7), (7, 64), Matmul(), "even m and k"),
        ((30, 0), (0, 64), Matmul(), "k above 0"),
        ((30, 8), (8, 72), Matmul(), "multiples"),
        ((1000, 8), (8, 64), Matmul(), "one block of rows"),
    ):
        call = call_of("matmul", (np.zeros(a, np.float32), np.zeros(b, np.float32)), attrs)
        assert part in (kernel.supports(call) or "")


@pytest.mark.usefixtures("switch")
def test_the_switch_of_winograd_leaves_it_out() -> None:
    rng = np.random.default_rng(5)
    x, w = _numbers(rng, 128, 512), _numbers(rng, 1024, 512)
    want = x.astype(np.float64) @ w.T
    multiply = jit.trace(lambda v, w: F.matmul(v, w, transpose_b=True))
    for wanted in (True, False, True):
        config.winograd = wanted
        got = multiply(ty.tensor(x), ty.tensor(w)).numpy()
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        assert any("strassen" in str(step.kernel) for step in multiply.explain().steps) == wanted

"""Matrix products through BLAS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernel import Call, Kernel
from .epilogue import finish
from .widening import compute_dtype, widened


def _oriented(array: np.ndarray, transpose: bool) -> np.ndarray:
    return array.swapaxes(-1, -2) if transpose else array


def _multiply(a: np.ndarray, b: np.ndarray, attrs: Any, out: np.ndarray) -> None:
    """Write the product of two arrays of the compute dtype into ``out``."""
    left, right = _oriented(a, attrs.transpose_a), _oriented(b, attrs.transpose_b)
    if left.size and right.size and right.ndim == 2 and left.ndim > 2 and not attrs.transpose_a:
        # All rows of the batch in one product.
        left, out = left.reshape(-1, left.shape[-1]), out.reshape(-1, out.shape[-1])
    with np.errstate(all="ignore"):
        np.matmul(left, right, out=out)


def _matmul(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (a, b), (out,) = inputs, outputs
    wide = compute_dtype(out.dtype)
    if wide == out.dtype:
        _multiply(a, b, attrs, out)
        return
    result = np.empty(out.shape, wide)
    _multiply(widened(a), widened(b), attrs, result)
    out[...] = result


def _matmul_fused(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (out,) = outputs
    wide = compute_dtype(out.dtype)
    result = out if wide == out.dtype else np.empty(out.shape, wide)
    _multiply(widened(inputs[0]), widened(inputs[1]), attrs, result)
    finish(result, inputs[2:], attrs, -1)
    if result is not out:
        out[...] = result


def _product_cost(call: Call) -> float:
    result, a = call.outputs[0], call.inputs[0]
    inner = a.shape[-2] if call.attrs.transpose_a else a.shape[-1]
    # An integer product runs without BLAS.
    rate = 2e9 if result.dtype.kind in "iu" else 2e10
    return 2.0 * result.size * inner / rate + 1e-6


# BLAS splits sums by thread count and by the number of rows, so the results are not reproducible.
KERNELS: tuple[Kernel, ...] = (
    Kernel("matmul_any__numpy_blas", "matmul", _matmul, cost=_product_cost, reproducible=False),
    Kernel(
        "matmul_fused_float__numpy_blas",
        "matmul_fused",
        _matmul_fused,
        dtypes=("float16|bfloat16|float32|float64",),
        cost=_product_cost,
        reproducible=False,
    ),
)

"""Sorting against numpy's stable order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

F = np.float32


def _stable_order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Return numpy's stable order by (is NaN, value), NaN being the largest."""
    missing = np.isnan(x) if x.dtype == F else np.zeros(x.shape, bool)
    value = np.where(missing, 0, x.astype(np.float64))
    keys = (-value, ~missing) if descending else (value, missing)
    return np.lexsort(keys, axis=axis)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((7,), 0), ((5, 300), 1), ((300, 5), 0), ((3, 40, 4), 1), ((2, 1), 1),
                        ((100000,), 0)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["normal", "equal", "small", "wide"])
def test_sort_and_topk(
    apply: Any, rng: np.random.Generator, shape: Any, axis: int, descending: bool, kind: str
) -> None:
    x = {
        "normal": rng.normal(size=shape).astype(F),
        "equal": rng.integers(-5, 5, shape).astype(F),
        "small": rng.integers(-5, 5, shape).astype(np.int32),
        "wide": rng.integers(-(2**31), 2**31, shape).astype(np.int32),
    }[kind]
    if x.dtype == F and x.size > 5:
        x.flat[1] = x.flat[4] = np.nan
        x.flat[2], x.flat[3], x.flat[5] = np.inf, -0.0, -np.inf
    order = _stable_order(x, axis, descending)
    values, indices = apply("sort", x, axis=axis, descending=descending)
    assert indices.dtype == np.int32
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))
    for k in sorted({0, 1, min(5, shape[axis]), shape[axis] // 2, shape[axis]}):
        values, indices = apply("topk", x, k=k, axis=axis, descending=descending)
        first = np.take(order, range(k), axis)
        np.testing.assert_array_equal(indices, first)
        np.testing.assert_array_equal(values, np.take_along_axis(x, first, axis))

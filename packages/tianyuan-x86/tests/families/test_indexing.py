"""Indexing ops against loops over index arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tianyuan.errors import KernelError

F = np.float32
DTYPES = ["float32", "int64", "uint8", "float16"]


def _array(rng: np.random.Generator, shape: Any, dtype: str) -> np.ndarray:
    return np.asarray(rng.integers(0, 100, shape)).astype(dtype)


def _indices(rng: np.random.Generator, size: int, shape: Any, dtype: str) -> np.ndarray:
    return np.asarray(rng.integers(-size, size, shape)).astype(dtype)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "picked"),
    [
        ((5,), 0, (3,)), ((4, 6, 3), 1, (2, 5)), ((4, 6), 0, ()), ((4, 6, 3), 2, (7,)),
        ((300, 64), 0, (50, 4)), ((2, 3), 1, (0,)), ((3, 4, 300), 1, (9,)),
    ],
)  # fmt: skip
def test_take(
    apply: Any, rng: np.random.Generator, index: str, dtype: str, shape: Any, axis: int, picked: Any
) -> None:
    x, idx = _array(rng, shape, dtype), _indices(rng, shape[axis], picked, index)
    want = np.take(x, idx, axis)
    np.testing.assert_array_equal(apply("take", x, idx, axis=axis), want)
    if dtype == "float32":
        g = rng.normal(size=want.shape).astype(F)
        dx = np.zeros(shape)
        flat = g.reshape(*shape[:axis], idx.size, *shape[axis + 1 :])
        np.add.at(np.moveaxis(dx, axis, 0), idx.ravel(), np.moveaxis(flat, axis, 0))
        got = apply("take_backward", g, idx, axis=axis, size=shape[axis])
        np.testing.assert_allclose(got, dx, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow encountered")  # uint8 wraps
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "picked", "axis"),
    [
        ((5, 6), (3, 4), 0), ((5, 6), (3, 9), 1), ((4, 5, 6), (2, 3, 6), 1), ((7,), (20,), 0),
        ((4, 5, 6), (4, 5, 2), 2), ((64, 10), (64, 1), 1), ((3, 4), (0, 4), 0),
    ],
)  # fmt: skip
def test_gather_and_scatter(
    apply: Any, rng: np.random.Generator, index: str, dtype: str, shape: Any, picked: Any, axis: int
) -> None:
    x, source = _array(rng, shape, dtype), _array(rng, picked, dtype)
    idx = _indices(rng, shape[axis], picked, index)
    gathered, replaced, added = np.empty(picked, dtype), x.copy(), x.copy()
    for place in np.ndindex(*picked):
        at = (*place[:axis], idx[place] % shape[axis], *place[axis + 1 :])
        gathered[place] = x[at]
        replaced[at] = source[place]
        added[at] += source[place]
    np.testing.assert_array_equal(apply("gather", x, idx, axis=axis), gathered)
    np.testing.assert_array_equal(apply("scatter", x, idx, source, axis=axis), replaced)
    if dtype in ("float32", "int64"):
        np.testing.assert_array_equal(apply("scatter_add", x, idx, source, axis=axis), added)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "count", "picked"),
    [((5, 6, 7), 2, (4,)), ((5, 6), 1, (2, 3)), ((5, 6, 7), 3, (30,)), ((5,), 1, ())],
)
def test_index(
    apply: Any,
    rng: np.random.Generator,
    index: str,
    dtype: str,
    shape: Any,
    count: int,
    picked: Any,
) -> None:
    x, v = _array(rng, shape, dtype), _array(rng, picked + shape[count:], dtype)
    arrays = [_indices(rng, shape[d], picked, index) for d in range(count)]
    want = np.asarray(x[tuple(arrays)])
    np.testing.assert_array_equal(apply("index", x, *arrays, count=count), want)
    replaced, added = x.copy(), x.copy()
    for place in np.ndindex(*picked):
        at = tuple(array[place] for array in arrays)
        replaced[at] = v[place]
        added[at] += v[place]
    np.testing.assert_array_equal(apply("index_set", x, v, *arrays, count=count), replaced)
    if dtype in ("float32", "int64"):
        np.testing.assert_array_equal(apply("index_add", x, v, *arrays, count=count), added)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "float16", "int64", "float64"])
def test_one_hot(apply: Any, rng: np.random.Generator, dtype: str) -> None:
    idx = rng.integers(0, 7, (3, 5)).astype(np.int32)
    got = apply("one_hot", idx, depth=7, dtype=dtype)
    np.testing.assert_array_equal(got, np.eye(7)[idx].astype(dtype))


@pytest.mark.parametrize(
    ("op", "arrays", "attrs", "text"),
    [
        ("take", [np.ones(4, F), np.array([4])], {"axis": 0}, "got 4, expected -4 to 3"),
        ("take", [np.ones((0, 2), F), np.array([0])], {"axis": 0}, "on an empty axis"),
        ("gather", [np.ones(4, F), np.array([-5])], {"axis": 0}, "got -5, expected -4 to 3"),
        ("scatter", [np.ones(4, F), np.array([9]), np.ones(1, F)], {"axis": 0}, "got 9"),
        ("scatter_add", [np.ones(4, F), np.array([9]), np.ones(1, F)], {"axis": 0}, "got 9"),
        ("index", [np.ones(4, F), np.array([9])], {"count": 1}, "got 9, expected -4 to 3"),
        ("index_set", [np.ones(4, F), np.ones(1, F), np.array([9])], {"count": 1}, "got 9"),
        ("index_add", [np.ones(4, F), np.ones(1, F), np.array([9])], {"count": 1}, "got 9"),
        ("take_backward", [np.ones(1, F), np.array([9])], {"axis": 0, "size": 3}, "got 9"),
        ("one_hot", [np.array([3])], {"depth": 3, "dtype": "float32"}, "got 3, expected 0 to 2"),
        ("one_hot", [np.array([-1])], {"depth": 3, "dtype": "float32"}, "got -1, expected 0 to 2"),
    ],
)
def test_range_errors(apply: Any, op: str, arrays: Any, attrs: Any, text: str) -> None:
    with pytest.raises(KernelError, match=f"{op}: index out of range, .*{text}"):
        apply(op, *arrays, **attrs)

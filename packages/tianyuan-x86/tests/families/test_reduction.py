"""Reductions and ops along an axis against numpy and scipy in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import special

F = np.float32
SHAPES = [
    (5,), (1,), (3, 4), (3, 1, 4), (2, 3, 4, 5), (2, 3, 17, 19), (0, 3), (3, 0, 2), (), (300000,),
    (3, 70000), (70000, 3), (500, 700), (40, 64, 7, 7), (2, 600, 70),
]  # fmt: skip


def _axes_of(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    axes = range(len(shape))
    return [c for n in range(len(shape) + 1) for c in itertools.combinations(axes, n)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float_reductions(apply: Any, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    x = np.asarray(rng.normal(size=shape) + 0.3, F)
    wide = x.astype(np.float64)
    for axes in _axes_of(shape):
        keep = len(axes) % 2 == 0
        total = wide.sum(axes, keepdims=keep)
        length = x.size / max(total.size, 1)
        near = {"rtol": 2e-6, "atol": 1e-6 * np.sqrt(length + 1)}
        got = apply("sum", x, axes=axes, keepdims=keep)
        assert got.shape == total.shape
        np.testing.assert_allclose(got, total, **near)
        with np.errstate(all="ignore"):
            mean = total / length if x.size else np.full(total.shape, np.nan)
        if total.size:
            np.testing.assert_allclose(
                apply("mean", x, axes=axes, keepdims=keep), mean, rtol=2e-6, atol=1e-6
            )
        if x.size:
            for op, function in (("max", np.max), ("min", np.min)):
                np.testing.assert_array_equal(
                    apply(op, x, axes=axes, keepdims=keep), function(x, axes, keepdims=keep)
                )
        if x.size < 1000:
            np.testing.assert_allclose(
                apply("prod", x, axes=axes, keepdims=keep),
                wide.prod(axes, keepdims=keep),
                rtol=2e-6,
            )


def test_sum_of_many_stays_accurate(apply: Any) -> None:
    """A plain float32 loop stands still at 2**24."""
    x = np.ones((2**24 + 1000,), F)
    assert apply("sum", x, axes=(0,), keepdims=False) == 2**24 + 1000
    assert apply("sum", x.reshape(-1, 1), axes=(0,), keepdims=False)[0] == 2**24 + 1000


@pytest.mark.parametrize("shape", [(300000,), (3, 70000), (70000, 3), (40, 64, 7, 70)])
def test_threads_change_nothing(apply: Any, rng: np.random.Generator, shape: Any) -> None:
    x = rng.normal(size=shape).astype(F)
    for axes in _axes_of(shape):
        one = apply("sum", x, threads=1, axes=axes, keepdims=False)
        np.testing.assert_array_equal(apply("sum", x, axes=axes, keepdims=False), one)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 17, 19), (0, 3), (70000, 3)])
def test_integer_reductions(apply: Any, rng: np.random.Generator, dtype: str, shape: Any) -> None:
    x = rng.integers(-(2**30), 2**30, shape).astype(dtype)
    for axes in _axes_of(shape):
        want = x.sum(axes, dtype=dtype)
        np.testing.assert_array_equal(apply("sum", x, axes=axes, keepdims=False), want)
        for op, function in (("max", np.max), ("min", np.min)) if x.size else ():
            got = apply(op, x, axes=axes, keepdims=False)
            np.testing.assert_array_equal(got, function(x, axes))


def test_nan_and_infinity(apply: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=(5, 70)).astype(F)
    x[2, 3] = x[3, 69] = np.nan
    x[4, 0] = np.inf
    for axes in ((0,), (1,), (0, 1)):
        for op, function in (("max", np.max), ("min", np.min), ("sum", np.sum)):
            got = apply(op, x, axes=axes, keepdims=False)
            np.testing.assert_allclose(got, function(x, axis=axes), rtol=1e-5)
    for axis in (0, 1):
        for op, find in (("argmax", np.argmax), ("argmin", np.argmin)):
            got = apply(op, x, axis=axis, keepdims=False)
            np.testing.assert_array_equal(got, find(x, axis))


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((4, 3, 5), (3, 5)), ((4, 3, 5), (1, 5)), ((4, 3, 5), (4, 1, 5)), ((4, 3, 5), ()),
        ((2, 3, 4, 5), (3, 1, 1)), ((64, 10), (10,)), ((5, 6), (5, 6)), ((64, 500), (1, 500)),
        ((30, 20, 700), (20, 1)),
    ],
)  # fmt: skip
def test_sum_to(apply: Any, rng: np.random.Generator, shape: Any, target: Any) -> None:
    x = rng.normal(size=shape).astype(F)
    full = (1,) * (len(shape) - len(target)) + target
    axes = tuple(i for i, (n, m) in enumerate(zip(shape, full, strict=True)) if n != m)
    want = x.astype(np.float64).sum(axes, keepdims=True).reshape(target)
    np.testing.assert_allclose(apply("sum_to", x, shape=target), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 17, 19), (3, 70000), (64, 21, 9)])
def test_softmax_and_its_gradient(apply: Any, rng: np.random.Generator, shape: Any) -> None:
    x, g = (np.asarray(rng.normal(size=shape) * 3, F) for _ in range(2))
    wide, grad = x.astype(np.float64), g.astype(np.float64)
    for axis in range(len(shape)):
        y, low = special.softmax(wide, axis), special.log_softmax(wide, axis)
        np.testing.assert_allclose(apply("softmax", x, axis=axis), y, rtol=4e-6, atol=1e-9)
        np.testing.assert_allclose(apply("log_softmax", x, axis=axis), low, rtol=4e-6, atol=2e-6)
        dx = y * (grad - (grad * y).sum(axis, keepdims=True))
        got = apply("softmax_backward", y.astype(F), g, axis=axis)
        np.testing.assert_allclose(got, dx, rtol=1e-4, atol=1e-5)
        dx = grad - y * grad.sum(axis, keepdims=True)
        got = apply("log_softmax_backward", low.astype(F), g, axis=axis)
        np.testing.assert_allclose(got, dx, rtol=1e-4, atol=1e-4)


def test_logsumexp(apply: Any, rng: np.random.Generator) -> None:
    x = (rng.normal(size=(3, 50, 70)) * 100).astype(F)
    for axes in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
        want = special.logsumexp(x.astype(np.float64), axis=axes)
        got = apply("logsumexp", x, axes=axes, keepdims=False)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    edges = np.array([[-np.inf, -np.inf], [np.inf, 1], [0, -np.inf]], F)
    want = [-np.inf, np.inf, 0]
    np.testing.assert_array_equal(apply("logsumexp", edges, axes=(1,), keepdims=False), want)
    columns = np.repeat(edges.T[..., None], 3, 2)
    got = apply("logsumexp", columns, axes=(0,), keepdims=False)
    np.testing.assert_array_equal(got, np.repeat(np.array(want)[:, None], 3, 1))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "uint8", "bool"])
def test_arg_extremes(apply: Any, rng: np.random.Generator, dtype: str) -> None:
    """Few distinct numbers, so that the first of equals must win."""
    for shape in ((5,), (3, 4), (2, 33, 70), (300, 3)):
        x = rng.integers(0, 5, shape).astype(dtype)
        for axis in range(len(shape)):
            for op, find in (("argmax", np.argmax), ("argmin", np.argmin)):
                got = apply(op, x, axis=axis, keepdims=False)
                assert got.dtype == np.int32
                np.testing.assert_array_equal(got, find(x, axis))


def test_cumulative(apply: Any, rng: np.random.Generator) -> None:
    for shape in ((7,), (3, 500), (20, 5, 70)):
        x = rng.normal(size=shape).astype(F)
        whole = rng.integers(-9, 9, shape).astype(np.int32)
        for axis in range(len(shape)):
            want = np.cumsum(x.astype(np.float64), axis)
            np.testing.assert_allclose(apply("cumsum", x, axis=axis), want, rtol=1e-6, atol=1e-6)
            want = np.cumprod(x.astype(np.float64), axis)
            np.testing.assert_allclose(apply("cumprod", x, axis=axis), want, rtol=1e-6, atol=1e-30)
            want = np.cumsum(whole, axis, dtype=np.int32)
            np.testing.assert_array_equal(apply("cumsum", whole, axis=axis), want)

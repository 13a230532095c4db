"""Normalisation against its definition in float64, and its gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

F = np.float32
EPS = 1e-5
SHAPES = [
    (4, 3, 5, 7), (2, 17, 9, 9), (5, 33), (64, 10), (3, 5, 4), (1, 64, 40, 60), (300, 20),
    (2, 40, 1, 3), (2, 3, 2, 2, 2), (600, 3, 2, 2), (2, 16, 70, 70),
]  # fmt: skip


def _over(vector: np.ndarray, ndim: int) -> np.ndarray:
    return vector.reshape(-1, *[1] * (ndim - 2)).astype(np.float64)


def _normalised(x: np.ndarray, axes: Any) -> np.ndarray:
    wide = x.astype(np.float64)
    variance = wide.var(axes, keepdims=True)
    return (wide - wide.mean(axes, keepdims=True)) / np.sqrt(variance + EPS)


def _along(loss: Callable[[np.ndarray], float], x: np.ndarray, step: np.ndarray) -> float:
    """Return the derivative of a loss along a direction by central differences."""
    h = 1e-5
    return (loss(x + h * step) - loss(x - h * step)) / (2 * h)


def _forms(shape: Any) -> tuple[str | None, ...]:
    return (None, "blocked") if len(shape) == 4 else (None,)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm(apply: Any, rng: np.random.Generator, shape: Any) -> None:
    c, ndim = shape[1], len(shape)
    x = (rng.normal(size=shape) * 3 + 50).astype(F)
    weight, bias, mean = (rng.normal(size=c).astype(F) for _ in range(3))
    variance = (rng.random(c) + 0.1).astype(F)
    scale = np.sqrt(_over(variance, ndim) + EPS)
    want = (x - _over(mean, ndim)) / scale * _over(weight, ndim) + _over(bias, ndim)
    for variant in _forms(shape):
        got = apply("batch_norm", x, mean, variance, weight, bias, variant=variant, eps=EPS)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm_train(apply: Any, rng: np.random.Generator, shape: Any) -> None:
    c, ndim = shape[1], len(shape)
    axes = (0, *range(2, ndim))
    x = (rng.normal(size=shape) * 3 + 50).astype(F)
    weight, bias = (rng.normal(size=c).astype(F) for _ in range(2))
    want = _normalised(x, axes) * _over(weight, ndim) + _over(bias, ndim)
    for variant in _forms(shape):
        y, mean, variance = apply("batch_norm_train", x, weight, bias, variant=variant, eps=EPS)
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=3e-5)
        np.testing.assert_allclose(mean, x.mean(axes, dtype=np.float64), rtol=1e-6)
        np.testing.assert_allclose(variance, x.astype(np.float64).var(axes), rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, 20), (0, 3, 4), (0, 17, 3, 5), (4, 3, 0, 2)], ids=str)
def test_batch_norm_without_samples_has_no_gradient(apply: Any, shape: Any) -> None:
    x, ones = np.zeros(shape, F), np.ones(shape[1], F)
    for variant in _forms(shape):
        _, mean, variance = apply("batch_norm_train", x, ones, ones, variant=variant, eps=EPS)
        _, dweight, dbias = apply(
            "batch_norm_backward", x, ones, mean, variance, x, variant=variant, eps=EPS
        )
        np.testing.assert_array_equal(dweight, np.zeros_like(ones))
        np.testing.assert_array_equal(dbias, np.zeros_like(ones))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm_backward(apply: Any, rng: np.random.Generator, shape: Any) -> None:
    c, ndim = shape[1], len(shape)
    axes = (0, *range(2, ndim))
    x, g = (rng.normal(size=shape).astype(F) for _ in range(2))
    weight = rng.normal(size=c).astype(F)
    wide = x.astype(np.float64)
    statistics = [wide.mean(axes).astype(F), wide.var(axes).astype(F)]

    def loss(at: np.ndarray) -> float:
        return float(np.sum(_normalised(at, axes) * _over(weight, ndim) * g))

    direction = rng.normal(size=shape)
    slope = _along(loss, wide, direction)
    for variant in _forms(shape):
        dx, dweight, dbias = apply(
            "batch_norm_backward", x, weight, *statistics, g, variant=variant, eps=EPS
        )
        size = np.abs(dx.astype(np.float64) * direction).sum()
        np.testing.assert_allclose(np.sum(dx * direction), slope, rtol=1e-4, atol=1e-5 * size)
        np.testing.assert_allclose(
            dweight, (g * _normalised(x, axes)).sum(axes), rtol=1e-4, atol=1e-3
        )
        np.testing.assert_allclose(dbias, g.sum(axes, dtype=np.float64), rtol=1e-4, atol=1e-4)


def test_variance_keeps_its_digits_far_from_zero(apply: Any, rng: np.random.Generator) -> None:
    """A difference of squared sums would lose all digits here."""
    x = (rng.normal(size=(8, 3, 20, 30)) * 0.5 + 4096).astype(F)
    ones, zeros = np.ones(3, F), np.zeros(3, F)
    want = x.astype(np.float64).var((0, 2, 3))
    for variant in (None, "blocked"):
        _, _, variance = apply("batch_norm_train", x, ones, zeros, variant=variant, eps=EPS)
        np.testing.assert_allclose(variance, want, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_group_norm(apply: Any, rng: np.random.Generator, shape: Any) -> None:
    c, ndim = shape[1], len(shape)
    x = (rng.normal(size=shape) * 3 + 2).astype(F)
    weight, bias = (rng.normal(size=c).astype(F) for _ in range(2))
    for groups in sorted({1, c, *(n for n in (2, 3, 5) if c % n == 0)}):
        grouped = x.reshape(shape[0], groups, -1)
        if grouped.shape[2] < 2:
            continue
        normal = _normalised(grouped, (2,)).reshape(shape)
        want = normal * _over(weight, ndim) + _over(bias, ndim)
        got = apply("group_norm", x, weight, bias, groups=groups, eps=EPS)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("shape", "ndim"),
    [((4, 33), 1), ((2, 3, 40), 1), ((2, 3, 40), 2), ((7, 3000), 1), ((16, 9), 2), ((1100, 9), 1)],
)
def test_layer_norm(
    apply: Any, rng: np.random.Generator, shape: Any, ndim: int, affine: bool
) -> None:
    inner, axes = shape[-ndim:], tuple(range(len(shape) - ndim, len(shape)))
    lead = tuple(range(len(shape) - ndim))
    x, g = ((rng.normal(size=shape) * 3 + 2).astype(F) for _ in range(2))
    weight, bias = (rng.normal(size=inner).astype(F) for _ in range(2))
    attrs = {"ndim": ndim, "eps": EPS, "affine": affine}
    wide = _normalised(x, axes)
    want = wide * weight + bias if affine else wide
    got = apply("layer_norm", x, *((weight, bias) if affine else ()), **attrs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)

    def loss(at: np.ndarray) -> float:
        return float(np.sum(_normalised(at, axes) * (weight if affine else 1.0) * g))

    direction = rng.normal(size=shape)
    slope = _along(loss, x.astype(np.float64), direction)
    found = apply("layer_norm_backward", x, g, *((weight,) if affine else ()), **attrs)
    dx = found[0] if affine else found
    size = np.abs(dx.astype(np.float64) * direction).sum()
    np.testing.assert_allclose(np.sum(dx * direction), slope, rtol=1e-4, atol=1e-5 * size)
    if affine:
        np.testing.assert_allclose(found[1], (g * wide).sum(lead), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found[2], g.sum(lead, dtype=np.float64), rtol=1e-5, atol=1e-4)

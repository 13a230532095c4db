"""Distributions against scipy: densities, probabilities, moments and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Exponential,
    Normal,
    Uniform,
)
from tianyuan.errors import AttrError, ShapeError

stats = pytest.importorskip("scipy.stats")

RATE = np.array([0.5, 1.0, 3.0], np.float32)
LOC = np.array([[-1.0], [2.0]], np.float32)
PROB = np.array([0.0, 0.3, 1.0], np.float32)

CONTINUOUS: list[tuple[Distribution, Any]] = [
    (Exponential(ty.Tensor(RATE)), stats.expon(scale=1 / RATE.astype(np.float64))),
    (Exponential(2.5), stats.expon(scale=0.4)),
    (Normal(ty.Tensor(LOC), ty.Tensor(RATE)), stats.norm(LOC, RATE)),
    (Uniform(ty.Tensor(LOC), 4.0), stats.uniform(LOC, 4.0 - LOC)),
]
DISCRETE: list[tuple[Distribution, Any]] = [(Bernoulli(ty.Tensor(PROB)), stats.bernoulli(PROB))]


def shaped(distribution: Distribution, values: list[float]) -> np.ndarray:
    """Return values along a new first axis that broadcast with the batch."""
    return np.array(values, np.float32).reshape(-1, *[1] * len(distribution.batch_shape))


@pytest.mark.parametrize(("ours", "theirs"), CONTINUOUS)
def test_densities_and_probabilities(ours: Distribution, theirs: Any) -> None:
    x = shaped(ours, [-1.5, -0.1, 0.0, 0.7, 2.0, 3.9, 5.0])
    close = {"rtol": 2e-5, "atol": 2e-6}
    np.testing.assert_allclose(ours.log_prob(ty.Tensor(x)).numpy(), theirs.logpdf(x), **close)
    np.testing.assert_allclose(ours.cdf(ty.Tensor(x)).numpy(), theirs.cdf(x), **close)
    if not isinstance(ours, Normal):
        p = shaped(ours, [0.0, 0.1, 0.5, 0.99])
        np.testing.assert_allclose(ours.icdf(ty.Tensor(p)).numpy(), theirs.ppf(p), **close)


@pytest.mark.parametrize(("ours", "theirs"), [*CONTINUOUS, *DISCRETE])
def test_moments(ours: Distribution, theirs: Any) -> None:
    shape = ours.batch_shape
    for got, want in (
        (ours.mean, theirs.mean()),
        (ours.variance, theirs.var()),
        (ours.stddev, theirs.std()),
    ):
        assert got.shape == shape
        np.testing.assert_allclose(got.numpy(), np.broadcast_to(want, shape), rtol=1e-5)


@pytest.mark.parametrize(("ours", "theirs"), CONTINUOUS)
def test_samples_follow_the_distribution(ours: Distribution, theirs: Any) -> None:
    ty.random.seed(11)
    drawn = ours.sample((4000,))
    assert drawn.shape == (4000, *ours.batch_shape)
    assert drawn.dtype == np.float32
    # Under the right law, its distribution function makes samples uniform.
    even = np.asarray(theirs.cdf(drawn.numpy().astype(np.float64))).reshape(4000, -1)
    for column in even.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    assert ours.sample().shape == ours.batch_shape
    assert ours.sample((2, 3)).shape == (2, 3, *ours.batch_shape)


def test_bernoulli() -> None:
    ours = DISCRETE[0][0]
    assert ours.log_prob(ty.Tensor([1.0])).numpy()[1:] == pytest.approx(np.log(PROB[1:]))
    assert ours.log_prob(ty.Tensor([0.0])).numpy()[:2] == pytest.approx(np.log1p(-PROB[:2]))
    for value, want in ((-0.5, PROB * 0), (0.0, 1 - PROB), (0.9, 1 - PROB), (1.0, PROB * 0 + 1)):
        np.testing.assert_allclose(ours.cdf(ty.Tensor([value])).numpy(), want, rtol=1e-6)
    ty.random.seed(5)
    drawn = ours.sample((5000,)).numpy()
    assert set(np.unique(drawn)) == {0.0, 1.0}
    assert drawn.mean(axis=0) == pytest.approx(PROB, abs=4 * np.sqrt(0.21 / 5000))


def test_categorical() -> None:
    weights = np.array([[1.0, 3.0, 4.0], [2.0, 0.0, 2.0]], np.float32)
    ours = Categorical(ty.Tensor(weights))
    p = weights / weights.sum(axis=1, keepdims=True)
    assert (ours.batch_shape, ours.event_shape) == ((2,), ())
    numbers = np.arange(3)
    mean = (p * numbers).sum(axis=1)
    np.testing.assert_allclose(ours.mean.numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(
        ours.variance.numpy(), (p * (numbers - mean[:, None]) ** 2).sum(axis=1), rtol=1e-5
    )
    np.testing.assert_allclose(ours.stddev.numpy() ** 2, ours.variance.numpy(), rtol=1e-5)
    got = ours.log_prob(ty.Tensor(np.array([[0, 0], [2, 1]], np.int32))).numpy()
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(got, np.log([[p[0, 0], p[1, 0]], [p[0, 2], p[1, 1]]]), rtol=1e-5)
    ty.random.seed(8)
    drawn = ours.sample((4000,))
    assert drawn.dtype == np.int32
    assert drawn.shape == (4000, 2)
    for column, share in zip(drawn.numpy().T, p, strict=True):
        counts = np.bincount(column, minlength=3)
        assert counts[share == 0].sum() == 0
        used = share > 0
        assert stats.chisquare(counts[used], 4000 * share[used]).pvalue > 1e-4


def test_expanding_the_batch() -> None:
    ours = Exponential(ty.Tensor(RATE)).expand((2, 3))
    assert isinstance(ours, Exponential)
    assert ours.batch_shape == (2, 3)
    np.testing.assert_allclose(ours.mean.numpy(), np.broadcast_to(1 / RATE, (2, 3)), rtol=1e-6)
    assert ours.sample((4,)).shape == (4, 2, 3)
    wide = Categorical(ty.Tensor([1.0, 1.0])).expand((5,))
    assert (wide.probs.shape, wide.sample().shape) == ((5, 2), (5,))
    target = Exponential(9.0)
    assert Exponential(ty.Tensor(RATE)).expand((3,), target) is target
    np.testing.assert_array_equal(target.rate.numpy(), RATE)
    with pytest.raises(ShapeError):
        Exponential(ty.Tensor(RATE)).expand((2,))


def test_gradients_flow_into_parameters() -> None:
    rate = ty.Tensor([2.0])
    gm = ty.autodiff.GradManager().attach(rate)
    with gm:
        gm.backward(Exponential(rate).log_prob(ty.Tensor([3.0])))
    assert rate.grad.numpy() == pytest.approx([1 / 2.0 - 3.0])


def test_parameters_out_of_range() -> None:
    with pytest.raises(AttrError, match="rate is wrong, got 0.0, expected above 0"):
        Exponential(ty.Tensor([1.0, 0.0]))
    with pytest.raises(AttrError, match="scale"):
        Normal(0.0, -1.0)
    with pytest.raises(AttrError, match="high"):
        Uniform(2.0, 2.0)
    with pytest.raises(AttrError, match="probs"):
        Bernoulli(1.5)
    with pytest.raises(AttrError, match="sum of probs"):
        Categorical(ty.Tensor([0.0, 0.0]))
    with pytest.raises(ShapeError):
        Categorical(1.0)
    with pytest.raises(ShapeError):
        Normal(ty.Tensor([1.0, 2.0]), ty.Tensor([1.0, 2.0, 3.0]))


def test_the_base_says_what_it_lacks() -> None:
    base = Distribution((2,), (3,))
    assert (base.batch_shape, base.event_shape) == ((2,), (3,))
    assert Distribution(None, None).batch_shape == ()
    for ask in (
        lambda: base.mean,
        lambda: base.variance,
        lambda: base.stddev,
        base.sample,
        lambda: base.log_prob(0.0),
        lambda: base.cdf(0.0),
        lambda: base.icdf(0.0),
    ):
        with pytest.raises(NotImplementedError, match="Distribution: "):
            ask()
    assert repr(Normal(0.0, 1.0)) == "Normal(loc: (), scale: ())"

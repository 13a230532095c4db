"""Distributions with a density over the real numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .. import functional as F
from .. import random
from ..imperative.tensor import Tensor
from .distribution import Distribution, expect, parameters


class Exponential(Distribution):
    """The exponential distribution: density rate * exp(-rate * x) for x >= 0.

    Args:
        rate: above 0; a number, or a tensor whose shape is the batch shape.

    Raises:
        AttrError: where a rate is not above 0.

    >>> import tianyuan as ty
    >>> Exponential(ty.Tensor([0.5, 4.0])).mean.numpy()
    array([2.  , 0.25], dtype=float32)
    """

    _parameters = ("rate",)

    def __init__(self, rate: Tensor | float) -> None:
        (self.rate,) = parameters("Exponential", rate=rate)
        expect("Exponential", "rate", self.rate, self.rate > 0, "above 0")
        super().__init__(self.rate.shape)

    @property
    def mean(self) -> Tensor:
        """1 / rate."""
        found: Tensor = 1.0 / self.rate
        return found

    @property
    def variance(self) -> Tensor:
        """1 / rate²."""
        found: Tensor = 1.0 / (self.rate * self.rate)
        return found

    @property
    def stddev(self) -> Tensor:
        """1 / rate."""
        found: Tensor = 1.0 / self.rate
        return found

    def sample(self, sample_shape: Iterable[int] | None = ()) -> Tensor:
        """Draw from the default generator, of shape sample_shape + batch_shape.

        >>> Exponential(2.0).sample((3,)).shape
        (3,)
        """
        drawn: Tensor = random.uniform(size=self._extended(sample_shape))
        found: Tensor = -F.log1p(-drawn) / self.rate
        return found

    def log_prob(self, value: Any) -> Tensor:
        """Return log(rate) - rate * x; -inf below 0.

        >>> Exponential(1.0).log_prob(2.0).item()
        -2.0
        """
        (value,) = parameters("log_prob", value=value)
        inside = F.log(self.rate) - self.rate * value
        found: Tensor = F.where(value < 0, F.full_like(inside, -math.inf), inside)
        return found

    def cdf(self, value: Any) -> Tensor:
        """Return 1 - exp(-rate * x); 0 below 0.

        >>> round(Exponential(1.0).cdf(math.log(2.0)).item(), 6)
        0.5
        """
        (value,) = parameters("cdf", value=value)
        found: Tensor = -F.expm1(-self.rate * F.maximum(value, 0.0))
        return found

    def icdf(self, value: Any) -> Tensor:
        """Return -log(1 - p) / rate.

        >>> Exponential(2.0).icdf(0.0).item() == 0.0
        True
        """
        (value,) = parameters("icdf", value=value)
        found: Tensor = -F.log1p(-value) / self.rate
        return found


class Normal(Distribution):
    """The normal distribution of a mean and a standard deviation.

    Args:
        loc: mean.
        scale: standard deviation, above 0.

    Raises:
        AttrError: where a scale is not above 0.
        ShapeError: where the two do not broadcast.

    >>> round(Normal(0.0, 1.0).log_prob(0.0).item(), 4)
    -0.9189
    """

    _parameters = ("loc", "scale")

    def __init__(self, loc: Tensor | float, scale: Tensor | float) -> None:
        self.loc, self.scale = parameters("Normal", loc=loc, scale=scale)
        expect("Normal", "scale", self.scale, self.scale > 0, "above 0")
        super().__init__(self.loc.shape)

    @property
    def mean(self) -> Tensor:
        """The parameter loc."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """scale²."""
        found: Tensor = self.scale * self.scale
        return found

    @property
    def stddev(self) -> Tensor:
        """The parameter scale."""
        return self.scale

    def sample(self, sample_shape: Iterable[int] | None = ()) -> Tensor:
        """Draw from the default generator, of shape sample_shape + batch_shape."""
        found: Tensor = random.normal(size=self._extended(sample_shape)) * self.scale + self.loc
        return found

    def log_prob(self, value: Any) -> Tensor:
        """Return -z² / 2 - log(scale * sqrt(2 pi)) with z = (x - loc) / scale."""
        (value,) = parameters("log_prob", value=value)
        z = (value - self.loc) / self.scale
        found: Tensor = z * z * -0.5 - F.log(self.scale) - 0.5 * math.log(2 * math.pi)
        return found

    def cdf(self, value: Any) -> Tensor:
        """Return (1 + erf(z / sqrt(2))) / 2."""
        (value,) = parameters("cdf", value=value)
        z = (value - self.loc) / (self.scale * math.sqrt(2.0))
        found: Tensor = 0.5 * (1.0 + F.erf(z))
        return found


class Uniform(Distribution):
    """The even distribution over low <= x < high.

    Args:
        low, high: the bounds.

    Raises:
        AttrError: where high is not above low.
        ShapeError: where the two do not broadcast.

    >>> Uniform(1.0, 5.0).icdf(0.25).item()
    2.0
    """

    _parameters = ("low", "high")

    def __init__(self, low: Tensor | float, high: Tensor | float) -> None:
        self.low, self.high = parameters("Uniform", low=low, high=high)
        expect("Uniform", "high", self.high, self.high > self.low, "above low")
        super().__init__(self.low.shape)

    @property
    def mean(self) -> Tensor:
        """(low + high) / 2."""
        found: Tensor = (self.low + self.high) * 0.5
        return found

    @property
    def variance(self) -> Tensor:
        """(high - low)² / 12."""
        width = self.high - self.low
        found: Tensor = width * width / 12.0
        return found

    def sample(self, sample_shape: Iterable[int] | None = ()) -> Tensor:
        """Draw from the default generator, of shape sample_shape + batch_shape."""
        drawn = random.uniform(size=self._extended(sample_shape))
        found: Tensor = drawn * (self.high - self.low) + self.low
        return found

    def log_prob(self, value: Any) -> Tensor:
        """Return -log(high - low) inside the bounds, -inf outside."""
        (value,) = parameters("log_prob", value=value)
        within = F.logical_and(value >= self.low, value < self.high)
        inside = -F.log(self.high - self.low) + value * 0.0
        found: Tensor = F.where(within, inside, F.full_like(inside, -math.inf))
        return found

    def cdf(self, value: Any) -> Tensor:
        """Return (x - low) / (high - low), between 0 and 1."""
        (value,) = parameters("cdf", value=value)
        return F.clip((value - self.low) / (self.high - self.low), 0.0, 1.0)

    def icdf(self, value: Any) -> Tensor:
        """Return low + p * (high - low)."""
        (value,) = parameters("icdf", value=value)
        found: Tensor = self.low + value * (self.high - self.low)
        return found

"""Distributions over the integers; events are float32 or int32 as their sources count them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import functional as F
from .. import random
from ..errors import ShapeError
from ..imperative.tensor import Tensor
from .distribution import Distribution, expect, parameters


class Bernoulli(Distribution):
    """One with probability p, zero otherwise; events are float32.

    Args:
        probs: 0 to 1.

    Raises:
        AttrError: where a probability is out of range.

    >>> Bernoulli(0.25).variance.item()
    0.1875
    """

    _parameters = ("probs",)

    def __init__(self, probs: Tensor | float) -> None:
        (self.probs,) = parameters("Bernoulli", probs=probs)
        inside = F.logical_and(self.probs >= 0, self.probs <= 1)
        expect("Bernoulli", "probs", self.probs, inside, "0 to 1")
        super().__init__(self.probs.shape)

    @property
    def mean(self) -> Tensor:
        """The parameter p."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """p * (1 - p)."""
        found: Tensor = self.probs * (1.0 - self.probs)
        return found

    def sample(self, sample_shape: Iterable[int] | None = ()) -> Tensor:
        """Draw from the default generator, of shape sample_shape + batch_shape."""
        drawn = random.uniform(size=self._extended(sample_shape))
        found: Tensor = (drawn < self.probs).astype("float32")
        return found

    def log_prob(self, value: Any) -> Tensor:
        """Return log(p) for ones and log(1 - p) for zeros."""
        (value,) = parameters("log_prob", value=value)
        zeros = value * 0.0
        found: Tensor = F.log(F.where(value > 0.5, zeros + self.probs, zeros + 1.0 - self.probs))
        return found

    def cdf(self, value: Any) -> Tensor:
        """Return 0 below 0, 1 - p below 1, and 1 from there on."""
        (value,) = parameters("cdf", value=value)
        zeros = value * 0.0 + self.probs * 0.0
        low = F.where(value < 0, zeros, zeros + 1.0 - self.probs)
        found: Tensor = F.where(value < 1, low, zeros + 1.0)
        return found


class Categorical(Distribution):
    """One of several classes; events are int32 numbers of classes.

    Args:
        probs: (..., classes), at least 0, normalised over the last axis.

    Raises:
        AttrError: where a weight is below 0, or all of a row are 0.
        ShapeError: for a scalar.

    >>> import tianyuan as ty
    >>> Categorical(ty.Tensor([1.0, 3.0])).probs.numpy()
    array([0.25, 0.75], dtype=float32)
    """

    _parameters = ("probs",)

    def __init__(self, probs: Tensor) -> None:
        (weights,) = parameters("Categorical", probs=probs)
        if weights.ndim == 0:
            raise ShapeError("Categorical: probs is a scalar, expected (..., classes)")
        expect("Categorical", "probs", weights, weights >= 0, "at least 0")
        total = F.sum(weights, axis=-1, keepdims=True)
        expect("Categorical", "the sum of probs", total, total > 0, "above 0")
        self.probs = weights / total
        super().__init__(self.probs.shape[:-1])

    @property
    def mean(self) -> Tensor:
        """Expected number of the class."""
        return self._moment(1)

    @property
    def variance(self) -> Tensor:
        """Variance of the number of the class."""
        mean = self._moment(1)
        found: Tensor = self._moment(2) - mean * mean
        return found

    def _moment(self, order: int) -> Tensor:
        numbers = F.arange(self.probs.shape[-1], dtype="float32")
        return F.sum(self.probs * numbers**order, axis=-1)

    def sample(self, sample_shape: Iterable[int] | None = ()) -> Tensor:
        """Draw from the default generator, of shape sample_shape + batch_shape, int32."""
        drawn = random.uniform(size=(*self._extended(sample_shape), 1))
        # A number falls into the class whose share of the unit interval it lies in. The last share
        # ends at 1 whatever rounding says.
        ends = F.cumsum(self.probs, axis=-1)[..., :-1]
        return F.sum((drawn >= ends).astype("int32"), axis=-1)

    def log_prob(self, value: Any) -> Tensor:
        """Return the logarithm of the probabilities of classes."""
        hot = F.one_hot(value.astype("int32"), self.probs.shape[-1])
        return F.log(F.sum(self.probs * hot.astype("float32"), axis=-1))

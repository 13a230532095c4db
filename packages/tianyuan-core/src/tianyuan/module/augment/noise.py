"""Add random numbers to images."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from ...functional.arguments import real_number
from ...imperative.tensor import Tensor
from .base import Random, images, like


class AdditiveElemwise(Random):
    """Base of what adds a random number to every pixel; a subclass defines ``sample``.

    Args:
        per_channel: whether channels get numbers of their own, or share those of their pixel.

    >>> from tianyuan import functional as F
    >>> class Ones(AdditiveElemwise):
    ...     def sample(self, size):
    ...         return F.ones(size)
    >>> Ones()(F.zeros((1, 2, 1, 2))).numpy().ravel()
    array([1., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, per_channel: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.per_channel = per_channel

    @abstractmethod
    def sample(self, size: tuple[int, ...]) -> Tensor:
        """Return random float32 numbers of a shape."""

    def forward(self, inp: Tensor) -> Tensor:
        """Return images (N, C, H, W) with noise; integers are rounded and bounded.

        Raises:
            ShapeError: where the input has another rank.
        """
        image = images(type(self).__name__, inp)
        n, c, h, w = image.shape
        noise = self.sample((n, c if self.per_channel else 1, h, w))
        return like(image + noise.cast(image.dtype), inp)

    def _module_info_string(self) -> str:
        return f"per_channel={self.per_channel}"


class _Located(AdditiveElemwise):
    """Noise with a mean and a standard deviation."""

    def __init__(
        self,
        mean: float = 0.0,
        std: float = 1.0,
        per_channel: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(per_channel, seed=seed)
        self.mean = real_number(type(self).__name__, "mean", mean)
        self.std = real_number(type(self).__name__, "std", std, 0.0)


class AdditiveGaussianNoise(_Located):
    """Add numbers from a normal distribution.

    Args:
        mean, std: of the distribution.
        per_channel: whether channels get numbers of their own.
        seed: of a generator of its own; None draws from ``tianyuan.random``.

    >>> from tianyuan import functional as F
    >>> AdditiveGaussianNoise(mean=2.0, std=0.0)(F.zeros((1, 1, 1, 2))).numpy().ravel()
    array([2., 2.], dtype=float32)
    """

    def sample(self, size: tuple[int, ...]) -> Tensor:
        """Return draws from N(mean, std^2)."""
        result: Tensor = self.rng.normal(self.mean, self.std, size)
        return result


class AdditiveLaplaceNoise(_Located):
    """Add numbers from a Laplace distribution of scale std / sqrt(2).

    Args:
        mean, std: of the distribution.
        per_channel: whether channels get numbers of their own.
        seed: of a generator of its own; None draws from ``tianyuan.random``.

    >>> from tianyuan import functional as F
    >>> AdditiveLaplaceNoise(mean=2.0, std=0.0)(F.zeros((1, 1, 1, 2))).numpy().ravel()
    array([2., 2.], dtype=float32)
    """

    def sample(self, size: tuple[int, ...]) -> Tensor:
        """Return mean + scale times the difference of two exponential draws."""
        scale = self.std / math.sqrt(2.0)
        gap: Tensor = self.rng.exponential(1.0, size) - self.rng.exponential(1.0, size)
        result: Tensor = gap * scale + self.mean
        return result


class AdditivePoissonNoise(AdditiveElemwise):
    """Add counts from a Poisson distribution, drawn on the host; not offered inside a trace.

    Args:
        lam: mean of the distribution.
        per_channel: whether channels get numbers of their own.
        seed: of a generator of its own; None draws from ``tianyuan.random``.

    >>> from tianyuan import functional as F
    >>> AdditivePoissonNoise(lam=0.0)(F.ones((1, 1, 1, 2))).numpy().ravel()
    array([1., 1.], dtype=float32)
    """

    def __init__(
        self, lam: float = 1.0, per_channel: bool = False, seed: int | None = None
    ) -> None:
        super().__init__(per_channel, seed=seed)
        self.lam = real_number("AdditivePoissonNoise", "lam", lam, 0.0)

    def sample(self, size: tuple[int, ...]) -> Tensor:
        """Return draws from Poisson(lam)."""
        result: Tensor = self.rng.poisson(self.lam, size)
        return result

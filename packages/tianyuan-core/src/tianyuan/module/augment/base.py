"""What augmentations share: where their randomness comes from, and which images they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import functional as F
from ... import random
from ...errors import AttrError, ShapeError
from ...functional.arguments import real_number, whole
from ...imperative.tensor import Tensor
from ...shapes import format_shape
from ..module import Module

# A number, or the ends of the range that one is drawn from for each image.
Range = float | tuple[float, float]


class Random(Module):
    """An augmentation that draws numbers.

    Args:
        seed: of a generator of its own; None draws from ``tianyuan.random``.
    """

    def __init__(self, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed
        if seed is not None:
            whole(type(self).__name__, "seed", seed)
        self._rng = None if seed is None else random.RNG(seed)

    @property
    def rng(self) -> Any:
        """The generator: an ``RNG``, or the module ``tianyuan.random``."""
        return random if self._rng is None else self._rng

    def drawn(self, value: Range, shape: tuple[int, ...]) -> Tensor:
        """Return a number, or draws from a range, as a tensor of a shape."""
        if isinstance(value, (tuple, list)):
            result: Tensor = self.rng.uniform(value[0], value[1], shape)
            return result
        filled: Tensor = F.full(shape, float(value))
        return filled


def checked_range(owner: str, what: str, value: Any) -> Range:
    """Return a number or a pair of numbers that ascends.

    Raises:
        AttrError: where it is neither.
    """
    ends = value if isinstance(value, (tuple, list)) else (value, value)
    if len(ends) != 2:
        raise AttrError(
            f"{owner}: {what} must be a number or a pair of numbers, got {value!r}, expected one "
            "or two"
        )
    low, high = (float(real_number(owner, what, end)) for end in ends)
    if not low <= high:
        raise AttrError(
            f"{owner}: {what} is a range that descends, got {value!r}, expected low <= high"
        )
    return (low, high) if isinstance(value, (tuple, list)) else low


def images(owner: str, inp: Tensor) -> Tensor:
    """Return images (N, C, H, W) as float32, or as they are where they are floats.

    Raises:
        ShapeError: where the input has another rank.
    """
    if inp.ndim != 4:
        raise ShapeError(
            f"{owner}: input has the wrong rank, got {format_shape(inp.shape)}, expected "
            "(N, C, H, W)"
        )
    return inp if inp.dtype.kind == "f" or inp.dtype.name == "bfloat16" else inp.cast("float32")


def like(result: Tensor, inp: Tensor) -> Tensor:
    """Return a result in the input's dtype; integers are rounded and bounded by what they hold."""
    if inp.dtype.kind in "iu":
        bounds = np.iinfo(inp.dtype)
        result = F.clip(F.round(result), float(bounds.min), float(bounds.max))
    found: Tensor = result.cast(inp.dtype)
    return found

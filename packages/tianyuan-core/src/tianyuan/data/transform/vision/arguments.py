"""Check what transforms of images are made with, and the images that they are given."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ....errors import AttrError, DTypeError, ShapeError
from ....functional.arguments import numbers_of, real_number


def amount(owner: str, what: str, value: Any, high: float = math.inf) -> float:
    """Return a finite number from 0 to ``high``.

    Raises:
        AttrError: where it is none.

    >>> amount("HueTransform", "value", 0.25, 0.5)
    0.25
    """
    found = real_number(owner, what, value, 0.0, high)
    if math.isinf(found):
        raise AttrError(f"{owner}: {what} must be finite, got {found}, expected a number >= 0")
    return found


def interval(owner: str, what: str, value: Any) -> tuple[float, float]:
    """Return two finite numbers above 0, the least first.

    Raises:
        AttrError: where they are none.

    >>> interval("RandomResize", "scale_range", [1, 2])
    (1.0, 2.0)
    """
    given = numbers_of(value)
    pair = tuple(given) if isinstance(given, (tuple, list)) else ()
    sound = len(pair) == 2 and all(isinstance(v, (int, float, np.number)) for v in pair)
    if not sound or not 0 < pair[0] <= pair[1] < math.inf:
        raise AttrError(
            f"{owner}: {what} is wrong, got {value!r}, expected two numbers, 0 < low <= high"
        )
    return float(pair[0]), float(pair[1])


def numbers(owner: str, what: str, value: Any, finite: bool = True) -> np.ndarray:
    """Return one number or several as an array of float64.

    Raises:
        AttrError: where they are none, or ``finite`` is set and one is outside of float32.

    >>> numbers("Normalize", "mean", [1, 2])
    array([1., 2.])
    """
    try:
        given = np.asarray(numbers_of(value))
    except ValueError:  # rows of different lengths
        given = np.array(None)
    found = given.astype(np.float64) if given.dtype.kind in "iuf" else None
    if found is None or (finite and not (np.abs(found) <= np.finfo(np.float32).max).all()):
        raise AttrError(
            f"{owner}: {what} is wrong, got {value!r}, expected a{' finite' if finite else ''} "
            "number, or one per channel"
        )
    return found


def fitting(owner: str, what: str, values: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ShapeError where numbers per channel do not spread over the shape of an image.

    >>> fitting("Normalize", "mean", np.zeros(3), (4, 6, 3))
    """
    try:
        fits = np.broadcast_shapes(values.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{owner}: {what} does not fit the image, got shape {values.shape} and {shape}, "
            "expected one number, or one per channel"
        )


def image_of(owner: str, image: Any, planes: bool = True) -> np.ndarray:
    """Return what must be an array of numbers; ``planes`` asks for (height, width[, channels]).

    Raises:
        DTypeError: where it is no array of numbers.
        ShapeError: where it has the wrong rank.

    >>> image_of("Pad", np.zeros((2, 3))).shape
    (2, 3)
    """
    if not isinstance(image, np.ndarray) or image.dtype.kind not in "biuf":
        kind = image.dtype if isinstance(image, np.ndarray) else type(image).__name__
        raise DTypeError(f"{owner}: image is wrong, got {kind}, expected a numpy array of numbers")
    if planes and image.ndim not in (2, 3):
        raise ShapeError(
            f"{owner}: image is wrong, got shape {image.shape}, expected (height, width) or "
            "(height, width, channels)"
        )
    return image


def list_of(owner: str, what: str, value: Any, method: str) -> list[Any]:
    """Return objects that all have a method, as a list.

    Raises:
        AttrError: where it is no iterable of such.

    >>> list_of("Compose", "transforms", (), "apply")
    []
    """
    found = list(value) if isinstance(value, Iterable) else [value]
    odd = [item for item in found if not callable(getattr(item, method, None))]
    if odd or not isinstance(value, Iterable):
        raise AttrError(
            f"{owner}: {what} is wrong, got {odd[0] if odd else value!r}, expected objects with "
            f"{'a call' if method == '__call__' else method}"
        )
    return found

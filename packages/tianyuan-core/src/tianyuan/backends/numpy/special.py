"""The error function on arrays, which numpy lacks."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

# Below _SPLIT the Taylor series, above it erfc(x) exp(x^2) as a polynomial in 2 / (2 + x), which
# is smooth; beyond _END erf is 1 in float64.
_SPLIT = 1.0
_END = 6.0
_TERMS = {4: (9, 9), 8: (18, 22)}  # itemsize -> terms of either series


@cache
def _series(itemsize: int) -> tuple[list[float], list[float]]:
    """Return the coefficients of both series, constant term first."""
    from numpy.polynomial import chebyshev  # several modules, of which inference needs none

    taylor_terms, tail_terms = _TERMS[itemsize]
    scale = 2 / math.sqrt(math.pi)
    taylor = [scale * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(taylor_terms)]
    low, high = 2 / (2 + _END), 2 / (2 + _SPLIT)

    points = chebyshev.chebpts1(tail_terms + 1)
    places = 2 / ((points * (high - low) + high + low) / 2) - 2
    tail = [math.erfc(x) * math.exp(x * x) for x in places]
    return taylor, [float(c) for c in chebyshev.chebfit(points, tail, tail_terms)]


def _horner(coefficients: list[float], x: np.ndarray) -> np.ndarray:
    result = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result *= x
        result += x.dtype.type(coefficient)
    return result


def _clenshaw(coefficients: list[float], x: np.ndarray) -> np.ndarray:
    ahead, behind = np.zeros_like(x), np.zeros_like(x)
    twice = x + x
    for coefficient in reversed(coefficients[1:]):
        ahead, behind = twice * ahead - behind + x.dtype.type(coefficient), ahead
    return np.asarray(x * ahead - behind + x.dtype.type(coefficients[0]))


def erf(x: np.ndarray, out: Any = None) -> np.ndarray:
    """Return the error function of a float32 or float64 array, to a few units in the last place."""
    size = np.abs(x)
    taylor, tail = _series(x.dtype.itemsize)
    one = x.dtype.type(1)
    near = np.minimum(size, one)
    small = near * _horner(taylor, near * near)
    far = np.minimum(np.maximum(size, one), x.dtype.type(_END))
    low, high = 2 / (2 + _END), 2 / (2 + _SPLIT)
    place = ((2 / (2 + far)) * 2 - (high + low)) / (high - low)
    large = one - np.exp(-far * far) * _clenshaw(tail, place.astype(x.dtype))
    result = np.asarray(np.copysign(np.where(size < _SPLIT, small, large), x))
    if out is None:
        return result
    np.copyto(out, result)
    return np.asarray(out)

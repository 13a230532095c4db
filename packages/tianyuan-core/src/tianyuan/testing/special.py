"""What numpy makes of NaN, infinities and signed zeros in the elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_erf = np.frompyfunc(math.erf, 1, 1)


def _erf64(x: np.ndarray) -> np.ndarray:
    return np.asarray(_erf(x)).astype(np.float64)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _hsigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(x + 3, 0, 6) / 6)


def _gelu_backward(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    # Below zero the slope never is zero, so that an infinite gradient stays one.
    near = np.clip(x, -37, 37)
    tail = near * np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    return np.asarray(g * ((1 + _erf64(near / math.sqrt(2))) / 2 + tail))


# In float64; the same names as the ops.
NUMPY: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "neg": np.negative, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "round": np.round, "square": np.square, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x, "exp": np.exp, "expm1": np.expm1, "log": np.log,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erf": _erf64,
    "relu": lambda x: np.maximum(x, 0), "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": _sigmoid, "hsigmoid": _hsigmoid, "hswish": lambda x: x * _hsigmoid(x),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * (1 + _erf64(x / math.sqrt(2))) / 2,
    "softplus": lambda x: np.logaddexp(0, x), "isnan": np.isnan, "isinf": np.isinf,
    "logical_not": np.logical_not, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": np.divide, "floor_div": np.floor_divide, "mod": np.mod, "pow": np.power,
    "maximum": np.maximum, "minimum": np.minimum, "atan2": np.arctan2,
    "logaddexp": np.logaddexp, "equal": np.equal, "not_equal": np.not_equal, "less": np.less,
    "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "gelu_backward": _gelu_backward,
}  # fmt: skip

VALUES = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, math.inf, -math.inf, math.nan)


def grid(count: int, values: Sequence[float] = VALUES) -> list[np.ndarray]:
    """Return arrays whose elements, taken together, run through all tuples of special values."""
    return [g.reshape(-1) for g in np.meshgrid(*([np.array(values)] * count), indexing="ij")]


def planted(array: np.ndarray, values: Sequence[float] = VALUES[-3:]) -> np.ndarray:
    """Return a copy with values, infinities and NaN unless others are given, at spread places."""
    result = np.array(array)
    flat = result.reshape(-1)
    for index, value in enumerate(values):
        if flat.size:
            flat[index * (flat.size - 1) // max(len(values) - 1, 1)] = value
    return result

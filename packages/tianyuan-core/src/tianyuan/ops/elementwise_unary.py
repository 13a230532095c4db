"""Unary elementwise ops: one line of reference and one of gradient each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import is_complex, part_of
from ..op import Op, Specs
from ..registry import get_op
from . import elementwise_binary as two
from .elementwise_rules import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INTEGER,
    NUMBER,
    expect_category,
    predicate,
    unary,
    unary_grad,
    widest,
)

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gate(condition: Any, g: Any) -> Any:
    """Return the gradient where the condition holds, else zero (never zero times infinity)."""
    return two.WHERE(condition, g, g.full((), 0.0))


def _bar(condition: Any, g: Any) -> Any:
    """Return zero where the condition holds, else the gradient; so also where x is NaN."""
    return two.WHERE(condition, g.full((), 0.0), g)


def _no_slope(g: Any, x: Any, y: Any) -> Any:
    """Say that a step function's gradient is zero everywhere."""
    return None


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _hsigmoid(x: Any) -> Any:
    return np.clip(x + 3, 0, 6) / 6


def _hswish_slope(g: Any, x: Any, y: Any) -> Any:
    inside = g * (x * (1 / 3) + 0.5)
    return _bar(x <= -3.0, two.WHERE(x >= 3.0, g, inside))


def _silu_slope(g: Any, x: Any, y: Any) -> Any:
    s = SIGMOID(x)
    return g * (s + y * (1.0 - s))


def _silu(x: Any) -> Any:
    return x * _sigmoid(x)


def _hswish(x: Any) -> Any:
    return x * _hsigmoid(x)


def _gelu(x: Any) -> Any:
    # erfc keeps the digits of the left tail, where 1 + erf would cancel.
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    return 0.5 * x * erfc(-x * math.sqrt(0.5))


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


def _exact_on_integers(function: Any) -> Any:
    """Apply a rounding function to floats and nothing to integers, which are whole already."""
    return lambda x: function(x) if x.dtype.kind == "f" else x


def _abs_infer(specs: Specs, attrs: Any) -> Specs:
    expect_category("abs", specs[0], (*NUMBER, COMPLEX))
    return (specs[0].with_dtype(part_of(specs[0].dtype)),)


def _abs_reference(arrays: Any, attrs: Any) -> Any:
    with np.errstate(all="ignore"):
        return (np.asarray(np.abs(widest(arrays[0]))).astype(part_of(arrays[0].dtype)),)


def _abs_slope(g: Any, x: Any, y: Any) -> Any:
    if not is_complex(x.dtype):
        return g * SIGN(x)
    share = g / two.WHERE(two.EQUAL(y, y.full((), 0.0)), y.full((), 1.0), y)
    real, imag = get_op("real")(x), get_op("imag")(x)
    return get_op("complex")(share * real, share * imag)


ABS: Op = Op(
    "abs",
    infer=_abs_infer,
    reference=_abs_reference,
    grad=unary_grad(_abs_slope),
    family="elementwise",
    takes_complex=True,
)
NEG: Op = unary("neg", np.negative, lambda g, x, y: -g, (*NUMBER, COMPLEX))
SIGN: Op = unary("sign", np.sign, _no_slope, NUMBER)
FLOOR: Op = unary("floor", _exact_on_integers(np.floor), _no_slope, NUMBER)
CEIL: Op = unary("ceil", _exact_on_integers(np.ceil), _no_slope, NUMBER)
ROUND: Op = unary("round", _exact_on_integers(np.rint), _no_slope, NUMBER)
SQUARE: Op = unary("square", lambda x: x * x, lambda g, x, y: g * (x * 2.0), NUMBER)
SQRT: Op = unary("sqrt", np.sqrt, lambda g, x, y: g * 0.5 / y)
RSQRT: Op = unary("rsqrt", lambda x: 1 / np.sqrt(x), lambda g, x, y: g * (y * y * y * -0.5))
RECIPROCAL: Op = unary("reciprocal", lambda x: 1 / x, lambda g, x, y: -(g * SQUARE(y)))
EXP: Op = unary("exp", np.exp, lambda g, x, y: g * y)
EXPM1: Op = unary("expm1", np.expm1, lambda g, x, y: g * EXP(x))
LOG: Op = unary("log", np.log, lambda g, x, y: g / x)
LOG1P: Op = unary("log1p", np.log1p, lambda g, x, y: g / (x + 1.0))
SIN: Op = unary("sin", np.sin, lambda g, x, y: g * COS(x))
COS: Op = unary("cos", np.cos, lambda g, x, y: -(g * SIN(x)))
TAN: Op = unary("tan", np.tan, lambda g, x, y: g * (SQUARE(y) + 1.0))
ASIN: Op = unary("asin", np.arcsin, lambda g, x, y: g * RSQRT(1.0 - SQUARE(x)))
ACOS: Op = unary("acos", np.arccos, lambda g, x, y: -(g * RSQRT(1.0 - SQUARE(x))))
ATAN: Op = unary("atan", np.arctan, lambda g, x, y: g / (SQUARE(x) + 1.0))
SINH: Op = unary("sinh", np.sinh, lambda g, x, y: g * COSH(x))
COSH: Op = unary("cosh", np.cosh, lambda g, x, y: g * SINH(x))
TANH: Op = unary("tanh", np.tanh, lambda g, x, y: g * (1.0 - SQUARE(y)))
ASINH: Op = unary("asinh", np.arcsinh, lambda g, x, y: g * RSQRT(SQUARE(x) + 1.0))
ACOSH: Op = unary("acosh", np.arccosh, lambda g, x, y: g * RSQRT(SQUARE(x) - 1.0))
ATANH: Op = unary("atanh", np.arctanh, lambda g, x, y: g / (1.0 - SQUARE(x)))
ERF: Op = unary("erf", _erf, lambda g, x, y: g * (EXP(-SQUARE(x)) * (2 / math.sqrt(math.pi))))
RELU: Op = unary("relu", lambda x: np.maximum(x, 0), lambda g, x, y: _bar(y <= 0, g), NUMBER)
RELU6: Op = unary(
    "relu6",
    lambda x: np.minimum(np.maximum(x, 0), 6).astype(x.dtype),
    lambda g, x, y: _gate(two.LOGICAL_AND(y > 0, y < 6), g),
    NUMBER,
)
SIGMOID: Op = unary("sigmoid", _sigmoid, lambda g, x, y: g * (y * (1.0 - y)))
HSIGMOID: Op = unary(
    "hsigmoid",
    _hsigmoid,
    lambda g, x, y: _gate(two.LOGICAL_AND(x > -3.0, x < 3.0), g * (1 / 6)),
)
HSWISH: Op = unary("hswish", _hswish, _hswish_slope)
SILU: Op = unary("silu", _silu, _silu_slope)
GELU: Op = unary("gelu", _gelu, lambda g, x, y: two.GELU_BACKWARD(g, x))
SOFTPLUS: Op = unary("softplus", _softplus, lambda g, x, y: g * SIGMOID(x))

ISNAN: Op = predicate("isnan", np.isnan, (FLOAT,), 1)
ISINF: Op = predicate("isinf", np.isinf, (FLOAT,), 1)
LOGICAL_NOT: Op = predicate("logical_not", lambda x: x == 0, ANY, 1)
BITWISE_NOT: Op = unary("bitwise_not", np.invert, None, (BOOL, INTEGER))

OPS: tuple[Op, ...] = (
    ABS, NEG, SIGN, FLOOR, CEIL, ROUND, SQUARE, SQRT, RSQRT, RECIPROCAL, EXP, EXPM1, LOG, LOG1P,
    SIN, COS, TAN, ASIN, ACOS, ATAN, SINH, COSH, TANH, ASINH, ACOSH, ATANH, ERF, RELU, RELU6,
    SIGMOID, HSIGMOID, HSWISH, SILU, GELU, SOFTPLUS, ISNAN, ISINF, LOGICAL_NOT, BITWISE_NOT,
)  # fmt: skip

"""Elementwise functions: numpy's broadcasting, promotion by category, Python scalars are weak."""

from __future__ import annotations

import sys
from typing import Any, cast

from ..errors import AttrError
from ..imperative.tensor import Tensor
from ..ops import operand
from .arguments import floating, run, tensor, tensors

__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "clip",
    "cos", "cosh", "div", "equal", "erf", "exp", "expm1", "floor", "floor_div", "greater",
    "greater_equal", "left_shift", "less", "less_equal", "log", "log1p", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "mod", "mul",
    "neg", "not_equal", "pow", "right_shift", "round", "sin", "sinh", "sqrt", "square", "sub",
    "tan", "tanh",
]  # fmt: skip


def _unary(op: str, x: Any) -> Tensor:
    return run(op, tensor(op, x))


def _unary_float(op: str, x: Any) -> Tensor:
    return run(op, floating(tensor(op, x)))


def _binary(op: str, x: Any, y: Any) -> Tensor:
    left, right = tensors(op, x, y)
    return cast(Tensor, operand.binary(op, left, right))


def abs(x: Tensor) -> Tensor:
    """Return the absolute value of each element.

    >>> abs(Tensor([-2.0, 3.0])).tolist()
    [2.0, 3.0]
    """
    return _unary("abs", x)


def neg(x: Tensor) -> Tensor:
    """Return the negative of each element.

    >>> neg(Tensor([-2, 3])).tolist()
    [2, -3]
    """
    return _unary("neg", x)


def square(x: Tensor) -> Tensor:
    """Return the square of each element.

    >>> square(Tensor([-2, 3])).tolist()
    [4, 9]
    """
    return _unary("square", x)


def ceil(x: Tensor) -> Tensor:
    """Round each element up; integers stay as they are.

    >>> ceil(Tensor([1.2, -1.2])).tolist()
    [2.0, -1.0]
    """
    return _unary("ceil", x)


def floor(x: Tensor) -> Tensor:
    """Round each element down; integers stay as they are.

    >>> floor(Tensor([1.2, -1.2])).tolist()
    [1.0, -2.0]
    """
    return _unary("floor", x)


def round(x: Tensor) -> Tensor:
    """Round each element to the nearest integer, halves to even.

    >>> round(Tensor([0.5, 1.5])).tolist()
    [0.0, 2.0]
    """
    return _unary("round", x)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of each element; integers are computed in float32.

    >>> sqrt(Tensor([4.0, 9.0])).tolist()
    [2.0, 3.0]
    """
    return _unary_float("sqrt", x)


def exp(x: Tensor) -> Tensor:
    """Return e to the power of each element; integers are computed in float32.

    >>> exp(Tensor([0.0])).tolist()
    [1.0]
    """
    return _unary_float("exp", x)


def expm1(x: Tensor) -> Tensor:
    """Return exp(x) - 1, accurate near zero.

    >>> expm1(Tensor([0.0])).tolist()
    [0.0]
    """
    return _unary_float("expm1", x)


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of each element; integers are computed in float32.

    >>> log(Tensor([1.0])).tolist()
    [0.0]
    """
    return _unary_float("log", x)


def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), accurate near zero.

    >>> log1p(Tensor([0.0])).tolist()
    [0.0]
    """
    return _unary_float("log1p", x)


def sin(x: Tensor) -> Tensor:
    """Return the sine of each element, in radians.

    >>> sin(Tensor([0.0])).tolist()
    [0.0]
    """
    return _unary_float("sin", x)


def cos(x: Tensor) -> Tensor:
    """Return the cosine of each element, in radians.

    >>> cos(Tensor([0.0])).tolist()
    [1.0]
    """
    return _unary_float("cos", x)


def tan(x: Tensor) -> Tensor:
    """Return the tangent of each element, in radians.

    >>> tan(Tensor([0.0])).tolist()
    [0.0]
    """
    return _unary_float("tan", x)


def asin(x: Tensor) -> Tensor:
    """Return the inverse sine of each element, in radians.

    >>> asin(Tensor([1.0])).numpy().round(3)
    array([1.571], dtype=float32)
    """
    return _unary_float("asin", x)


def acos(x: Tensor) -> Tensor:
    """Return the inverse cosine of each element, in radians.

    >>> acos(Tensor([0.0])).numpy().round(3)
    array([1.571], dtype=float32)
    """
    return _unary_float("acos", x)


def atan(x: Tensor) -> Tensor:
    """Return the inverse tangent of each element, in radians.

    >>> atan(Tensor([1.0])).numpy().round(3)
    array([0.785], dtype=float32)
    """
    return _unary_float("atan", x)


def sinh(x: Tensor) -> Tensor:
    """Return the hyperbolic sine of each element.

    >>> sinh(Tensor([0.0])).tolist()
    [0.0]
    """
    return _unary_float("sinh", x)


def cosh(x: Tensor) -> Tensor:
    """Return the hyperbolic cosine of each element.

    >>> cosh(Tensor([0.0])).tolist()
    [1.0]
    """
    return _unary_float("cosh", x)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of each element.

    >>> tanh(Tensor([0.0, 20.0])).tolist()
    [0.0, 1.0]
    """
    return _unary_float("tanh", x)


def asinh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine of each element.

    >>> asinh(Tensor([0.0])).tolist()
    [0.0]
    """
    return _unary_float("asinh", x)


def acosh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic cosine of each element.

    >>> acosh(Tensor([1.0])).tolist()
    [0.0]
    """
    return _unary_float("acosh", x)


def atanh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic tangent of each element.

    >>> atanh(Tensor([0.0])).tolist()
    [0.0]
    """
    return _unary_float("atanh", x)


def erf(x: Tensor) -> Tensor:
    """Return the error function of each element.

    >>> erf(Tensor([0.0, 9.0])).tolist()
    [0.0, 1.0]
    """
    return _unary_float("erf", x)


def add(x: Any, y: Any) -> Tensor:
    """Return x + y.

    >>> add(Tensor([1, 2]), 0.5).tolist()
    [1.5, 2.5]
    """
    return _binary("add", x, y)


def sub(x: Any, y: Any) -> Tensor:
    """Return x - y.

    >>> sub(Tensor([1, 2]), 1).tolist()
    [0, 1]
    """
    return _binary("sub", x, y)


def mul(x: Any, y: Any) -> Tensor:
    """Return x * y.

    >>> mul(Tensor([1, 2]), 3).tolist()
    [3, 6]
    """
    return _binary("mul", x, y)


def div(x: Any, y: Any) -> Tensor:
    """Return x / y, a float also for integers.

    >>> div(Tensor([1, 3]), 2).tolist()
    [0.5, 1.5]
    """
    return _binary("div", x, y)


def floor_div(x: Any, y: Any) -> Tensor:
    """Return x / y rounded down.

    >>> floor_div(Tensor([7, -7]), 2).tolist()
    [3, -4]
    """
    return _binary("floor_div", x, y)


def mod(x: Any, y: Any) -> Tensor:
    """Return the remainder of floor_div, with the sign of y.

    >>> mod(Tensor([7, -7]), 4).tolist()
    [3, 1]
    """
    return _binary("mod", x, y)


def pow(x: Any, y: Any) -> Tensor:
    """Return x to the power of y.

    >>> pow(Tensor([2.0, 3.0]), 3).tolist()
    [8.0, 27.0]
    """
    if isinstance(y, (int, float)) and y == 2:
        return square(x)
    return _binary("pow", x, y)


def atan2(y: Any, x: Any) -> Tensor:
    """Return the angle of the point (x, y), in radians from -pi to pi.

    >>> atan2(Tensor([1.0]), Tensor([-1.0])).numpy().round(3)
    array([2.356], dtype=float32)
    """
    return _binary("atan2", y, x)


def logaddexp(x: Any, y: Any) -> Tensor:
    """Return log(exp(x) + exp(y)) without overflow.

    >>> logaddexp(Tensor([1000.0]), 1000.0).numpy().round(2)
    array([1000.69], dtype=float32)
    """
    return _binary("logaddexp", x, y)


def maximum(x: Any, y: Any) -> Tensor:
    """Return the larger of x and y; NaN wins.

    >>> maximum(Tensor([1, 5]), 3).tolist()
    [3, 5]
    """
    return _binary("maximum", x, y)


def minimum(x: Any, y: Any) -> Tensor:
    """Return the smaller of x and y; NaN wins.

    >>> minimum(Tensor([1, 5]), 3).tolist()
    [1, 3]
    """
    return _binary("minimum", x, y)


def equal(x: Any, y: Any) -> Tensor:
    """Return x == y as bool.

    >>> equal(Tensor([1, 2]), 2).tolist()
    [False, True]
    """
    return _binary("equal", x, y)


def not_equal(x: Any, y: Any) -> Tensor:
    """Return x != y as bool.

    >>> not_equal(Tensor([1, 2]), 2).tolist()
    [True, False]
    """
    return _binary("not_equal", x, y)


def less(x: Any, y: Any) -> Tensor:
    """Return x < y as bool.

    >>> less(Tensor([1, 2]), 2).tolist()
    [True, False]
    """
    return _binary("less", x, y)


def less_equal(x: Any, y: Any) -> Tensor:
    """Return x <= y as bool.

    >>> less_equal(Tensor([1, 3]), 2).tolist()
    [True, False]
    """
    return _binary("less_equal", x, y)


def greater(x: Any, y: Any) -> Tensor:
    """Return x > y as bool.

    >>> greater(Tensor([2, 3]), 2).tolist()
    [False, True]
    """
    return _binary("greater", x, y)


def greater_equal(x: Any, y: Any) -> Tensor:
    """Return x >= y as bool.

    >>> greater_equal(Tensor([1, 2]), 2).tolist()
    [False, True]
    """
    return _binary("greater_equal", x, y)


def logical_and(x: Any, y: Any) -> Tensor:
    """Return whether both are non-zero, as bool.

    >>> logical_and(Tensor([True, True]), Tensor([True, False])).tolist()
    [True, False]
    """
    return _binary("logical_and", x, y)


def logical_or(x: Any, y: Any) -> Tensor:
    """Return whether one is non-zero, as bool.

    >>> logical_or(Tensor([True, False]), Tensor([False, False])).tolist()
    [True, False]
    """
    return _binary("logical_or", x, y)


def logical_xor(x: Any, y: Any) -> Tensor:
    """Return whether exactly one is non-zero, as bool.

    >>> logical_xor(Tensor([True, True]), Tensor([True, False])).tolist()
    [False, True]
    """
    return _binary("logical_xor", x, y)


def logical_not(x: Tensor) -> Tensor:
    """Return whether each element is zero, as bool.

    >>> logical_not(Tensor([True, False])).tolist()
    [False, True]
    """
    return _unary("logical_not", x)


def left_shift(x: Any, y: Any) -> Tensor:
    """Shift the bits of integers x left by y.

    >>> left_shift(Tensor([1, 3]), 2).tolist()
    [4, 12]
    """
    return _binary("left_shift", x, y)


def right_shift(x: Any, y: Any) -> Tensor:
    """Shift the bits of integers x right by y.

    >>> right_shift(Tensor([8, -8]), 2).tolist()
    [2, -2]
    """
    return _binary("right_shift", x, y)


def clip(x: Tensor, lower: Any = None, upper: Any = None) -> Tensor:
    """Limit each element to lower..upper; None leaves a side open.

    Raises:
        AttrError: where both sides are open, or lower is larger than upper.

    >>> clip(Tensor([-1, 2, 9]), 0, 5).tolist()
    [0, 2, 5]
    """
    if lower is None and upper is None:
        raise AttrError("clip: no limit was given, expected lower, upper or both")
    both = isinstance(lower, (int, float)) and isinstance(upper, (int, float))
    if both and lower > upper:
        raise AttrError(
            f"clip: limits are crossed, got lower {lower} and upper {upper}, "
            "expected lower <= upper"
        )
    if lower is not None:
        x = maximum(x, lower)
    return x if upper is None else minimum(x, upper)


def __getattr__(name: str) -> Any:
    # MegEngine had these here first, and still finds them.
    if name in ("hsigmoid", "hswish", "relu", "relu6", "sigmoid"):
        from . import nn

        return getattr(nn, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )

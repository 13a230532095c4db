"""Arithmetic, comparison, logic and bits, element by element."""

from __future__ import annotations

import numpy as np

from ..node import Node
from ..table import operator
from .common import Tensor, binary, is_float, reshaped, run, scalar

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "IsNaN": "isnan", "Log": "log",
    "Neg": "neg", "Not": "logical_not", "Reciprocal": "reciprocal", "Round": "round",
    "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip

_BINARY = {
    "Add": "add", "And": "logical_and", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "Less": "less", "LessOrEqual": "less_equal", "Mul": "mul", "Or": "logical_or", "Sub": "sub",
    "Xor": "logical_xor", "Equal": "equal",
}  # fmt: skip


def _enter_unary(name: str, op: str) -> None:
    @operator(name)
    def apply(node: Node, x: Tensor) -> Tensor:
        return run(op, x)


def _enter_binary(name: str, op: str) -> None:
    # Before version 7 the second operand was spread by attributes.
    @operator(name, 7)
    def apply(node: Node, a: Tensor, b: Tensor) -> Tensor:
        return run(op, a, b)


for _name, _op in _UNARY.items():
    _enter_unary(_name, _op)
for _name, _op in _BINARY.items():
    _enter_binary(_name, _op)


def truncated_div(a: Tensor, b: Tensor) -> Tensor:
    """Divide integers and round towards zero."""
    down = run("floor_div", a, b)
    if a.dtype.kind == "u":
        return down
    rest = run("not_equal", run("mul", down, b), a)
    apart = run("not_equal", binary("less", a, 0), binary("less", b, 0))
    up = run("logical_and", rest, apart).astype(a.dtype)
    return run("add", down, up)


@operator("Div", 7)
def div(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Divide; integers are rounded towards zero."""
    return run("div", a, b) if is_float(a) else truncated_div(a, b)


@operator("Mod", 10)
def mod(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Return the remainder with the divisor's sign, with ``fmod`` with the dividend's."""
    if not node.flag("fmod"):
        return run("mod", a, b)
    size = run("mod", _size(a), _size(b))
    if is_float(a):
        # A finite dividend is its own remainder by infinity.
        own = run("logical_and", run("isinf", b), run("logical_not", run("isinf", a)))
        size = run("where", own, _size(a), size)
    return (
        run("where", binary("less", a, 0), run("neg", size), size) if a.dtype.kind != "u" else size
    )


def _size(x: Tensor) -> Tensor:
    return x if x.dtype.kind == "u" else run("abs", x)


@operator("Pow", 7)
def power(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """Raise to a power; the result has the base's dtype."""
    if is_float(x):
        return run("pow", x, y.astype(x.dtype))
    if is_float(y):
        return run("pow", x.astype("float64"), y.astype("float64")).astype(x.dtype)
    return run("pow", x, y.astype(x.dtype))


def _fold(op: str, values: tuple[Tensor, ...]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = run(op, total, value)
    return total


@operator("Max")
def maximum(node: Node, x: Tensor, *more: Tensor) -> Tensor:
    return _fold("maximum", (x, *more))


@operator("Min")
def minimum(node: Node, x: Tensor, *more: Tensor) -> Tensor:
    return _fold("minimum", (x, *more))


@operator("Sum")
def total(node: Node, x: Tensor, *more: Tensor) -> Tensor:
    return _fold("add", (x, *more))


@operator("Mean")
def mean(node: Node, x: Tensor, *more: Tensor) -> Tensor:
    return binary("div", _fold("add", (x, *more)), 1 + len(more))


@operator("Where", 9)
def where(node: Node, mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return run("where", mask, x, y)


@operator("IsInf", 10)
def isinf(node: Node, x: Tensor) -> Tensor:
    """Tell which elements are infinite, of one sign or both."""
    up, down = node.flag("detect_positive", True), node.flag("detect_negative", True)
    if up and down:
        return run("isinf", x)
    if not up and not down:
        return run("isinf", run("where", run("isinf", x), scalar(x, 0), scalar(x, 0)))
    return binary("equal", x, np.inf if up else -np.inf)


@operator("BitShift", 11)
def bit_shift(node: Node, x: Tensor, by: Tensor) -> Tensor:
    """Shift bits; shifting by the width or more leaves zero, or -1 of what was negative."""
    side = node.text("direction", allowed=("LEFT", "RIGHT"))
    width = x.dtype.itemsize * 8
    all_out = binary("greater_equal", by, width)
    shifted = run("left_shift" if side == "LEFT" else "right_shift", x,
                  run("where", all_out, scalar(by, 0), by))  # fmt: skip
    rest = scalar(x, 0)
    if side == "RIGHT" and x.dtype.kind == "i":
        rest = run("where", binary("less", x, 0), scalar(x, -1), rest)
    return run("where", all_out, rest, shifted)


@operator("Clip", 11, frozen=(1, 2))
def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Limit to low..high, high winning where they are crossed."""
    if low is not None:
        x = run("maximum", x, reshaped(low, ()))
    return x if high is None else run("minimum", x, reshaped(high, ()))


@operator("Clip", 6, 10)
def clip_by_attributes(node: Node, x: Tensor) -> Tensor:
    if node.has("min"):
        x = binary("maximum", x, node.float("min"))
    return binary("minimum", x, node.float("max")) if node.has("max") else x

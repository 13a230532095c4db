"""How ops of two or three operands are written: arithmetic, comparisons, logic, bits."""

from __future__ import annotations

import math

import numpy as np

from ... import dtypes
from ...graph.graph import Node
from ..writer import Writer, exporter, spec_of
from .elementwise import as_bool
from .reduction import widened

_ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow"}
_EXTREMES = {"maximum": ("Max", "Or"), "minimum": ("Min", "And")}
_OF_BOOLS = {"add": "Or", "mul": "And"}
_COMPARISONS = {
    "equal": ("Equal", False), "not_equal": ("Equal", True), "less": ("Less", False),
    "less_equal": ("LessOrEqual", False), "greater": ("Greater", False),
    "greater_equal": ("GreaterOrEqual", False),
}  # fmt: skip
_LOGIC = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
_BITS = {
    "bitwise_and": ("And", "BitwiseAnd"), "bitwise_or": ("Or", "BitwiseOr"),
    "bitwise_xor": ("Xor", "BitwiseXor"),
}  # fmt: skip
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@exporter(*_ARITHMETIC)
def arithmetic(w: Writer, node: Node, x: str, y: str) -> str:
    """Write arithmetic; sums and products of bools are logic."""
    name = node.op.name
    dtype = spec_of(node).dtype
    wide = widened(dtype)
    if name == "pow" and wide != dtype:
        return w.cast(w.op("Pow", w.cast(x, wide), w.cast(y, wide)), dtype)
    return w.op(_OF_BOOLS[name] if dtypes.is_bool(dtype) else _ARITHMETIC[name], x, y)


@exporter(*_EXTREMES)
def extreme(w: Writer, node: Node, x: str, y: str) -> str:
    """Write the larger or smaller of two."""
    numbers, bools = _EXTREMES[node.op.name]
    return w.op(bools if dtypes.is_bool(spec_of(node).dtype) else numbers, x, y)


@exporter(*_COMPARISONS)
def comparison(w: Writer, node: Node, x: str, y: str) -> str:
    """Write a comparison; bools are compared as numbers where ONNX does not order them."""
    op_type, negated = _COMPARISONS[node.op.name]
    if dtypes.is_bool(spec_of(node).dtype) and op_type != "Equal":
        x, y = w.cast(x, np.int32), w.cast(y, np.int32)
    found = w.op(op_type, x, y)
    return w.op("Not", found) if negated else found


@exporter(*_LOGIC)
def logic(w: Writer, node: Node, x: str, y: str) -> str:
    """Write logic of what is not zero."""
    return w.op(_LOGIC[node.op.name], as_bool(w, node, 0, x), as_bool(w, node, 1, y))


@exporter(*_BITS)
def bits(w: Writer, node: Node, x: str, y: str) -> str:
    """Write an operation on bits."""
    bools, integers = _BITS[node.op.name]
    if dtypes.is_bool(spec_of(node).dtype):
        return w.op(bools, x, y)
    w.needs(18, integers)
    return w.op(integers, x, y)


@exporter("where")
def where(w: Writer, node: Node, mask: str, x: str, y: str) -> str:
    """Write a choice by a mask."""
    return w.op("Where", mask, x, y)


@exporter("floor_div")
def floor_div(w: Writer, node: Node, x: str, y: str) -> str:
    """Write a quotient rounded down; integers divided by zero give zero."""
    dtype = spec_of(node).dtype
    if dtypes.is_float(dtype):
        return w.op("Floor", w.op("Div", x, y))
    zero, one = w.scalar(0, dtype), w.scalar(1, dtype)
    by_zero = w.op("Equal", y, zero)
    safe = w.op("Where", by_zero, one, y)
    quotient = w.op("Div", x, safe)
    if dtype.kind == "i":  # ONNX rounds towards zero
        rest = w.op("Sub", x, w.op("Mul", quotient, safe))
        uneven = w.op("Not", w.op("Equal", rest, zero))
        opposed = w.op("Xor", w.op("Less", rest, zero), w.op("Less", safe, zero))
        lower = w.op("And", uneven, opposed)
        quotient = w.op("Where", lower, w.op("Sub", quotient, one), quotient)
    return w.op("Where", by_zero, zero, quotient)


@exporter("mod")
def mod(w: Writer, node: Node, x: str, y: str) -> str:
    """Write a remainder with the divisor's sign; integers modulo zero give zero."""
    dtype = spec_of(node).dtype
    zero = w.scalar(0, dtype)
    if dtypes.is_float(dtype):
        rest = w.op("Mod", x, y, fmod=1)
        uneven = w.op("Not", w.op("Equal", rest, zero))
        opposed = w.op("Xor", w.op("Less", rest, zero), w.op("Less", y, zero))
        return w.op("Where", w.op("And", uneven, opposed), w.op("Add", rest, y), rest)
    by_zero = w.op("Equal", y, zero)
    safe = w.op("Where", by_zero, w.scalar(1, dtype), y)
    return w.op("Where", by_zero, zero, w.op("Mod", x, safe))


@exporter("atan2")
def atan2(w: Writer, node: Node, y: str, x: str) -> str:
    """Write the angle of (x, y) by quadrants."""
    dtype = spec_of(node).dtype
    zero = w.scalar(0, dtype)
    below = w.op("Less", y, zero)
    upright = w.op("Equal", x, zero)
    safe = w.op("Where", upright, w.scalar(1, dtype), x)
    angle = w.op("Atan", w.op("Div", y, safe))
    turn = w.op("Where", below, w.scalar(-math.pi, dtype), w.scalar(math.pi, dtype))
    turned = w.op("Where", w.op("Less", x, zero), w.op("Add", angle, turn), angle)
    vertical = w.op("Mul", w.op("Sign", y), w.scalar(math.pi / 2, dtype))
    return w.op("Where", upright, vertical, turned)


@exporter("logaddexp")
def logaddexp(w: Writer, node: Node, x: str, y: str) -> str:
    """Write log(e^x + e^y) as the larger plus softplus of minus the distance."""
    equal = w.op("Equal", x, y)  # infinities of one sign have no difference
    distance = w.op("Abs", w.op("Sub", x, y))
    safe = w.op("Where", equal, w.scalar(0, spec_of(node).dtype), distance)
    return w.op("Add", w.op("Max", x, y), w.op("Softplus", w.op("Neg", safe)))


@exporter("left_shift", "right_shift")
def shift(w: Writer, node: Node, x: str, y: str) -> str:
    """Write a shift of bits, which ONNX knows for unsigned integers."""
    dtype = spec_of(node).dtype
    left = node.op.name == "left_shift"
    direction = "LEFT" if left else "RIGHT"
    if dtype.kind == "u":
        return w.op("BitShift", x, y, direction=direction)
    unsigned = _UNSIGNED[dtype.itemsize]
    by = w.cast(y, unsigned)
    if left:
        return w.cast(w.op("BitShift", w.cast(x, unsigned), by, direction=direction), dtype)
    # x >> k is ~(~x >> k) for a negative x, and ~x is -1 - x.
    minus_one = w.scalar(-1, dtype)
    negative = w.op("Less", x, w.scalar(0, dtype))
    flipped = w.op("Where", negative, w.op("Sub", minus_one, x), x)
    moved = w.cast(w.op("BitShift", w.cast(flipped, unsigned), by, direction=direction), dtype)
    return w.op("Where", negative, w.op("Sub", minus_one, moved), moved)

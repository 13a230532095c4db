"""Binary and ternary elementwise ops: arithmetic, comparison, logic, bits and selection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import is_bool, is_complex
from ..errors import DataError, DTypeError
from ..op import Grad, GradContext, Op, Specs, TensorSpec, expect_same_dtype
from ..registry import get_op
from . import elementwise_unary as one
from .elementwise_rules import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INTEGER,
    NUMBER,
    binary,
    predicate,
)  # fmt: skip
from .operand import unbroadcast

Slope = Callable[[Any, Any, Any, Any], Any]


def _pair(left: Slope | None, right: Slope | None) -> Grad:
    """Make a gradient from one slope ``(g, a, b, y)`` per input; None stands for zero."""

    def grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
        g = grads[0]
        if g is None:
            return (None, None)
        (a, b), (y,), (needs_a, needs_b) = ctx.inputs, ctx.outputs, ctx.needs
        return (
            unbroadcast(left(g, a, b, y), a.shape) if needs_a and left is not None else None,
            unbroadcast(right(g, a, b, y), b.shape) if needs_b and right is not None else None,
        )

    return grad


def _conjugate(value: Any) -> Any:
    """Return the conjugate: gradients of complex values are those in real and imaginary part."""
    if not is_complex(value.dtype):
        return value
    real, imag = get_op("real")(value), get_op("imag")(value)
    return get_op("complex")(real, one.NEG(imag))


def _zero(g: Any) -> Any:
    return g.full((), 0.0)


def _pow_base(g: Any, a: Any, b: Any, y: Any) -> Any:
    # At exponent 0 the slope is 0 even where the power of the base is infinite.
    slope = g * (b * POW(a, b - 1.0))
    return WHERE(EQUAL(b, _zero(b)), _zero(g), slope)


def _pow_exponent(g: Any, a: Any, b: Any, y: Any) -> Any:
    # 0 ** b is constant for b >= 0; the logarithm is kept finite there.
    flat = LOGICAL_AND(EQUAL(a, _zero(a)), b >= 0.0)
    safe = WHERE(flat, a.full((), 1.0), a)
    return WHERE(flat, _zero(g), g * (y * one.LOG(safe)))


def _integer_safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give 0 for an integer division by zero."""

    def compute(a: Any, b: Any) -> Any:
        if a.dtype.kind == "f":
            return function(a, b)
        return np.where(b == 0, 0, function(a, np.where(b == 0, 1, b)))

    return compute


def check_powers(a: np.ndarray, b: np.ndarray) -> None:
    """Raise DataError where an integer would be raised to a negative power."""
    if b.dtype.kind == "i" and b.size and a.size and int(b.min()) < 0:
        raise DataError(
            f"pow: an integer cannot be raised to a negative power, got {int(b.min())}, "
            "expected 0 or more"
        )


def _pow(a: Any, b: Any) -> Any:
    check_powers(a, b)
    return np.power(a, b)


def _normal_density(x: Any) -> Any:
    return one.EXP(one.SQUARE(x) * -0.5) * (1 / math.sqrt(2 * math.pi))


def _gelu_backward(g: Any, x: Any) -> Any:
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    # Beyond, the slope is 1 or next to nothing, at infinities too. It is never zero: an infinite
    # gradient stays infinite.
    near = np.clip(x, -37.0, 37.0)
    density = np.exp(near * near * -0.5) / math.sqrt(2 * math.pi)
    return g * (0.5 * erfc(-near * math.sqrt(0.5)) + near * density)


def _logical(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(a != 0, b != 0)


ADD: Op = binary("add", np.add, _pair(lambda g, a, b, y: g, lambda g, a, b, y: g), (*ANY, COMPLEX))
SUB: Op = binary(
    "sub", np.subtract, _pair(lambda g, a, b, y: g, lambda g, a, b, y: -g), (*NUMBER, COMPLEX)
)
MUL: Op = binary(
    "mul",
    np.multiply,
    _pair(lambda g, a, b, y: g * _conjugate(b), lambda g, a, b, y: g * _conjugate(a)),
    (*ANY, COMPLEX),
)
DIV: Op = binary(
    "div",
    np.divide,
    _pair(lambda g, a, b, y: g / _conjugate(b), lambda g, a, b, y: -(g * _conjugate(y / b))),
    (FLOAT, COMPLEX),
)
FLOOR_DIV: Op = binary("floor_div", _integer_safe(np.floor_divide), _pair(None, None), NUMBER)
MOD: Op = binary(
    "mod",
    _integer_safe(np.mod),
    _pair(lambda g, a, b, y: g, lambda g, a, b, y: -(g * FLOOR_DIV(a, b))),
    NUMBER,
)
POW: Op = binary("pow", _pow, _pair(_pow_base, _pow_exponent), NUMBER)
MAXIMUM: Op = binary(
    "maximum",
    np.maximum,
    _pair(
        lambda g, a, b, y: WHERE(a >= b, g, _zero(g)),
        lambda g, a, b, y: WHERE(a >= b, _zero(g), g),
    ),
    ANY,
)
MINIMUM: Op = binary(
    "minimum",
    np.minimum,
    _pair(
        lambda g, a, b, y: WHERE(a <= b, g, _zero(g)),
        lambda g, a, b, y: WHERE(a <= b, _zero(g), g),
    ),
    ANY,
)
ATAN2: Op = binary(
    "atan2",
    np.arctan2,
    _pair(
        lambda g, a, b, y: g * (b / (one.SQUARE(a) + one.SQUARE(b))),
        lambda g, a, b, y: -(g * (a / (one.SQUARE(a) + one.SQUARE(b)))),
    ),
    (FLOAT,),
)
LOGADDEXP: Op = binary(
    "logaddexp",
    np.logaddexp,
    _pair(
        lambda g, a, b, y: g * one.SIGMOID(a - b),
        lambda g, a, b, y: g * one.SIGMOID(b - a),
    ),
    (FLOAT,),
)

GELU_BACKWARD: Op = binary(
    "gelu_backward",
    _gelu_backward,
    _pair(
        lambda g, a, b, y: GELU_BACKWARD(g, b),
        lambda g, a, b, y: g * (a * (_normal_density(b) * (2.0 - one.SQUARE(b)))),
    ),
    (FLOAT,),
)

EQUAL: Op = predicate("equal", np.equal, (*ANY, COMPLEX), 2)
NOT_EQUAL: Op = predicate("not_equal", np.not_equal, (*ANY, COMPLEX), 2)
LESS: Op = predicate("less", np.less, ANY, 2)
LESS_EQUAL: Op = predicate("less_equal", np.less_equal, ANY, 2)
GREATER: Op = predicate("greater", np.greater, ANY, 2)
GREATER_EQUAL: Op = predicate("greater_equal", np.greater_equal, ANY, 2)
LOGICAL_AND: Op = predicate("logical_and", _logical(np.logical_and), ANY, 2)
LOGICAL_OR: Op = predicate("logical_or", _logical(np.logical_or), ANY, 2)
LOGICAL_XOR: Op = predicate("logical_xor", _logical(np.logical_xor), ANY, 2)
BITWISE_AND: Op = binary("bitwise_and", np.bitwise_and, None, (BOOL, INTEGER))
BITWISE_OR: Op = binary("bitwise_or", np.bitwise_or, None, (BOOL, INTEGER))
BITWISE_XOR: Op = binary("bitwise_xor", np.bitwise_xor, None, (BOOL, INTEGER))
LEFT_SHIFT: Op = binary("left_shift", np.left_shift, None, (INTEGER,))
RIGHT_SHIFT: Op = binary("right_shift", np.right_shift, None, (INTEGER,))


def _where_infer(specs: Specs, attrs: Any) -> Specs:
    mask, x, y = specs
    if not is_bool(mask.dtype):
        raise DTypeError(
            f"where: the mask has the wrong dtype, got {mask.dtype.name}, expected bool"
        )
    expect_same_dtype("where", (x, y))
    shape = shapes.broadcast("where", *(spec.shape for spec in specs))
    return (TensorSpec(shape, x.dtype, x.device),)


def _where_reference(arrays: Sequence[np.ndarray], attrs: Any) -> Sequence[np.ndarray]:
    return (np.where(*arrays),)


def _where_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (mask, x, y), g = ctx.inputs, grads[0]
    if g is None:
        return (None, None, None)
    dx = unbroadcast(WHERE(mask, g, _zero(g)), x.shape) if ctx.needs[1] else None
    dy = unbroadcast(WHERE(mask, _zero(g), g), y.shape) if ctx.needs[2] else None
    return (None, dx, dy)


WHERE: Op = Op(
    "where",
    infer=_where_infer,
    reference=_where_reference,
    grad=_where_grad,
    n_inputs=3,
    family="elementwise",
    takes_complex=True,
)

OPS: tuple[Op, ...] = (
    ADD, SUB, MUL, DIV, FLOOR_DIV, MOD, POW, MAXIMUM, MINIMUM, ATAN2, LOGADDEXP, EQUAL, NOT_EQUAL,
    LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, LOGICAL_AND, LOGICAL_OR, LOGICAL_XOR, BITWISE_AND,
    BITWISE_OR, BITWISE_XOR, LEFT_SHIFT, RIGHT_SHIFT, WHERE, GELU_BACKWARD,
)  # fmt: skip

"""Calls of the elementwise ops: every dtype, odd tails, broadcasting, zero and single elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import DTypeError, ShapeError
from . import (
    FLOATS,
    INTEGERS,
    LARGE,
    Case,
    Invalid,
    Source,
    fixed,
    flags,
    number,
    real,
    spec,
    whole,
)

SHAPES: tuple[tuple[int, ...], ...] = (
    (), (1,), (0, 3), (7,), (33,), (3, 5, 17), (1027,), (2, 19, 3, 4),
)  # fmt: skip
PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()), ((33,), (33,)), ((4, 67), (4, 67)), ((4, 67), (67,)), ((67,), ()), ((), (3, 19)),
    ((3, 1, 5), (4, 1)), ((2, 3, 17), (2, 1, 17)), ((5, 8, 3), (8, 1)), ((0, 3), (3,)),
    ((1,), (1, 1)), ((2, 16, 9), (1, 16, 1)), ((2, 19, 3, 4), (2, 19, 3, 4)),
)  # fmt: skip

# Where each float-only op is defined, and what its gradient must not come close to.
DOMAINS: dict[str, tuple[float, float, tuple[float, ...]]] = {
    "sqrt": (0.1, 9, ()), "rsqrt": (0.1, 9, ()), "reciprocal": (-3, 3, (0,)), "exp": (-9, 9, ()),
    "expm1": (-5, 5, ()), "log": (0.05, 20, ()), "log1p": (-0.9, 9, ()), "sin": (-9, 9, ()),
    "cos": (-9, 9, ()), "tan": (-1.3, 1.3, ()), "asin": (-0.95, 0.95, ()),
    "acos": (-0.95, 0.95, ()), "atan": (-9, 9, ()), "sinh": (-5, 5, ()), "cosh": (-5, 5, ()),
    "tanh": (-5, 5, ()), "asinh": (-9, 9, ()), "acosh": (1.1, 9, ()), "atanh": (-0.9, 0.9, ()),
    "erf": (-4, 4, ()), "sigmoid": (-9, 9, ()), "hsigmoid": (-5, 5, (-3, 3)),
    "hswish": (-5, 5, (-3, 3)), "silu": (-9, 9, ()), "gelu": (-5, 5, ()), "softplus": (-20, 20, ()),
}  # fmt: skip
NUMBER_DOMAINS: dict[str, tuple[float, float, tuple[float, ...]]] = {
    "abs": (-4, 4, (0,)), "neg": (-4, 4, ()), "sign": (-4, 4, (0,)),
    "floor": (-4, 4, tuple(range(-4, 5))), "ceil": (-4, 4, tuple(range(-4, 5))),
    "round": (-4, 4, tuple(n + 0.5 for n in range(-4, 4))), "square": (-4, 4, ()),
    "relu": (-4, 4, (0,)), "relu6": (-4, 10, (0, 6)),
}  # fmt: skip
EXACT = frozenset(
    {"abs", "neg", "sign", "floor", "ceil", "round", "relu", "relu6", "maximum", "minimum",
     "add", "sub", "mul"}
)  # fmt: skip

BINARY_DTYPES: dict[str, tuple[str, ...]] = {
    "add": ("bool", *INTEGERS, *FLOATS), "sub": (*INTEGERS, *FLOATS),
    "mul": ("bool", *INTEGERS, *FLOATS), "div": FLOATS, "floor_div": (*INTEGERS, *FLOATS),
    "mod": (*INTEGERS, *FLOATS), "pow": (*INTEGERS, *FLOATS),
    "maximum": ("bool", *INTEGERS, *FLOATS), "minimum": ("bool", *INTEGERS, *FLOATS),
    "atan2": FLOATS, "logaddexp": FLOATS, "gelu_backward": FLOATS,
    "bitwise_and": ("bool", *INTEGERS), "bitwise_or": ("bool", *INTEGERS),
    "bitwise_xor": ("bool", *INTEGERS), "left_shift": INTEGERS, "right_shift": INTEGERS,
}  # fmt: skip
COMPARISONS = (
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor",
)  # fmt: skip
# Formulas in use cancel near a zero of these, and so have an absolute error there.
CANCELLING = frozenset({"sin", "cos", "tan", "log", "softplus", "acos", "gelu"})


def _unary() -> Iterator[Case]:
    for name, (low, high, avoid) in {**DOMAINS, **NUMBER_DOMAINS}.items():
        magnitude = 1.0 if name in CANCELLING else 0.05
        exact = name in EXACT
        for dtype in FLOATS:
            shapes = SHAPES if dtype == "float32" else SHAPES[2:5]
            for shape in shapes:
                yield Case(
                    name,
                    (real(shape, dtype, low, high),),
                    magnitude=magnitude,
                    exact=exact,
                )
        if name in ("exp", "relu", "sigmoid", "gelu"):
            large = real(LARGE, "float32", low, high)
            yield Case(name, (large,), magnitude=magnitude, exact=exact)
        for dtype in INTEGERS if name in NUMBER_DOMAINS else ():
            yield Case(name, (whole((37,), dtype, int(low), int(high)),), exact=True)
        yield Case(name, (real((2, 5), "float64", low, high, avoid),), grad=(0,))
    for name in ("isnan", "isinf"):
        for dtype in FLOATS:
            values = [0.0, np.nan, np.inf, -np.inf, 1.5, -2.0, np.nan]
            yield Case(name, (fixed(values, dtype),), exact=True)
    for dtype in ("bool", *INTEGERS, *FLOATS):
        yield Case("logical_not", (number((41,), dtype, -1, 1),), exact=True)
    for dtype in ("bool", *INTEGERS):
        yield Case("bitwise_not", (number((41,), dtype),), exact=True)


def _operands(name: str, a: Sequence[int], b: Sequence[int], dtype: str) -> tuple[Source, Source]:
    """Make two inputs on which an op is defined and gives nothing that depends on rounding."""
    if name == "pow":
        if dtype in FLOATS:
            return real(a, dtype, 0.2, 3), real(b, dtype, -2, 2)
        return whole(a, dtype, -3, 3), whole(b, dtype, 0, 4)
    if name in ("left_shift", "right_shift"):
        return whole(a, dtype, -9, 9), whole(b, dtype, 0, 6)
    if name == "div" or (name in ("floor_div", "mod") and dtype in FLOATS):
        return real(a, dtype, -4, 4), real(b, dtype, -3, 3, avoid=(0, -0.1, 0.1))
    return number(a, dtype), number(b, dtype)


def _binary() -> Iterator[Case]:
    for name, dtypes in BINARY_DTYPES.items():
        for dtype in dtypes:
            pairs = PAIRS if dtype in ("float32", "int32") else PAIRS[1:3]
            exact = dtype not in FLOATS or name in EXACT
            # A quotient of short floats often lies within rounding of an integer.
            if name in ("floor_div", "mod") and dtype in ("float16", "bfloat16"):
                exact = False
            for a, b in pairs:
                yield Case(name, _operands(name, a, b, dtype), exact=exact)
    for name in COMPARISONS:
        for dtype in ("bool", *INTEGERS, *FLOATS):
            pairs = PAIRS if dtype == "float32" else PAIRS[1:3]
            for a, b in pairs:
                yield Case(name, (number(a, dtype, -1, 1), number(b, dtype, -1, 1)), exact=True)
    for a, b in ((LARGE, LARGE), (LARGE, LARGE[1:])):
        yield Case("add", (real(a), real(b)), exact=True)
        yield Case("gelu_backward", (real(a), real(b, "float32", -8, 8)))
    yield from _binary_gradients()


def _binary_gradients() -> Iterator[Case]:
    for a, b in (((2, 3), (2, 3)), ((2, 3), (3,)), ((), (2, 1, 2))):
        for name in ("add", "sub", "mul", "atan2", "logaddexp", "gelu_backward"):
            yield Case(name, (real(a, "float64", 0.3), real(b, "float64", 0.2)), grad=(0, 1))
        yield Case("div", _operands("div", a, b, "float64"), grad=(0, 1))
        yield Case("pow", _operands("pow", a, b, "float64"), grad=(0, 1))
        for name in ("maximum", "minimum"):
            apart = (real(a, "float64", -2, 0.4), real(b, "float64", 0.5, 2))
            yield Case(name, apart, grad=(0, 1))
        quotients = (real(a, "float64", 4.1, 4.4), real(b, "float64", 1.5, 1.9))
        yield Case("mod", quotients, grad=(0, 1))
        yield Case("floor_div", quotients, grad=(0, 1))


def _where() -> Iterator[Case]:
    for dtype in ("bool", *INTEGERS, *FLOATS):
        yield Case(
            "where", (flags((3, 35)), number((3, 35), dtype), number((35,), dtype)), exact=True
        )
    for mask, a, b in (((), (), ()), ((4, 1), (1, 5), ()), ((0,), (0,), (1,)), ((7,), (), (2, 7))):
        yield Case("where", (flags(mask), real(a), real(b)), exact=True)
    inputs = (flags((3, 2)), real((3, 2), "float64"), real((2,), "float64"))
    yield Case("where", inputs, grad=(1, 2))


def _integer_division() -> Iterator[Case]:
    """Division by zero gives 0, signs follow the divisor, and the extremes wrap."""
    for dtype in ("int8", "int32", "int64"):
        low = int(np.iinfo(dtype).min)
        a = fixed([7, -7, 7, -7, 5, 0, low, low], dtype)
        b = fixed([2, 2, -2, -2, 0, 0, 3, 1], dtype)
        for name in ("floor_div", "mod"):
            yield Case(name, (a, b), exact=True)


CASES: tuple[Case, ...] = (*_unary(), *_binary(), *_where(), *_integer_division())

INVALID: tuple[Invalid, ...] = (
    *(
        Invalid(name, (spec((2,), "int32"),), DTypeError, "got int32, expected float")
        for name in (*DOMAINS, "isnan", "isinf")
    ),
    *(
        Invalid(name, (spec((2,), "bool"),), DTypeError, "got bool, expected integer or float")
        for name in NUMBER_DOMAINS
    ),
    Invalid("bitwise_not", (spec((2,)),), DTypeError, "got float32, expected bool or integer"),
    *(
        Invalid(name, (spec((2,)), spec((2,), "float64")), DTypeError, "must have one dtype")
        for name in (*BINARY_DTYPES, *COMPARISONS)
    ),
    *(
        Invalid(name, (spec((2,), dtypes[-1]), spec((3,), dtypes[-1])), ShapeError, "broadcast")
        for name, dtypes in BINARY_DTYPES.items()
    ),
    *(
        Invalid(name, (spec((2,)), spec((3,))), ShapeError, "do not broadcast")
        for name in COMPARISONS
    ),
    Invalid("sub", (spec((2,), "bool"),) * 2, DTypeError, "got bool"),
    Invalid("div", (spec((2,), "int32"),) * 2, DTypeError, "got int32"),
    Invalid("gelu_backward", (spec((2,), "int32"),) * 2, DTypeError, "got int32"),
    Invalid("left_shift", (spec((2,)),) * 2, DTypeError, "got float32"),
    Invalid("where", (spec((2,)), spec((2,)), spec((2,))), DTypeError, "expected bool"),
    Invalid(
        "where",
        (spec((2,), "bool"), spec((2,)), spec((2,), "int32")),
        DTypeError,
        "must have one dtype",
    ),
    Invalid("where", (spec((4,), "bool"), spec((2,)), spec((2,))), ShapeError, "broadcast"),
)

"""Describe the kernels of single elementwise ops: which dtypes and layouts each serves."""

from __future__ import annotations

from tianyuan.kernel import SAME, Kernel, Layouts

from .._tier import Tier
from ._cost import element_cost
from ._padded import padded_images
from .layouts import activation_layout

# All of them walk memory flat, so that a value may stay in whatever layout it has.
_FLAT = Layouts((SAME,), (SAME,))
_FLOAT = ("float32",)
_INTEGERS = "int8|int16|int32|int64|uint8|uint32"
_BOOL = ("bool",)

# Nanoseconds of arithmetic per float32 element, beyond what memory costs.
_CHEAP, _POLYNOMIAL, _SCALAR = 0.02, 0.4, 6.0

_CHEAP_UNARY = (
    "abs", "neg", "sign", "floor", "ceil", "round", "square", "relu", "relu6", "hsigmoid", "hswish",
)  # fmt: skip
_POLYNOMIAL_UNARY = (
    "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf",
    "sigmoid", "silu", "gelu", "softplus",
)  # fmt: skip
_LIBM_UNARY = ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
_TESTS = ("isnan", "isinf", "logical_not")
_CHEAP_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
_LIBM_BINARY = ("floor_div", "mod", "pow", "atan2")
_COMPARISONS = (
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor",
)  # fmt: skip

_FLOAT_COSTS = {
    **dict.fromkeys((*_CHEAP_UNARY, *_CHEAP_BINARY), _CHEAP),
    **dict.fromkeys((*_TESTS, *_COMPARISONS), 2 * _CHEAP),
    **dict.fromkeys((*_POLYNOMIAL_UNARY, "logaddexp", "gelu_backward"), _POLYNOMIAL),
    **dict.fromkeys((*_LIBM_UNARY, *_LIBM_BINARY), _SCALAR),
}
_NOT_INPLACE = (*_TESTS, *_COMPARISONS)  # their outputs are bool

_TYPED_BINARY = ("add", "sub", "mul", "maximum", "minimum")
_INTEGER_BINARY = (
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "floor_div", "mod",
)  # fmt: skip
_INTEGER_UNARY = (
    "abs", "neg", "sign", "relu", "relu6", "floor", "ceil", "round", "bitwise_not",
)  # fmt: skip
_OF_TRUTH = ("equal", "not_equal", "logical_and", "logical_or", "logical_xor", "logical_not",
             "bitwise_and", "bitwise_or", "bitwise_xor", "less", "less_equal", "greater",
             "greater_equal")  # fmt: skip
# Zero for zero, so that they may run over padding lanes.
_KEEP_ZERO = (
    "abs", "neg", "square", "tanh", "relu", "relu6", "hswish", "silu", "gelu",
    "add", "sub", "mul", "maximum", "minimum", "gelu_backward",
)  # fmt: skip
_UNARY = {*_CHEAP_UNARY, *_POLYNOMIAL_UNARY, *_LIBM_UNARY, *_TESTS, "bitwise_not"}


def _inplace(op: str) -> tuple[tuple[int, int], ...]:
    if op in _NOT_INPLACE:
        return ()
    return ((0, 0),) if op in _UNARY else ((0, 0), (0, 1))


def _floats(tier: Tier) -> list[Kernel]:
    return [
        tier.kernel(
            f"{op}_f32",
            "simd",
            op,
            dtypes=_FLOAT,
            layouts=_FLAT,
            cost=element_cost(nanoseconds),
            inplace=_inplace(op),
        )
        for op, nanoseconds in _FLOAT_COSTS.items()
    ]


def _padded(tier: Tier) -> list[Kernel]:
    blocked = activation_layout(tier.lanes)
    return [
        tier.kernel(
            f"{op}_f32",
            "padded",
            op,
            dtypes=_FLOAT,
            layouts=Layouts((blocked,), (blocked,)),
            supports=padded_images(tier.lanes),
            cost=element_cost(_FLOAT_COSTS[op]),
            inplace=_inplace(op),
        )
        for op in _KEEP_ZERO
    ]


def _loop(tier: Tier, op: str, suffix: str, dtypes: tuple[str, ...]) -> Kernel:
    return tier.kernel(
        f"{op}_{suffix}",
        "loop",
        op,
        dtypes=dtypes,
        layouts=_FLAT,
        cost=element_cost(0.3),
        inplace=_inplace(op),
    )


def _integers(tier: Tier) -> list[Kernel]:
    ops = (*_TYPED_BINARY, *_COMPARISONS, "logical_not", *_INTEGER_BINARY, *_INTEGER_UNARY)
    found = []
    for op in (*ops, "square"):
        truth = op in _OF_TRUTH
        dtypes = (f"{_INTEGERS}|bool",) if truth else (_INTEGERS,)
        found.append(_loop(tier, op, "int", dtypes))
    return found


def _bools(tier: Tier) -> list[Kernel]:
    ops = ("add", "mul", "maximum", "minimum", "bitwise_not")
    return [_loop(tier, op, "bool", _BOOL) for op in ops]


def _doubles(tier: Tier) -> list[Kernel]:
    ops = (*_TYPED_BINARY, "div", *_COMPARISONS, "square", "logical_not")
    return [_loop(tier, op, "f64", ("float64",)) for op in ops]


def kernels(tier: Tier) -> list[Kernel]:
    """Return the elementwise kernels of a tier."""
    where = tier.kernel(
        "where_any",
        "select",
        "where",
        dtypes=("bool", "*"),
        layouts=_FLAT,
        cost=element_cost(0.1),
        inplace=((0, 1), (0, 2)),
    )
    floats = [*_floats(tier), *_padded(tier)]
    return [*floats, *_integers(tier), *_bools(tier), *_doubles(tier), where]

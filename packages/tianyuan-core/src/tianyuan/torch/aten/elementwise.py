"""Elementwise ATen operators: arithmetic, activations, comparisons, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ... import dtypes
from ... import functional as F
from ...functional.arguments import floating, run
from ...imperative.tensor import Tensor
from .table import UnsupportedError, aten

# Name in ATen -> op, on floats and on any numbers.
_ON_FLOATS = {
    "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "reciprocal", "exp": "exp", "expm1": "expm1",
    "log": "log", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf", "sigmoid": "sigmoid",
    "silu": "silu", "hardsigmoid": "hsigmoid", "hardswish": "hswish",
}  # fmt: skip
_ON_NUMBERS = {
    "abs": "abs", "neg": "neg", "sign": "sign", "floor": "floor", "ceil": "ceil",
    "square": "square", "relu": "relu", "relu6": "relu6", "logical_not": "logical_not",
    "bitwise_not": "bitwise_not",
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Tensor]] = {
    "mul": F.mul, "maximum": F.maximum, "minimum": F.minimum, "max.other": F.maximum,
    "min.other": F.minimum, "atan2": F.atan2, "logaddexp": F.logaddexp, "remainder": F.mod,
    "floor_divide": F.floor_div, "eq": F.equal, "ne": F.not_equal, "lt": F.less,
    "le": F.less_equal, "gt": F.greater, "ge": F.greater_equal, "logical_and": F.logical_and,
    "logical_or": F.logical_or, "logical_xor": F.logical_xor,
}  # fmt: skip
_BITS = {"bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor"}


def _enter() -> None:
    for name, op in _ON_FLOATS.items():
        aten(name)(lambda x, op=op: run(op, floating(x)))
    for name, op in _ON_NUMBERS.items():
        aten(name)(lambda x, op=op: run(op, x))
    for name, function in _BINARY.items():
        aten(name)(lambda x, y, function=function: function(x, y))
    for name, op in _BITS.items():
        aten(name)(lambda x, y, op=op: _bits(op, x, y))


def _bits(op: str, x: Any, y: Any) -> Tensor:
    like = x if isinstance(x, Tensor) else y
    left, right = (v if isinstance(v, Tensor) else like.full((), v) for v in (x, y))
    want = dtypes.promote(left.dtype, right.dtype)
    return run(op, left.cast(want), right.cast(want))


@aten("add")
def add(x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    return F.add(x, y if alpha == 1 else F.mul(y, alpha))


@aten("sub")
def sub(x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    return F.sub(x, y if alpha == 1 else F.mul(y, alpha))


@aten("rsub")
def rsub(x: Any, y: Any, alpha: float = 1) -> Tensor:
    return sub(y, x, alpha=alpha)


@aten("div")
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode == "floor":
        return F.floor_div(x, y)
    if rounding_mode is None:
        return F.div(x, y)
    quotient = F.div(x, y)
    whole = trunc(quotient)
    both = [v.dtype for v in (x, y) if isinstance(v, Tensor)]
    return whole if any(map(dtypes.is_float, both)) else whole.cast(dtypes.promote(*both))


@aten("fmod")
def fmod(x: Any, y: Any) -> Tensor:
    return F.sub(x, F.mul(div(x, y, rounding_mode="trunc"), y))


@aten("trunc")
def trunc(x: Tensor) -> Tensor:
    return F.mul(run("sign", x), F.floor(F.abs(x)))


@aten("round")
def round_(x: Tensor, *, decimals: int = 0) -> Tensor:
    if decimals:
        raise UnsupportedError(f"decimals must be 0, got {decimals}")
    return run("round", x)


@aten("pow")
def power(x: Any, y: Any) -> Tensor:
    if isinstance(x, Tensor) and isinstance(y, (int, float)):
        if y == 2:
            return F.square(x)
        if y == 0.5:
            return F.sqrt(x)
    return F.pow(x, y)


@aten("erfc")
def erfc(x: Tensor) -> Tensor:
    return F.sub(1.0, F.erf(x))


@aten("clamp")
def clamp(x: Tensor, lower: Any = None, upper: Any = None, **given: Any) -> Tensor:
    lower, upper = given.get("min", lower), given.get("max", upper)
    found = x if lower is None else F.maximum(x, lower)
    return found if upper is None else F.minimum(found, upper)


@aten("clamp_min")
def clamp_min(x: Tensor, lower: Any) -> Tensor:
    return F.maximum(x, lower)


@aten("clamp_max")
def clamp_max(x: Tensor, upper: Any) -> Tensor:
    return F.minimum(x, upper)


@aten("hardtanh")
def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    if (min_val, max_val) == (0.0, 6.0):
        return F.nn.relu6(x)
    return F.clip(x, min_val, max_val)


@aten("leaky_relu")
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return F.nn.leaky_relu(x, negative_slope)


@aten("elu")
def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    low = F.mul(F.expm1(F.mul(F.minimum(x, 0.0), input_scale)), alpha * scale)
    return F.where(F.greater(x, 0), F.mul(x, scale), low)  # type: ignore[no-any-return]


@aten("gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return F.nn.gelu(x)
    cubic = F.add(x, F.mul(F.mul(F.square(x), x), 0.044715))
    bend = F.add(F.tanh(F.mul(cubic, math.sqrt(2 / math.pi))), 1.0)
    return F.mul(F.mul(x, 0.5), bend)


@aten("softplus")
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = F.mul(x, float(beta))
    bent = F.div(F.nn.softplus(scaled), float(beta))
    return F.where(F.greater(scaled, threshold), x, bent)  # type: ignore[no-any-return]


@aten("mish")
def mish(x: Tensor) -> Tensor:
    return F.mul(x, F.tanh(F.nn.softplus(x)))


@aten("log_sigmoid")
def log_sigmoid(x: Tensor) -> Tensor:
    return F.nn.logsigmoid(x)


@aten("prelu", "_prelu_kernel")
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    if weight.ndim == 1 and x.ndim > 1 and int(weight.shape[0]) != 1:
        weight = weight.reshape((1, weight.shape[0], *(1,) * (x.ndim - 2)))
    return F.add(F.maximum(x, 0.0), F.mul(weight, F.minimum(x, 0.0)))


@aten("isnan")
def isnan(x: Tensor) -> Tensor:
    return F.isnan(x)


@aten("isinf")
def isinf(x: Tensor) -> Tensor:
    return F.isinf(x)


@aten("where")
def where(mask: Tensor, x: Any, y: Any) -> Tensor:
    return F.where(mask, x, y)  # type: ignore[no-any-return]


@aten("masked_fill")
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    fill = value if isinstance(value, Tensor) else x.full((), value)
    return run("where", mask, fill.cast(x.dtype), x)


@aten("clone", "alias", "contiguous", "lift_fresh_copy", "lift_fresh", "lift", "positive")
def same(x: Tensor, **_: Any) -> Tensor:
    return x


@aten("detach", "detach_")
def detach(x: Tensor) -> Tensor:
    return x.detach()


@aten("to", "_to_copy")
def to(x: Tensor, *given: Any, dtype: Any = None, **_: Any) -> Tensor:
    names = [dtype, *given]
    want = next((name for name in names if isinstance(name, str) and name in dtypes.CODES), None)
    return x if want is None else x.cast(want)


@aten("type_as")
def type_as(x: Tensor, other: Tensor) -> Tensor:
    found: Tensor = x.cast(other.dtype)
    return found


@aten("addcmul")
def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return F.add(x, F.mul(F.mul(a, b), value))


@aten("addcdiv")
def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return F.add(x, F.mul(F.div(a, b), value))


_enter()

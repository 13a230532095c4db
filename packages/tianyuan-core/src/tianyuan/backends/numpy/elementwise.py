"""Elementwise ops as ufuncs, in float32 where numpy has no 16-bit arithmetic of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dtypes import is_float
from ...kernel import Kernel
from ...ops import elementwise
from ...ops.elementwise_binary import check_powers
from .special import erf
from .widening import widened

BLOCK = 1 << 15  # elements whose temporaries stay in the second-level cache

Function = Callable[..., Any]


def _rsqrt(x: np.ndarray, out: np.ndarray) -> None:
    np.sqrt(x, out=out)
    np.reciprocal(out, out=out)


def _rounding(function: Any) -> Function:
    def run(x: np.ndarray, out: np.ndarray) -> None:
        if x.dtype.kind == "f":
            function(x, out=out)
        else:
            np.copyto(out, x)

    return run


def _clip(low: float, high: float) -> Function:
    return lambda x, out: np.clip(x, low, high, out=out)


def _sigmoid(x: np.ndarray, out: np.ndarray) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def _hsigmoid(x: np.ndarray, out: np.ndarray) -> None:
    np.add(x, 3, out=out)
    np.clip(out, 0, 6, out=out)
    np.divide(out, 6, out=out)


def _times(gate: Function) -> Function:
    """Make x times a function of x."""

    def run(x: np.ndarray, out: np.ndarray) -> None:
        factor = np.empty_like(x)
        gate(x, factor)
        np.multiply(x, factor, out=out)

    return run


def _below(x: np.ndarray, out: np.ndarray) -> None:
    """Write the normal distribution's share below x."""
    np.multiply(x, math.sqrt(0.5), out=out)
    erf(out, out)
    np.add(out, 1, out=out)
    np.multiply(out, 0.5, out=out)


def _gelu_backward(g: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    # As far as the density is a normal number: an infinite gradient meets no zero slope.
    bound = 37 if x.dtype.itemsize == 8 else 13
    slope, near = np.empty_like(x), np.clip(x, -bound, bound)
    _below(near, slope)
    np.add(slope, near * np.exp(near * near * -0.5) * (1 / math.sqrt(2 * math.pi)), out=slope)
    np.multiply(g, slope, out=out)


def _softplus(x: np.ndarray, out: np.ndarray) -> None:
    tail = np.log1p(np.exp(-np.abs(x)))
    np.maximum(x, 0, out=out)
    np.add(out, tail, out=out)


def _pow(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    check_powers(a, b)
    np.power(a, b, out=out)


def _where(mask: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, y)
    np.copyto(out, x, where=mask)


FUNCTIONS: dict[str, Function] = {
    "abs": np.absolute, "neg": np.negative, "sign": np.sign, "floor": _rounding(np.floor),
    "ceil": _rounding(np.ceil), "round": _rounding(np.rint), "square": np.square, "sqrt": np.sqrt,
    "rsqrt": _rsqrt, "reciprocal": np.reciprocal, "exp": np.exp, "expm1": np.expm1, "log": np.log,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "erf": erf,
    "relu": lambda x, out: np.maximum(x, 0, out=out), "relu6": _clip(0, 6), "sigmoid": _sigmoid,
    "hsigmoid": _hsigmoid, "hswish": _times(_hsigmoid), "silu": _times(_sigmoid),
    "gelu": _times(_below), "softplus": _softplus, "isnan": np.isnan, "isinf": np.isinf,
    "logical_not": np.logical_not, "bitwise_not": np.invert,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "floor_div": np.floor_divide, "mod": np.mod, "pow": _pow, "maximum": np.maximum,
    "minimum": np.minimum, "atan2": np.arctan2, "logaddexp": np.logaddexp, "equal": np.equal,
    "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "left_shift": np.left_shift,
    "right_shift": np.right_shift, "where": _where, "gelu_backward": _gelu_backward,
}  # fmt: skip

# Those that need temporaries, and so run block by block.
_COMPOSITE = frozenset(
    {"erf", "hswish", "silu", "gelu", "softplus", "rsqrt", "sigmoid", "hsigmoid"}
)


def is_short_float(dtype: np.dtype) -> bool:
    """Tell whether a dtype is one of the 16-bit floats."""
    return dtype.itemsize == 2 and is_float(dtype)


def compute(name: str, inputs: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Run one elementwise op on arrays that broadcast to ``out``, rounding once at the end."""
    function = FUNCTIONS[name]
    if out.dtype.kind == "c":
        # numpy rounds products otherwise where the output shares memory with an input.
        found = np.empty_like(out)
        function(*inputs, out=found)
        np.copyto(out, found)
        return
    if not any(is_short_float(x.dtype) for x in inputs):
        function(*inputs, out=out)
        return
    wide = [widened(x) for x in inputs]
    if is_short_float(out.dtype):
        result = np.empty(out.shape, np.float32)
        function(*wide, out=result)
        np.copyto(out, result, casting="unsafe")
    else:
        function(*wide, out=out)


def _run(name: str) -> Any:
    def run(
        ctx: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        attrs: Any,
        workspace: np.ndarray | None,
    ) -> None:
        with np.errstate(all="ignore"):
            compute(name, inputs, outputs[0])

    return run


def _run_blocks(name: str) -> Any:
    def run(
        ctx: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        attrs: Any,
        workspace: np.ndarray | None,
    ) -> None:
        source, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        with np.errstate(all="ignore"):
            for start in range(0, source.size, BLOCK):
                block = slice(start, start + BLOCK)
                compute(name, (source[block],), target[block])

    return run


def _inplace(name: str, count: int) -> tuple[tuple[int, int], ...]:
    if name in ("isnan", "isinf"):
        return ()  # bool from floats
    # where writes its second choice first, and so may only overwrite that one.
    return ((0, 2),) if name == "where" else tuple((0, i) for i in range(count))


KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(
        f"{op.name}_any__numpy",
        op.name,
        (_run_blocks if op.name in _COMPOSITE else _run)(op.name),
        inplace=_inplace(op.name, op.n_inputs if isinstance(op.n_inputs, int) else 0),
    )
    for op in elementwise.OPS
)

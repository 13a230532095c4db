"""How ops of one operand are written: activations, roundings, logic, casts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import dtypes
from ...graph.graph import Node
from ..reader import code_of
from ..writer import DecompositionNeededError, Writer, exporter, result_of, spec_of

_SAME = {
    "abs": "Abs", "neg": "Neg", "sign": "Sign", "sqrt": "Sqrt", "reciprocal": "Reciprocal",
    "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "relu": "Relu",
    "sigmoid": "Sigmoid", "softplus": "Softplus", "copy": "Identity",
}  # fmt: skip
_ROUNDING = {"floor": "Floor", "ceil": "Ceil", "round": "Round"}


@exporter(*_SAME)
def same(w: Writer, node: Node, x: str) -> str:
    """Write an op that ONNX has under another name."""
    dtype = spec_of(node).dtype
    if node.op.name == "relu" and not dtypes.is_float(dtype):
        return w.op("Max", x, w.scalar(0, dtype))
    if node.op.name == "neg" and dtype.kind == "u":
        return w.op("Sub", w.scalar(0, dtype), x)
    return w.op(_SAME[node.op.name], x)


@exporter(*_ROUNDING)
def rounding(w: Writer, node: Node, x: str) -> str:
    """Write a rounding, which leaves integers as they are."""
    if not dtypes.is_float(spec_of(node).dtype):
        return x
    return w.op(_ROUNDING[node.op.name], x)


@exporter("square")
def square(w: Writer, node: Node, x: str) -> str:
    """Write x * x."""
    return w.op("Mul", x, x)


@exporter("rsqrt")
def rsqrt(w: Writer, node: Node, x: str) -> str:
    """Write 1 / sqrt(x)."""
    return w.op("Reciprocal", w.op("Sqrt", x))


@exporter("expm1")
def expm1(w: Writer, node: Node, x: str) -> str:
    """Write exp(x) - 1 as 2 exp(x/2) sinh(x/2), which is exact near zero too."""
    half = w.op("Mul", x, w.scalar(0.5, spec_of(node).dtype))
    product = w.op("Mul", w.op("Exp", half), w.op("Sinh", half))
    return w.op("Mul", product, w.scalar(2, spec_of(node).dtype))


@exporter("log1p")
def log1p(w: Writer, node: Node, x: str) -> str:
    """Write log(1 + x) as 2 atanh(x / (2 + x)), which is exact near zero too."""
    dtype = spec_of(node).dtype
    ratio = w.op("Div", x, w.op("Add", x, w.scalar(2, dtype)))
    near = w.op("Mul", w.op("Atanh", ratio), w.scalar(2, dtype))
    far = w.op("Log", w.op("Add", x, w.scalar(1, dtype)))
    is_near = w.op("Less", w.op("Abs", x), w.scalar(0.5, dtype))
    return w.op("Where", is_near, near, far)


@exporter("relu6")
def relu6(w: Writer, node: Node, x: str) -> str:
    """Write a clamp to 0 … 6."""
    dtype = spec_of(node).dtype
    return w.op("Clip", x, w.scalar(0, dtype), w.scalar(6, dtype))


@exporter("hsigmoid")
def hsigmoid(w: Writer, node: Node, x: str) -> str:
    """Write relu6(x + 3) / 6."""
    return w.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@exporter("hswish")
def hswish(w: Writer, node: Node, x: str) -> str:
    """Write x * hsigmoid(x)."""
    return w.op("HardSwish", x) if w.opset >= 14 else w.op("Mul", x, hsigmoid(w, node, x))


@exporter("silu")
def silu(w: Writer, node: Node, x: str) -> str:
    """Write x * sigmoid(x)."""
    return w.op("Mul", x, w.op("Sigmoid", x))


@exporter("gelu")
def gelu(w: Writer, node: Node, x: str) -> str:
    """Write x/2 * (1 + erf(x / sqrt 2))."""
    dtype = spec_of(node).dtype
    if w.opset >= 20:
        return w.op("Gelu", x)
    inner = w.op("Erf", w.op("Div", x, w.scalar(math.sqrt(2), dtype)))
    half = w.op("Mul", x, w.scalar(0.5, dtype))
    return w.op("Mul", half, w.op("Add", inner, w.scalar(1, dtype)))


@exporter("gelu_backward")
def gelu_backward(w: Writer, node: Node, g: str, x: str) -> str:
    """Write g * ((1 + erf(x / sqrt 2)) / 2 + x * exp(-x^2 / 2) / sqrt(2 pi))."""
    dtype = spec_of(node).dtype
    near = w.op("Clip", x, w.scalar(-40, dtype), w.scalar(40, dtype))  # infinities give no NaN
    share = w.op("Erf", w.op("Div", near, w.scalar(math.sqrt(2), dtype)))
    share = w.op("Mul", w.op("Add", share, w.scalar(1, dtype)), w.scalar(0.5, dtype))
    density = w.op("Exp", w.op("Mul", w.op("Mul", near, near), w.scalar(-0.5, dtype)))
    density = w.op("Mul", density, w.scalar(1 / math.sqrt(2 * math.pi), dtype))
    return w.op("Mul", g, w.op("Add", share, w.op("Mul", near, density)))


@exporter("isnan", "isinf")
def not_finite(w: Writer, node: Node, x: str) -> str:
    """Write a test of floats; infinities are known for float32 and float64 only."""
    if node.op.name == "isnan":
        return w.op("IsNaN", x)
    wide = spec_of(node).dtype.itemsize >= 4 or w.opset >= 20
    return w.op("IsInf", x if wide else w.cast(x, np.float32))


def as_bool(w: Writer, node: Node, index: int, x: str) -> str:
    """Return an operand as bool."""
    return x if dtypes.is_bool(spec_of(node, index).dtype) else w.cast(x, np.bool_)


@exporter("logical_not")
def logical_not(w: Writer, node: Node, x: str) -> str:
    """Write the negation of what is not zero."""
    return w.op("Not", as_bool(w, node, 0, x))


@exporter("bitwise_not")
def bitwise_not(w: Writer, node: Node, x: str) -> str:
    """Write a complement: -1 - x where ONNX has no operator yet."""
    dtype = spec_of(node).dtype
    if dtypes.is_bool(dtype):
        found = w.op("Not", x)
    elif w.opset >= 18:
        found = w.op("BitwiseNot", x)
    else:
        found = w.op("Sub", w.constant(np.array(-1).astype(dtype)), x)
    return found


@exporter("cast")
def cast(w: Writer, node: Node, x: str) -> str:
    """Write a conversion."""
    return w.op("Cast", x, to=code_of(result_of(node).dtype))


@exporter("batch_norm")
def batch_norm(w: Writer, node: Node, x: str, mean: str, var: str, scale: str, bias: str) -> str:
    """Write a normalisation by given statistics."""
    return w.op("BatchNormalization", x, scale, bias, mean, var, epsilon=node.attrs.eps)


@exporter("layer_norm")
def layer_norm(w: Writer, node: Node, x: str, *affine: str) -> Any:
    """Write a normalisation over the last axes."""
    spec, ndim = spec_of(node), node.attrs.ndim
    if w.opset < 17:
        raise DecompositionNeededError
    if not affine:
        shape = w.fixed(spec.shape[spec.ndim - ndim :], "the shape that is normalised")
        affine = (w.constant(np.ones(shape, spec.dtype), name="ones"),)
    return w.op("LayerNormalization", x, *affine, axis=-ndim, epsilon=node.attrs.eps)

"""Operators as they were before version 7, when broadcasting was asked for by attributes."""

from __future__ import annotations

from ...errors import AttrError, ShapeError
from ..node import Node
from ..table import operator
from .activation import prelu
from .common import Tensor, is_float, reshaped, run
from .elementwise import truncated_div
from .matmul import gemm
from .norm import batch_norm

_SAME = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor", "Equal": "equal", "Greater": "greater", "Less": "less", "Pow": "pow",
}  # fmt: skip


def _aligned(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Return the second operand with the axes of the first, from ``axis`` on."""
    if not node.flag("broadcast") or not node.has("axis"):
        return b
    axis = node.int("axis")
    axis = axis + a.ndim if axis < 0 else axis
    behind = a.ndim - axis - b.ndim
    if axis < 0 or behind < 0:
        raise ShapeError(f"axis does not fit, got {node.int('axis')} for ranks {a.ndim}, {b.ndim}")
    return reshaped(b, (*b.shape, *(1,) * behind))


def _enter(name: str, op: str) -> None:
    @operator(name, 1, 6)
    def apply(node: Node, a: Tensor, b: Tensor) -> Tensor:
        return run(op, a, _aligned(node, a, b))


for _name, _op in _SAME.items():
    _enter(_name, _op)


@operator("Div", 1, 6)
def div(node: Node, a: Tensor, b: Tensor) -> Tensor:
    b = _aligned(node, a, b)
    return run("div", a, b) if is_float(a) else truncated_div(a, b)


@operator("PRelu", 1, 6)
def prelu_of_channels(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """Use one slope for all, or one per channel."""
    if slope.size == 1 or slope.ndim != 1:
        return prelu(node, x, slope)
    return prelu(node, x, reshaped(slope, (slope.shape[0], *(1,) * (x.ndim - 2))))


@operator("Gemm", 1, 6)
def gemm_with_bias(node: Node, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return gemm(node, a, b, c)


@operator("BatchNormalization", 6, 6, frozen=(3, 4))
def batch_norm_for_tests(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Tensor | tuple[Tensor, ...]:
    """Normalise by the file's statistics; training by this version is refused."""
    if not node.flag("is_test"):
        raise AttrError("is_test is 0, expected 1: training by version 6 is not supported")
    return batch_norm(node, x, scale, bias, mean, var)


@operator("Dropout", 1, 6)
def dropout(node: Node, x: Tensor) -> tuple[Tensor, Tensor]:
    return run("copy", x), x.full(tuple(x.shape), 1.0)

"""Fuse bias, residual and activation with matrix products."""

from __future__ import annotations

from dataclasses import replace

from ... import shapes
from ...dtypes import is_float
from ...ops.attrs import Shape
from ...ops.matmul import Matmul
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from . import epilogue
from .epilogue import Fused
from .match import Users, emit, produced_by, rewrite, same_shape

BASE, FUSED = "matmul", "matmul_fused"


def run(graph: Graph, options: Options) -> Graph:
    """Rewrite each chain that starts at a product whose intermediates nobody else reads."""
    users = Users(graph)

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        if node.op.name == BASE:
            return _untransposed(to, node)
        if not is_float(node.outputs[0].spec.dtype):
            return None
        fused = (
            _with_bias(to, node, users)
            or epilogue.with_residual(to, node, users, BASE, FUSED)
            or epilogue.with_activation(to, node, users, BASE, FUSED)
        )
        return None if fused is None else [fused.emit(to, FUSED, node.origin)]

    return rewrite(graph, visit)


def _untransposed(to: Rebuilder, node: Node) -> list[Value] | None:
    """Read a swapped operand as it lies and let the product swap its axes."""
    a, b = to.mapped(node.inputs)
    swap_a, swap_b = _is_swapped(a), _is_swapped(b)
    if not swap_a and not swap_b:
        return None
    attrs = Matmul(node.attrs.transpose_a != swap_a, node.attrs.transpose_b != swap_b)
    operands = [
        value.node.inputs[0] if swapped and value.node else value
        for value, swapped in ((a, swap_a), (b, swap_b))
    ]
    return [emit(to, BASE, operands, attrs, node.origin)]


def _is_swapped(value: Value) -> bool:
    """Tell whether a value is a transposition of the last two axes only."""
    maker = produced_by(value, "transpose")
    if maker is None:
        return False
    rank = len(maker.attrs.perm)
    return bool(maker.attrs.perm == (*range(rank - 2), rank - 1, rank - 2))


def _with_bias(to: Rebuilder, node: Node, users: Users) -> Fused | None:
    """Take in an addition of a vector along the last axis, before any residual."""
    if node.op.name != "add":
        return None
    for index, seen in epilogue.operands(to, node, users, BASE, FUSED):
        other, out = to.map[node.inputs[1 - index]], node.inputs[index].spec
        if seen.bias is not None or seen.residual is not None or other.spec.dtype != out.dtype:
            continue
        if not same_shape(node.outputs[0].spec.shape, out.shape):
            continue
        shape = other.spec.shape
        if not shape or shapes.expr_of(shape[-1]) != shapes.expr_of(out.shape[-1]):
            continue
        if any(shapes.expr_of(extent) != 1 for extent in shape[:-1]):
            continue
        if len(shape) > 1:
            other = emit(to, "reshape", [other], Shape((shape[-1],)), node.origin)
        return replace(seen, bias=other)
    return None

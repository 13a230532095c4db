"""Fuse bias, residual and activation with matrix products."""

from __future__ import annotations

from dataclasses import replace

from ... import shapes
from ...dtypes import is_float
from ...ops.attrs import Shape
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from . import epilogue
from .epilogue import Fused
from .match import Users, emit, same_shape

BASE, FUSED = "matmul", "matmul_fused"


def run(graph: Graph, options: Options) -> Graph:
    """Rewrite each chain that starts at a product whose intermediates nobody else reads."""
    users = Users(graph)

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        if not is_float(node.outputs[0].spec.dtype):
            return None
        fused = (
            _with_bias(to, node, users)
            or epilogue.with_residual(to, node, users, BASE, FUSED)
            or epilogue.with_activation(to, node, users, BASE, FUSED)
        )
        return None if fused is None else [fused.emit(to, FUSED, node.origin)]

    return Rebuilder(graph).run(visit)


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

"""Move reshapes behind what follows a matrix product, so that the product can take it in."""

from __future__ import annotations

from ... import shapes
from ...dtypes import is_float
from ...ops.attrs import Shape
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from .epilogue import ACTIVATIONS
from .match import Users, add_array, emit, produced_by, rewrite, same_spec, scalar

PRODUCTS = ("matmul", "matmul_fused")
BINARY = ("add", "maximum", "minimum")


def run(graph: Graph, options: Options) -> Graph:
    """Turn op(reshape(product)) into reshape(op(product)); a reshape itself costs nothing.

    A layer that flattens its rows for one large product gives them their shape back before bias,
    activation and residual follow.
    """
    users = Users(graph)
    sunk: set[Value] = set()

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        if node.op.name not in (*ACTIVATIONS, *BINARY):
            return None
        for index, old in enumerate(node.inputs):
            reshape = produced_by(to.map[old], "reshape")
            if reshape is None or not users.single(old):
                continue
            source = reshape.inputs[0]
            if source not in sunk and produced_by(source, *PRODUCTS) is None:
                continue
            inputs = _operands(to, node, index, source)
            if inputs is None or not is_float(source.spec.dtype):
                continue
            made = emit(to, node.op.name, inputs, node.attrs, node.origin)
            sunk.add(made)
            return [emit(to, "reshape", [made], reshape.attrs, node.origin)]
        return None

    return rewrite(graph, visit)


def _operands(to: Rebuilder, node: Node, index: int, source: Value) -> list[Value] | None:
    """Return the operands of an op on the product itself, or None where they do not carry over."""
    if len(node.inputs) == 1:
        return [source]
    shaped, other = to.map[node.inputs[index]], to.map[node.inputs[1 - index]]
    if not same_spec(shaped, node.outputs[0]):
        return None
    shape = other.spec.shape
    if same_spec(other, shaped):
        other = emit(to, "reshape", [other], Shape(source.spec.shape), node.origin)
    elif scalar(to.graph, other) is not None:
        other = add_array(to, to.graph.constants[other].array.reshape(()))
    elif _is_row(other, shaped) and _is_row(other, source):
        other = emit(to, "reshape", [other], Shape(shape[-1:]), node.origin)
    else:
        return None
    return [source, other] if index == 0 else [other, source]


def _is_row(value: Value, of: Value) -> bool:
    """Tell whether a value has the extent of the last axis of another, and no other axes."""
    if not value.spec.shape or not of.spec.shape:
        return False
    *leading, last = (shapes.expr_of(extent) for extent in value.spec.shape)
    return last == shapes.expr_of(of.spec.shape[-1]) and all(n == 1 for n in leading)

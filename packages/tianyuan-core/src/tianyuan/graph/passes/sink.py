"""Move reshapes behind what follows a product or convolution, so that it can be taken in."""

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
NORM = "batch_norm"


def run(graph: Graph, options: Options) -> Graph:
    """Turn op(reshape(product)) into reshape(op(product)); a reshape itself costs nothing.

    A layer that flattens its rows for one large product gives them their shape back before bias,
    activation and residual follow.
    """
    return _sunk(graph, PRODUCTS)


def convolutions(graph: Graph, options: Options) -> Graph:
    """Do so behind convolutions of signals, which are images of one row until then."""
    return _sunk(graph, ("conv2d",))


def _sunk(graph: Graph, producers: tuple[str, ...]) -> Graph:
    users = Users(graph)
    sunk: set[Value] = set()

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        if node.op.name not in (*ACTIVATIONS, *BINARY, NORM):
            return None
        for index, old in enumerate(node.inputs[:1] if node.op.name == NORM else node.inputs):
            reshape = produced_by(to.map[old], "reshape")
            if reshape is None or not users.single(old):
                continue
            source = reshape.inputs[0]
            if source not in sunk and produced_by(source, *producers) is None:
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
    if node.op.name == NORM:
        return [source, *to.mapped(node.inputs[1:])] if _has_one_row(source, shaped) else None
    if not same_spec(shaped, node.outputs[0]):
        return None
    shape = other.spec.shape
    if same_spec(other, shaped):
        other = emit(to, "reshape", [other], Shape(source.spec.shape), node.origin)
    elif scalar(to.graph, other) is not None:
        other = add_array(to, to.graph.constants[other].array.reshape(()))
    elif _has_one_row(source, shaped):
        other = _in_shape(to, other, _in_one_row(shape), node)
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


def _in_shape(to: Rebuilder, value: Value, shape: shapes.Shape, node: Node) -> Value:
    """Return a value in another shape; a constant stays one."""
    constant = to.graph.constants.get(value)
    if constant is None:
        return emit(to, "reshape", [value], Shape(shape), node.origin)
    return add_array(to, constant.array.reshape(tuple(map(int, shape))), constant.name)


def _has_one_row(source: Value, of: Value) -> bool:
    """Tell whether a value is another of at least two axes with an axis of 1 before the last."""
    shape = of.spec.shape
    return len(shape) > 1 and tuple(map(shapes.expr_of, source.spec.shape)) == tuple(
        map(shapes.expr_of, _in_one_row(shape))
    )


def _in_one_row(shape: shapes.Shape) -> shapes.Shape:
    return (*shape[:-1], 1, *shape[-1:])

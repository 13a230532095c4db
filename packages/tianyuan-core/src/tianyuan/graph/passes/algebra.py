"""Remove what changes nothing and shorten chains that one op can do, keeping every result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ... import shapes
from ...dtypes import as_dtype
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from .match import Users, emit, produced_by, rewrite, same_spec, scalar

Rule = Callable[[Rebuilder, Node, list[Value]], "Value | None"]


def run(graph: Graph, options: Options) -> Graph:
    """Apply the rule of each node's op; rules see the inputs that earlier rules gave."""
    users = Users(graph)

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        inputs = to.mapped(node.inputs)
        found = _gated(to, node, inputs, users)
        if found is None and node.op.name in _RULES:
            found = _RULES[node.op.name](to, node, inputs)
        return None if found is None else [found]

    return rewrite(graph, visit)


def _if_same(node: Node, value: Value) -> Value | None:
    """Return a value where it can stand for the node's output."""
    return value if same_spec(value, node.outputs[0]) else None


def _identity(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    return _if_same(node, inputs[0])


def _neutral(value: float, commutes: bool) -> Rule:
    """Return the rule that drops an operand which changes nothing."""

    def rule(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
        left, right = inputs
        if scalar(to.graph, right) == value:
            return _if_same(node, left)
        if commutes and scalar(to.graph, left) == value:
            return _if_same(node, right)
        return None

    return rule


def _negation(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    inner = produced_by(inputs[0], "neg")
    return inner.inputs[0] if inner else None


def _reshape(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    source = inputs[0]
    inner = produced_by(source, "reshape")
    if inner:
        source = inner.inputs[0]
    if _if_same(node, source):
        return source
    return emit(to, "reshape", [source], node.attrs, node.origin) if inner else None


def _transpose(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    source, perm = inputs[0], node.attrs.perm
    inner = produced_by(source, "transpose")
    if inner:
        source = inner.inputs[0]
        perm = tuple(inner.attrs.perm[axis] for axis in perm)
    if perm == tuple(range(len(perm))):
        return source
    return emit(to, "transpose", [source], type(node.attrs)(perm), node.origin) if inner else None


def _broadcast(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    source = inputs[0]
    if _if_same(node, source):
        return source
    inner = produced_by(source, "broadcast_to")
    if inner is None:
        return None
    return emit(to, "broadcast_to", [inner.inputs[0]], node.attrs, node.origin)


def _lossless(source: np.dtype, target: np.dtype) -> bool:
    """Tell whether a cast keeps every value."""
    if "bfloat16" in (source.name, target.name):
        return source == target or (
            source.name == "bfloat16" and target.name in ("float32", "float64")
        )
    if source.kind in "iu" and target.kind == "f":
        return source.itemsize < target.itemsize
    return bool(np.can_cast(source, target, "safe"))


def _cast(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    source = inputs[0]
    inner = produced_by(source, "cast")
    if inner and _lossless(inner.inputs[0].spec.dtype, as_dtype(inner.attrs.dtype)):
        source = inner.inputs[0]
    else:
        inner = None
    if _if_same(node, source):
        return source
    return emit(to, "cast", [source], node.attrs, node.origin) if inner else None


def _slice(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    whole = all(s == 0 and not isinstance(s, shapes.Dim) for s in node.attrs.starts)
    forward = all(s == 1 and not isinstance(s, shapes.Dim) for s in node.attrs.steps)
    return _if_same(node, inputs[0]) if whole and forward else None


def _pad(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    amounts = (*node.attrs.before, *node.attrs.after)
    nothing = all(n == 0 and not isinstance(n, shapes.Dim) for n in amounts)
    return _if_same(node, inputs[0]) if nothing else None


def _reduce(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    return _if_same(node, inputs[0]) if not node.attrs.axes else None


def _concat(to: Rebuilder, node: Node, inputs: list[Value]) -> Value | None:
    return inputs[0] if len(inputs) == 1 else None


_GATES = {"sigmoid": "silu", "hsigmoid": "hswish"}


def _gated(to: Rebuilder, node: Node, inputs: list[Value], users: Users) -> Value | None:
    """Turn x * sigmoid(x) into silu(x), and likewise hswish, where only the product is needed."""
    if node.op.name != "mul":
        return None
    for x, gate, old in ((0, 1, node.inputs[1]), (1, 0, node.inputs[0])):
        inner = produced_by(inputs[gate], *_GATES)
        if inner and inner.inputs[0] is inputs[x] and users.single(old):
            return emit(to, _GATES[inner.op.name], [inputs[x]], None, node.origin)
    return None


_RULES: dict[str, Rule] = {
    "add": _neutral(0.0, True),
    "sub": _neutral(0.0, False),
    "mul": _neutral(1.0, True),
    "div": _neutral(1.0, False),
    "neg": _negation,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast,
    "sum_to": _identity,
    "copy": _identity,
    "cast": _cast,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    **dict.fromkeys(("sum", "mean", "prod", "max", "min"), _reduce),
}

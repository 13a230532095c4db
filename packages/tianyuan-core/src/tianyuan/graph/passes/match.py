"""Answer the questions that passes ask about values: equal shapes, constants, single users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ... import registry, shapes
from ...floats import FloatList
from ...op import NoAttrs
from ..graph import Constant, Graph, Node, Rebuilder, Value


def exact(value: Any) -> Any:
    """Return a form of an extent, a tuple or attributes that compares symbols, not example sizes.

    A ``Dim`` equals the int that it had while tracing; a pass must not take the two for the same.
    """
    if isinstance(value, shapes.Dim):
        return ("dim", value.expr)
    if isinstance(value, FloatList):
        return ("floats", value.tobytes())
    if isinstance(value, tuple):
        # Multipliers and zero points come in thousands, and need no object each.
        kinds = set(map(type, value))
        if kinds == {float}:
            return ("floats", np.array(value).tobytes())
        return ("ints", value) if kinds == {int} else tuple(exact(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(exact(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, float):
        return ("float", value.hex())
    return (type(value).__name__, value)


def same_shape(left: Sequence[int], right: Sequence[int]) -> bool:
    """Tell whether two shapes are equal at every size of their symbols."""
    return len(left) == len(right) and all(
        shapes.expr_of(a) == shapes.expr_of(b) for a, b in zip(left, right, strict=True)
    )


def same_spec(left: Value, right: Value) -> bool:
    """Tell whether two values have the same shape, dtype, device and quantisation."""
    a, b = left.spec, right.spec
    return (
        same_shape(a.shape, b.shape)
        and (a.dtype, a.device, a.quant) == (b.dtype, b.device, b.quant)
    )  # fmt: skip


def is_concrete(shape: Sequence[int]) -> bool:
    """Tell whether a shape has no symbols."""
    return not any(isinstance(extent, shapes.Dim) for extent in shape)


def has_symbols(attrs: Any) -> bool:
    """Tell whether an extent among the attributes is symbolic."""
    values = (getattr(attrs, f.name) for f in fields(attrs))
    return any(shapes.symbols_of(v) for v in values if isinstance(v, (tuple, shapes.Dim)))


def scalar(graph: Graph, value: Value) -> float | None:
    """Return the value of a real constant of one element, or None."""
    constant = graph.constants.get(value)
    if value.spec.dtype.kind == "c":
        return None
    if constant is None or not is_concrete(value.spec.shape) or value.spec.size != 1:
        return None
    return float(constant.array.reshape(())[()])


def produced_by(value: Value, *names: str) -> Node | None:
    """Return the node that makes a value where it applies one of the ops, or None."""
    node = value.node
    return node if node is not None and node.op.name in names else None


class Users:
    """Counts how often each value of a graph is read; a root counts as one more reader."""

    def __init__(self, graph: Graph) -> None:
        self.count: dict[Value, int] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self.count[value] = self.count.get(value, 0) + 1
        for value in graph.roots():
            self.count[value] = self.count.get(value, 0) + 1

    def single(self, value: Value) -> bool:
        """Tell whether exactly one node reads a value, and the graph does not return it."""
        return self.count.get(value, 0) == 1


def rewrite(graph: Graph, visit: Callable[[Rebuilder, Node], Sequence[Value] | None]) -> Graph:
    """Rebuild a graph, or return it as it is where ``visit`` keeps every node."""
    changed = False

    def watched(to: Rebuilder, node: Node) -> Sequence[Value] | None:
        nonlocal changed
        replaced = visit(to, node)
        changed = changed or replaced is not None
        return replaced

    rebuilt = Rebuilder(graph).run(watched)
    if changed:
        return rebuilt
    rebuilt.dissolve()
    return graph


def emit(
    to: Rebuilder, name: str, inputs: Sequence[Value], attrs: Any = None, origin: str = ""
) -> Value:
    """Append an op of one output and return that."""
    op = registry.get_op(name)
    return to.graph.add_node(op, inputs, NoAttrs() if attrs is None else attrs, origin)[0]


def add_array(to: Rebuilder, array: np.ndarray, name: str = "") -> Value:
    """Add an array as a constant."""
    return to.graph.add_constant(Constant(np.ascontiguousarray(array).reshape(array.shape), name))

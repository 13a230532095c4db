"""Recognise what may follow a convolution or product inside one fused op."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ... import registry
from ...records import record
from ..graph import Node, Rebuilder, Value
from .match import Users, produced_by, same_spec, scalar

ACTIVATIONS = ("relu", "relu6", "sigmoid", "tanh", "silu", "hswish", "gelu")


@record()
class Fused:
    """A node seen as its fused op: two operands, and the parts of the epilogue it has so far."""

    attrs: Any
    operands: tuple[Value, Value]
    bias: Value | None = None
    residual: Value | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether no activation ends the epilogue yet."""
        return bool(self.attrs.activation == "identity")

    def emit(self, to: Rebuilder, name: str, origin: str) -> Value:
        """Append the fused node and return its output."""
        attrs = replace(
            self.attrs, has_bias=self.bias is not None, has_residual=self.residual is not None
        )
        extra = [value for value in (self.bias, self.residual) if value is not None]
        op = registry.get_op(name)
        return to.graph.add_node(op, [*self.operands, *extra], attrs, origin)[0]


def view(node: Node, base: str, fused: str) -> Fused | None:
    """Return a node of the op ``base`` or ``fused`` in its fused form, or None."""
    if node.op.name == fused:
        rest = list(node.inputs[2:])
        bias = rest.pop(0) if node.attrs.has_bias else None
        residual = rest.pop(0) if node.attrs.has_residual else None
        return Fused(node.attrs, (node.inputs[0], node.inputs[1]), bias, residual)
    if node.op.name == base:
        fields = {name: getattr(node.attrs, name) for name in vars(node.attrs)}
        attrs = registry.get_op(fused).attrs(
            **fields,
            has_bias=False,
            has_residual=False,
            activation="identity",
            lower=0.0,
            upper=0.0,
        )
        return Fused(attrs, (node.inputs[0], node.inputs[1]))
    return None


def operands(
    to: Rebuilder, node: Node, users: Users, base: str, fused: str
) -> list[tuple[int, Fused]]:
    """Return the inputs that an epilogue could be attached to, the latest made first."""
    found = []
    for index, old in enumerate(node.inputs):
        maker = to.map[old].node
        if maker is None or maker.op.name not in (base, fused) or not users.single(old):
            continue
        seen = view(maker, base, fused)
        if seen is not None and seen.is_open:
            found.append((index, seen, maker))
    if len(found) > 1:
        found.sort(key=lambda item: -to.graph.nodes.index(item[2]))
    return [(index, seen) for index, seen, _ in found]


def with_activation(to: Rebuilder, node: Node, users: Users, base: str, fused: str) -> Fused | None:
    """Return the fused form that a node ends as an activation, or None."""
    if node.op.name in ACTIVATIONS:
        for _, seen in operands(to, node, users, base, fused):
            return replace(seen, attrs=replace(seen.attrs, activation=node.op.name))
    if node.op.name not in ("minimum", "maximum") or node.outputs[0].spec.dtype.kind != "f":
        return None
    # Two bounds make a clip; the old node of the inner one leads to what it bounds.
    other = "maximum" if node.op.name == "minimum" else "minimum"
    for index in (0, 1):
        inner = produced_by(node.inputs[index], other)
        bound = scalar(to.graph, to.map[node.inputs[1 - index]])
        if inner is None or bound is None or not users.single(node.inputs[index]):
            continue
        found = _bounded(to, inner, users, base, fused)
        if found is None or not same_spec(inner.outputs[0], node.outputs[0]):
            continue
        seen, first = found
        lower, upper = (first, bound) if other == "maximum" else (bound, first)
        if lower <= upper:
            attrs = replace(seen.attrs, activation="clip", lower=lower, upper=upper)
            return replace(seen, attrs=attrs)
    return None


def _bounded(
    to: Rebuilder, inner: Node, users: Users, base: str, fused: str
) -> tuple[Fused, float] | None:
    for index, seen in operands(to, inner, users, base, fused):
        bound = scalar(to.graph, to.map[inner.inputs[1 - index]])
        if bound is not None and same_spec(inner.inputs[index], inner.outputs[0]):
            return seen, bound
    return None


def with_residual(to: Rebuilder, node: Node, users: Users, base: str, fused: str) -> Fused | None:
    """Return the fused form that takes in an addition of two values of one shape, or None."""
    if node.op.name != "add" or not same_spec(*node.inputs):
        return None
    for index, seen in operands(to, node, users, base, fused):
        if seen.residual is None:
            return replace(seen, residual=to.map[node.inputs[1 - index]])
    return None

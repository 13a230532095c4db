"""Recognise GELU where a graph spells it out with erf, so that products can take it in."""

from __future__ import annotations

from math import isclose, sqrt

from ...dtypes import is_float
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from .match import emit, produced_by, rewrite, same_spec, scalar

TOLERANCE = 1e-6  # relative; constants are float32


def run(graph: Graph, options: Options) -> Graph:
    """Turn x * (1 + erf(x / sqrt(2))) * 0.5, in any order of the factors, into gelu(x)."""

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        if node.op.name != "mul" or not is_float(node.outputs[0].spec.dtype):
            return None
        factors = [found for value in to.mapped(node.inputs) for found in _factors(value)]
        constant, values = 1.0, []
        for value in factors:
            number = scalar(to.graph, value)
            if number is None:
                values.append(value)
            else:
                constant *= number
        if len(values) != 2 or not isclose(constant, 0.5, rel_tol=TOLERANCE):
            return None
        for x, gate in (values, values[::-1]):
            if _is_gate(to, gate, x) and same_spec(x, node.outputs[0]):
                return [emit(to, "gelu", [x], None, node.origin)]
        return None

    return rewrite(graph, visit)


def _factors(value: Value) -> tuple[Value, ...]:
    """Return the operands of a product, or the value itself."""
    product = produced_by(value, "mul")
    return tuple(product.inputs) if product else (value,)


def _is_gate(to: Rebuilder, value: Value, x: Value) -> bool:
    """Tell whether a value is 1 + erf(x / sqrt(2))."""
    total = produced_by(value, "add")
    if total is None:
        return False
    for one, other in (total.inputs, total.inputs[::-1]):
        erf = produced_by(other, "erf")
        if erf is not None and scalar(to.graph, one) == 1.0:
            return _is_scaled(to, erf.inputs[0], x)
    return False


def _is_scaled(to: Rebuilder, value: Value, x: Value) -> bool:
    """Tell whether a value is x times the square root of a half."""
    made = produced_by(value, "mul", "div")
    if made is None:
        return False
    left, right = made.inputs
    if made.op.name == "div":
        divisor = scalar(to.graph, right)
        return left is x and divisor is not None and isclose(divisor, sqrt(2), rel_tol=TOLERANCE)
    for operand, factor in ((left, right), (right, left)):
        number = scalar(to.graph, factor)
        if operand is x and number is not None:
            return isclose(number, sqrt(0.5), rel_tol=TOLERANCE)
    return False

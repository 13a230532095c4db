"""Tell whether a trace holds for other sizes of its dynamic dimensions than the one it was made at.

Python can take a size out of an int's arithmetic unseen (``range``, ``float``, ``numpy``). So a
function with dynamic dimensions is traced at two sizes; where the two graphs differ in more than
the example sizes, a size was baked in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from .. import shapes
from ..graph.graph import Constant, Graph, Node, Value
from ..op import TensorSpec


def examples(specs: Sequence[TensorSpec]) -> dict[str, int]:
    """Return the size that every symbol has in these specs."""
    return {
        extent.expr: int(extent)
        for spec in specs
        for extent in spec.shape
        if isinstance(extent, shapes.Dim) and isinstance(extent.expr, str)
    }


def resized(specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> list[TensorSpec]:
    """Return specs with other example sizes of the same symbols."""

    def extent(n: int) -> int:
        if isinstance(n, shapes.Dim):
            return shapes.Dim(shapes.evaluate_expr(n.expr, sizes), n.expr)
        return n

    return [
        TensorSpec(tuple(extent(n) for n in spec.shape), spec.dtype, spec.device, spec.quant)
        for spec in specs
    ]


def unmoved(
    graph: Graph, first: Mapping[str, int], second: Mapping[str, int]
) -> list[dict[str, int]]:
    """Return sizes at which extents differ that are one number at both of two, as clamped ones are.

    Each is ``first`` with another size of one symbol, the closest that serves of those around the
    numbers in the extent.
    """
    found: dict[tuple[str, int], None] = {}
    extents = {n.expr for node in graph.nodes for v in node.outputs for n in v.spec.shape
               if isinstance(n, shapes.Dim)}  # fmt: skip
    for expr in sorted(extents, key=repr):
        known = shapes.evaluate_expr(expr, first)
        if not _is_clamped(expr) or known != shapes.evaluate_expr(expr, second):
            continue
        for symbol in sorted(shapes.symbols_of(expr)):
            near = {n + step for n in (1, *_numbers(expr)) for step in (-1, 0, 1)}
            tried = [n for _, n in sorted((abs(n - first[symbol]), n) for n in near if n > 0)]
            values = ((n, shapes.evaluate_expr(expr, {**first, symbol: n})) for n in tried)
            moved = next((n for n, value in values if value != known), None)
            if moved is not None:
                found.setdefault((symbol, moved))
    return [{**first, symbol: size} for symbol, size in found]


def _is_clamped(expr: shapes.Expr) -> bool:
    if not isinstance(expr, tuple):
        return False
    return expr[0] in ("min", "max") or _is_clamped(expr[1]) or _is_clamped(expr[2])


def _numbers(expr: shapes.Expr) -> set[int]:
    """Return the sizes that an expression names."""
    if isinstance(expr, tuple):
        return _numbers(expr[1]) | _numbers(expr[2])
    return {abs(expr)} if isinstance(expr, int) else set()


def first_difference(first: Graph, second: Graph) -> str | None:
    """Return where two traces of one function part ways, or None where they are one."""
    numbers: dict[Value, int] = {}
    others: dict[Value, int] = {}
    for values, more in ((first.inputs, second.inputs), (first.states, second.states)):
        if len(values) != len(more):
            return "the number of inputs"
        for one, other in zip(values, more, strict=True):
            numbers[one] = others[other] = len(numbers)
    for node, twin in zip(first.nodes, second.nodes, strict=False):
        if not _same_node(node, twin, first, second, numbers, others):
            return node.origin
        for one, other in zip(node.outputs, twin.outputs, strict=True):
            numbers[one] = others[other] = len(numbers)
    if len(first.nodes) != len(second.nodes):
        longer = max(first, second, key=lambda graph: len(graph.nodes))
        return longer.nodes[min(len(first.nodes), len(second.nodes))].origin
    return None


def _same_node(
    node: Node,
    twin: Node,
    first: Graph,
    second: Graph,
    numbers: Mapping[Value, int],
    others: Mapping[Value, int],
) -> bool:
    if node.op is not twin.op or len(node.inputs) != len(twin.inputs):
        return False
    for one, other in zip(node.inputs, twin.inputs, strict=True):
        if one in first.constants or other in second.constants:
            if not _same_constant(first.constants.get(one), second.constants.get(other)):
                return False
        elif numbers.get(one) != others.get(other):
            return False
    same_attrs = all(
        _symbolic(getattr(node.attrs, field.name)) == _symbolic(getattr(twin.attrs, field.name))
        for field in fields(node.attrs)
    )
    return same_attrs and all(
        _symbolic(one.spec.shape) == _symbolic(other.spec.shape)
        for one, other in zip(node.outputs, twin.outputs, strict=True)
    )


def _same_constant(one: Constant | None, other: Constant | None) -> bool:
    if one is None or other is None:
        return False
    a, b = one.array, other.array
    return a is b or (a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def _symbolic(value: Any) -> Any:
    """Return a value with expressions in place of symbolic extents."""
    if isinstance(value, tuple):
        return tuple(_symbolic(item) for item in value)
    return ("expr", shapes.expr_of(value)) if isinstance(value, shapes.Dim) else value

"""Tell whether a trace holds for other sizes of its dynamic dimensions than the one it was made at.

Python can take a size out of an int's arithmetic unseen (``range``, ``float``, ``numpy``). So a
function with dynamic dimensions is traced at two sizes; where the two graphs differ in more than
the example sizes, a size was baked in.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
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
    graph: Graph, cuts: Iterable[shapes.Expr], first: Mapping[str, int], second: Mapping[str, int]
) -> list[dict[str, int]]:
    """Return sizes at which what is one number at both of two differs.

    That are clamped extents of the graph, and ``cuts``: quotients and remainders. Each of the sizes
    is ``first`` with another size of one symbol, the closest that serves of those around itself and
    around the numbers in an expression; one that serves several expressions stands once.
    """
    extents = {n.expr for node in graph.nodes for v in node.outputs for n in v.spec.shape
               if isinstance(n, shapes.Dim)}  # fmt: skip
    found: list[dict[str, int]] = []
    exprs = {expr for expr in extents if _is_clamped(expr)} | set(cuts)
    for expr in sorted(exprs, key=lambda expr: (max(_numbers(expr), default=0), repr(expr))):
        known = shapes.evaluate_expr(expr, first)
        if any(shapes.evaluate_expr(expr, sizes) != known for sizes in (second, *found)):
            continue
        for symbol in sorted(shapes.symbols_of(expr)):
            near = {n + step for n in (1, first[symbol], *_numbers(expr)) for step in (-1, 0, 1)}
            ordered = sorted((abs(n - first[symbol]), n) for n in near if n > 0)
            tried = ({**first, symbol: n} for _, n in ordered)
            moved = (sizes for sizes in tried if shapes.evaluate_expr(expr, sizes) != known)
            found.extend(itertools.islice(moved, 1))
    return found


def _is_clamped(expr: shapes.Expr) -> bool:
    if not isinstance(expr, tuple):
        return False
    return expr[0] in ("min", "max") or _is_clamped(expr[1]) or _is_clamped(expr[2])


def _numbers(expr: shapes.Expr) -> set[int]:
    """Return the sizes that an expression names."""
    if isinstance(expr, tuple):
        return _numbers(expr[1]) | _numbers(expr[2])
    return {abs(expr)} if isinstance(expr, int) else set()


def first_difference(first: Graph, second: Graph, broadcasts: bool = True) -> str | None:
    """Return where two traces of one function part ways, or None where they are one.

    Without ``broadcasts``, values that are broadcast count as what they were before: at a size of 1
    nothing is there to be repeated.
    """
    numbers: dict[Value, int] = {}
    others: dict[Value, int] = {}
    for values, more in ((first.inputs, second.inputs), (first.states, second.states)):
        if len(values) != len(more):
            return "the number of inputs"
        for one, other in zip(values, more, strict=True):
            numbers[one] = others[other] = len(numbers)
    nodes, sources = _steps(first, broadcasts)
    twins, origins = _steps(second, broadcasts)
    for node, twin in zip(nodes, twins, strict=False):
        if node.op is not twin.op or len(node.inputs) != len(twin.inputs):
            return node.origin
        for one, other in zip(node.inputs, twin.inputs, strict=True):
            one, other = sources.get(one, one), origins.get(other, other)
            if one in first.constants or other in second.constants:
                if not _same_constant(first.constants.get(one), second.constants.get(other)):
                    return node.origin
            elif numbers.get(one) != others.get(other):
                return node.origin
        if not _same_node(node, twin):
            return node.origin
        for one, other in zip(node.outputs, twin.outputs, strict=True):
            numbers[one] = others[other] = len(numbers)
    if len(nodes) != len(twins):
        return max(nodes, twins, key=len)[min(len(nodes), len(twins))].origin
    return None


def _steps(graph: Graph, broadcasts: bool) -> tuple[list[Node], dict[Value, Value]]:
    """Return the nodes to compare, and what values stand for where others are left out."""
    if broadcasts:
        return graph.nodes, {}
    sources: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op.name == "broadcast_to":
            sources[node.outputs[0]] = sources.get(node.inputs[0], node.inputs[0])
    return [node for node in graph.nodes if node.op.name != "broadcast_to"], sources


def _same_node(node: Node, twin: Node) -> bool:
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

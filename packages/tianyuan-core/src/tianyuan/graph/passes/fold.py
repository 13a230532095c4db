"""Evaluate at build time what depends on constants only, unless the result would be far larger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ...op import Op
from ..graph import Constant, Graph, Node, Rebuilder, Value
from ..options import Options
from .match import add_array, has_symbols, is_concrete, rewrite

Evaluator = Callable[[Op, Sequence[np.ndarray], Any], Sequence[np.ndarray]]

SMALL = 1 << 16  # bytes: results up to this size are always kept
GROWTH = 4  # larger results may be this many times their inputs: a cast from int8 to float32

_evaluator: Evaluator | None = None


def set_evaluator(evaluator: Evaluator | None) -> None:
    """Choose what evaluates ops on arrays; None means their references."""
    global _evaluator
    _evaluator = evaluator


def evaluate(op: Op, arrays: Sequence[np.ndarray], attrs: Any) -> Sequence[np.ndarray]:
    """Apply an op to arrays."""
    from ...ops import reference  # on first use: most graphs of integers have nothing to fold

    return (_evaluator or reference.evaluate)(op, arrays, attrs)


def run(graph: Graph, options: Options, keep: Collection[str] = ()) -> Graph:
    """Replace nodes of constant inputs by their results, shared by all specialisations.

    Ops named in ``keep`` stay as they are.
    """

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        inputs = to.mapped(node.inputs)
        constants = [to.graph.constants.get(value) for value in inputs]
        known = [constant for constant in constants if constant is not None]
        if len(known) != len(inputs) or node.op.name in keep or not _worthwhile(node):
            return None
        return _folded(to, node, known)

    if not any(_is_constant(graph, node) for node in graph.nodes):
        return graph
    return rewrite(graph, visit)


def _is_constant(graph: Graph, node: Node) -> bool:
    return all(value in graph.constants for value in node.inputs)


def _worthwhile(node: Node) -> bool:
    if not node.op.pure or node.op.family == "random" or node.op.name == "relayout":
        return False
    outputs = [value.spec for value in node.outputs]
    if not all(is_concrete(spec.shape) for spec in outputs):
        return False
    if has_symbols(node.attrs):
        return False
    if any(spec.device != "cpu" or spec.quant is not None for spec in outputs):
        return False
    size = sum(spec.nbytes for spec in outputs)
    return size <= max(SMALL, GROWTH * sum(value.spec.nbytes for value in node.inputs))


def _folded(to: Rebuilder, node: Node, inputs: list[Constant]) -> list[Value]:
    name = next((constant.name for constant in inputs if constant.name), "")
    results = evaluate(node.op, [constant.array for constant in inputs], node.attrs)
    return [add_array(to, np.asarray(array), name) for array in results]

"""Recognise attention where a graph spells it out: product, scale, mask, softmax, product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ops.attention import Attention
from ...ops.attrs import Transpose
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from .match import Users, add_array, emit, produced_by, rewrite, same_shape, scalar

# A 16-bit graph rounds its scores, which the op does not.
_DTYPES = ("float32", "float64")
_LOW = -1e9  # a score from here down weighs nothing beside any other


@dataclass(frozen=True)
class _Scores:
    """Values of the graph before, whose product times ``scale`` the scores are."""

    query: Value
    key: Value
    perm: tuple[int, ...] | None  # which transposition of ``key`` gives (..., S, E)
    scale: float


def run(graph: Graph, options: Options) -> Graph:
    """Turn softmax(q k^T * scale + mask) v into attention where nobody else reads the weights."""
    users = Users(graph)

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        if node.op.name != "matmul" or node.outputs[0].spec.dtype.name not in _DTYPES:
            return None
        weights, value = node.inputs
        softmax = produced_by(weights, "softmax")
        if node.attrs.transpose_a or node.attrs.transpose_b or softmax is None:
            return None
        if softmax.attrs.axis != weights.spec.ndim - 1 or not users.single(weights):
            return None
        found = _masked(graph, users, softmax.inputs[0])
        return None if found is None else [_emitted(to, *found, value, node.origin)]

    return rewrite(graph, visit)


def _emitted(
    to: Rebuilder, scores: _Scores, mask: Value | np.ndarray | None, value: Value, origin: str
) -> Value:
    key = to.map[scores.key]
    if scores.perm is not None:
        key = emit(to, "transpose", [key], Transpose(scores.perm), origin)
    inputs = [to.map[scores.query], key, to.map[value]]
    if mask is not None:
        inputs.append(to.map[mask] if isinstance(mask, Value) else add_array(to, mask))
    return emit(to, "attention", inputs, Attention(scores.scale), origin)


def _masked(
    graph: Graph, users: Users, value: Value
) -> tuple[_Scores, Value | np.ndarray | None] | None:
    """Take scores and what is added to them, or hides some, apart."""
    found = _scores(graph, users, value)
    if found is not None:
        return found, None
    if not users.single(value):
        return None
    chosen, total = produced_by(value, "where"), produced_by(value, "add")
    pairs: list[tuple[Value, Value | np.ndarray | None]] = []
    if chosen is not None:
        condition, yes, no = chosen.inputs
        pairs = [
            (yes, _seen(graph, condition, no, True)),
            (no, _seen(graph, condition, yes, False)),
        ]
    elif total is not None:
        left, right = total.inputs
        pairs = [(left, right), (right, left)]
    for scores, mask in pairs:
        if mask is None or not same_shape(scores.spec.shape, value.spec.shape):
            continue
        found = _scores(graph, users, scores)
        rank = mask.spec.ndim if isinstance(mask, Value) else mask.ndim
        if found is not None and rank >= 2:
            return found, mask
    return None


def _seen(graph: Graph, condition: Value, low: Value, where: bool) -> np.ndarray | None:
    """Return which keys a constant condition shows, if it leaves every query one of them.

    A query without keys would weigh all alike, where the op's result is zero.
    """
    number, constant = scalar(graph, low), graph.constants.get(condition)
    if number is None or not number <= _LOW or constant is None:
        return None
    seen = np.asarray(constant.array == where)
    return seen if seen.ndim and seen.any(-1).all() else None


def _scores(graph: Graph, users: Users, value: Value) -> _Scores | None:
    inner, scale = _unscaled(graph, value)
    product = produced_by(inner, "matmul")
    if product is None or product.attrs.transpose_a:
        return None
    if not users.single(value) or not users.single(inner):
        return None
    query, left = _unscaled(graph, product.inputs[0])
    key, right = _unscaled(graph, product.inputs[1])
    perm: tuple[int, ...] | None = None
    if not product.attrs.transpose_b:
        swapped = produced_by(key, "transpose")
        if swapped is None:
            return None
        key, more = _unscaled(graph, swapped.inputs[0])
        right *= more
        *lead, last, other = swapped.attrs.perm
        perm = (*lead, other, last)
        perm = None if perm == tuple(range(len(perm))) else perm
    return _Scores(query, key, perm, scale * left * right)


def _unscaled(graph: Graph, value: Value) -> tuple[Value, float]:
    """Return what a value is times a constant number, and that number."""
    made = produced_by(value, "mul", "div")
    if made is None:
        return value, 1.0
    left, right = made.inputs
    number = scalar(graph, right)
    if number is None and made.op.name == "mul":
        left, number = right, scalar(graph, left)
    if number is None or not same_shape(left.spec.shape, value.spec.shape):
        return value, 1.0
    if made.op.name == "mul":
        return left, number
    return (left, 1.0 / number) if number else (value, 1.0)

"""Read shuffled channels by their indices, so that blocked layouts need not be undone for them."""

from __future__ import annotations

import numpy as np

from ... import shapes
from ...dtypes import is_float
from ...ops.attrs import Axis
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from .match import add_array, emit, is_concrete, produced_by, rewrite, same_shape

CHANNELS = 1
SWAPPED = (0, 2, 1, 3, 4)
STORED = ("int8", "uint8")  # what quantised images hold


def run(graph: Graph, options: Options) -> Graph:
    """Turn a shuffle of channels, and a slice of one, into take along the channels of an image."""

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        spec = node.outputs[0].spec
        if len(spec.shape) != 4 or not (is_float(spec.dtype) or spec.dtype.name in STORED):
            return None
        if node.op.name == "reshape":
            return _shuffle(to, node)
        return _sliced(to, node) if node.op.name == "slice" else None

    return rewrite(graph, visit)


def _take(to: Rebuilder, node: Node, source: Value, indices: np.ndarray) -> list[Value]:
    where = add_array(to, indices)
    return [emit(to, "take", [source, where], Axis(CHANNELS), node.origin)]


def _shuffle(to: Rebuilder, node: Node) -> list[Value] | None:
    """Match a reshape into groups, a swap of the groups with their channels, and a reshape back."""
    swap = produced_by(to.map[node.inputs[0]], "transpose")
    if swap is None or swap.attrs.perm != SWAPPED:
        return None
    split = produced_by(swap.inputs[0], "reshape")
    if split is None:
        return None
    source, (_, groups, width, *_rest) = split.inputs[0], split.outputs[0].spec.shape
    shape = source.spec.shape
    if not same_shape(shape, node.outputs[0].spec.shape):
        return None
    if not is_concrete((shape[CHANNELS], groups, width)) or groups * width != shape[CHANNELS]:
        return None
    apart = (shape[0], groups, width, *shape[2:])
    if not same_shape(apart, split.outputs[0].spec.shape):
        return None
    indices = np.arange(int(groups * width)).reshape(int(groups), int(width)).T
    return _take(to, node, source, np.ascontiguousarray(indices).reshape(-1))


def _sliced(to: Rebuilder, node: Node) -> list[Value] | None:
    """Match a slice that cuts the channels of a take of constant indices, and nothing else."""
    taken = produced_by(to.map[node.inputs[0]], "take")
    if taken is None or taken.attrs.axis != CHANNELS:
        return None
    source, where = taken.inputs
    constant = to.graph.constants.get(where)
    if constant is None or constant.array.ndim != 1:
        return None
    before, after = taken.outputs[0].spec.shape, node.outputs[0].spec.shape
    for axis in (0, 2, 3):
        if shapes.expr_of(before[axis]) != shapes.expr_of(after[axis]):
            return None
        if node.attrs.steps[axis] != 1:
            return None
    size = after[CHANNELS]
    start, step = node.attrs.starts[CHANNELS], node.attrs.steps[CHANNELS]
    if not is_concrete((size, start, step)):
        return None
    return _take(to, node, source, constant.array[start + step * np.arange(int(size))])

"""How constants are written that ops make: plain ones as data, symbolic ones as computed."""

from __future__ import annotations

import numpy as np

from ... import shapes
from ...graph.graph import Node
from ...graph.passes.match import has_symbols
from ...ops import reference
from ..writer import UnsupportedError, Writer, exporter, result_of

_MOST_STORED = 1 << 16  # bytes


def _is_stored(node: Node) -> bool:
    return not any(map(shapes.symbols_of, result_of(node).shape)) and not has_symbols(node.attrs)


def _stored(w: Writer, node: Node) -> str:
    (array,) = reference.evaluate(node.op, (), node.attrs)
    return w.constant(array)


@exporter("full")
def full(w: Writer, node: Node) -> str:
    """Write one value in every place."""
    if _is_stored(node) and result_of(node).nbytes <= _MOST_STORED:
        return _stored(w, node)
    value = w.constant(np.array(node.attrs.value).astype(result_of(node).dtype))
    return w.op("Expand", value, w.extents(node.attrs.shape))


@exporter("arange")
def arange(w: Writer, node: Node) -> str:
    """Write evenly spaced numbers."""
    if _is_stored(node):
        return _stored(w, node)
    attrs, dtype = node.attrs, result_of(node).dtype
    scalar = w.constant([0], np.int64)
    count = w.op("Squeeze", w.extents([attrs.count]), scalar)
    counted = w.op("Range", w.constant(0, np.int64), count, w.constant(1, np.int64))
    if shapes.symbols_of((attrs.start, attrs.step)):
        raise UnsupportedError("start and step must not be dynamic")
    steps = w.op("Mul", w.cast(counted, np.float64), w.constant(attrs.step, np.float64))
    return w.cast(w.op("Add", steps, w.constant(attrs.start, np.float64)), dtype)


@exporter("eye")
def eye(w: Writer, node: Node) -> str:
    """Write ones on a diagonal."""
    if not _is_stored(node):
        raise UnsupportedError("the extents must not be dynamic")
    return _stored(w, node)

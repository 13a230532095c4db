"""How ops that read and write by index are written."""

from __future__ import annotations

import numpy as np

from ... import shapes
from ...graph.graph import Node
from ..writer import UnsupportedError, Writer, exporter, result_of, spec_of


@exporter("take")
def take(w: Writer, node: Node, x: str, index: str) -> str:
    """Write rows at places along an axis."""
    return w.op("Gather", x, index, axis=node.attrs.axis)


@exporter("gather")
def gather(w: Writer, node: Node, x: str, index: str) -> str:
    """Write elements at places along an axis."""
    return w.op("GatherElements", x, index, axis=node.attrs.axis)


@exporter("scatter", "scatter_add")
def scatter(w: Writer, node: Node, x: str, index: str, source: str) -> str:
    """Write elements over, or add them to, those at places along an axis."""
    return w.op(
        "ScatterElements", x, index, source, axis=node.attrs.axis, reduction=_reduction(w, node)
    )


def _reduction(w: Writer, node: Node) -> str | None:
    if not node.op.name.endswith("_add"):
        return None
    w.needs(16, "adding at indices")
    return "add"


def _tuples(w: Writer, node: Node, first: int, indices: tuple[str, ...]) -> str:
    """Return the indices as tuples along a last axis."""
    last = w.constant([-1], np.int64)
    parts = [
        w.op("Unsqueeze", w.cast(i, np.int64) if spec_of(node, at).dtype != np.int64 else i, last)
        for at, i in enumerate(indices, start=first)
    ]
    return parts[0] if len(parts) == 1 else w.op("Concat", *parts, axis=-1)


@exporter("index")
def index(w: Writer, node: Node, x: str, *indices: str) -> str:
    """Write what stands at tuples of indices."""
    return w.op("GatherND", x, _tuples(w, node, 1, indices))


@exporter("index_set", "index_add")
def index_set(w: Writer, node: Node, x: str, v: str, *indices: str) -> str:
    """Write values over, or add them to, those at tuples of indices."""
    tuples = _tuples(w, node, 2, indices)
    # Negative indices are counted from the end here, since ScatterND does not do so everywhere.
    extents = w.extents(spec_of(node).shape[: node.attrs.count])
    wrapped = w.op("Where", w.op("Less", tuples, w.constant(0, np.int64)),
                   w.op("Add", tuples, extents), tuples)  # fmt: skip
    return w.op("ScatterND", x, wrapped, v, reduction=_reduction(w, node))


@exporter("one_hot")
def one_hot(w: Writer, node: Node, index: str) -> str:
    """Write ones at the places that indices name, found by comparing with all of them."""
    if shapes.symbols_of(node.attrs.depth):
        raise UnsupportedError("the number of classes must not be dynamic")
    dtype = spec_of(node).dtype
    classes = w.constant(np.arange(int(node.attrs.depth)), dtype, name="classes")
    column = w.op("Unsqueeze", index, w.constant([-1], np.int64))
    return w.cast(w.op("Equal", column, classes), result_of(node).dtype)

"""How pooling is written."""

from __future__ import annotations

import numpy as np

from ... import shapes
from ...graph.graph import Node
from ..writer import UnsupportedError, Writer, exporter, spec_of
from .reduction import reduce


@exporter("max_pool2d")
def max_pool2d(w: Writer, node: Node, x: str) -> str:
    """Write the maximum of windows; integers are compared as floats that hold them exactly."""
    dtype = spec_of(node).dtype
    if dtype.kind not in "iu" or dtype.itemsize == 1:
        return w.op("MaxPool", x, **window(node))
    if dtype.itemsize == 8:
        raise UnsupportedError("no operator of ONNX pools 64-bit integers")
    return w.cast(w.op("MaxPool", w.cast(x, np.float64), **window(node)), dtype)


@exporter("avg_pool2d")
def avg_pool2d(w: Writer, node: Node, x: str) -> str:
    """Write the mean of windows."""
    counts = int(node.attrs.count_include_pad)
    return w.op("AveragePool", x, count_include_pad=counts, **window(node))


def window(node: Node) -> dict[str, list[int]]:
    """Return the attributes of a node that pools as an op does."""
    attrs = node.attrs
    return {
        "kernel_shape": list(attrs.kernel),
        "strides": list(attrs.stride),
        "pads": list(attrs.padding),
    }


@exporter("adaptive_avg_pool2d", "adaptive_max_pool2d")
def adaptive_pool2d(w: Writer, node: Node, x: str) -> str:
    """Write pooling to a given size: of everything, of equal windows, or of unequal ones."""
    means = node.op.name != "adaptive_max_pool2d"
    size = node.attrs.size
    if all(shapes.expr_of(n) == 1 for n in size):
        return w.op("GlobalAveragePool" if means else "GlobalMaxPool", x)
    extents = w.fixed(spec_of(node).shape[2:], "the size that is pooled")
    wanted = w.fixed(size, "the size that is pooled to")
    if all(have % want == 0 for have, want in zip(extents, wanted, strict=True)):
        step = [have // want for have, want in zip(extents, wanted, strict=True)]
        kind = "AveragePool" if means else "MaxPool"
        return w.op(kind, x, kernel_shape=step, strides=step)
    if means:
        rows, columns = (_means(h, o) for h, o in zip(extents, wanted, strict=True))
        dtype = np.float32 if spec_of(node).dtype.kind in "iu" else spec_of(node).dtype
        left = w.op("MatMul", w.constant(rows, dtype, name="rows"), x)
        return w.op("MatMul", left, w.constant(columns.T, dtype, name="columns"))
    for axis, (have, want) in enumerate(zip(extents, wanted, strict=True), start=2):
        x = _maxima(w, x, axis, have, want)
    return x


def _bounds(have: int, want: int) -> list[tuple[int, int]]:
    return [(i * have // want, -(-(i + 1) * have // want)) for i in range(want)]


def _means(have: int, want: int) -> np.ndarray:
    """Return the (want, have) matrix whose rows average the windows."""
    matrix = np.zeros((want, have))
    for row, (start, stop) in enumerate(_bounds(have, want)):
        matrix[row, start:stop] = 1 / (stop - start)
    return matrix


def _maxima(w: Writer, x: str, axis: int, have: int, want: int) -> str:
    parts = []
    for start, stop in _bounds(have, want):
        limits = (w.constant([n], np.int64) for n in (start, stop, axis))
        parts.append(reduce(w, "ReduceMax", w.op("Slice", x, *limits), [axis], True))
    return w.op("Concat", *parts, axis=axis)

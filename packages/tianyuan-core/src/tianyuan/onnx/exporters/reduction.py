"""How reductions, searches along an axis and softmax are written."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes, shapes
from ...graph.graph import Node
from ..writer import Writer, exporter, result_of, spec_of

_REDUCTIONS = {
    "sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd", "max": "ReduceMax",
    "min": "ReduceMin", "logsumexp": "ReduceLogSumExp",
}  # fmt: skip
_SEARCHES = {"argmax": "ArgMax", "argmin": "ArgMin"}
_SOFTMAX = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


def reduce(w: Writer, op_type: str, x: str, axes: Any, keepdims: bool) -> str:
    """Write a reduction; axes became an input of ReduceSum first, of the others later."""
    if op_type == "ReduceSum" or w.opset >= 18:
        axes_input = w.constant(list(axes), np.int64)
        found = w.op(op_type, x, axes_input, keepdims=int(keepdims))
    else:
        found = w.op(op_type, x, axes=list(axes), keepdims=int(keepdims))
    return found


@exporter(*_REDUCTIONS)
def reduction(w: Writer, node: Node, x: str) -> str:
    """Write a reduction over axes."""
    attrs, dtype = node.attrs, spec_of(node).dtype
    if not attrs.axes:
        return x
    op_type, wide = _REDUCTIONS[node.op.name], widened(dtype)
    if wide == dtype:
        return reduce(w, op_type, x, attrs.axes, attrs.keepdims)
    return w.cast(reduce(w, op_type, w.cast(x, wide), attrs.axes, attrs.keepdims), dtype)


def widened(dtype: np.dtype) -> np.dtype:
    """Return the type to compute in where ONNX lacks an operator for bools and narrow integers.

    Results wrap around as they would in the narrow type.
    """
    narrow = dtypes.is_bool(dtype) or (dtype.kind in "iu" and dtype.itemsize < 4)
    if dtype.kind == "u" and not narrow:
        return np.dtype(np.int64)
    return np.dtype(np.int32) if narrow else dtype


@exporter("sum_to")
def sum_to(w: Writer, node: Node, x: str) -> str:
    """Write a sum over the axes that broadcasting had made."""
    before, after = spec_of(node).shape, node.attrs.shape
    lead = len(before) - len(after)
    axes = list(range(lead))
    for axis, extent in enumerate(after):
        grown = shapes.expr_of(before[lead + axis]) != shapes.expr_of(extent)
        if grown and int(extent) == 1:
            axes.append(lead + axis)
    dtype = spec_of(node).dtype
    wide = widened(dtype)
    summed = x if wide == dtype or not axes else w.cast(x, wide)
    summed = reduce(w, "ReduceSum", summed, axes, True) if axes else summed
    summed = w.cast(summed, dtype) if wide != dtype and axes else summed
    left = [1 if axis in axes else extent for axis, extent in enumerate(before)]
    return w.reshape(summed, left, after) if lead else summed


@exporter(*_SEARCHES)
def search(w: Writer, node: Node, x: str) -> str:
    """Write the place of the first extreme."""
    attrs, dtype = node.attrs, spec_of(node).dtype
    given = w.cast(x, np.int32) if dtypes.is_bool(dtype) else x
    found = w.op(_SEARCHES[node.op.name], given, axis=attrs.axis, keepdims=int(attrs.keepdims))
    return w.cast(found, np.int32)


@exporter(*_SOFTMAX)
def softmax(w: Writer, node: Node, x: str) -> str:
    """Write softmax or its logarithm along an axis."""
    return w.op(_SOFTMAX[node.op.name], x, axis=node.attrs.axis)


@exporter("cumsum")
def cumsum(w: Writer, node: Node, x: str) -> str:
    """Write sums of what comes before."""
    dtype, axis = spec_of(node).dtype, w.constant(node.attrs.axis, np.int64)
    wide = widened(dtype)
    if wide == dtype:
        return w.op("CumSum", x, axis)
    return w.cast(w.op("CumSum", w.cast(x, wide), axis), dtype)


@exporter("cumprod")
def cumprod(w: Writer, node: Node, x: str) -> str:
    """Write products of what comes before, through a table of who counts for whom."""
    spec, axis = spec_of(node), node.attrs.axis
    (extent,) = w.fixed([spec.shape[axis]], "the extent along which products are taken")
    counts = np.tril(np.ones((extent, extent), bool))
    mask = counts.reshape(extent, extent, *(1,) * (spec.ndim - axis - 1))
    wide = widened(spec.dtype)
    given = x if wide == spec.dtype else w.cast(x, wide)
    spread = w.op("Unsqueeze", given, w.constant([axis], np.int64))
    chosen = w.op("Where", w.constant(mask), spread, w.scalar(1, wide))
    found = reduce(w, "ReduceProd", chosen, [axis + 1], False)
    return found if wide == spec.dtype else w.cast(found, spec.dtype)


@exporter("sort")
def sort(w: Writer, node: Node, x: str) -> tuple[str, str]:
    """Write a sort as the whole extent's largest or smallest in order."""
    return _top(w, node, x, spec_of(node).shape[node.attrs.axis])


@exporter("topk")
def topk(w: Writer, node: Node, x: str) -> tuple[str, str]:
    """Write the k largest or smallest in order."""
    return _top(w, node, x, node.attrs.k)


def _top(w: Writer, node: Node, x: str, k: int) -> tuple[str, str]:
    values, places = w.ops(
        2, "TopK", x, w.extents([k]), axis=node.attrs.axis,
        largest=int(node.attrs.descending), sorted=1,
    )  # fmt: skip
    return values, w.cast(places, result_of(node, 1).dtype)

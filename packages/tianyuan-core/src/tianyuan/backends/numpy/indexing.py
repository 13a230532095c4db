"""Integer indexing over flattened memory, so that repeated indices are met in row-major order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import shapes
from ...kernel import Kernel
from ...ops.indexing import expect_classes, wrap_all, wrap_indices
from .widening import compute_dtype, widened

Arrays = Sequence[np.ndarray]


def _take(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, indices = inputs
    where = wrap_indices("take", indices, x.shape[attrs.axis])
    np.copyto(outputs[0], np.take(x, where, attrs.axis))


def _take_backward(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    g, indices = inputs
    out, axis = outputs[0], attrs.axis
    where = wrap_indices("take_backward", indices, out.shape[axis])
    total = np.zeros(out.shape, compute_dtype(out.dtype))
    np.add.at(total, (*(slice(None),) * axis, where), widened(g))
    np.copyto(out, total, casting="unsafe")


def _places(op: str, indices: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the position in flattened memory that each index along an axis points to."""
    place = np.zeros(indices.shape, np.int64)
    stride = 1
    for i in reversed(range(len(shape))):
        if i == axis:
            along = wrap_indices(op, indices, shape[axis])
        else:
            along = np.arange(indices.shape[i]).reshape(-1, *(1,) * (len(shape) - 1 - i))
        place += along * stride
        stride *= shape[i]
    return place


def _gather(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, indices = inputs
    np.copyto(outputs[0], x.reshape(-1)[_places("gather", indices, attrs.axis, x.shape)])


def _scatter(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, indices, source = inputs
    places = _places("scatter", indices, attrs.axis, x.shape).reshape(-1)
    np.copyto(outputs[0], x)
    outputs[0].reshape(-1)[places] = source.reshape(-1)


def _scatter_add(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, indices, source = inputs
    places = _places("scatter_add", indices, attrs.axis, x.shape).reshape(-1)
    total = x.astype(compute_dtype(x.dtype))
    np.add.at(total.reshape(-1), places, widened(source).reshape(-1))
    np.copyto(outputs[0], total, casting="unsafe")


def _rows(array: np.ndarray, count: int) -> np.ndarray:
    """View an array as rows, one per position of its first ``count`` axes."""
    lead, rest = array.shape[:count], array.shape[count:]
    return array.reshape(shapes.volume(lead), shapes.volume(rest))


def _row_numbers(op: str, indices: Arrays, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.zeros(indices[0].size, np.int64)
    for axis, where in enumerate(wrap_all(op, indices, shape)):
        numbers = numbers * shape[axis] + where.reshape(-1)
    return numbers


def _index(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, indices = inputs[0], inputs[1:]
    numbers = _row_numbers("index", indices, x.shape)
    np.copyto(outputs[0], _rows(x, attrs.count)[numbers].reshape(outputs[0].shape))


def _index_set(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, value, indices = inputs[0], inputs[1], inputs[2:]
    numbers = _row_numbers("index_set", indices, x.shape)
    np.copyto(outputs[0], x)
    _rows(outputs[0], attrs.count)[numbers] = _rows(value, indices[0].ndim)


def _index_add(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, value, indices = inputs[0], inputs[1], inputs[2:]
    numbers = _row_numbers("index_add", indices, x.shape)
    total = x.astype(compute_dtype(x.dtype))
    np.add.at(_rows(total, attrs.count), numbers, _rows(widened(value), indices[0].ndim))
    np.copyto(outputs[0], total, casting="unsafe")


def _one_hot(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    indices = inputs[0].reshape(-1)
    expect_classes(indices, attrs.depth)
    outputs[0].fill(0)
    outputs[0].reshape(-1, attrs.depth)[np.arange(indices.size), indices] = 1


def _descending_order(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the stable descending order: the ascending one of the reversed axis, reversed."""
    order = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - order)


def _sorted(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, axis = inputs[0], attrs.axis
    keys = widened(x)
    if attrs.descending:
        order = _descending_order(keys, axis)
    else:
        order = np.argsort(keys, axis, kind="stable")
    kept = (*(slice(None),) * axis, slice(outputs[0].shape[axis]))
    order = order[kept]
    np.copyto(outputs[0], np.take_along_axis(x, order, axis))
    np.copyto(outputs[1], order, casting="unsafe")


_RUNS: dict[str, Any] = {
    "take": _take,
    "take_backward": _take_backward,
    "gather": _gather,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "index": _index,
    "index_set": _index_set,
    "index_add": _index_add,
    "one_hot": _one_hot,
    "sort": _sorted,
    "topk": _sorted,
}
KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(f"{op}_any__numpy", op, run) for op, run in _RUNS.items()
)

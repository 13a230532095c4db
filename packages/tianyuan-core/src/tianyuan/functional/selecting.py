"""Select and count elements by the names that numpy's and PyTorch's users know."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .. import shapes
from ..errors import AttrError, DataError, DTypeError, ShapeError
from ..imperative.indexing import concrete
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import run, tensor
from .creation import arange
from .movement import broadcast_to, reshape
from .picking import where

__all__ = [
    "bincount", "index_select", "masked_fill", "take_along_axis", "tril", "triu", "unique",
]  # fmt: skip


def _indices(op: str, index: Any) -> Tensor:
    found = tensor(op, index, "index")
    if found.dtype.kind not in "iu":
        raise DTypeError(
            f"{op}: index must be an integer, got {found.dtype.name}, expected an integer dtype"
        )
    return found if found.dtype.name in ("int32", "int64") else cast(Tensor, found.cast("int32"))


def masked_fill(inp: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Return the input with a scalar wherever the bool mask, which broadcasts, holds.

    Raises:
        DTypeError: where the mask is not bool.

    >>> masked_fill(Tensor([1.0, 2.0]), Tensor([True, False]), 0.0).tolist()
    [0.0, 2.0]
    """
    found = tensor("masked_fill", inp)
    filler = value.cast(found.dtype) if isinstance(value, Tensor) else found.full((), value)
    return cast(Tensor, where(tensor("masked_fill", mask, "mask"), filler, found))


def index_select(inp: Tensor, axis: int, index: Tensor) -> Tensor:
    """Return the slices along an axis that a vector of indices names, in its order.

    Raises:
        ShapeError: where the index is not a vector.
        IndexRangeError: where an index is out of range.

    >>> index_select(Tensor([[1, 2], [3, 4]]), 1, Tensor([1, 1])).tolist()
    [[2, 2], [4, 4]]
    """
    found, places = tensor("index_select", inp), _indices("index_select", index)
    if places.ndim != 1:
        raise ShapeError(
            f"index_select: index must be a vector, got {shapes.format_shape(places.shape)}, "
            "expected 1 dimension"
        )
    return run("take", found, places, axis=shapes.normalize_axis("index_select", axis, found.ndim))


def take_along_axis(inp: Tensor, indices: Tensor, axis: int | None = None) -> Tensor:
    """Pick elements along an axis by indices of the same rank; other axes broadcast, as in numpy.

    Without an axis both are flattened.

    Raises:
        ShapeError: where ranks differ or an extent does not broadcast.

    >>> take_along_axis(Tensor([[3, 4], [5, 6]]), Tensor([[1], [0]]), 1).tolist()
    [[4], [5]]
    """
    op = "take_along_axis"
    found, places = tensor(op, inp), _indices(op, indices)
    if axis is None:
        found, places, axis = reshape(found, (-1,)), reshape(places, (-1,)), 0
    if found.ndim != places.ndim:
        raise ShapeError(
            f"{op}: ranks differ, got {found.ndim} and {places.ndim}, expected equal ones"
        )
    axis = shapes.normalize_axis(op, axis, found.ndim)

    def others(shape: shapes.Shape) -> shapes.Shape:
        return (*shape[:axis], *shape[axis + 1 :])

    common = shapes.broadcast(op, others(found.shape), others(places.shape))

    def wide(value: Tensor) -> Tensor:
        return broadcast_to(value, (*common[:axis], value.shape[axis], *common[axis:]))

    return run("gather", wide(found), wide(places), axis=axis)


def _triangle(op: str, inp: Tensor, k: int, upper: bool) -> Tensor:
    found = tensor(op, inp)
    if found.ndim < 2:
        raise ShapeError(
            f"{op}: input has the wrong rank, got {shapes.format_shape(found.shape)}, "
            "expected 2 dimensions or more"
        )
    rows = reshape(arange(found.shape[-2], dtype="int32", device=found.device), (-1, 1))
    columns = arange(found.shape[-1], dtype="int32", device=found.device)
    edge = elemwise.add(rows, int(k))
    compare = elemwise.greater_equal if upper else elemwise.less_equal
    return run("where", compare(columns, edge), found, found.full((), 0))


def triu(inp: Tensor, k: int = 0) -> Tensor:
    """Return matrices (..., N, M) with zeros below the k-th diagonal.

    Raises:
        ShapeError: where the rank is below 2.

    >>> triu(Tensor([[1, 2], [3, 4]])).tolist()
    [[1, 2], [0, 4]]
    """
    return _triangle("triu", inp, k, True)


def tril(inp: Tensor, k: int = 0) -> Tensor:
    """Return matrices (..., N, M) with zeros above the k-th diagonal.

    Raises:
        ShapeError: where the rank is below 2.

    >>> tril(Tensor([[1, 2], [3, 4]])).tolist()
    [[1, 0], [3, 4]]
    """
    return _triangle("tril", inp, k, False)


def bincount(inp: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count how often each int from 0 to the largest occurs in a vector, in int32.

    With weights, sum those of each int instead. The size depends on the data, so this is refused
    inside a trace.

    Raises:
        DTypeError: where the input is not an integer.
        ShapeError: where the input is not a vector, or the weights have another shape.
        DataError: where an element is negative.
        TraceError: inside a trace.

    >>> bincount(Tensor([0, 2, 2])).tolist()
    [1, 0, 2]
    """
    places = _indices("bincount", inp)
    if places.ndim != 1 or (weights is not None and weights.shape != places.shape):
        got = shapes.format_shape(places.shape)
        beside = "" if weights is None else f" and weights {shapes.format_shape(weights.shape)}"
        raise ShapeError(f"bincount: input must be a vector, got {got}{beside}")
    if minlength < 0:
        raise AttrError(
            f"bincount: minlength must not be negative, got {minlength}, expected 0 or more"
        )
    values = concrete("bincount", places)
    if values.size and values.min() < 0:
        raise DataError(f"bincount: elements must not be negative, got {values.min()}")
    count = max(int(values.max()) + 1 if values.size else 0, int(minlength))
    amounts = places.full(places.shape, 1, "int32") if weights is None else weights
    total = amounts.full((count,), 0)
    return run("scatter_add", total, places, amounts, axis=0)


def unique(inp: Tensor, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """Return the sorted distinct elements of the flattened input.

    With ``return_inverse`` also the int32 index of each element among them, in the input's shape;
    with ``return_counts`` also how often each occurs, in int32. The size depends on the data, so
    this is refused inside a trace. Elements keep their gradient: that of the first occurrence.

    Raises:
        TraceError: inside a trace.

    >>> unique(Tensor([3, 1, 3])).tolist()
    [1, 3]
    """
    found = tensor("unique", inp)
    _, first, inverse, counts = np.unique(
        concrete("unique", found), return_index=True, return_inverse=True, return_counts=True
    )
    places = Tensor(first, "int32", found.device)
    results = [run("take", reshape(found, (-1,)), places, axis=0)]
    if return_inverse:
        results.append(Tensor(inverse.reshape(found.shape), "int32", found.device))
    if return_counts:
        results.append(Tensor(counts, "int32", found.device))
    return results[0] if len(results) == 1 else tuple(results)

"""Index tensors as numpy does, reading and writing, as compositions of differentiable ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..errors import IndexShapeError, ShapeError, TraceError
from ..ops.operand import Operand
from ..registry import get_op
from ..shapes import format_shape
from .selection import (
    ARRAYS,
    NEW,
    Flag,
    Selection,
    broadcast_values,
    consumed,
    is_bool_array,
    listed,
    select,
    spread,
)


def getitem(tensor: Any, key: Any) -> Any:
    """Return the elements that a key picks: numpy's rules for every key that numpy takes.

    Raises:
        IndexRangeError: where an index points outside, or there are too many.
        TraceError: for a mask inside a trace, since the size depends on data.
    """
    plan = select(_without_masks(tensor, key), tensor.shape)
    region = _region(tensor, plan)
    if not plan.arrays:
        return _fresh(_shaped(region, _result_shape(plan, ())), tensor)
    indices = _indices(tensor, plan.arrays)
    picked = _pick(_arrays_first(region, plan), indices)
    common = indices[0].shape
    ordered = _transposed(picked, _result_order(plan, len(common)))
    return _shaped(ordered, _result_shape(plan, common))


def setitem(tensor: Any, key: Any, value: Any) -> Any:
    """Return a new tensor with the elements that a key picks replaced; the value broadcasts.

    The value is converted to the tensor's dtype. Of duplicate indices the last one stays.

    Raises:
        ShapeError: where the value does not broadcast to what the key picks.
        TraceError: for a mask inside a trace with a value that is not a scalar.
    """
    value = _value(tensor, value)
    if key is Ellipsis:
        return _fresh(_broadcast(value, tensor.shape), value)
    masked = _masked(tensor, key, value)
    if masked is not None:
        return masked
    plan = select(_without_masks(tensor, key), tensor.shape)
    if not plan.arrays:
        shape = _result_shape(plan, ())
        filled = _broadcast(value, shape)
        return _fresh(_put_region(tensor, plan, _shaped(filled, plan.sizes)), value)
    indices = _indices(tensor, plan.arrays)
    common = indices[0].shape
    filled = _broadcast(value, _result_shape(plan, common))
    order = _result_order(plan, len(common))
    base = _arrays_first(_region(tensor, plan), plan)
    picked_shape = (*common, *base.shape[len(indices) :])
    ordered = _shaped(filled, tuple(picked_shape[a] for a in order))
    inverse = tuple(int(i) for i in np.argsort(order))
    changed = get_op("index_set")(base, _transposed(ordered, inverse), *indices, count=len(indices))
    return _put_region(tensor, plan, _arrays_back(changed, plan))


def concrete(name: str, value: Any) -> np.ndarray:
    """Return the value that the size of a result depends on: numbers of a quantised tensor.

    Raises:
        TraceError: inside a trace, where it is not known.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        known = value if value.qparams is None else value.astype("float32")
        array: np.ndarray = known.numpy()
    except TraceError:
        raise TraceError(
            f"{name}: the size of the result depends on data, got a traced tensor of shape "
            f"{format_shape(value.shape)}; expected functional.where or a computation of fixed size"
        ) from None
    return array


def _without_masks(tensor: Any, key: Any) -> list[Any]:
    """Return a key's items, one per axis, with masks replaced by the indices of their elements."""
    items: list[Any] = []
    axis = 0
    for item in spread(listed(key), len(tensor.shape)):
        if not is_bool_array(item):
            items.append(item)
        elif consumed(item) == 0:
            flag = bool(item) if not isinstance(item, Operand) else bool(concrete("index", item))
            items.append(Flag(np.zeros(int(flag), np.int64)))
        else:
            _check_mask(item.shape, tensor.shape[axis : axis + len(item.shape)])
            items += list(concrete("index", item).nonzero())
        axis += consumed(item)
    return items


def _check_mask(mask: shapes.Shape, extents: shapes.Shape) -> None:
    if tuple(map(int, mask)) != tuple(map(int, extents)):
        raise IndexShapeError(
            f"index: mask does not fit, got shape {format_shape(mask)}, "
            f"expected {format_shape(extents)}"
        )


def _masked(tensor: Any, key: Any, value: Any) -> Any:
    """Return the result of assigning a scalar under one mask, or None for any other key."""
    if not isinstance(key, Operand) or key.dtype.kind != "b" or not key.shape:
        return None
    if any(int(extent) != 1 for extent in value.shape):
        return None
    rank = len(key.shape)
    _check_mask(key.shape, tensor.shape[:rank])
    wide = (*key.shape, *(1,) * (len(tensor.shape) - rank))
    mask = get_op("reshape")(key, shape=wide)
    return get_op("where")(mask, get_op("reshape")(value, shape=()), tensor)


def _value(tensor: Any, value: Any) -> Any:
    if not isinstance(value, Operand):
        if isinstance(value, (bool, int, float)):
            return tensor.full((), value)
        from .tensor import Tensor

        return Tensor(value, dtype=tensor.dtype, device=tensor.device)
    return value.cast(tensor.dtype)


def _is_whole(plan: Selection, shape: shapes.Shape) -> bool:
    return all(
        int(start) == 0 and step == 1 and shapes.expr_of(size) == shapes.expr_of(extent)
        for start, size, step, extent in zip(
            plan.starts, plan.sizes, plan.steps, shape, strict=True
        )
    )


def _region(tensor: Any, plan: Selection) -> Any:
    """Return what slices and ints leave, one axis per axis of the tensor."""
    if _is_whole(plan, tensor.shape):
        return tensor
    return get_op("slice")(tensor, starts=plan.starts, sizes=plan.sizes, steps=plan.steps)


def _put_region(tensor: Any, plan: Selection, region: Any) -> Any:
    if _is_whole(plan, tensor.shape):
        return region
    return get_op("slice_set")(
        tensor, region, starts=plan.starts, sizes=plan.sizes, steps=plan.steps
    )


def _kept(plan: Selection) -> list[int]:
    """Return the region's axes that neither an int nor an array takes."""
    taken = {*plan.dropped, *(axis for axis, _ in plan.arrays)}
    return [axis for axis in range(len(plan.sizes)) if axis not in taken]


def _arrays_first(region: Any, plan: Selection) -> Any:
    """Return the region as (one axis per index array, kept axes), without the ints' axes."""
    kept = _kept(plan)
    perm = tuple(axis for axis, _ in plan.arrays if axis >= 0) + plan.dropped + tuple(kept)
    moved = _transposed(region, perm)
    lead = tuple(1 if axis < 0 else plan.sizes[axis] for axis, _ in plan.arrays)
    return _shaped(moved, lead + tuple(plan.sizes[axis] for axis in kept))


def _arrays_back(base: Any, plan: Selection) -> Any:
    """Undo ``_arrays_first``."""
    kept = _kept(plan)
    perm = tuple(axis for axis, _ in plan.arrays if axis >= 0) + plan.dropped + tuple(kept)
    apart = _shaped(base, tuple(plan.sizes[axis] for axis in perm))
    return _transposed(apart, tuple(int(i) for i in np.argsort(perm)))


def _shaped(value: Any, shape: shapes.Shape) -> Any:
    """Return a value in another shape, or itself where it has it."""
    if tuple(map(int, value.shape)) == tuple(map(int, shape)):
        return value
    return get_op("reshape")(value, shape=tuple(shape))


def _fresh(value: Any, source: Any) -> Any:
    """Return a value, or a copy where it is the source itself, which may be rebound later."""
    return get_op("copy")(value) if value is source else value


def _transposed(value: Any, perm: Sequence[int]) -> Any:
    if tuple(perm) == tuple(range(len(perm))):
        return value
    return get_op("transpose")(value, perm=tuple(perm))


def _pick(base: Any, indices: list[Any]) -> Any:
    if len(indices) == 1:
        return get_op("take")(base, indices[0], axis=0)
    return get_op("index")(base, *indices, count=len(indices))


def _indices(tensor: Any, arrays: tuple[tuple[int, Any], ...]) -> list[Any]:
    """Return index arrays as tensors of one dtype and one shape.

    Raises:
        IndexShapeError: where they do not broadcast.
    """
    from .tensor import Tensor

    try:
        common = shapes.broadcast("index", *(index.shape for _, index in arrays))
    except ShapeError as error:
        raise IndexShapeError(str(error)) from None
    wide = any(int(extent) > 2**31 - 1 for extent in tensor.shape)
    dtype = "int64" if wide else "int32"
    found = []
    for _, index in arrays:
        if isinstance(index, np.ndarray):
            index = Tensor(index, dtype=dtype, device=tensor.device)
        index = index.cast(dtype)
        if tuple(map(int, index.shape)) != tuple(map(int, common)):
            index = get_op("broadcast_to")(index, shape=common)
        found.append(index)
    return found


def _result_order(plan: Selection, rank: int) -> tuple[int, ...]:
    """Return, for each axis of the result without new ones, its axis in (arrays, kept axes)."""
    kept = _kept(plan)
    order: list[int] = []
    for entry in plan.layout:
        if entry == ARRAYS:
            order += range(rank)
        elif entry != NEW:
            order.append(rank + kept.index(entry))
    return tuple(order)


def _result_shape(plan: Selection, common: shapes.Shape) -> shapes.Shape:
    shape: list[int] = []
    for entry in plan.layout:
        if entry == ARRAYS:
            shape += common
        else:
            shape.append(1 if entry == NEW else plan.sizes[entry])
    return tuple(shape)


def _broadcast(value: Any, want: shapes.Shape) -> Any:
    trimmed = broadcast_values("index", value.shape, want)
    value = _shaped(value, trimmed)
    if tuple(map(int, trimmed)) == tuple(map(int, want)):
        return value
    return get_op("broadcast_to")(value, shape=want)

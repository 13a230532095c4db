"""What the functions of the table share: constants, extents, axes, exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ... import dtypes, shapes
from ...errors import AttrError, AxisError, ShapeError
from ...functional.arguments import run, run_many
from ...functional.joining import cut
from ...imperative.tensor import Tensor
from ..known import Known, extent_tensor

__all__ = [
    "Array", "Tensor", "binary", "constant", "cut", "extent_tensor", "extents", "full", "is_float",
    "moved", "normal_axes", "normal_axis", "permuted", "reshaped", "run", "run_many", "scalar",
    "single", "zero_padded",
]  # fmt: skip

Array = np.ndarray


def constant(value: Any, dtype: Any = None) -> Tensor:
    """Return a tensor of data that is known."""
    return Known(np.array(value, dtype)).tensor()


def scalar(like: Tensor, value: float) -> Tensor:
    """Return a 0-d tensor with another's dtype."""
    return constant(value, like.dtype)


def full(shape: Sequence[int], value: float, dtype: Any) -> Tensor:
    """Return a tensor of one value; extents may be symbolic."""
    return run("broadcast_to", constant(value, dtype), shape=tuple(shape))


def binary(op: str, x: Tensor, value: Any) -> Tensor:
    """Apply a binary op to a tensor and a number in its dtype, or another tensor."""
    return run(op, x, value if isinstance(value, Tensor) else scalar(x, value))


def is_float(x: Tensor) -> bool:
    """Tell whether a tensor is floating."""
    return dtypes.is_float(x.dtype)


def extents(array: Array) -> list[int]:
    """Return an array of extents as ints, symbolic ones as they are."""
    return [
        item if isinstance(item, shapes.Dim) else int(item) for item in array.reshape(-1).tolist()
    ]


def single(array: Array) -> Any:
    """Return the only element of an array as Python number."""
    if array.size != 1:
        raise ShapeError(f"one element is expected, got shape {array.shape}")
    return array.reshape(-1).tolist()[0]


def normal_axis(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    if not -rank <= axis < rank:
        raise AxisError(f"axis is out of range, got {axis}, expected {-rank} to {rank - 1}")
    return axis % rank


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, in the order given.

    Raises:
        AttrError: where one stands twice.
    """
    found = tuple(normal_axis(int(axis), rank) for axis in axes)
    if len(set(found)) != len(found):
        raise AttrError(f"an axis stands twice, got {found}")
    return found


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor in another shape, itself where it has it."""
    same = len(shape) == x.ndim and all(
        shapes.expr_of(a) == shapes.expr_of(b) for a, b in zip(x.shape, shape, strict=True)
    )
    return x if same else run("reshape", x, shape=tuple(shape))


def permuted(x: Tensor, perm: Sequence[int]) -> Tensor:
    """Return a tensor with its axes in another order, itself where nothing changes."""
    return x if tuple(perm) == tuple(range(x.ndim)) else run("transpose", x, perm=tuple(perm))


def moved(x: Tensor, source: int, target: int) -> Tensor:
    """Return a tensor with one axis at another place."""
    order = [axis for axis in range(x.ndim) if axis != source]
    order.insert(target, source)
    return permuted(x, order)


def zero_padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0) -> Tensor:
    """Return a tensor with a value around it."""
    if not any((*before, *after)):
        return x
    return run(
        "pad", x, before=tuple(before), after=tuple(after), mode="constant", value=float(value)
    )

"""Change shapes without changing elements: reshape, transpose and their relatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from .arguments import numbers_of, run, shape_of, tensor


def broadcast_to(inp: Tensor, shape: Any) -> Tensor:
    """Repeat along new leading axes and axes of extent 1 until the shape is reached.

    None or -1 in the shape keeps the extent that the input has there.

    Raises:
        ShapeError: where the input does not broadcast to the shape, or a new axis has no extent.

    >>> broadcast_to(Tensor([1, 2]), (2, None)).tolist()
    [[1, 2], [1, 2]]
    """
    found = tensor("broadcast_to", inp)
    if isinstance(shape, (tuple, list)):
        shape = _kept_extents(tuple(shape), found.shape)
    return run("broadcast_to", found, shape=shape_of("broadcast_to", shape))


def _kept_extents(want: tuple[Any, ...], have: shapes.Shape) -> tuple[Any, ...]:
    keeps = [item is None or (type(item) is int and item == -1) for item in want]
    new = len(want) - len(have)
    if any(keeps[: max(0, new)]):
        raise ShapeError(
            f"broadcast_to: a new axis has no extent to keep, got {want} for "
            f"{shapes.format_shape(have)}, expected its extent"
        )
    return tuple(have[i - new] if keep else want[i] for i, keep in enumerate(keeps))


def resolve_shape(op: str, have: shapes.Shape, want: shapes.Shape) -> shapes.Shape:
    """Return the shape that a reshape gives, with its one -1 replaced.

    Raises:
        ShapeError: where the element counts differ, or more than one extent is -1.
    """
    unknown = [i for i, extent in enumerate(want) if int(extent) == -1]
    known = shapes.volume(extent for i, extent in enumerate(want) if i not in unknown)
    total = shapes.volume(have)
    fits = len(unknown) <= 1 and all(int(n) >= 0 for i, n in enumerate(want) if i not in unknown)
    if fits and unknown:
        fits = int(known) != 0 and int(total) % int(known) == 0
    elif fits:
        fits = int(known) == int(total)
    if not fits:
        raise ShapeError(
            f"{op}: shape does not fit, got {shapes.format_shape(want)} for "
            f"{shapes.format_shape(have)}, expected {int(total)} elements and at most one -1"
        )
    return tuple(total // known if i in unknown else extent for i, extent in enumerate(want))


def reshape(inp: Tensor, target_shape: Any) -> Tensor:
    """Give the elements, in row-major order, another shape; one extent may be -1.

    Raises:
        ShapeError: where the element counts differ.

    >>> reshape(Tensor([1, 2, 3, 4]), (2, -1)).tolist()
    [[1, 2], [3, 4]]
    """
    have = tensor("reshape", inp).shape
    want = resolve_shape("reshape", have, shape_of("reshape", target_shape))
    return run("reshape", inp, shape=want)


def flatten(inp: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Join the axes from ``start_axis`` to ``end_axis``, both included, into one.

    A scalar gives a vector of one element.

    Raises:
        AttrError: where an axis is out of range or the end comes before the start.

    >>> flatten(Tensor([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    rank = tensor("flatten", inp).ndim
    if rank == 0:
        inp, rank = run("reshape", inp, shape=(1,)), 1
    first = shapes.normalize_axis("flatten", start_axis, rank)
    last = shapes.normalize_axis("flatten", end_axis, rank)
    if last < first:
        raise AttrError(
            f"flatten: axes are crossed, got {start_axis} and {end_axis}, "
            "expected start_axis <= end_axis"
        )
    joined = shapes.volume(inp.shape[first : last + 1])
    return run("reshape", inp, shape=(*inp.shape[:first], joined, *inp.shape[last + 1 :]))


def transpose(inp: Tensor, pattern: Any) -> Tensor:
    """Permute the axes; ``"x"`` in the pattern stands for a new axis of extent 1.

    Raises:
        AttrError: where the pattern does not name every axis once.

    >>> transpose(Tensor([[1, 2], [3, 4]]), (1, 0)).tolist()
    [[1, 3], [2, 4]]
    """
    rank = tensor("transpose", inp).ndim
    items = list(pattern) if isinstance(pattern, Iterable) else [pattern]
    perm = tuple(shapes.normalize_axis("transpose", item, rank) for item in items if item != "x")
    if sorted(perm) != list(range(rank)):
        raise AttrError(
            f"transpose: pattern must name every axis once, got {tuple(items)}, "
            f"expected {rank} axes and any number of 'x'"
        )
    if len(items) == rank:
        return run("transpose", inp, perm=perm)
    moved = inp if perm == tuple(range(rank)) else run("transpose", inp, perm=perm)
    extents = iter(moved.shape)
    return run("reshape", moved, shape=tuple(1 if i == "x" else next(extents) for i in items))


def swapaxes(inp: Tensor, axis1: int, axis2: int) -> Tensor:
    """Exchange two axes.

    >>> swapaxes(Tensor([[1, 2], [3, 4]]), 0, 1).tolist()
    [[1, 3], [2, 4]]
    """
    rank = tensor("swapaxes", inp).ndim
    first = shapes.normalize_axis("swapaxes", axis1, rank)
    second = shapes.normalize_axis("swapaxes", axis2, rank)
    perm = list(range(rank))
    perm[first], perm[second] = second, first
    return transpose(inp, perm)


def expand_dims(inp: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Insert axes of extent 1 at the positions that ``axis`` names in the result.

    >>> expand_dims(Tensor([1, 2]), 1).tolist()
    [[1], [2]]
    """
    axis = numbers_of(axis)
    given = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    rank = tensor("expand_dims", inp).ndim + len(given)
    axes = shapes.normalize_axes("expand_dims", given, rank)
    extents = iter(inp.shape)
    return run("reshape", inp, shape=tuple(1 if a in axes else next(extents) for a in range(rank)))


def squeeze(inp: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Drop axes of extent 1, all of them by default.

    Raises:
        ShapeError: where an axis that is named has another extent.

    >>> squeeze(Tensor([[1, 2]])).tolist()
    [1, 2]
    """
    have = tensor("squeeze", inp).shape
    if axis is None:
        axes: tuple[int, ...] = tuple(a for a, extent in enumerate(have) if extent == 1)
    else:
        axes = shapes.normalize_axes("squeeze", axis, inp.ndim)
    if any(int(have[a]) != 1 for a in axes):
        raise ShapeError(
            f"squeeze: extent must be 1, got shape {shapes.format_shape(have)} and axis {axis}, "
            "expected an axis of extent 1"
        )
    want = tuple(extent for a, extent in enumerate(have) if a not in axes)
    return run("reshape", inp, shape=want)


def copy(inp: Tensor, device: Any = None) -> Tensor:
    """Return a tensor of its own with the same elements, on another device where one is named.

    >>> copy(Tensor([1, 2])).tolist()
    [1, 2]
    """
    made = run("copy", tensor("copy", inp))
    return made if device is None else made.to(device)

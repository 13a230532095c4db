"""Join, cut and repeat tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from ..ops.operand import Operand
from .arguments import (
    choice,
    numbers_of,
    run,
    same_dtype,
    same_shape,
    shape_of,
    tensor,
    tensors,
    whole,
)
from .movement import expand_dims


def concat(inps: Iterable[Tensor], axis: int = 0, device: Any = None) -> Tensor:
    """Join tensors along an axis, after promoting them to one dtype.

    Raises:
        ShapeError: where another extent than the axis' differs, or there is no tensor.

    >>> concat([Tensor([1, 2]), Tensor([3.5])]).tolist()
    [1.0, 2.0, 3.5]
    """
    parts = same_dtype("concat", *tensors("concat", *_listed("concat", inps)))
    where = shapes.normalize_axis("concat", axis, parts[0].ndim)
    joined = run("concat", *parts, axis=where)
    return joined if device is None else joined.to(device)


def _listed(op: str, inps: Any) -> list[Any]:
    found = [inps] if isinstance(inps, Operand) else list(inps)
    if not found:
        raise ShapeError(f"{op}: no input was given, expected at least one")
    return found


def stack(inps: Iterable[Tensor], axis: int = 0, device: Any = None) -> Tensor:
    """Join tensors of one shape along a new axis.

    Raises:
        ShapeError: where the shapes differ.

    >>> stack([Tensor([1, 2]), Tensor([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    parts = tensors("stack", *_listed("stack", inps))
    if not all(same_shape(part.shape, parts[0].shape) for part in parts):
        got = ", ".join(shapes.format_shape(part.shape) for part in parts)
        raise ShapeError(f"stack: inputs must have one shape, got {got}, expected equal shapes")
    axis = shapes.normalize_axis("stack", axis, parts[0].ndim + 1)
    return concat([expand_dims(part, axis) for part in parts], axis, device)


def split(inp: Tensor, nsplits_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Cut along an axis into equal parts (an int) or at indices (a sequence, as numpy).

    Raises:
        ShapeError: where the extent cannot be cut equally.
        AttrError: where indices do not rise or lie outside.

    >>> [part.tolist() for part in split(Tensor([1, 2, 3, 4]), [1, 3])]
    [[1], [2, 3], [4]]
    """
    axis = shapes.normalize_axis("split", axis, tensor("split", inp).ndim)
    extent = inp.shape[axis]
    sections = numbers_of(nsplits_or_sections)
    if not isinstance(sections, Iterable):
        count = whole("split", "nsplits_or_sections", sections)
        if count < 1 or int(extent) % count:
            raise ShapeError(
                f"split: extent cannot be cut equally, got {int(extent)} into {count} parts, "
                "expected a divisor"
            )
        bounds: list[int] = [extent // count * i for i in range(count)] + [extent]
    else:
        bounds = [0, *(whole("split", "an index", index) for index in sections), extent]
        if any(int(a) > int(b) or int(a) < 0 for a, b in pairwise(bounds)):
            raise AttrError(
                f"split: indices must rise, got {tuple(map(int, bounds[1:-1]))}, "
                f"expected 0 to {int(extent)}"
            )
    return [cut(inp, axis, a, b - a) for a, b in pairwise(bounds)]


def cut(inp: Tensor, axis: int, start: int, size: int, step: int = 1) -> Tensor:
    """Take ``size`` neighbours from ``start`` on along one axis and all of the others."""
    starts = tuple(start if a == axis else 0 for a in range(inp.ndim))
    sizes = tuple(size if a == axis else n for a, n in enumerate(inp.shape))
    steps = tuple(step if a == axis else 1 for a in range(inp.ndim))
    return run("slice", inp, starts=starts, sizes=sizes, steps=steps)


def repeat(inp: Tensor, repeats: int | Sequence[int], axis: int | None = None) -> Tensor:
    """Repeat each element along an axis; without one the tensor is flattened first.

    ``repeats`` is one count, or one for each position along the axis.

    Raises:
        AttrError: where a count is negative.
        ShapeError: where the number of counts is not the extent of the axis.

    >>> repeat(Tensor([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    >>> repeat(Tensor([1, 2]), [3, 1]).tolist()
    [1, 1, 1, 2]
    """
    found = tensor("repeat", inp)
    counts = shape_of("repeat", repeats)
    if any(int(count) < 0 for count in counts):
        raise AttrError(f"repeat: count is negative, got {repeats}, expected 0 or more")
    if axis is None or found.ndim == 0:
        found, axis = run("reshape", found, shape=(shapes.volume(found.shape),)), 0
    axis = shapes.normalize_axis("repeat", axis, found.ndim)
    if len(counts) != 1:
        return _repeat_each(found, counts, axis)
    count = counts[0]
    before, extent, after = found.shape[:axis], found.shape[axis], found.shape[axis + 1 :]
    apart = run("reshape", found, shape=(*before, extent, 1, *after))
    wide = run("broadcast_to", apart, shape=(*before, extent, count, *after))
    return run("reshape", wide, shape=(*before, extent * count, *after))


def _repeat_each(inp: Tensor, counts: shapes.Shape, axis: int) -> Tensor:
    if int(inp.shape[axis]) != len(counts):
        raise ShapeError(
            f"repeat: counts do not fit, got {len(counts)} for axis {axis} of "
            f"{shapes.format_shape(inp.shape)}, expected 1 or {int(inp.shape[axis])}"
        )
    positions = np.repeat(np.arange(len(counts)), [int(count) for count in counts])
    return inp[(slice(None),) * axis + (positions,)]


def tile(inp: Tensor, reps: int | Iterable[int]) -> Tensor:
    """Repeat the whole tensor along its last axes; more counts than axes add leading axes.

    Raises:
        AttrError: where a count is negative.

    >>> tile(Tensor([1, 2]), 2).tolist()
    [1, 2, 1, 2]
    """
    reps = numbers_of(reps)
    counts = [
        whole("tile", "a count", r) for r in (reps if isinstance(reps, Iterable) else (reps,))
    ]
    if any(int(count) < 0 for count in counts):
        raise AttrError(f"tile: a count is negative, got {tuple(counts)}, expected 0 or more")
    shape = tensor("tile", inp).shape
    rank = max(len(counts), len(shape))
    counts = [1] * (rank - len(counts)) + counts
    shape = (1,) * (rank - len(shape)) + tuple(shape)
    apart = tuple(extent for n in shape for extent in (1, n))
    wide = tuple(extent for r, n in zip(counts, shape, strict=True) for extent in (r, n))
    spread = run("broadcast_to", run("reshape", inp, shape=apart), shape=wide)
    return run("reshape", spread, shape=tuple(r * n for r, n in zip(counts, shape, strict=True)))


def roll(
    inp: Tensor, shift: int | Iterable[int], axis: int | Iterable[int] | None = None
) -> Tensor:
    """Shift elements along axes; those that leave at the end come back at the front.

    Without an axis the flattened tensor is shifted and gets its shape back.

    Raises:
        AttrError: where shifts and axes differ in number.

    >>> roll(Tensor([1, 2, 3]), 1).tolist()
    [3, 1, 2]
    """
    shape = tensor("roll", inp).shape
    if axis is None:
        flat = run("reshape", inp, shape=(shapes.volume(shape),))
        return run("reshape", roll(flat, shift, 0), shape=shape)
    shift, axis = numbers_of(shift), numbers_of(axis)
    shifts = list(shift) if isinstance(shift, Iterable) else [shift]
    listed = list(axis) if isinstance(axis, Iterable) else [axis]
    axes = [shapes.normalize_axis("roll", where, inp.ndim) for where in listed]
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    if len(shifts) != len(axes):
        raise AttrError(
            f"roll: shifts do not fit the axes, got {len(shifts)} for {len(axes)}, expected as "
            "many of both"
        )
    rolled = run("copy", inp)
    for count, where in zip(shifts, axes, strict=True):
        extent = inp.shape[where]
        known = not isinstance(extent, shapes.Dim)  # one of a trace holds for other sizes too
        if known and (extent == 0 or int(count) % extent == 0):
            continue
        tail = count % extent
        parts = cut(rolled, where, extent - tail, tail), cut(rolled, where, 0, extent - tail)
        rolled = run("concat", *parts, axis=where)
    return rolled


def flip(inp: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Reverse the order of elements along axes, all of them by default.

    >>> flip(Tensor([[1, 2], [3, 4]]), 1).tolist()
    [[2, 1], [4, 3]]
    """
    found = tensor("flip", inp)
    axes = shapes.normalize_axes("flip", axis, found.ndim)
    shape = found.shape
    starts = tuple(n - 1 if a in axes else 0 for a, n in enumerate(shape))
    steps = tuple(-1 if a in axes else 1 for a in range(found.ndim))
    return run("slice", found, starts=starts, sizes=tuple(shape), steps=steps)


def meshgrid(*inputs: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Spread vectors over a grid, one result per vector; ``xy`` swaps the first two axes.

    Raises:
        ShapeError: where an input is not a vector.
        AttrError: where the indexing is unknown.

    >>> [part.tolist() for part in meshgrid(Tensor([1, 2]), Tensor([3, 4, 5]), indexing="ij")]
    [[[1, 1, 1], [2, 2, 2]], [[3, 4, 5], [3, 4, 5]]]
    """
    indexing = choice("meshgrid", "indexing", indexing, ("xy", "ij"))
    for value in inputs:
        if tensor("meshgrid", value).ndim != 1:
            raise ShapeError(
                f"meshgrid: inputs must be vectors, got {shapes.format_shape(value.shape)}, "
                "expected 1 dimension each"
            )
    order = list(range(len(inputs)))
    if indexing == "xy" and len(inputs) > 1:
        order[:2] = [1, 0]
    grid = tuple(inputs[i].shape[0] for i in order)
    made = []
    for i, value in enumerate(inputs):
        line = tuple(value.shape[0] if order[a] == i else 1 for a in range(len(inputs)))
        made.append(run("broadcast_to", run("reshape", value, shape=line), shape=grid))
    return made

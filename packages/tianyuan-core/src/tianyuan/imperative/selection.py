"""Read an indexing key as numpy does: what each axis gives, and where the results' axes go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..errors import AttrError, IndexRangeError, IndexTypeError, ShapeError
from ..ops.operand import Operand
from ..records import record
from ..shapes import Dim, expr_of, format_shape, range_of


@record()
class Selection:
    """A key made plain.

    Attributes:
        starts, sizes, steps: the region that slices and ints take, one entry per axis.
        dropped: axes that an int takes one element of.
        arrays: (axis, index array or tensor) of each axis that an array indexes; axis -1 for a
            bool scalar, which takes none.
        layout: the result's axes in order: numbers of region axes, ``NEW`` for a new axis of
            extent 1, and one ``ARRAYS`` for the axes of the arrays' common shape.
    """

    starts: shapes.Shape
    sizes: shapes.Shape
    steps: shapes.Shape
    dropped: shapes.Shape
    arrays: tuple[tuple[int, Any], ...]
    layout: tuple[Any, ...]


NEW, ARRAYS = "new", "arrays"  # entries of a layout beside the numbers of region axes


def is_bool_array(item: Any) -> bool:
    """Tell whether a key's item is a mask: a bool scalar, array or tensor."""
    if isinstance(item, (bool, np.bool_)):
        return True
    return isinstance(item, (np.ndarray, Operand)) and item.dtype.kind == "b"


def is_int(item: Any) -> bool:
    """Tell whether a key's item is a Python or numpy int."""
    return isinstance(item, (int, np.integer)) and not isinstance(item, bool)


def listed(key: Any) -> list[Any]:
    """Return a key's items, with sequences as arrays.

    Raises:
        IndexTypeError: for an item that cannot index.
    """
    items = list(key) if isinstance(key, tuple) else [key]
    return [_item(item) for item in items]


def _item(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        array = np.asarray([_plain(part) for part in item])
        item = array.astype(np.int64) if array.size == 0 and array.dtype.kind == "f" else array
    plain = item is None or item is Ellipsis or isinstance(item, slice) or is_int(item)
    if plain or is_bool_array(item):
        return item
    if isinstance(item, (np.ndarray, Operand)) and item.dtype.kind in "iu":
        return int(item) if isinstance(item, np.ndarray) and item.ndim == 0 else item
    got = getattr(item, "dtype", type(item).__name__)
    raise IndexTypeError(
        f"index: an item cannot index, got {got}, expected ints, slices, '...', None, "
        "or arrays of ints or bool"
    )


def _plain(part: Any) -> Any:
    """Return a tensor inside a sequence of indices as plain numbers."""
    return np.asarray(part).tolist() if isinstance(part, Operand) else part


def consumed(item: Any) -> int:
    """Return how many axes an item indexes."""
    if item is None or item is Ellipsis:
        return 0
    if is_bool_array(item):
        return int(getattr(item, "ndim", 0))
    return 1


def spread(items: Sequence[Any], rank: int) -> list[Any]:
    """Replace the Ellipsis, or the missing end, by full slices.

    Raises:
        AttrError: where there are two Ellipses, or more items than axes.
    """
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    used = sum(consumed(item) for item in items)
    if len(dots) > 1:
        raise AttrError(
            f"index: '...' stands more than once, got {len(dots)}, expected at most one"
        )
    if used > rank:
        raise IndexRangeError(f"index: too many indices, got {used}, expected at most {rank}")
    at = dots[0] if dots else len(items)
    rest: list[Any] = [slice(None)] * (rank - used)
    # A placeholder keeps arrays on both sides of an empty Ellipsis apart, as numpy does.
    return [*items[:at], *(rest or [Ellipsis] * len(dots)), *items[at + 1 :]]


def select(items: Sequence[Any], shape: shapes.Shape) -> Selection:
    """Make a key plain for a shape; masks must have been replaced by index arrays before.

    Raises:
        IndexRangeError: where an int or a constant array points outside.
        AttrError: where a slice has step zero.
    """
    starts, sizes, steps = [], [], []
    dropped: list[int] = []
    arrays: list[tuple[int, Any]] = []
    layout: list[Any] = []
    advanced = [i for i, item in enumerate(items) if _is_advanced(item, items)]
    front = bool(advanced) and advanced != list(range(advanced[0], advanced[-1] + 1))
    axis = 0
    for item in items:
        if item is Ellipsis:
            continue
        if item is None:
            layout.append(NEW)
            continue
        if isinstance(item, Flag):
            arrays.append((-1, item.index))
            layout.append(ARRAYS)
            continue
        extent = shape[axis]
        start, size, step = 0, extent, 1
        if isinstance(item, slice):
            start, size, step = slice_of(item, extent)
            layout.append(axis)
        elif is_int(item):
            start, size = _wrapped(item, extent, axis), 1
            dropped.append(axis)
            layout.append(ARRAYS)
        else:
            _check_range(item, extent, axis)
            arrays.append((axis, item))
            layout.append(ARRAYS)
        starts.append(start)
        sizes.append(size)
        steps.append(step)
        axis += 1
    return Selection(
        tuple(starts), tuple(sizes), tuple(steps), tuple(dropped), tuple(arrays),
        _placed(layout, front, bool(arrays)),
    )  # fmt: skip


@record()
class Flag:
    """A bool scalar in a key: an array index of length 0 or 1 that takes no axis."""

    index: np.ndarray


def _is_advanced(item: Any, items: Sequence[Any]) -> bool:
    """Tell whether an item is an array index; ints count as such beside an array."""
    if isinstance(item, (np.ndarray, Operand, Flag)):
        return True
    return is_int(item) and any(isinstance(i, (np.ndarray, Operand, Flag)) for i in items)


def _placed(layout: list[Any], front: bool, has_arrays: bool) -> tuple[Any, ...]:
    """Leave one mark for the arrays' shape, where numpy puts it."""
    plain = [entry for entry in layout if entry != ARRAYS]
    if not has_arrays:
        return tuple(plain)
    at = 0 if front else layout.index(ARRAYS)
    return (*plain[:at], ARRAYS, *plain[at:])


def _wrapped(index: Any, extent: int, axis: int) -> int:
    if not -int(extent) <= int(index) < int(extent):
        raise IndexRangeError(
            f"index: out of range, got {int(index)} for axis {axis}, "
            f"expected {-int(extent)} to {int(extent) - 1}"
        )
    return _from_start(index if isinstance(index, int) else int(index), extent)


def _from_start(place: int, extent: int) -> int:
    """Count a negative place from the end; where its sign depends on sizes, an expression does."""
    least, most = range_of(expr_of(place))
    if most < 0:
        return place + extent
    if least >= 0:
        return place
    is_negative = _extreme("min", _extreme("max", -place, 0), 1)
    return place + is_negative * extent


def _check_range(index: Any, extent: int, axis: int) -> None:
    if not isinstance(index, np.ndarray) or index.size == 0 or isinstance(extent, Dim):
        return
    low, high = int(index.min()), int(index.max())
    if low < -extent or high >= extent:
        raise IndexRangeError(
            f"index: out of range, got {low if low < -extent else high} for axis {axis}, "
            f"expected {-extent} to {extent - 1}"
        )


def slice_of(item: slice, extent: int) -> tuple[int, int, int]:
    """Return (start, size, step) of a slice; symbolic bounds stay symbolic.

    Raises:
        AttrError: where the step is zero.
    """
    step = 1 if item.step is None else item.step.__index__()
    if step == 0:
        raise AttrError("index: a slice's step must not be zero, got 0, expected another")
    if not any(isinstance(part, Dim) for part in (item.start, item.stop, extent)):
        start, stop, step = item.indices(extent)
        return start, len(range(start, stop, step)), step
    if item.start is None and item.stop is None and step == 1:
        return 0, extent, 1
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    first, last = (low, high) if step > 0 else (high, low)
    start = first if item.start is None else _clamped(item.start, extent, low, high)
    stop = last if item.stop is None else _clamped(item.stop, extent, low, high)
    span, stride = (stop - start, step) if step > 0 else (start - stop, -step)
    count = _extreme("max", span, 0)
    return start, count if stride == 1 else (count + (stride - 1)) // stride, step


def _clamped(bound: Any, extent: int, low: int, high: int) -> int:
    bound = bound if isinstance(bound, int) else bound.__index__()
    least, most = range_of(expr_of(bound))
    if most < 0:
        return _extreme("max", bound + extent, low)
    if least >= 0:
        return _extreme("min", bound, high)
    return _extreme("max", _extreme("min", _from_start(bound, extent), high), low)


def _extreme(which: str, left: int, right: int) -> int:
    chosen = (max if which == "max" else min)(int(left), int(right))
    symbolic = isinstance(left, Dim) or isinstance(right, Dim)
    return Dim(chosen, (which, expr_of(left), expr_of(right))) if symbolic else chosen


def broadcast_values(name: str, have: shapes.Shape, want: shapes.Shape) -> shapes.Shape:
    """Return the shape of an assigned value without the leading ones that its target lacks.

    Raises:
        ShapeError: where it does not broadcast to the target.
    """
    trimmed = tuple(have)
    while len(trimmed) > len(want) and int(trimmed[0]) == 1:
        trimmed = trimmed[1:]
    pairs = zip(reversed(trimmed), reversed(want), strict=False)
    if len(trimmed) > len(want) or any(int(a) not in (1, int(b)) for a, b in pairs):
        raise ShapeError(
            f"{name}: value does not fit, got shape {format_shape(have)}, "
            f"expected one that broadcasts to {format_shape(want)}"
        )
    return trimmed

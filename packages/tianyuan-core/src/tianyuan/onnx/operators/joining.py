"""Join, cut and pad."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import AttrError, ShapeError
from ..limits import check_size
from ..node import Node
from ..table import operator
from .common import (
    Array,
    Tensor,
    constant,
    cut,
    extents,
    normal_axes,
    normal_axis,
    run,
    single,
)

_FAR = 2**31 - 1


@operator("Concat", 4)
def concat(node: Node, x: Tensor, *more: Tensor) -> Tensor:
    return run("concat", x, *more, axis=normal_axis(node.int("axis"), x.ndim))


def _split(node: Node, x: Tensor, sizes: list[int] | None, count: int) -> tuple[Tensor, ...]:
    axis = normal_axis(node.int("axis", 0), x.ndim)
    extent = x.shape[axis]
    if sizes is None:
        step = (extent + (count - 1)) // count
        last = extent - step * (count - 1)
        if int(last) < 0:
            raise ShapeError(f"extent {int(extent)} cannot be cut into {count} parts")
        sizes = [step] * (count - 1) + [last]
    if sum(map(int, sizes)) != int(extent) or any(int(n) < 0 for n in sizes):
        raise ShapeError(f"sizes do not fit, got {tuple(map(int, sizes))} for {int(extent)}")
    parts = []
    start: int = 0
    for part in sizes:
        parts.append(cut(x, axis, start, part))
        start = part + start
    return tuple(parts)


@operator("Split", 13, known=(1,))
def split(node: Node, x: Tensor, sizes: Array | None = None) -> tuple[Tensor, ...]:
    count = node.int("num_outputs", len(node.outputs))
    if count < 1:
        raise AttrError(f"num_outputs must be positive, got {count}")
    return _split(node, x, None if sizes is None else extents(sizes), count)


@operator("Split", 2, 12)
def split_by_attribute(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    sizes = list(node.ints("split")) if node.has("split") else None
    return _split(node, x, sizes, len(node.outputs))


def slice_region(start: int, end: int, step: int, extent: int) -> tuple[int, int]:
    """Return the first index and the count that start:end:step picks, clamped as ONNX says.

    Unlike in numpy, a backward slice that starts before the first element starts at it. Symbolic
    bounds stay symbolic where they need no clamping.
    """
    if int(step) == 0:
        raise AttrError("a step is 0, expected another number")
    start = start + extent if int(start) < 0 else start
    end = end + extent if int(end) < 0 and int(end) > -_FAR else end
    if int(step) > 0:
        start = 0 if int(start) < 0 else extent if int(start) > int(extent) else start
        end = 0 if int(end) < 0 else extent if int(end) > int(extent) else end
        count = (end - start + (step - 1)) // step
    else:
        start = 0 if int(start) < 0 else start
        start = extent - 1 if int(start) >= int(extent) else start
        end = -1 if int(end) < 0 else extent - 1 if int(end) >= int(extent) else end
        count = (start - end + (-step - 1)) // -step
    if int(count) <= 0:
        return 0, 0
    return start, count


def sliced(
    x: Tensor, starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None
) -> Tensor:
    """Slice some axes of a tensor."""
    chosen = normal_axes(range(len(starts)) if axes is None else axes, x.ndim)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(chosen) == len(steps):
        raise ShapeError("starts, ends, axes and steps differ in length")
    first, sizes, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
    for axis, start, end, step in zip(chosen, starts, ends, steps, strict=True):
        first[axis], sizes[axis] = slice_region(start, end, step, x.shape[axis])
        strides[axis] = int(step)
    return run("slice", x, starts=tuple(first), sizes=tuple(sizes), steps=tuple(strides))


@operator("Slice", 10, known=(1, 2, 3, 4))
def slice_by_inputs(
    node: Node, x: Tensor, starts: Array, ends: Array, axes: Array | None = None,
    steps: Array | None = None,
) -> Tensor:  # fmt: skip
    return sliced(
        x, extents(starts), extents(ends), None if axes is None else extents(axes),
        None if steps is None else extents(steps),
    )  # fmt: skip


@operator("Slice", 1, 9)
def slice_by_attributes(node: Node, x: Tensor) -> Tensor:
    axes = list(node.ints("axes")) if node.has("axes") else None
    return sliced(x, list(node.ints("starts")), list(node.ints("ends")), axes, None)


def padded(x: Tensor, pads: list[int], mode: str, value: Any, axes: list[int] | None) -> Tensor:
    """Pad some axes; negative pads cut elements off."""
    chosen = normal_axes(range(x.ndim) if axes is None else axes, x.ndim)
    if len(pads) != 2 * len(chosen):
        raise ShapeError(f"pads do not fit, got {len(pads)} for {len(chosen)} axes")
    before, after = [0] * x.ndim, [0] * x.ndim
    for index, axis in enumerate(chosen):
        before[axis], after[axis] = pads[index], pads[index + len(chosen)]
    x = _cropped(x, before, after)
    before, after = ([n if int(n) > 0 else 0 for n in side] for side in (before, after))
    check_size([n + b + a for n, b, a in zip(x.shape, before, after, strict=True)], x.dtype)
    if mode == "wrap":
        return _wrapped(x, before, after)
    if mode == "reflect":
        return _reflected(x, before, after)
    if mode == "edge":
        return run("pad", x, before=tuple(before), after=tuple(after), mode="edge", value=0.0)
    number = float(single(value)) if value is not None else 0.0
    if abs(number) >= 2**53 and x.dtype.kind in "iu":
        raise AttrError(f"value is too large, got {single(value)}")
    return run("pad", x, before=tuple(before), after=tuple(after), mode="constant", value=number)


def _cropped(x: Tensor, before: list[int], after: list[int]) -> Tensor:
    if all(int(n) >= 0 for n in (*before, *after)):
        return x
    starts = tuple(-n if int(n) < 0 else 0 for n in before)
    sizes = tuple(
        n - start + (b if int(b) < 0 else 0)
        for n, start, b in zip(x.shape, starts, after, strict=True)
    )
    return run("slice", x, starts=starts, sizes=sizes, steps=(1,) * x.ndim)


def _wrapped(x: Tensor, before: list[int], after: list[int]) -> Tensor:
    for axis, (front, back) in enumerate(zip(before, after, strict=True)):
        if int(front) or int(back):
            extent = int(x.shape[axis])
            index = np.arange(-int(front), extent + int(back)) % max(extent, 1)
            x = run("take", x, constant(index), axis=axis)
    return x


def _reflected(x: Tensor, before: list[int], after: list[int]) -> Tensor:
    """Mirror without repeating the border, as often as the pads ask for."""
    fits = all(
        max(int(b), int(a)) < max(int(n), 1) for b, a, n in zip(before, after, x.shape, strict=True)
    )
    if fits:
        return run("pad", x, before=tuple(before), after=tuple(after), mode="reflect", value=0.0)
    for axis, (front, back) in enumerate(zip(before, after, strict=True)):
        extent = int(x.shape[axis])
        period = max(2 * extent - 2, 1)
        index = np.arange(-int(front), extent + int(back)) % period
        x = run("take", x, constant(np.minimum(index, period - index)), axis=axis)
    return x


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


@operator("Pad", 11, known=(1, 2, 3))
def pad(
    node: Node, x: Tensor, pads: Array, value: Array | None = None, axes: Array | None = None
) -> Tensor:
    mode = node.text("mode", "constant", _PAD_MODES)
    return padded(x, extents(pads), mode, value, None if axes is None else extents(axes))


@operator("Pad", 2, 10)
def pad_by_attributes(node: Node, x: Tensor) -> Tensor:
    value = np.array(node.float("value", 0.0))
    mode = node.text("mode", "constant", _PAD_MODES)
    return padded(x, list(node.ints("pads")), mode, value, None)


@operator("CenterCropPad", 18, known=(1,))
def center_crop_pad(node: Node, x: Tensor, target: Array) -> Tensor:
    """Crop or pad axes around the centre to the extents given."""
    axes = normal_axes(node.ints("axes", tuple(range(x.ndim))), x.ndim)
    want = extents(target)
    if len(want) != len(axes):
        raise ShapeError(f"shape does not fit, got {len(want)} extents for {len(axes)} axes")
    pads = [0] * (2 * len(axes))
    for index, (axis, new) in enumerate(zip(axes, want, strict=True)):
        missing = int(new) - int(x.shape[axis])
        front = missing // 2 if missing >= 0 else -(-missing // 2)
        pads[index], pads[index + len(axes)] = front, missing - front
    return padded(x, pads, "constant", None, list(axes))

"""Shapes: what reads them, changes them, or makes values of one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes, shapes
from ...errors import ShapeError
from ...imperative.tensor import create
from ...registry import get_op
from ..known import Known, known_extents
from ..limits import check_size
from ..node import Node
from ..reader import dtype_of
from ..table import VALUES, operator
from .common import (
    Array,
    Tensor,
    binary,
    constant,
    extents,
    full,
    normal_axes,
    permuted,
    reshaped,
    run,
    scalar,
    single,
)


def _shape_of(value: Any) -> tuple[int, ...]:
    return tuple(value.shape)


@operator("Shape", form=VALUES, folds=True)
def shape(node: Node, runtime: Any, x: Any) -> Known:
    """Return the extents from ``start`` to ``end``; symbolic ones stay so."""
    found = _shape_of(x)
    rank = len(found)
    start, end = node.int("start", 0), node.int("end", rank)
    start, end = (min(max(n + rank if n < 0 else n, 0), rank) for n in (start, end))
    return known_extents(found[start:end])


@operator("Size", form=VALUES, folds=True)
def size(node: Node, runtime: Any, x: Any) -> Known:
    found = known_extents([shapes.volume(_shape_of(x))])
    return Known(found.array.reshape(()), found.dtype)


@operator("Identity", form=VALUES, folds=True)
def identity(node: Node, runtime: Any, x: Any) -> Any:
    return run("copy", x) if isinstance(x, Tensor) else x


@operator("Reshape", 5, known=(1,))
def reshape(node: Node, x: Tensor, target: Array) -> Tensor:
    """Give a shape; 0 keeps an extent unless ``allowzero``, -1 takes what is left."""
    return reshaped(x, resolve(x.shape, extents(target), node.flag("allowzero")))


def resolve(have: tuple[int, ...], want: list[int], allow_zero: bool) -> tuple[int, ...]:
    """Return the shape that a reshape gives.

    Raises:
        ShapeError: where the counts of elements differ, or an extent is not valid.
    """
    found = list(want)
    for axis, extent in enumerate(found):
        if int(extent) == 0 and not isinstance(extent, shapes.Dim) and not allow_zero:
            if axis >= len(have):
                raise ShapeError(f"shape keeps axis {axis} of {shapes.format_shape(have)}")
            found[axis] = have[axis]
    unknown = [axis for axis, extent in enumerate(found) if int(extent) == -1]
    if len(unknown) > 1 or any(int(extent) < -1 for extent in found):
        raise ShapeError(f"shape is not valid, got {shapes.format_shape(tuple(found))}")
    if unknown:
        rest = shapes.volume(n for axis, n in enumerate(found) if axis not in unknown)
        total = shapes.volume(have)
        if int(rest) == 0 or int(total) % int(rest):
            raise ShapeError(
                f"shape does not fit, got {shapes.format_shape(tuple(found))} for "
                f"{shapes.format_shape(have)}"
            )
        found[unknown[0]] = total // rest
    return tuple(found)


@operator("Flatten")
def flatten(node: Node, x: Tensor) -> Tensor:
    axis = node.int("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise ShapeError(f"axis is out of range, got {axis} for rank {x.ndim}")
    axis = axis + x.ndim if axis < 0 else axis
    return reshaped(x, (shapes.volume(x.shape[:axis]), shapes.volume(x.shape[axis:])))


@operator("Transpose")
def transpose(node: Node, x: Tensor) -> Tensor:
    return permuted(x, node.ints("perm", tuple(range(x.ndim))[::-1]))


def _squeezed(x: Tensor, axes: list[int] | None) -> Tensor:
    chosen = (
        tuple(axis for axis, n in enumerate(x.shape) if n == 1)
        if axes is None
        else normal_axes(axes, x.ndim)
    )
    wrong = [axis for axis in chosen if int(x.shape[axis]) != 1]
    if wrong:
        raise ShapeError(f"an extent is not 1, got {shapes.format_shape(x.shape)}, axes {chosen}")
    return reshaped(x, [n for axis, n in enumerate(x.shape) if axis not in chosen])


@operator("Squeeze", 13, known=(1,))
def squeeze(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
    return _squeezed(x, None if axes is None else extents(axes))


@operator("Squeeze", 1, 12)
def squeeze_by_attribute(node: Node, x: Tensor) -> Tensor:
    return _squeezed(x, list(node.ints("axes")) if node.has("axes") else None)


def _unsqueezed(x: Tensor, axes: list[int]) -> Tensor:
    rank = x.ndim + len(axes)
    chosen = normal_axes(axes, rank)
    rest = iter(x.shape)
    return reshaped(x, [1 if axis in chosen else next(rest) for axis in range(rank)])


@operator("Unsqueeze", 13, known=(1,))
def unsqueeze(node: Node, x: Tensor, axes: Array) -> Tensor:
    return _unsqueezed(x, extents(axes))


@operator("Unsqueeze", 1, 12)
def unsqueeze_by_attribute(node: Node, x: Tensor) -> Tensor:
    return _unsqueezed(x, list(node.ints("axes")))


@operator("Expand", 8, known=(1,))
def expand(node: Node, x: Tensor, target: Array) -> Tensor:
    want = shapes.broadcast("expand", tuple(x.shape), tuple(extents(target)))
    return run("broadcast_to", x, shape=want)


@operator("Tile", 6, known=(1,))
def tile(node: Node, x: Tensor, repeats: Array) -> Tensor:
    counts = extents(repeats)
    if len(counts) != x.ndim or any(int(n) < 0 for n in counts):
        raise ShapeError(f"repeats do not fit, got {tuple(map(int, counts))} for rank {x.ndim}")
    apart = [n for extent in x.shape for n in (1, extent)]
    wide = [n for count, extent in zip(counts, x.shape, strict=True) for n in (count, extent)]
    spread = run("broadcast_to", reshaped(x, apart), shape=tuple(wide))
    return reshaped(spread, [c * n for c, n in zip(counts, x.shape, strict=True)])


@operator("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.int("blocksize")
    if node.text("mode", "DCR", ("DCR", "CRD")) == "DCR":
        apart, perm = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        apart, perm = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    return reshaped(permuted(reshaped(x, apart), perm), (n, c // (b * b), h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.int("blocksize")
    apart = reshaped(x, (n, c, h // b, b, w // b, b))
    by_depth = node.text("mode", "DCR", ("DCR", "CRD")) == "DCR"
    perm = (0, 3, 5, 1, 2, 4) if by_depth else (0, 1, 3, 5, 2, 4)
    return reshaped(permuted(apart, perm), (n, c * b * b, h // b, w // b))


@operator("ConstantOfShape", 9, known=(0,))
def constant_of_shape(node: Node, shape: Array) -> Tensor:
    value = node.array("value", np.zeros(1, np.float32))
    return full(extents(shape), single(value), value.dtype)


@operator("Range", 11, known=(0, 1, 2))
def number_range(node: Node, start: Array, limit: Array, delta: Array) -> Tensor:
    """Return start, start + delta … before limit; the count may be symbolic."""
    first, last, step = (single(value) for value in (start, limit, delta))
    dtype = np.dtype(np.int64) if start.dtype == object else start.dtype
    if step == 0:
        raise ShapeError("delta is 0, expected another number")
    if all(isinstance(item, int) for item in (first, last, step)):
        span, stride = (last - first, step) if int(step) > 0 else (first - last, -step)
        count: int = (span + (stride - 1)) // stride
    else:
        count = int(np.ceil((last - first) / step))
    op = get_op("arange")
    if dtypes.is_float(dtype):
        attrs = op.attrs(start=float(first), step=float(step), count=max(count, 0),
                         dtype=dtypes.name_of(dtype))  # fmt: skip
        return create(op, attrs)  # type: ignore[no-any-return]
    attrs = op.attrs(start=0.0, step=1.0, count=count if int(count) > 0 else 0, dtype="int64")
    line = create(op, attrs)
    scaled = binary("mul", line, int(step)) if int(step) != 1 else line
    shift = Known(np.array(first, object), np.dtype(np.int64)) if isinstance(
        first, shapes.Dim) else Known(np.array(first, np.int64))  # fmt: skip
    return run("add", scaled, shift.tensor()).astype(dtype)


@operator("EyeLike", 9, form=VALUES)
def eye_like(node: Node, runtime: Any, like: Any) -> Any:
    dtype = dtype_of(node.int("dtype")) if node.has("dtype") else like.dtype
    rows, cols = like.shape
    op = get_op("eye")
    attrs = op.attrs(rows=rows, cols=cols, k=node.int("k", 0), dtype=dtypes.name_of(dtype))
    return create(op, attrs)


@operator("Trilu", 14, known=(1,))
def trilu(node: Node, x: Tensor, k: Array | None = None) -> Tensor:
    """Keep the triangle above or below the k-th diagonal of the last two axes."""
    shift = 0 if k is None else int(single(k))
    upper = node.flag("upper", True)
    rows, cols = x.shape[-2:]
    row = reshaped(_line(rows), (rows, 1))
    col = reshaped(_line(cols), (1, cols))
    edge = binary("add", row, shift)
    kept = run("greater_equal" if upper else "less_equal", col, edge)
    return run("where", kept, x, scalar(x, 0))


def _line(count: int) -> Tensor:
    op = get_op("arange")
    made = create(op, op.attrs(start=0.0, step=1.0, count=count, dtype="int64"))
    assert isinstance(made, Tensor)
    return made


@operator("Dropout", 12, known=(1, 2))
def dropout(
    node: Node, x: Tensor, ratio: Array | None = None, training: Array | None = None
) -> Any:
    """Return the input and a mask of ones, or drop at random where the file trains."""
    rate = 0.5 if ratio is None else float(single(ratio))
    kept = full(x.shape, 1, bool)
    if training is None or not bool(single(training)) or rate == 0:
        return run("copy", x), kept
    from ...imperative import generator

    drawn = generator.default.draw("philox_uniform", tuple(x.shape), "float32")
    kept = binary("greater_equal", drawn, rate)
    return binary("div", run("where", kept, x, scalar(x, 0)), 1 - rate), kept


@operator("Dropout", 7, 11)
def dropout_by_attribute(node: Node, x: Tensor) -> Any:
    return run("copy", x), full(x.shape, 1, bool)


@operator("OneHot", 9, known=(1, 2))
def one_hot(node: Node, indices: Tensor, depth: Array, values: Array) -> Tensor:
    """Return values[1] at each index along a new axis and values[0] elsewhere."""
    count = int(single(depth))
    check_size((shapes.volume(indices.shape), count), values.dtype)
    axis = node.int("axis", -1)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    where = indices.astype("int64")
    wrapped = run("where", binary("less", where, 0), binary("add", where, count), where)
    wide = [*indices.shape]
    wide.insert(axis, 1)
    line = [count if a == axis else 1 for a in range(len(wide))]
    hot = run("equal", reshaped(wrapped, wide), reshaped(constant(np.arange(count)), line))
    off, on = (constant(item, values.dtype) for item in values.reshape(-1))
    return run("where", hot, on, off)


__all__ = ["resolve"]

"""Ops that move values without changing them: reshape, transpose, broadcast, concat, pad, slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import is_bool, is_float
from ..errors import AttrError, AxisError, DTypeError, ShapeError
from ..op import GradContext, Op, Specs, TensorSpec, expect_same_dtype
from . import attrs as a
from . import reduction

PAD_MODES = ("constant", "reflect", "edge")
Arrays = Sequence[np.ndarray]


def _text(shape: Sequence[int]) -> str:
    return shapes.format_shape(shape)


def _expect_length(op: str, what: str, values: Sequence[Any], rank: int) -> None:
    if len(values) != rank:
        raise AttrError(
            f"{op}: {what} needs one entry per axis, got {len(values)} entries, expected {rank}"
        )


def _expect_extents(op: str, shape: Sequence[int]) -> None:
    if any(int(extent) < 0 for extent in shape):
        raise AttrError(f"{op}: an extent is negative, got {_text(shape)}, expected 0 or more")


def expect_axis(op: str, axis: int, rank: int) -> None:
    """Raise AxisError unless a normalised axis lies inside the rank."""
    if not 0 <= axis < rank:
        raise AxisError(f"{op}: axis is out of range, got {axis}, expected 0 to {rank - 1}")


# reshape, transpose, broadcast_to


def _reshape_infer(specs: Specs, attrs: a.Shape) -> Specs:
    _expect_extents("reshape", attrs.shape)
    if int(shapes.volume(attrs.shape)) != int(specs[0].size):
        raise ShapeError(
            f"reshape: the number of elements differs, got {_text(specs[0].shape)}, "
            f"expected as many as in {_text(attrs.shape)}"
        )
    return (specs[0].moved(attrs.shape),)


def _reshape_reference(arrays: Arrays, attrs: a.Shape) -> Arrays:
    return (arrays[0].reshape(attrs.shape).copy(),)


def _reshape_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g = grads[0]
    return (None if g is None else RESHAPE(g, shape=tuple(ctx.inputs[0].shape)),)


def _transpose_infer(specs: Specs, attrs: a.Transpose) -> Specs:
    if tuple(sorted(attrs.perm)) != tuple(range(specs[0].ndim)):
        raise AttrError(
            f"transpose: not a permutation of the axes, got {attrs.perm}, "
            f"expected each of 0 to {specs[0].ndim - 1} once"
        )
    return (specs[0].moved(tuple(specs[0].shape[axis] for axis in attrs.perm)),)


def _transpose_reference(arrays: Arrays, attrs: a.Transpose) -> Arrays:
    return (arrays[0].transpose(attrs.perm).copy(order="C"),)


def _transpose_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    if grads[0] is None:
        return (None,)
    inverse = [0] * len(ctx.attrs.perm)
    for target, source in enumerate(ctx.attrs.perm):
        inverse[source] = target
    return (TRANSPOSE(grads[0], perm=tuple(inverse)),)


def _broadcast_to_infer(specs: Specs, attrs: a.Shape) -> Specs:
    source, target = specs[0].shape, attrs.shape
    _expect_extents("broadcast_to", target)
    tail = target[len(target) - len(source) :] if len(source) <= len(target) else None
    if tail is None or any(int(s) not in (1, int(t)) for s, t in zip(source, tail, strict=True)):
        raise ShapeError(
            f"broadcast_to: shape does not broadcast, got {_text(source)}, "
            f"expected one that broadcasts to {_text(target)}"
        )
    return (specs[0].moved(target),)


def _broadcast_to_reference(arrays: Arrays, attrs: a.Shape) -> Arrays:
    return (np.broadcast_to(arrays[0], attrs.shape).copy(),)


def _broadcast_to_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g = grads[0]
    return (None if g is None else reduction.SUM_TO(g, shape=tuple(ctx.inputs[0].shape)),)


# concat


def _concat_infer(specs: Specs, attrs: a.Axis) -> Specs:
    first, axis = specs[0], attrs.axis
    expect_same_dtype("concat", specs)
    expect_axis("concat", axis, first.ndim)
    extent: int = 0
    for spec in specs:
        if spec.ndim != first.ndim or any(
            int(m) != int(n)
            for i, (m, n) in enumerate(zip(spec.shape, first.shape, strict=True))
            if i != axis
        ):
            raise ShapeError(
                f"concat: shapes differ on an axis other than {axis}, got {_text(spec.shape)}, "
                f"expected like {_text(first.shape)}"
            )
        if spec.quant != first.quant:
            raise AttrError(
                f"concat: inputs are quantised differently, got {spec.quant}, "
                f"expected {first.quant}; concat_quantized rescales"
            )
        extent = spec.shape[axis] + extent
    return (first.moved((*first.shape[:axis], extent, *first.shape[axis + 1 :])),)


def _concat_reference(arrays: Arrays, attrs: a.Axis) -> Arrays:
    return (np.concatenate(arrays, axis=attrs.axis),)


def _concat_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g, axis = grads[0], ctx.attrs.axis
    results: list[Any] = []
    start: int = 0
    for x, need in zip(ctx.inputs, ctx.needs, strict=True):
        starts = tuple(start if i == axis else 0 for i in range(x.ndim))
        start = x.shape[axis] + start
        if g is None or not need:
            results.append(None)
            continue
        results.append(SLICE(g, starts=starts, sizes=tuple(x.shape), steps=(1,) * x.ndim))
    return results


# pad


def _check_pad(op: str, attrs: Any, rank: int) -> None:
    _expect_length(op, "before", attrs.before, rank)
    _expect_length(op, "after", attrs.after, rank)
    if attrs.mode not in PAD_MODES:
        raise AttrError(
            f"{op}: unknown mode, got {attrs.mode!r}, expected one of {', '.join(PAD_MODES)}"
        )
    if any(int(n) < 0 for n in (*attrs.before, *attrs.after)):
        raise AttrError(
            f"{op}: a pad is negative, got {attrs.before} and {attrs.after}, expected 0 or more"
        )


def _check_padded_extents(op: str, attrs: Any, shape: Sequence[int]) -> None:
    """Raise ShapeError where an axis has too few elements to fill its pads from."""
    least = {"constant": 0, "reflect": 1, "edge": 1}[attrs.mode]
    for extent, before, after in zip(shape, attrs.before, attrs.after, strict=True):
        widest = max(int(before), int(after))
        need = 0 if widest == 0 else widest + 1 if attrs.mode == "reflect" else least
        if int(extent) < need:
            raise ShapeError(
                f"{op}: an axis is too short for mode {attrs.mode!r}, got {_text(shape)} with "
                f"pads {attrs.before} and {attrs.after}, expected an extent of at least {need}"
            )


def _pad_infer(specs: Specs, attrs: a.Pad) -> Specs:
    _check_pad("pad", attrs, specs[0].ndim)
    _check_padded_extents("pad", attrs, specs[0].shape)
    pads = zip(specs[0].shape, attrs.before, attrs.after, strict=True)
    return (specs[0].moved(tuple(n + before + after for n, before, after in pads)),)


def _pad_reference(arrays: Arrays, attrs: a.Pad) -> Arrays:
    x = arrays[0]
    if not x.ndim:
        return (x.copy(),)
    widths = tuple(zip(map(int, attrs.before), map(int, attrs.after), strict=True))
    if attrs.mode == "constant":
        value = np.asarray(attrs.value).astype(x.dtype)
        return (np.pad(x, widths, constant_values=value).astype(x.dtype),)
    return (np.pad(x, widths, mode=attrs.mode),)  # type: ignore[call-overload]


def _pad_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    if grads[0] is None:
        return (None,)
    at = ctx.attrs
    return (PAD_BACKWARD(grads[0], before=at.before, after=at.after, mode=at.mode),)


def _pad_backward_infer(specs: Specs, attrs: a.PadBackward) -> Specs:
    if is_bool(specs[0].dtype):
        raise DTypeError("pad_backward: bools have no sum, got bool, expected a number dtype")
    _check_pad("pad_backward", attrs, specs[0].ndim)
    pads = zip(specs[0].shape, attrs.before, attrs.after, strict=True)
    shape = tuple(n - before - after for n, before, after in pads)
    if any(int(n) < 0 for n in shape):
        raise ShapeError(
            f"pad_backward: the pads exceed the extent, got {_text(specs[0].shape)} with pads "
            f"{attrs.before} and {attrs.after}, expected at most the extent"
        )
    _check_padded_extents("pad_backward", attrs, shape)
    return (specs[0].with_shape(shape),)


def pad_source(position: int, before: int, extent: int, mode: str) -> int:
    """Return which element of an axis fills a position of the padded axis; -1 for none."""
    index = position - before
    if 0 <= index < extent:
        return index
    if mode == "constant":
        return -1
    if mode == "edge":
        return min(max(index, 0), extent - 1)
    return -index if index < 0 else 2 * (extent - 1) - index


def _pad_backward_reference(arrays: Arrays, attrs: a.PadBackward) -> Arrays:
    g = arrays[0].astype(np.float64) if is_float(arrays[0].dtype) else arrays[0]
    pads = [(int(p), int(q)) for p, q in zip(attrs.before, attrs.after, strict=True)]
    shape = [n - p - q for n, (p, q) in zip(g.shape, pads, strict=True)]
    result = np.zeros(shape, g.dtype)
    for place in np.ndindex(*g.shape):
        source = tuple(
            pad_source(i, p, n, attrs.mode) for i, (p, _), n in zip(place, pads, shape, strict=True)
        )
        if -1 not in source:
            result[source] += g[place]
    return (result.astype(arrays[0].dtype),)


def _pad_backward_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    if grads[0] is None:
        return (None,)
    at = ctx.attrs
    return (PAD(grads[0], before=at.before, after=at.after, mode=at.mode, value=0.0),)


# slice


def _check_region(op: str, shape: Sequence[int], attrs: Any, sizes: Sequence[int]) -> None:
    """Raise where a strided region does not lie inside a shape."""
    for what in ("starts", "steps"):
        _expect_length(op, what, getattr(attrs, what), len(shape))
    _expect_length(op, "sizes", sizes, len(shape))
    _expect_extents(op, sizes)
    for extent, start, size, step in zip(shape, attrs.starts, sizes, attrs.steps, strict=True):
        if int(step) == 0:
            raise AttrError(f"{op}: a step is 0, got {attrs.steps}, expected none")
        first, last = int(start), int(start) + (int(size) - 1) * int(step)
        if int(size) and not (0 <= first < int(extent) and 0 <= last < int(extent)):
            raise AttrError(
                f"{op}: the region leaves the axis, got indices {first} to {last}, "
                f"expected 0 to {int(extent) - 1}"
            )


def region(starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> tuple[slice, ...]:
    """Return numpy's slices for a region; a stop before the front is None, as numpy needs."""
    found = []
    for start, size, step in zip(starts, sizes, steps, strict=True):
        stop = int(start) + int(size) * int(step)
        if not int(size):
            found.append(slice(0, 0))
        else:
            found.append(slice(int(start), None if stop < 0 else stop, int(step)))
    return tuple(found)


def _slice_infer(specs: Specs, attrs: a.Slice) -> Specs:
    _check_region("slice", specs[0].shape, attrs, attrs.sizes)
    return (specs[0].moved(attrs.sizes),)


def _slice_reference(arrays: Arrays, attrs: a.Slice) -> Arrays:
    return (np.array(arrays[0][region(attrs.starts, attrs.sizes, attrs.steps)], order="C"),)


def _slice_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    if grads[0] is None:
        return (None,)
    shape, at = tuple(ctx.inputs[0].shape), ctx.attrs
    return (SLICE_BACKWARD(grads[0], shape=shape, starts=at.starts, steps=at.steps),)


def _slice_backward_infer(specs: Specs, attrs: a.SliceBackward) -> Specs:
    _expect_extents("slice_backward", attrs.shape)
    _check_region("slice_backward", attrs.shape, attrs, specs[0].shape)
    return (specs[0].with_shape(attrs.shape),)


def _slice_backward_reference(arrays: Arrays, attrs: a.SliceBackward) -> Arrays:
    result = np.zeros(tuple(map(int, attrs.shape)), arrays[0].dtype)
    result[region(attrs.starts, arrays[0].shape, attrs.steps)] = arrays[0]
    return (result,)


def _slice_backward_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    if grads[0] is None:
        return (None,)
    sizes, at = tuple(ctx.inputs[0].shape), ctx.attrs
    return (SLICE(grads[0], starts=at.starts, sizes=sizes, steps=at.steps),)


def _slice_set_infer(specs: Specs, attrs: a.SliceSet) -> Specs:
    x, value = specs
    expect_same_dtype("slice_set", specs)
    _check_region("slice_set", x.shape, attrs, attrs.sizes)
    if tuple(map(int, value.shape)) != tuple(map(int, attrs.sizes)):
        raise ShapeError(
            f"slice_set: the value has the wrong shape, got {_text(value.shape)}, "
            f"expected {_text(attrs.sizes)}"
        )
    return (TensorSpec(x.shape, x.dtype, x.device),)


def _slice_set_reference(arrays: Arrays, attrs: a.SliceSet) -> Arrays:
    result = arrays[0].copy()
    result[region(attrs.starts, attrs.sizes, attrs.steps)] = arrays[1]
    return (result,)


def _slice_set_grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    g, at = grads[0], ctx.attrs
    if g is None:
        return (None, None)
    where = {"starts": at.starts, "sizes": at.sizes, "steps": at.steps}
    dx = SLICE_SET(g, g.full(at.sizes, 0.0), **where) if ctx.needs[0] else None
    return (dx, SLICE(g, **where) if ctx.needs[1] else None)


def flip(x: Any, axis: int) -> Any:
    """Return an operand with one axis reversed."""
    starts = tuple(n - 1 if i == axis else 0 for i, n in enumerate(x.shape))
    steps = tuple(-1 if i == axis else 1 for i in range(x.ndim))
    return SLICE(x, starts=starts, sizes=tuple(x.shape), steps=steps)


def _movement(name: str, infer: Any, reference: Any, grad: Any, attrs: type, n: Any = 1) -> Op:
    return Op(
        name,
        infer=infer,
        reference=reference,
        grad=grad,
        attrs=attrs,
        n_inputs=n,
        family="movement",
    )


RESHAPE = _movement("reshape", _reshape_infer, _reshape_reference, _reshape_grad, a.Shape)
TRANSPOSE = _movement(
    "transpose", _transpose_infer, _transpose_reference, _transpose_grad, a.Transpose
)
BROADCAST_TO = _movement(
    "broadcast_to", _broadcast_to_infer, _broadcast_to_reference, _broadcast_to_grad, a.Shape
)
CONCAT = _movement("concat", _concat_infer, _concat_reference, _concat_grad, a.Axis, (1, -1))
PAD = _movement("pad", _pad_infer, _pad_reference, _pad_grad, a.Pad)
PAD_BACKWARD = _movement(
    "pad_backward", _pad_backward_infer, _pad_backward_reference, _pad_backward_grad, a.PadBackward
)
SLICE = _movement("slice", _slice_infer, _slice_reference, _slice_grad, a.Slice)
SLICE_BACKWARD = _movement(
    "slice_backward",
    _slice_backward_infer,
    _slice_backward_reference,
    _slice_backward_grad,
    a.SliceBackward,
)
SLICE_SET = _movement(
    "slice_set", _slice_set_infer, _slice_set_reference, _slice_set_grad, a.SliceSet, 2
)

OPS: tuple[Op, ...] = (
    RESHAPE, TRANSPOSE, BROADCAST_TO, CONCAT, PAD, PAD_BACKWARD, SLICE, SLICE_BACKWARD, SLICE_SET,
)  # fmt: skip

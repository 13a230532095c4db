"""Copies, casts, repacking, padding and slicing as numpy views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import registry
from ...dtypes import as_dtype, is_bool
from ...kernel import PLAIN, Call, Kernel
from ...ops.shape import pad_source, region
from .widening import compute_dtype

Arrays = Sequence[np.ndarray]


def _cast(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    with np.errstate(all="ignore"):
        if is_bool(outputs[0].dtype):
            np.not_equal(inputs[0], 0, out=outputs[0])
        else:
            np.copyto(outputs[0], inputs[0], casting="unsafe")


def _copy(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    np.copyto(outputs[0], inputs[0])


def _relayout(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    # Inputs and outputs have the physical extents of their layouts here.
    value, out = inputs[0], outputs[0]
    if attrs.source != PLAIN:
        value = registry.get_layout(attrs.source).unpack(value, out.shape)
    if attrs.target != PLAIN:
        value = registry.get_layout(attrs.target).pack(value)
    np.copyto(out, value)


def _one_side_plain(call: Call) -> str | None:
    source, target = call.attrs.source, call.attrs.target
    return None if PLAIN in (source, target) else f"repacks {source} to {target} in two steps only"


def _reshape(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    np.copyto(outputs[0], inputs[0].reshape(outputs[0].shape))


def _transpose(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    np.copyto(outputs[0], inputs[0].transpose(attrs.perm))


def _concat(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    np.concatenate(inputs, axis=attrs.axis, out=outputs[0])


def _sources(extent: int, before: int, after: int, mode: str) -> list[int]:
    """Return, for each position of a padded axis, the element that fills it."""
    return [pad_source(i, before, extent, mode) for i in range(before + extent + after)]


def _pad(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, out = inputs[0], outputs[0]
    if attrs.mode == "constant":
        out[...] = np.asarray(attrs.value).astype(out.dtype)
        out[region(attrs.before, x.shape, (1,) * x.ndim)] = x
        return
    for axis, (before, after) in enumerate(zip(attrs.before, attrs.after, strict=True)):
        if before or after:
            x = np.take(x, _sources(x.shape[axis], before, after, attrs.mode), axis)
    np.copyto(out, x)


def _pad_backward(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    g, out = inputs[0], outputs[0]
    if attrs.mode == "constant":
        np.copyto(out, g[region(attrs.before, out.shape, (1,) * g.ndim)])
        return
    g = g.astype(compute_dtype(g.dtype))
    for axis, (before, after) in enumerate(zip(attrs.before, attrs.after, strict=True)):
        if not before and not after:
            continue
        extent = out.shape[axis]
        lanes = np.moveaxis(g, axis, 0)
        body = lanes[before : before + extent].copy()
        for position, source in enumerate(_sources(extent, before, after, attrs.mode)):
            if not before <= position < before + extent:
                body[source] += lanes[position]
        g = np.moveaxis(body, 0, axis)
    np.copyto(out, g, casting="unsafe")


def _slice(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    np.copyto(outputs[0], inputs[0][region(attrs.starts, attrs.sizes, attrs.steps)])


def _slice_backward(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    outputs[0].fill(0)
    outputs[0][region(attrs.starts, inputs[0].shape, attrs.steps)] = inputs[0]


def _slice_set(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    np.copyto(outputs[0], inputs[0])
    outputs[0][region(attrs.starts, attrs.sizes, attrs.steps)] = inputs[1]


def _full(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    with np.errstate(over="ignore"):
        outputs[0][...] = np.asarray(attrs.value).astype(outputs[0].dtype)


def _arange(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    values = np.arange(outputs[0].size, dtype=np.float64) * attrs.step + attrs.start
    np.copyto(outputs[0], values.astype(as_dtype(attrs.dtype)))


def _eye(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    diagonal = np.eye(attrs.rows, attrs.cols, attrs.k, dtype=np.bool_)
    np.copyto(outputs[0], diagonal, casting="unsafe")


_RUNS: dict[str, Any] = {
    "cast": _cast,
    "copy": _copy,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _copy,
    "concat": _concat,
    "pad": _pad,
    "pad_backward": _pad_backward,
    "slice": _slice,
    "slice_backward": _slice_backward,
    "slice_set": _slice_set,
    "full": _full,
    "arange": _arange,
    "eye": _eye,
}
KERNELS: tuple[Kernel, ...] = (
    *(Kernel(f"{op}_any__numpy", op, run) for op, run in _RUNS.items()),
    Kernel("relayout_any__numpy", "relayout", _relayout, supports=_one_side_plain),
)

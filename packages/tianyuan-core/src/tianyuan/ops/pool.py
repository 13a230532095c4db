"""Maximum and average over windows of NCHW, their gradients, and their adaptive forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..errors import DTypeError, ShapeError
from ..op import (
    Count,
    GradContext,
    Ints,
    Op,
    Specs,
    TensorSpec,
    expect_float,
    expect_rank,
    expect_same_dtype,
)
from ..records import record
from .conv import check_ints, output_size
from .windows import Window, adapted, adaptive_windows, pooled, windows, work


@record()
class Pool2d:
    """Kernel and stride are (h, w), padding is (top, left, bottom, right)."""

    kernel: Ints = (1, 1)
    stride: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)


@record()
class AvgPool2d:
    """A window, and whether padded zeros count in the divisor."""

    kernel: Ints = (1, 1)
    stride: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    count_include_pad: bool = False


@record()
class AvgPool2dBackward:
    """The pooling's attributes, and the height and width of its input."""

    kernel: Ints = (1, 1)
    stride: Ints = (1, 1)
    padding: Ints = (0, 0, 0, 0)
    count_include_pad: bool = False
    size: Ints = (1, 1)


@record()
class Size2d:
    """A height and a width."""

    size: Ints = (1, 1)


def _expect_shape(op: str, what: str, spec: TensorSpec, shape: Sequence[int]) -> None:
    if tuple(map(int, spec.shape)) != tuple(map(int, shape)):
        raise ShapeError(
            f"{op}: {what} has the wrong shape, got {shapes.format_shape(spec.shape)}, "
            f"expected {shapes.format_shape(shape)}"
        )


Extent = Callable[[str, TensorSpec, Any], TensorSpec]


def _infer_max(op: str, extent: Extent) -> Callable[[Specs, Any], Specs]:
    def infer(specs: Specs, attrs: Any) -> Specs:
        if specs[0].dtype.kind == "b":
            raise DTypeError(
                f"{op}: input must be a float or an integer, got bool, expected a number dtype"
            )
        return (specs[0].moved(extent(op, specs[0], attrs).shape),)

    return infer


def _infer_max_backward(op: str, extent: Extent) -> Callable[[Specs, Any], Specs]:
    def infer(specs: Specs, attrs: Any) -> Specs:
        expect_same_dtype(op, specs)
        expect_float(op, specs[0])
        _expect_shape(op, "gradient", specs[1], extent(op, specs[0], attrs).shape)
        return (specs[0],)

    return infer


def _infer_max_pick(op: str, extent: Extent) -> Callable[[Specs, Any], Specs]:
    def infer(specs: Specs, attrs: Any) -> Specs:
        expect_same_dtype(op, specs)
        expect_float(op, specs[0])
        result = extent(op, specs[0], attrs)
        _expect_shape(op, "second input", specs[1], specs[0].shape)
        return (result,)

    return infer


def _infer_avg(specs: Specs, attrs: AvgPool2d) -> Specs:
    expect_float("avg_pool2d", specs[0])
    return (pooled("avg_pool2d", specs[0], attrs),)


def _infer_avg_backward(specs: Specs, attrs: AvgPool2dBackward) -> Specs:
    op, g = "avg_pool2d_backward", specs[0]
    expect_float(op, g)
    expect_rank(op, g, 4)
    check_ints(op, "size", attrs.size, 2, 1)
    x = g.with_shape((*g.shape[:2], *attrs.size))
    _expect_shape(op, "gradient", g, pooled(op, x, attrs).shape)
    return (x,)


def _infer_adaptive_avg(specs: Specs, attrs: Size2d) -> Specs:
    expect_float("adaptive_avg_pool2d", specs[0])
    return (adapted("adaptive_avg_pool2d", specs[0], attrs),)


def _infer_adaptive_avg_backward(specs: Specs, attrs: Size2d) -> Specs:
    expect_float("adaptive_avg_pool2d_backward", specs[0])
    return (adapted("adaptive_avg_pool2d_backward", specs[0], attrs),)


def _max_windows(x: np.ndarray, attrs: Any) -> tuple[Iterator[Window], Ints]:
    if isinstance(attrs, Size2d):
        return adaptive_windows(x.shape[2:], attrs.size), attrs.size
    out = output_size("max_pool2d", x.shape[2:], attrs.kernel, attrs)
    return windows(attrs, x.shape[2:], out), out


def _reference_max(arrays: Sequence[np.ndarray], attrs: Any) -> Sequence[np.ndarray]:
    (x,) = arrays
    walk, out = _max_windows(x, attrs)
    y = np.empty((*x.shape[:2], *out), x.dtype)
    for i, j, rows, cols in walk:
        y[:, :, i, j] = x[:, :, rows, cols].max(axis=(2, 3))
    return (y,)


def _first_argmax(patch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of the first largest element of each (N, C) window; NaN wins."""
    flat = patch.reshape(*patch.shape[:2], patch.shape[2] * patch.shape[3]).astype(np.float64)
    return np.divmod(flat.argmax(axis=2), patch.shape[3])


def _reference_max_backward(arrays: Sequence[np.ndarray], attrs: Any) -> Sequence[np.ndarray]:
    x, g = arrays
    dx = np.zeros(x.shape, np.float64)
    n, c = np.ogrid[: x.shape[0], : x.shape[1]]
    for i, j, rows, cols in _max_windows(x, attrs)[0]:
        row, col = _first_argmax(x[:, :, rows, cols])
        dx[n, c, rows.start + row, cols.start + col] += g[:, :, i, j].astype(np.float64)
    return (dx.astype(x.dtype),)


def _reference_max_pick(arrays: Sequence[np.ndarray], attrs: Any) -> Sequence[np.ndarray]:
    x, t = arrays
    walk, out = _max_windows(x, attrs)
    y = np.empty((*x.shape[:2], *out), x.dtype)
    n, c = np.ogrid[: x.shape[0], : x.shape[1]]
    for i, j, rows, cols in walk:
        row, col = _first_argmax(x[:, :, rows, cols])
        y[:, :, i, j] = t[n, c, rows.start + row, cols.start + col]
    return (y,)


def _divisor(attrs: Any, rows: slice, cols: slice) -> int:
    if attrs.count_include_pad:
        return int(attrs.kernel[0] * attrs.kernel[1])
    return int((rows.stop - rows.start) * (cols.stop - cols.start))


def _reference_avg(arrays: Sequence[np.ndarray], attrs: AvgPool2d) -> Sequence[np.ndarray]:
    (x,) = arrays
    out = output_size("avg_pool2d", x.shape[2:], attrs.kernel, attrs)
    y = np.empty((*x.shape[:2], *out))
    for i, j, rows, cols in windows(attrs, x.shape[2:], out):
        total = x[:, :, rows, cols].astype(np.float64).sum(axis=(2, 3))
        y[:, :, i, j] = total / _divisor(attrs, rows, cols)
    return (y.astype(x.dtype),)


def _reference_avg_backward(
    arrays: Sequence[np.ndarray], attrs: AvgPool2dBackward
) -> Sequence[np.ndarray]:
    (g,) = arrays
    dx = np.zeros((*g.shape[:2], *attrs.size))
    for i, j, rows, cols in windows(attrs, attrs.size, g.shape[2:]):
        share = g[:, :, i, j].astype(np.float64) / _divisor(attrs, rows, cols)
        dx[:, :, rows, cols] += share[:, :, None, None]
    return (dx.astype(g.dtype),)


def _reference_adaptive_avg(arrays: Sequence[np.ndarray], attrs: Size2d) -> Sequence[np.ndarray]:
    (x,) = arrays
    y = np.empty((*x.shape[:2], *attrs.size))
    for i, j, rows, cols in adaptive_windows(x.shape[2:], attrs.size):
        y[:, :, i, j] = x[:, :, rows, cols].astype(np.float64).mean(axis=(2, 3))
    return (y.astype(x.dtype),)


def _reference_adaptive_avg_backward(
    arrays: Sequence[np.ndarray], attrs: Size2d
) -> Sequence[np.ndarray]:
    (g,) = arrays
    dx = np.zeros((*g.shape[:2], *attrs.size))
    for i, j, rows, cols in adaptive_windows(attrs.size, g.shape[2:]):
        count = (rows.stop - rows.start) * (cols.stop - cols.start)
        dx[:, :, rows, cols] += g[:, :, i, j].astype(np.float64)[:, :, None, None] / count
    return (dx.astype(g.dtype),)


def _window_of(attrs: Any) -> dict[str, Any]:
    """Return a max pooling's attributes, which its gradient and pick share."""
    if isinstance(attrs, Size2d):
        return {"size": attrs.size}
    return {"kernel": attrs.kernel, "stride": attrs.stride, "padding": attrs.padding}


def _grad_max(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x,), (g,) = ctx.inputs, grads
    backward = ADAPTIVE_MAX_POOL2D_BACKWARD if _is_adaptive(ctx) else MAX_POOL2D_BACKWARD
    return (None if g is None else backward(x, g, **_window_of(ctx.attrs)),)


def _grad_max_backward(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x, _), (gx,) = ctx.inputs, grads
    pick = ADAPTIVE_MAX_POOL2D_PICK if _is_adaptive(ctx) else MAX_POOL2D_PICK
    return (None, None if gx is None else pick(x, gx, **_window_of(ctx.attrs)))


def _grad_max_pick(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x, _), (g,) = ctx.inputs, grads
    backward = ADAPTIVE_MAX_POOL2D_BACKWARD if _is_adaptive(ctx) else MAX_POOL2D_BACKWARD
    return (None, None if g is None else backward(x, g, **_window_of(ctx.attrs)))


def _is_adaptive(ctx: GradContext) -> bool:
    return isinstance(ctx.attrs, Size2d)


def _average_of(attrs: Any) -> dict[str, Any]:
    return {**_window_of(attrs), "count_include_pad": attrs.count_include_pad}


def _grad_avg(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x,), (g,) = ctx.inputs, grads
    if g is None:
        return (None,)
    return (AVG_POOL2D_BACKWARD(g, size=x.shape[2:], **_average_of(ctx.attrs)),)


def _grad_avg_backward(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (gx,) = grads
    return (None if gx is None else AVG_POOL2D(gx, **_average_of(ctx.attrs)),)


def _grad_adaptive_avg(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (x,), (g,) = ctx.inputs, grads
    return (None if g is None else ADAPTIVE_AVG_POOL2D_BACKWARD(g, size=x.shape[2:]),)


def _grad_adaptive_avg_backward(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (g,), (gx,) = ctx.inputs, grads
    return (None if gx is None else ADAPTIVE_AVG_POOL2D(gx, size=g.shape[2:]),)


def _max_family(
    prefix: str, attrs: type, extent: Extent, count: Count | None = None
) -> tuple[Op, Op, Op]:
    """Declare a max pooling, its gradient, and the picking that is the gradient's gradient."""
    names = (f"{prefix}max_pool2d", f"{prefix}max_pool2d_backward", f"{prefix}max_pool2d_pick")
    return (
        Op(
            names[0],
            infer=_infer_max(names[0], extent),
            reference=_reference_max,
            grad=_grad_max,
            attrs=attrs,
            work=count,
            family="pool",
        ),
        Op(
            names[1],
            infer=_infer_max_backward(names[1], extent),
            reference=_reference_max_backward,
            grad=_grad_max_backward,
            attrs=attrs,
            n_inputs=2,
            family="pool",
        ),
        Op(
            names[2],
            infer=_infer_max_pick(names[2], extent),
            reference=_reference_max_pick,
            grad=_grad_max_pick,
            attrs=attrs,
            n_inputs=2,
            family="pool",
        ),
    )


MAX_POOL2D, MAX_POOL2D_BACKWARD, MAX_POOL2D_PICK = _max_family("", Pool2d, pooled, work)
ADAPTIVE_MAX_POOL2D, ADAPTIVE_MAX_POOL2D_BACKWARD, ADAPTIVE_MAX_POOL2D_PICK = _max_family(
    "adaptive_", Size2d, adapted
)
AVG_POOL2D = Op(
    "avg_pool2d",
    infer=_infer_avg,
    reference=_reference_avg,
    grad=_grad_avg,
    attrs=AvgPool2d,
    work=work,
    family="pool",
)
AVG_POOL2D_BACKWARD = Op(
    "avg_pool2d_backward",
    infer=_infer_avg_backward,
    reference=_reference_avg_backward,
    grad=_grad_avg_backward,
    attrs=AvgPool2dBackward,
    family="pool",
)
ADAPTIVE_AVG_POOL2D = Op(
    "adaptive_avg_pool2d",
    infer=_infer_adaptive_avg,
    reference=_reference_adaptive_avg,
    grad=_grad_adaptive_avg,
    attrs=Size2d,
    family="pool",
)
ADAPTIVE_AVG_POOL2D_BACKWARD = Op(
    "adaptive_avg_pool2d_backward",
    infer=_infer_adaptive_avg_backward,
    reference=_reference_adaptive_avg_backward,
    grad=_grad_adaptive_avg_backward,
    attrs=Size2d,
    family="pool",
)
OPS: tuple[Op, ...] = (
    MAX_POOL2D,
    MAX_POOL2D_BACKWARD,
    MAX_POOL2D_PICK,
    AVG_POOL2D,
    AVG_POOL2D_BACKWARD,
    ADAPTIVE_AVG_POOL2D,
    ADAPTIVE_AVG_POOL2D_BACKWARD,
    ADAPTIVE_MAX_POOL2D,
    ADAPTIVE_MAX_POOL2D_BACKWARD,
    ADAPTIVE_MAX_POOL2D_PICK,
)

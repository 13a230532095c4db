"""Convolution as a matrix product over unfolded windows (im2col), in bounded pieces of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...kernel import Call, Kernel
from ...ops.conv import output_size
from .epilogue import finish
from .widening import compute_dtype, widened

# Elements of one unfolded piece: large enough for BLAS, small enough for the last-level cache.
_PIECE = 1 << 20

Ints = tuple[int, ...]


def _pieces(batch: int, per_image: int) -> Iterator[slice]:
    """Cut a batch so that the unfolded windows of one piece stay bounded."""
    count = max(1, _PIECE // max(per_image, 1))
    for start in range(0, batch, count):
        yield slice(start, min(start + count, batch))


def _pad(x: np.ndarray, padding: Ints) -> np.ndarray:
    top, left, bottom, right = padding
    if not any(padding):
        return x
    n, c, h, w = x.shape
    out = np.zeros((n, c, h + top + bottom, w + left + right), x.dtype)
    out[:, :, top : top + h, left : left + w] = x
    return out


def _tap(array: np.ndarray, i: int, j: int, attrs: Any, positions: Ints) -> np.ndarray:
    """View the padded pixels that kernel element (i, j) meets over all positions."""
    (sh, sw), (dh, dw) = attrs.stride, attrs.dilation
    rows = slice(i * dh, i * dh + sh * positions[0], sh)
    return array[:, :, rows, j * dw : j * dw + sw * positions[1] : sw]


def _is_pointwise(kernel: Ints, attrs: Any) -> bool:
    return kernel == (1, 1) and attrs.stride == (1, 1) and not any(attrs.padding)


def _unfold(x: np.ndarray, kernel: Ints, attrs: Any, positions: Ints) -> np.ndarray:
    """Copy windows into columns: (groups, C/groups * kh * kw, N * OH * OW)."""
    n, c = x.shape[:2]
    columns = np.empty((c, *kernel, n, *positions), x.dtype)
    padded = _pad(x, attrs.padding)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            columns[:, i, j] = _tap(padded, i, j, attrs, positions).swapaxes(0, 1)
    inner = c // attrs.groups * kernel[0] * kernel[1]
    return columns.reshape(attrs.groups, inner, n * positions[0] * positions[1])


def _fold(columns: np.ndarray, shape: Ints, kernel: Ints, attrs: Any, positions: Ints) -> Any:
    """Add columns back onto the pixels they came from: the adjoint of ``_unfold``."""
    n, c, h, w = shape
    top, left, bottom, right = attrs.padding
    padded = np.zeros((n, c, h + top + bottom, w + left + right), columns.dtype)
    split = columns.reshape(c, *kernel, n, *positions)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            view = _tap(padded, i, j, attrs, positions)
            view += split[:, i, j].swapaxes(0, 1)
    return padded[:, :, top : top + h, left : left + w]


def _channels_first(array: np.ndarray, groups: int) -> np.ndarray:
    """Lay (N, C, OH, OW) out as (groups, C/groups, N * OH * OW)."""
    n, c, h, w = array.shape
    flat: np.ndarray = array.swapaxes(0, 1).reshape(groups, c // groups, n * h * w)
    return flat


def convolve(x: np.ndarray, w: np.ndarray, attrs: Any, out: np.ndarray) -> None:
    """Write the convolution of arrays of the compute dtype into ``out``."""
    kernel, positions = w.shape[2:], out.shape[2:]
    groups, per_group = attrs.groups, w.shape[0] // attrs.groups
    inner = w.shape[1] * kernel[0] * kernel[1]
    weight = w.reshape(groups, per_group, inner)
    pixels = positions[0] * positions[1]
    if _is_pointwise(kernel, attrs):
        flat = out.reshape(x.shape[0], groups, per_group, pixels)
        np.matmul(weight, x.reshape(x.shape[0], groups, inner, pixels), out=flat)
        return
    for piece in _pieces(x.shape[0], inner * groups * pixels):
        columns = _unfold(x[piece], kernel, attrs, positions)
        product = np.matmul(weight, columns).reshape(w.shape[0], -1, *positions)
        out[piece] = product.swapaxes(0, 1)


def _conv2d(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (out,) = outputs
    if not out.size:
        return
    wide = compute_dtype(out.dtype)
    result = out if wide == out.dtype else np.empty(out.shape, wide)
    convolve(widened(inputs[0]), widened(inputs[1]), attrs, result)
    if result is not out:
        out[...] = result


def _conv2d_fused(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (out,) = outputs
    if not out.size:
        return
    wide = compute_dtype(out.dtype)
    result = out if wide == out.dtype else np.empty(out.shape, wide)
    convolve(widened(inputs[0]), widened(inputs[1]), attrs, result)
    finish(result, inputs[2:], attrs, 1)
    if result is not out:
        out[...] = result


def _conv2d_backward_data(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (g, w), (out,) = inputs, outputs
    if not out.size:
        return
    if not g.size:
        out[...] = 0
        return
    g, w = widened(g), widened(w)
    kernel, positions = w.shape[2:], g.shape[2:]
    inner = w.shape[1] * kernel[0] * kernel[1]
    weight = w.reshape(attrs.groups, w.shape[0] // attrs.groups, inner).swapaxes(1, 2)
    for piece in _pieces(g.shape[0], inner * attrs.groups * positions[0] * positions[1]):
        columns = np.matmul(weight, _channels_first(g[piece], attrs.groups))
        out[piece] = _fold(columns, out[piece].shape, kernel, attrs, positions)


def _conv2d_backward_weight(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x, g), (out,) = inputs, outputs
    if not out.size:
        return
    x, g = widened(x), widened(g)
    kernel, positions = out.shape[2:], g.shape[2:]
    inner = out.shape[1] * kernel[0] * kernel[1]
    total = np.zeros((attrs.groups, out.shape[0] // attrs.groups, inner), x.dtype)
    for piece in _pieces(x.shape[0], inner * attrs.groups * positions[0] * positions[1]):
        columns = _unfold(x[piece], kernel, attrs, positions)
        total += np.matmul(_channels_first(g[piece], attrs.groups), columns.swapaxes(1, 2))
    out[...] = total.reshape(out.shape)


def _cost(call: Call) -> float:
    """Estimate the products at BLAS speed, and the unfolding at memory speed."""
    if call.op.name == "conv2d_backward_data":
        g, w = call.inputs
        kernel = w.shape[2:]
        unfolded = g.shape[0] * w.shape[1] * call.attrs.groups * g.shape[2] * g.shape[3]
        products = g.size * w.shape[1]
    elif call.op.name == "conv2d_backward_weight":
        x, g = call.inputs
        kernel = call.attrs.size
        unfolded = x.shape[0] * x.shape[1] * g.shape[2] * g.shape[3]
        products = g.size * (x.shape[1] // call.attrs.groups)
    else:
        x, w = call.inputs[:2]
        kernel = w.shape[2:]
        size = output_size(call.op.name, x.shape[2:], kernel, call.attrs, call.attrs.dilation)
        unfolded = x.shape[0] * x.shape[1] * size[0] * size[1]
        products = call.outputs[0].size * w.shape[1]
    taps = kernel[0] * kernel[1]
    return float(2.0 * products * taps / 2e10 + 8.0 * unfolded * taps / 2e9 + 1e-5)


_FLOATS = ("float16|bfloat16|float32|float64",)
_RUNS = {
    "conv2d": _conv2d,
    "conv2d_fused": _conv2d_fused,
    "conv2d_backward_data": _conv2d_backward_data,
    "conv2d_backward_weight": _conv2d_backward_weight,
}
# BLAS splits sums by thread count and by the size of the batch.
KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(f"{op}_float__numpy_im2col", op, run, dtypes=_FLOATS, cost=_cost, reproducible=False)
    for op, run in _RUNS.items()
)

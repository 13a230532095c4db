"""Answers for products, convolutions and poolings: index tables and sums in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import is_float
from ..ops.conv import Conv2dFused
from .oracles import Arrays, Oracle, _array
from .special import NUMPY


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _epilogue(y: np.ndarray, rest: Arrays, attrs: Any, channel_axis: int) -> np.ndarray:
    """Add bias and residual and apply the activation that the attributes name."""
    extra = list(rest)
    if attrs.has_bias:
        bias = _wide(extra.pop(0))
        y = y + bias.reshape([-1 if axis == channel_axis else 1 for axis in range(y.ndim)])
    if attrs.has_residual:
        y = y + _wide(extra.pop(0))
    if attrs.activation == "clip":
        return np.asarray(np.clip(y, attrs.lower, attrs.upper))
    return y if attrs.activation == "identity" else np.asarray(NUMPY[attrs.activation](y))


def _product(a: np.ndarray, b: np.ndarray, attrs: Any) -> np.ndarray:
    left, right = (
        "...ki" if attrs.transpose_a else "...ik",
        "...jk" if attrs.transpose_b else "...kj",
    )
    return np.asarray(np.einsum(f"{left},{right}->...ij", a, b))


def _wrapped(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return _array(exact.reshape(-1).tolist(), dtype, exact.shape)


def _matmul(arrays: Arrays, attrs: Any) -> Arrays:
    a, b = arrays
    if is_float(a.dtype):
        return [_product(_wide(a), _wide(b), attrs).astype(a.dtype)]
    return [_wrapped(_product(a.astype(object), b.astype(object), attrs), a.dtype)]


def _matmul_fused(arrays: Arrays, attrs: Any) -> Arrays:
    y = _wide(_matmul(arrays[:2], attrs)[0])
    if is_float(arrays[0].dtype):
        y = _product(_wide(arrays[0]), _wide(arrays[1]), attrs)
    elif attrs.has_bias:
        # Integers wrap before the activation sees them.
        y, attrs = _wide(_wrapped(y + arrays[2], arrays[0].dtype)), replace(attrs, has_bias=False)
        return [_epilogue(y, arrays[3:], attrs, y.ndim - 1).astype(arrays[0].dtype)]
    return [_epilogue(y, arrays[2:], attrs, y.ndim - 1).astype(arrays[0].dtype)]


def _places(size: int, kernel: int, stride: int, before: int, after: int, gap: int) -> np.ndarray:
    """Return the padded positions (windows, taps) that each window covers along one axis."""
    count = (size + before + after - gap * (kernel - 1) - 1) // stride + 1
    return np.arange(count)[:, None] * stride + np.arange(kernel)[None] * gap


def _tables(size: Sequence[int], kernel: Sequence[int], attrs: Any) -> tuple[Any, Any]:
    """Return the row and column tables of 2-D windows, shaped to index an image together."""
    gap = getattr(attrs, "dilation", (1, 1))
    top, left, bottom, right = attrs.padding
    rows = _places(size[0], kernel[0], attrs.stride[0], top, bottom, gap[0])
    cols = _places(size[1], kernel[1], attrs.stride[1], left, right, gap[1])
    return rows[:, :, None, None], cols[None, None]


def _padded(x: np.ndarray, attrs: Any, fill: float) -> np.ndarray:
    top, left, bottom, right = attrs.padding
    n, c, h, w = x.shape
    result = np.full((n, c, h + top + bottom, w + left + right), fill)
    result[:, :, top : top + h, left : left + w] = x
    return result


def _patches(x: np.ndarray, kernel: Sequence[int], attrs: Any, fill: float = 0.0) -> np.ndarray:
    """Return the windows (N, C, rows, kernel rows, columns, kernel columns)."""
    rows, cols = _tables(x.shape[2:], kernel, attrs)
    return np.asarray(_padded(_wide(x), attrs, fill)[:, :, rows, cols])


def _spread(patches: np.ndarray, size: Sequence[int], attrs: Any) -> np.ndarray:
    """Add windows up where they came from: the transpose of ``_patches``."""
    kernel = (patches.shape[3], patches.shape[5])
    total = _padded(np.zeros((*patches.shape[:2], *size)), attrs, 0.0)
    where: Any = (slice(None), slice(None), *_tables(size, kernel, attrs))
    np.add.at(total, where, patches)
    top, left = attrs.padding[:2]
    return total[:, :, top : top + size[0], left : left + size[1]]


def _grouped(x: np.ndarray, axis: int, groups: int) -> np.ndarray:
    """Cut an axis into groups."""
    shape = (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    return x.reshape(shape)


def _convolved(x: np.ndarray, w: np.ndarray, attrs: Any) -> np.ndarray:
    patches = _grouped(_patches(x, w.shape[2:], attrs), 1, attrs.groups)
    y = np.einsum("ngcaibj,gocij->ngoab", patches, _grouped(_wide(w), 0, attrs.groups))
    return np.asarray(y).reshape(y.shape[0], len(w), *y.shape[3:])


def _conv2d(arrays: Arrays, attrs: Any) -> Arrays:
    return [_convolved(arrays[0], arrays[1], attrs).astype(arrays[0].dtype)]


def _conv2d_fused(arrays: Arrays, attrs: Any) -> Arrays:
    y = _convolved(arrays[0], arrays[1], attrs)
    return [_epilogue(y, arrays[2:], attrs, 1).astype(arrays[0].dtype)]


def _bottleneck(arrays: Arrays, attrs: Any) -> Arrays:
    y, rest = arrays[0], list(arrays[1:])
    activations = (attrs.expanded, attrs.filtered, attrs.projected)
    steps = zip(activations, attrs.lower, attrs.upper, strict=True)
    for step, (activation, lower, upper) in enumerate(steps):
        if step == 0 and not attrs.expands:
            continue
        w, last = rest.pop(0), step == 2
        at = Conv2dFused(
            stride=attrs.stride if step == 1 else (1, 1),
            padding=attrs.padding if step == 1 else (0, 0, 0, 0),
            groups=len(w) if step == 1 else 1,
            has_bias=True,
            has_residual=last and attrs.has_residual,
            activation=activation,
            lower=lower,
            upper=upper,
        )
        extra = [rest.pop(0), *(rest if last else ())]
        y = _epilogue(_convolved(y, w, at), extra, at, 1)
    return [y.astype(arrays[0].dtype)]


def _conv2d_backward_data(arrays: Arrays, attrs: Any) -> Arrays:
    g, w = arrays
    parts = _grouped(_wide(g), 1, attrs.groups), _grouped(_wide(w), 0, attrs.groups)
    patches = np.einsum("ngoab,gocij->ngcaibj", *parts)
    channels = attrs.groups * w.shape[1]
    patches = patches.reshape(len(g), channels, *patches.shape[3:])
    return [_spread(patches, attrs.size, attrs).astype(g.dtype)]


def _conv2d_backward_weight(arrays: Arrays, attrs: Any) -> Arrays:
    x, g = arrays
    patches = _grouped(_patches(x, attrs.size, attrs), 1, attrs.groups)
    dw = np.einsum("ngcaibj,ngoab->gocij", patches, _grouped(_wide(g), 1, attrs.groups))
    shape = (g.shape[1], x.shape[1] // attrs.groups, *attrs.size)
    return [dw.reshape(shape).astype(x.dtype)]


# poolings


def _lanes(patches: np.ndarray) -> Any:
    """Bring the taps of each window to the end, as one axis."""
    moved = patches.transpose(0, 1, 2, 4, 3, 5)
    return moved.reshape(*moved.shape[:4], moved.shape[4] * moved.shape[5])


def _max_pool2d(arrays: Arrays, attrs: Any) -> Arrays:
    patches = _patches(arrays[0], attrs.kernel, attrs, -np.inf)
    return [patches.max((3, 5)).astype(arrays[0].dtype)]


def _first(lanes: np.ndarray, inside: np.ndarray) -> Any:
    """Return True at the first largest value inside of the last axis; NaN is larger than all."""
    top = np.where(inside, lanes, -np.inf).max(-1, keepdims=True)
    hits = inside & ((lanes == top) | np.isnan(lanes))
    return hits & (np.cumsum(hits, -1) == 1)


def _chosen(x: np.ndarray, attrs: Any) -> Any:
    """Return, over the taps of each window, True at the first largest and False elsewhere."""
    inside = _lanes(_patches(np.ones((1, 1, *x.shape[2:])), attrs.kernel, attrs)) > 0
    hot = _first(_lanes(_patches(x, attrs.kernel, attrs)), inside)
    return hot.reshape(*hot.shape[:4], *attrs.kernel).transpose(0, 1, 2, 4, 3, 5)


def _over_windows(g: np.ndarray) -> np.ndarray:
    return _wide(g)[:, :, :, None, :, None]


def _max_pool2d_backward(arrays: Arrays, attrs: Any) -> Arrays:
    x, g = arrays
    patches = np.where(_chosen(x, attrs), _over_windows(g), 0.0)
    return [_spread(patches, x.shape[2:], attrs).astype(x.dtype)]


def _max_pool2d_pick(arrays: Arrays, attrs: Any) -> Arrays:
    x, t = arrays
    picked = np.where(_chosen(x, attrs), _patches(t, attrs.kernel, attrs), 0.0)
    return [picked.sum((3, 5)).astype(x.dtype)]


def _counts(size: Sequence[int], attrs: Any) -> np.ndarray:
    """Return what each window's sum is divided by."""
    inside = _patches(np.ones((1, 1, *size)), attrs.kernel, attrs).sum((3, 5))
    return np.full_like(inside, np.prod(attrs.kernel)) if attrs.count_include_pad else inside


def _avg_pool2d(arrays: Arrays, attrs: Any) -> Arrays:
    x = arrays[0]
    total = _patches(x, attrs.kernel, attrs).sum((3, 5))
    return [(total / _counts(x.shape[2:], attrs)).astype(x.dtype)]


def _avg_pool2d_backward(arrays: Arrays, attrs: Any) -> Arrays:
    g = arrays[0]
    share = _over_windows(_wide(g) / _counts(attrs.size, attrs))
    patches = np.broadcast_to(share, (*g.shape[:3], attrs.kernel[0], g.shape[3], attrs.kernel[1]))
    return [_spread(patches, attrs.size, attrs).astype(g.dtype)]


def _members(size: int, out: int) -> np.ndarray:
    """Return which of the positions belong to each window of an adaptive pooling."""
    first = np.floor(np.arange(out) * size / out)[:, None]
    last = np.ceil((np.arange(out) + 1) * size / out)[:, None]
    return (np.arange(size) >= first) & (np.arange(size) < last)


def _averages(size: Sequence[int], out: Sequence[int]) -> list[np.ndarray]:
    found = [_members(n, o).astype(np.float64) for n, o in zip(size, out, strict=True)]
    return [m / m.sum(1, keepdims=True) for m in found]


def _adaptive_avg(arrays: Arrays, attrs: Any) -> Arrays:
    x = arrays[0]
    rows, cols = _averages(x.shape[2:], attrs.size)
    return [np.einsum("nchw,ah,bw->ncab", _wide(x), rows, cols).astype(x.dtype)]


def _adaptive_avg_backward(arrays: Arrays, attrs: Any) -> Arrays:
    g = arrays[0]
    rows, cols = _averages(attrs.size, g.shape[2:])
    return [np.einsum("ncab,ah,bw->nchw", _wide(g), rows, cols).astype(g.dtype)]


def _inside(size: Sequence[int], out: Sequence[int]) -> Any:
    """Return which positions (rows, columns, H * W) belong to each window."""
    rows, cols = (_members(n, o) for n, o in zip(size, out, strict=True))
    return (rows[:, None, :, None] & cols[None, :, None, :]).reshape(*out, size[0] * size[1])


def _images(x: np.ndarray) -> np.ndarray:
    """Return each image as a row that all windows see: (N, C, 1, 1, H * W)."""
    return _wide(x).reshape(*x.shape[:2], 1, 1, x.shape[2] * x.shape[3])


def _adaptive_max(arrays: Arrays, attrs: Any) -> Arrays:
    x = arrays[0]
    lanes = np.where(_inside(x.shape[2:], attrs.size), _images(x), -np.inf)
    return [lanes.max(-1).astype(x.dtype)]


def _adaptive_max_backward(arrays: Arrays, attrs: Any) -> Arrays:
    x, g = arrays
    hot = _first(_images(x), _inside(x.shape[2:], attrs.size))
    total = np.where(hot, _wide(g)[..., None], 0.0).sum((2, 3))
    return [total.reshape(x.shape).astype(x.dtype)]


def _adaptive_max_pick(arrays: Arrays, attrs: Any) -> Arrays:
    x, t = arrays
    hot = _first(_images(x), _inside(x.shape[2:], attrs.size))
    return [np.where(hot, _images(t), 0.0).sum(-1).astype(x.dtype)]


WINDOWS: dict[str, Oracle] = {
    "matmul": _matmul,
    "matmul_fused": _matmul_fused,
    "conv2d": _conv2d,
    "conv2d_fused": _conv2d_fused,
    "bottleneck": _bottleneck,
    "conv2d_backward_data": _conv2d_backward_data,
    "conv2d_backward_weight": _conv2d_backward_weight,
    "max_pool2d": _max_pool2d,
    "max_pool2d_backward": _max_pool2d_backward,
    "max_pool2d_pick": _max_pool2d_pick,
    "avg_pool2d": _avg_pool2d,
    "avg_pool2d_backward": _avg_pool2d_backward,
    "adaptive_avg_pool2d": _adaptive_avg,
    "adaptive_avg_pool2d_backward": _adaptive_avg_backward,
    "adaptive_max_pool2d": _adaptive_max,
    "adaptive_max_pool2d_backward": _adaptive_max_backward,
    "adaptive_max_pool2d_pick": _adaptive_max_pick,
}

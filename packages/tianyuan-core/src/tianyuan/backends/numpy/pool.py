"""Pooling by walking the window's elements, each over all positions at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...kernel import Kernel
from ...ops.windows import Window, adaptive_windows
from .widening import compute_dtype, widened

Ints = tuple[int, ...]


def _lowest(dtype: np.dtype) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _padded(x: np.ndarray, padding: Ints, value: Any) -> np.ndarray:
    top, left, bottom, right = padding
    if not any(padding):
        return x
    n, c, h, w = x.shape
    out = np.full((n, c, h + top + bottom, w + left + right), value, x.dtype)
    out[:, :, top : top + h, left : left + w] = x
    return out


def _inner(padded: np.ndarray, padding: Ints, size: Ints) -> np.ndarray:
    return padded[..., padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]


def _taps(array: np.ndarray, attrs: Any, positions: Ints) -> Iterator[np.ndarray]:
    """View, for each element of the window in row-major order, its pixels over all positions."""
    sh, sw = attrs.stride
    for i in range(attrs.kernel[0]):
        for j in range(attrs.kernel[1]):
            yield array[..., i : i + sh * positions[0] : sh, j : j + sw * positions[1] : sw]


def _max_pool(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x,), (out,) = inputs, outputs
    padded = _padded(x, attrs.padding, _lowest(x.dtype))
    out[...] = _lowest(x.dtype)
    with np.errstate(invalid="ignore"):  # a NaN that wins is no error
        for tap in _taps(padded, attrs, out.shape[2:]):
            np.maximum(out, tap, out=out)


def _winners(x: np.ndarray, attrs: Any, positions: Ints) -> np.ndarray:
    """Return which element of each window is its first largest; a NaN is larger than all."""
    padded = _padded(x, attrs.padding, -np.inf)
    inside = _padded(np.ones((1, 1, *x.shape[2:]), bool), attrs.padding, False)
    first = np.full((1, 1, *positions), -1, np.int32)
    for index, valid in enumerate(_taps(inside, attrs, positions)):
        first[(first < 0) & valid] = index
    # Where all is minus infinity, the first pixel inside the image stays.
    winner = np.tile(first, (*x.shape[:2], 1, 1))
    best = np.full(winner.shape, -np.inf, x.dtype)
    has_nan = bool(np.isnan(x).any())
    for index, tap in enumerate(_taps(padded, attrs, positions)):
        better = tap > best
        if has_nan:
            better |= np.isnan(tap) & ~np.isnan(best)
            np.copyto(best, tap, where=better)
        else:
            np.maximum(best, tap, out=best)
        np.putmask(winner, better, index)
    return winner


def _max_pool_backward(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x, g), (out,) = inputs, outputs
    winner = _winners(widened(x), attrs, g.shape[2:])
    wide = widened(g)
    total = _padded(np.zeros(out.shape, wide.dtype), attrs.padding, 0)
    for index, tap in enumerate(_taps(total, attrs, g.shape[2:])):
        tap += np.where(winner == index, wide, wide.dtype.type(0))
    out[...] = _inner(total, attrs.padding, out.shape[2:])


def _max_pool_pick(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x, t), (out,) = inputs, outputs
    winner = _winners(widened(x), attrs, out.shape[2:])
    padded = _padded(t, attrs.padding, 0)
    for index, tap in enumerate(_taps(padded, attrs, out.shape[2:])):
        np.copyto(out, tap, where=winner == index)


def _divisor(attrs: Any, size: Ints, positions: Ints, dtype: np.dtype) -> np.ndarray:
    """Return by how much each position's sum is divided."""
    if attrs.count_include_pad:
        return np.full(positions, attrs.kernel[0] * attrs.kernel[1], dtype)
    counts = []
    for axis in (0, 1):
        start = np.arange(positions[axis]) * attrs.stride[axis] - attrs.padding[axis]
        stop = np.minimum(start + attrs.kernel[axis], size[axis])
        counts.append((stop - np.maximum(start, 0)).astype(dtype))
    result: np.ndarray = counts[0][:, None] * counts[1]
    return result


def _avg_pool(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x,), (out,) = inputs, outputs
    padded = _padded(widened(x), attrs.padding, 0)
    total = np.zeros(out.shape, padded.dtype)
    for tap in _taps(padded, attrs, out.shape[2:]):
        total += tap
    out[...] = total / _divisor(attrs, x.shape[2:], out.shape[2:], total.dtype)


def _avg_pool_backward(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (g,), (out,) = inputs, outputs
    wide = widened(g)
    share = wide / _divisor(attrs, attrs.size, g.shape[2:], wide.dtype)
    total = _padded(np.zeros(out.shape, wide.dtype), attrs.padding, 0)
    for tap in _taps(total, attrs, g.shape[2:]):
        tap += share
    out[...] = _inner(total, attrs.padding, out.shape[2:])


def _adaptive_avg_pool(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x,), (out,) = inputs, outputs
    wide = compute_dtype(x.dtype)
    for i, j, rows, cols in adaptive_windows(x.shape[2:], attrs.size):
        out[:, :, i, j] = x[:, :, rows, cols].mean(axis=(2, 3), dtype=wide)


def _adaptive_avg_pool_backward(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (g,), (out,) = inputs, outputs
    wide = widened(g)
    total = np.zeros(out.shape, wide.dtype)
    for i, j, rows, cols in adaptive_windows(attrs.size, g.shape[2:]):
        count = (rows.stop - rows.start) * (cols.stop - cols.start)
        total[:, :, rows, cols] += (wide[:, :, i, j] / count)[:, :, None, None]
    out[...] = total


def _adaptive_max_pool(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x,), (out,) = inputs, outputs
    for i, j, rows, cols in adaptive_windows(x.shape[2:], attrs.size):
        out[:, :, i, j] = x[:, :, rows, cols].max(axis=(2, 3))


def _adaptive_winners(x: np.ndarray, out: Ints) -> Iterator[tuple[Window, np.ndarray]]:
    """Return, window by window, which pixel (row-major) of an image is the first largest."""
    wide = widened(x)
    for window in adaptive_windows(x.shape[2:], out):
        _, _, rows, cols = window
        patch = wide[:, :, rows, cols]
        flat = patch.reshape(*x.shape[:2], patch.shape[2] * patch.shape[3]).argmax(axis=2)
        row, col = np.divmod(flat, patch.shape[3])
        yield window, (rows.start + row) * x.shape[3] + cols.start + col


def _adaptive_max_pool_backward(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x, g), (out,) = inputs, outputs
    wide = widened(g)
    total = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), wide.dtype)
    n, c = np.ogrid[: x.shape[0], : x.shape[1]]
    for (i, j, _, _), pixel in _adaptive_winners(x, attrs.size):
        total[n, c, pixel] += wide[:, :, i, j]
    out[...] = total.reshape(out.shape)


def _adaptive_max_pool_pick(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (x, t), (out,) = inputs, outputs
    flat = t.reshape(*t.shape[:2], t.shape[2] * t.shape[3])
    n, c = np.ogrid[: x.shape[0], : x.shape[1]]
    for (i, j, _, _), pixel in _adaptive_winners(x, attrs.size):
        out[:, :, i, j] = flat[n, c, pixel]


_RUNS: dict[str, Callable[..., None]] = {
    "max_pool2d": _max_pool,
    "max_pool2d_backward": _max_pool_backward,
    "max_pool2d_pick": _max_pool_pick,
    "avg_pool2d": _avg_pool,
    "avg_pool2d_backward": _avg_pool_backward,
    "adaptive_avg_pool2d": _adaptive_avg_pool,
    "adaptive_avg_pool2d_backward": _adaptive_avg_pool_backward,
    "adaptive_max_pool2d": _adaptive_max_pool,
    "adaptive_max_pool2d_backward": _adaptive_max_pool_backward,
    "adaptive_max_pool2d_pick": _adaptive_max_pool_pick,
}
KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(f"{op}_any__numpy_taps", op, run) for op, run in _RUNS.items()
)

"""Pooling over windows of any number of axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as grid

import numpy as np

from ... import shapes
from ...errors import AttrError, ShapeError
from ..limits import check_size, check_taps
from ..node import Node
from ..table import operator
from .common import Array, Tensor, binary, constant, is_float, reshaped, run, scalar, zero_padded
from .conv import Window, window


def _window(node: Node, x: Tensor) -> Window:
    if x.ndim < 3:
        raise ShapeError(f"input must be (N, C, spatial …), got {shapes.format_shape(x.shape)}")
    return window(node, x.shape[2:], node.ints("kernel_shape"), node.flag("ceil_mode"))


def _lowest(x: Tensor) -> float:
    return -np.inf if is_float(x) else int(np.iinfo(x.dtype).min)


def _is_plain(x: Tensor, at: Window) -> bool:
    """Tell whether core's pooling of images does it."""
    small = all(
        int(p) < k for pads in (at.before, at.after) for p, k in zip(pads, at.kernel, strict=True)
    )
    return x.ndim == 4 and small and set(at.dilation) == {1}


def taps(x: Tensor, at: Window, fill: float) -> Iterator[Tensor]:
    """Yield, for each element of the window, what it meets over all positions."""
    check_taps(at.kernel)
    out = at.out(x.shape[2:])
    padded = zero_padded(x, (0, 0, *at.before), (0, 0, *at.after), fill)
    for place in grid(*(range(k) for k in at.kernel)):
        starts = [i * d for i, d in zip(place, at.dilation, strict=True)]
        yield run("slice", padded, starts=(0, 0, *starts), sizes=(*x.shape[:2], *out),
                  steps=(1, 1, *at.stride))  # fmt: skip


@operator("MaxPool")
def max_pool(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    at = _window(node, x)
    if len(node.outputs) > 1 and node.outputs[1]:
        return _max_with_places(node, x, at)
    if x.ndim == 3 and set(at.dilation) == {1}:
        flat = reshaped(x, (*x.shape[:2], 1, x.shape[2]))
        line = Window((1, *at.kernel), (1, *at.stride), (1, 1), (0, *at.before), (0, *at.after))
        if _is_plain(flat, line):
            y = _max2d(flat, line)
            return (reshaped(y, (*y.shape[:2], y.shape[3])),)
    if _is_plain(x, at):
        return (_max2d(x, at),)
    best = None
    for tap in taps(x, at, _lowest(x)):
        best = tap if best is None else run("maximum", best, tap)
    assert best is not None
    return (best,)


def _max2d(x: Tensor, at: Window) -> Tensor:
    return run("max_pool2d", x, kernel=at.kernel, stride=at.stride, padding=(*at.before, *at.after))


def _max_with_places(node: Node, x: Tensor, at: Window) -> tuple[Tensor, Tensor]:
    """Return the largest elements and their places in the flattened input."""
    size = tuple(map(int, x.shape))
    column = node.flag("storage_order")
    spatial = np.arange(int(np.prod(size[2:])), dtype=np.int64).reshape(
        size[2:], order="F" if column else "C"
    )
    base = np.arange(size[0] * size[1], dtype=np.int64).reshape(
        size[0], size[1], *(1,) * spatial.ndim
    )
    places = constant(base * spatial.size + spatial)
    best = where = None
    for tap, place in zip(taps(x, at, _lowest(x)), taps(places, at, 0), strict=True):
        if best is None or where is None:
            best, where = tap, place
            continue
        better = run("greater", tap, best)
        best, where = run("where", better, tap, best), run("where", better, place, where)
    assert best is not None
    assert where is not None
    return best, where


@operator("MaxUnpool", 9, known=(2,))
def max_unpool(node: Node, x: Tensor, places: Tensor, shape: Array | None = None) -> Tensor:
    """Put elements back where ``MaxPool`` found them, zeros elsewhere."""
    kernel = node.ints("kernel_shape")
    rank = len(kernel)
    stride, pads = node.ints("strides", (1,) * rank), node.ints("pads", (0,) * (2 * rank))
    natural = [
        (int(n) - 1) * s + k - pads[a] - pads[a + rank]
        for a, (n, s, k) in enumerate(zip(x.shape[2:], stride, kernel, strict=True))
    ]
    inner = [*map(int, x.shape[:2]), *natural]
    want = inner if shape is None else [int(n) for n in shape]
    count = int(np.prod(x.shape))
    flat = run("broadcast_to", scalar(x, 0), shape=(int(np.prod(inner)),))
    flat = run("scatter", flat, reshaped(places, (count,)), reshaped(x, (count,)), axis=0)
    after = [n - m for n, m in zip(want, inner, strict=True)]
    return zero_padded(reshaped(flat, inner), [0] * len(inner), after)


def _summed(x: Tensor, at: Window) -> Tensor:
    total = None
    for tap in taps(x, at, 0):
        total = tap if total is None else run("add", total, tap)
    assert total is not None
    return total


def _counts(size: Sequence[int], at: Window, padded: bool, node: Node) -> Array:
    """Return how many elements each window averages over."""
    check_size(
        [int(n) + b + a for n, b, a in zip(size, at.before, at.after, strict=True)], np.int64
    )
    found = np.ones((), np.int64)
    declared = node.ints("pads", (0,) * (2 * len(size))) if node.text(
        "auto_pad", "NOTSET") == "NOTSET" else (*at.before, *at.after)  # fmt: skip
    for axis, extent in enumerate(size):
        real = np.ones(int(extent), np.int64)
        if padded:
            # Padding counts, what only the rounding up of the size added does not.
            after = declared[axis + len(size)]
            real = np.concatenate([np.ones(at.before[axis] + int(extent) + after, np.int64),
                                   np.zeros(at.after[axis] - after, np.int64)])  # fmt: skip
        else:
            real = np.pad(real, (at.before[axis], at.after[axis]))
        reach = at.dilation[axis] * (at.kernel[axis] - 1) + 1
        count = (len(real) - reach) // at.stride[axis] + 1
        line = np.array(
            [
                real[i * at.stride[axis] : i * at.stride[axis] + reach : at.dilation[axis]].sum()
                for i in range(count)
            ]
        )
        found = found[..., None] * line
    return found


@operator("AveragePool")
def average_pool(node: Node, x: Tensor) -> Tensor:
    at = _window(node, x)
    padded = node.flag("count_include_pad")
    natural = node.flag("ceil_mode") and padded
    if _is_plain(x, at) and not natural:
        return run("avg_pool2d", x, kernel=at.kernel, stride=at.stride,
                   padding=(*at.before, *at.after), count_include_pad=padded)  # fmt: skip
    counts = constant(_counts(x.shape[2:], at, padded, node), x.dtype)
    return run("div", _summed(x, at), counts)


@operator("LpPool")
def lp_pool(node: Node, x: Tensor) -> Tensor:
    at, p = _window(node, x), node.int("p", 2)
    return root(_summed(powered(x, p), at), p)


def powered(x: Tensor, p: int) -> Tensor:
    """Return |x| to a whole power."""
    if p < 1:
        raise AttrError(f"p must be positive, got {p}")
    size = run("abs", x)
    return size if p == 1 else run("square", x) if p == 2 else binary("pow", size, p)


def root(x: Tensor, p: int) -> Tensor:
    """Return the p-th root."""
    return x if p == 1 else run("sqrt", x) if p == 2 else binary("pow", x, 1 / p)


def _spatial(x: Tensor) -> tuple[int, ...]:
    if x.ndim < 3:
        raise ShapeError(f"input must be (N, C, spatial …), got {shapes.format_shape(x.shape)}")
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool")
def global_average_pool(node: Node, x: Tensor) -> Tensor:
    return run("mean", x, axes=_spatial(x), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(node: Node, x: Tensor) -> Tensor:
    return run("max", x, axes=_spatial(x), keepdims=True)


@operator("GlobalLpPool", 2)
def global_lp_pool(node: Node, x: Tensor) -> Tensor:
    p = node.int("p", 2)
    return root(run("sum", powered(x, p), axes=_spatial(x), keepdims=True), p)

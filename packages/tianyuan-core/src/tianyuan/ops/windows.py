"""Say which pixels the windows of poolings hold, and what shape these give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import shapes
from ..errors import AttrError, ShapeError
from ..op import Ints, Specs, TensorSpec, Work, expect_rank
from .conv import check_ints, output_size

# A window: the output position, and the rows and columns of the input that it covers.
Window = tuple[int, int, slice, slice]


def _check_window(op: str, attrs: Any) -> None:
    check_ints(op, "kernel", attrs.kernel, 2, 1)
    check_ints(op, "stride", attrs.stride, 2, 1)
    check_ints(op, "padding", attrs.padding, 4, 0)
    if any(pad >= attrs.kernel[side % 2] for side, pad in enumerate(attrs.padding)):
        raise AttrError(
            f"{op}: padding must be smaller than the kernel, got padding {attrs.padding} "
            f"with kernel {attrs.kernel}, expected less than the kernel on each side"
        )


def _expect_pixels(op: str, size: Ints) -> None:
    if int(size[0]) < 1 or int(size[1]) < 1:
        raise ShapeError(
            f"{op}: the image is empty, got size {shapes.format_shape(size)}, expected at least 1"
        )


def pooled(op: str, x: TensorSpec, attrs: Any) -> TensorSpec:
    """Return the spec of a pooling over windows; raise where the window or input does not fit."""
    _check_window(op, attrs)
    expect_rank(op, x, 4)
    _expect_pixels(op, x.shape[2:])
    return x.with_shape((*x.shape[:2], *output_size(op, x.shape[2:], attrs.kernel, attrs)))


def adapted(op: str, x: TensorSpec, attrs: Any) -> TensorSpec:
    """Return the spec of a pooling to a given size; raise where size or input does not fit."""
    check_ints(op, "size", attrs.size, 2, 1)
    expect_rank(op, x, 4)
    _expect_pixels(op, x.shape[2:])
    return x.with_shape((*x.shape[:2], *attrs.size))


def windows(attrs: Any, size: Ints, out: Ints) -> Iterator[Window]:
    """Walk the windows of a pooling, clipped to the image."""
    (top, left), (kh, kw), (sh, sw) = attrs.padding[:2], attrs.kernel, attrs.stride
    for i in range(out[0]):
        for j in range(out[1]):
            row, col = i * sh - top, j * sw - left
            rows = slice(max(row, 0), min(row + kh, size[0]))
            yield i, j, rows, slice(max(col, 0), min(col + kw, size[1]))


def adaptive_windows(size: Ints, out: Ints) -> Iterator[Window]:
    """Walk the windows [floor(i*H/o), ceil((i+1)*H/o)) of an adaptive pooling."""

    def bounds(index: int, extent: int, count: int) -> slice:
        return slice(index * extent // count, -(-(index + 1) * extent // count))

    for i in range(out[0]):
        for j in range(out[1]):
            yield i, j, bounds(i, size[0], out[0]), bounds(j, size[1], out[1])


def work(inputs: Specs, outputs: Specs, attrs: Any) -> Work:
    """Count a pooling: each output looks at every element of its window."""
    return Work(others=outputs[0].size * shapes.volume(attrs.kernel))

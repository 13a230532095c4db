"""Read images between pixels, cut regions out, and fold columns back to images."""

from __future__ import annotations

from itertools import product as grid

import numpy as np

from ... import shapes
from ...errors import ShapeError
from ..limits import check_size, check_taps
from ..node import Node
from ..table import ARRAYS, operator
from .common import Array, Tensor, binary, extents, reshaped, run, scalar

_CUBIC = -0.75


def _unfolded(place: Tensor, low: float, high: float) -> Tensor:
    """Mirror coordinates at both borders until they lie inside."""
    span = high - low
    if span <= 0:
        return run("broadcast_to", scalar(place, low), shape=place.shape)
    inside = binary("mod", binary("sub", place, low), 2 * span)
    return binary("add", run("minimum", inside, run("sub", scalar(place, 2 * span), inside)), low)


class _Reader:
    """Reads elements of (N, C, spatial …) at coordinates of shape (N, points)."""

    def __init__(self, x: Tensor, padding: str, corners: bool) -> None:
        self.size = [int(n) for n in x.shape[2:]]
        self.lead = tuple(x.shape[:2])
        self.flat = reshaped(x, (*self.lead, shapes.volume(x.shape[2:])))
        self.padding = padding
        self.borders = [(0.0, n - 1.0) if corners else (-0.5, n - 0.5) for n in self.size]

    def padded(self, place: Tensor, axis: int) -> Tensor:
        """Bring a coordinate inside, as the padding mode says."""
        if self.padding == "border":
            return binary("minimum", binary("maximum", place, 0), self.size[axis] - 1)
        return _unfolded(place, *self.borders[axis]) if self.padding == "reflection" else place

    def at(self, places: list[Tensor]) -> Tensor:
        """Return the elements at whole coordinates, zero outside."""
        index: Tensor | None = None
        inside: Tensor | None = None
        for axis, place in enumerate(places):
            extent = self.size[axis]
            place = self.padded(place, axis)
            held = run("logical_and", binary("greater_equal", place, 0),
                       binary("less_equal", place, extent - 1))  # fmt: skip
            inside = held if inside is None else run("logical_and", inside, held)
            whole = binary("minimum", binary("maximum", place, 0), extent - 1).astype("int64")
            index = whole if index is None else run("add", binary("mul", index, extent), whole)
        assert index is not None
        assert inside is not None
        n, c = self.lead
        points = index.shape[-1]
        wide = run("broadcast_to", reshaped(index, (n, 1, points)), shape=(n, c, points))
        found = run("gather", self.flat, wide, axis=2)
        return run("where", reshaped(inside, (n, 1, points)), found, scalar(found, 0))


def _cubic_weights(t: Tensor) -> list[Tensor]:
    def near(d: Tensor) -> Tensor:
        inner = binary("sub", binary("mul", d, _CUBIC + 2), _CUBIC + 3)
        return binary("add", run("mul", run("mul", inner, d), d), 1)

    def far(d: Tensor) -> Tensor:
        inner = binary("sub", binary("mul", d, _CUBIC), 5 * _CUBIC)
        inner = binary("add", run("mul", inner, d), 8 * _CUBIC)
        return binary("sub", run("mul", inner, d), 4 * _CUBIC)

    rest = run("sub", scalar(t, 1), t)
    return [far(binary("add", t, 1)), near(t), near(rest), far(binary("add", rest, 1))]


@operator("GridSample", 16)
def grid_sample(node: Node, x: Tensor, points: Tensor) -> Tensor:
    """Read images at the points of a grid, given in -1..1 with the last axis first."""
    mode = node.text("mode", "linear" if node.version >= 20 else "bilinear",
                     ("linear", "bilinear", "nearest", "cubic", "bicubic"))  # fmt: skip
    padding = node.text("padding_mode", "zeros", ("zeros", "border", "reflection"))
    corners = node.flag("align_corners")
    rank, count = x.ndim - 2, shapes.volume(points.shape[1:-1])
    if int(points.shape[-1]) != rank or rank < 1:
        raise ShapeError(f"grid does not fit, got {shapes.format_shape(points.shape)}")
    reader = _Reader(x, padding, corners)
    n, c = x.shape[:2]
    places = []
    for axis in range(rank):
        first = (*(0,) * (points.ndim - 1), rank - 1 - axis)
        part = run("slice", points, starts=first, sizes=(*points.shape[:-1], 1),
                   steps=(1,) * points.ndim)  # fmt: skip
        unit = binary("add", reshaped(part, (n, count)).astype(x.dtype), 1)
        extent = reader.size[axis]
        if corners:
            place = binary("mul", unit, (extent - 1) / 2)
        else:
            place = binary("div", binary("sub", binary("mul", unit, extent), 1), 2)
        places.append(place)
    out: tuple[int, ...] = (n, c, *points.shape[1:-1])
    if mode == "nearest":
        return reshaped(reader.at([run("round", place) for place in places]), out)
    if mode in ("linear", "bilinear"):
        places = [reader.padded(place, axis) for axis, place in enumerate(places)]
    return reshaped(_interpolated(reader, places, mode in ("cubic", "bicubic")), out)


def _interpolated(reader: _Reader, places: list[Tensor], cubic: bool) -> Tensor:
    floors = [run("floor", place) for place in places]
    parts = [run("sub", place, low) for place, low in zip(places, floors, strict=True)]
    if cubic:
        weights = [_cubic_weights(part) for part in parts]
        offsets: tuple[int, ...] = (-1, 0, 1, 2)
    else:
        weights = [[run("sub", scalar(part, 1), part), part] for part in parts]
        offsets = (0, 1)
    total: Tensor | None = None
    for taps in grid(range(len(offsets)), repeat=len(places)):
        where = [binary("add", low, offsets[k]) for low, k in zip(floors, taps, strict=True)]
        share = weights[0][taps[0]]
        for axis in range(1, len(places)):
            share = run("mul", share, weights[axis][taps[axis]])
        part = run("mul", reader.at(where), reshaped(share, (share.shape[0], 1, share.shape[1])))
        total = part if total is None else run("add", total, part)
    assert total is not None
    return total


@operator("Col2Im", 18, known=(1, 2))
def col2im(node: Node, columns: Tensor, image: Array, block: Array) -> Tensor:
    """Add blocks (N, C * block, positions) up where they came from in an image."""
    size, kernel = extents(image), extents(block)
    rank = len(size)
    stride, dilation = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    pads = node.ints("pads", (0,) * (2 * rank))
    padded = [n + pads[a] + pads[a + rank] for a, n in enumerate(size)]
    out = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded, kernel, stride, dilation, strict=True)
    ]
    check_taps(kernel)
    taps = int(np.prod([int(k) for k in kernel]))
    n, c = columns.shape[0], columns.shape[1] // taps
    if int(np.prod([int(o) for o in out])) != int(columns.shape[2]):
        raise ShapeError(f"columns do not fit, got {shapes.format_shape(columns.shape)}")
    apart = reshaped(columns, (n, c, taps, *out))
    total: Tensor | None = None
    for number, place in enumerate(grid(*(range(int(k)) for k in kernel))):
        part = run("slice", apart, starts=(0, 0, number, *(0,) * rank), sizes=(n, c, 1, *out),
                   steps=(1,) * apart.ndim)  # fmt: skip
        starts = tuple(i * d for i, d in zip(place, dilation, strict=True))
        laid = run("slice_backward", reshaped(part, (n, c, *out)), shape=(n, c, *padded),
                   starts=(0, 0, *starts), steps=(1, 1, *stride))  # fmt: skip
        total = laid if total is None else run("add", total, laid)
    assert total is not None
    return run("slice", total, starts=(0, 0, *pads[:rank]), sizes=(n, c, *size),
               steps=(1,) * total.ndim)  # fmt: skip


def _bilinear(image: Array, y: Array, x: Array) -> list[tuple[Array, Array]]:
    """Return four neighbours of points in (C, H, W), each with its weight; far points weigh 0."""
    height, width = image.shape[1:]
    held = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = np.maximum(y, 0), np.maximum(x, 0)
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    y = np.where(top >= height - 1, height - 1, y)
    x = np.where(left >= width - 1, width - 1, x)
    top, left = np.minimum(top, height - 1), np.minimum(left, width - 1)
    bottom, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    down, across = y - top, x - left
    return [
        (image[:, top, left], held * (1 - down) * (1 - across)),
        (image[:, top, right], held * (1 - down) * across),
        (image[:, bottom, left], held * down * (1 - across)),
        (image[:, bottom, right], held * down * across),
    ]


@operator("RoiAlign", 10, form=ARRAYS)
def roi_align(node: Node, x: Array, rois: Array, batch: Array) -> Array:
    """Average or maximise samples of each cell of regions (x1, y1, x2, y2)."""
    mode = node.text("mode", "avg", ("avg", "max"))
    shift = 0.5 if node.version >= 16 and node.text(
        "coordinate_transformation_mode", "half_pixel", ("half_pixel", "output_half_pixel")
    ) == "half_pixel" else 0.0  # fmt: skip
    scale, ratio = node.float("spatial_scale", 1.0), node.int("sampling_ratio", 0)
    rows, cols = node.int("output_height", 1), node.int("output_width", 1)
    check_size((len(rois), x.shape[1], rows, cols), x.dtype)
    found = np.zeros((len(rois), x.shape[1], rows, cols), x.dtype)
    for number, roi in enumerate(rois.astype(np.float64)):
        left, top, right, bottom = roi * scale - shift
        height, width = bottom - top, right - left
        if not shift:
            height, width = max(height, 1.0), max(width, 1.0)
        down = ratio if ratio > 0 else int(np.ceil(height / rows))
        across = ratio if ratio > 0 else int(np.ceil(width / cols))
        check_size((x.shape[1], rows, down, cols, across), np.float64)
        step_y, step_x = height / rows, width / cols
        y = top + step_y * (np.arange(rows)[:, None] + (np.arange(down) + 0.5) / down)
        points_x = left + step_x * (np.arange(cols)[:, None] + (np.arange(across) + 0.5) / across)
        yy = np.broadcast_to(y[:, :, None, None], (rows, down, cols, across))
        xx = np.broadcast_to(points_x[None, None], (rows, down, cols, across))
        parts = [value * weight for value, weight in _bilinear(x[int(batch[number])], yy, xx)]
        if mode == "avg":
            found[number] = np.sum(parts, axis=0).mean(axis=(2, 4))
        else:
            found[number] = np.max(parts, axis=0).max(axis=(2, 4))
    return found


@operator("MaxRoiPool", form=ARRAYS)
def max_roi_pool(node: Node, x: Array, rois: Array) -> Array:
    """Return the largest element of each cell of regions (batch, x1, y1, x2, y2); 0 of none."""
    rows, cols = node.ints("pooled_shape")
    scale = node.float("spatial_scale", 1.0)
    height, width = x.shape[2:]
    check_size((len(rois), x.shape[1], rows, cols), x.dtype)
    found = np.zeros((len(rois), x.shape[1], rows, cols), x.dtype)
    for number, roi in enumerate(rois):
        # Halves are rounded away from zero, as C's round does.
        left, top, right, bottom = np.floor(np.asarray(roi[1:], np.float64) * scale + 0.5).astype(
            int
        )
        down = max(bottom - top + 1, 1) / rows
        across = max(right - left + 1, 1) / cols
        for i, j in grid(range(rows), range(cols)):
            y = slice(*np.clip([top + int(i * down), top - int(-(i + 1) * down // 1)], 0, height))
            z = slice(
                *np.clip([left + int(j * across), left - int(-(j + 1) * across // 1)], 0, width)
            )
            cell = x[int(roi[0]), :, y, z]
            if cell.size:
                found[number, :, i, j] = cell.max(axis=(1, 2))
    return found

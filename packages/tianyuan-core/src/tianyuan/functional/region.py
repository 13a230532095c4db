"""Cut regions out of images, and choose among overlapping ones."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .. import shapes
from ..errors import AttrError, DataError, ShapeError
from ..imperative import dispatch
from ..imperative.indexing import concrete
from ..imperative.tensor import Tensor
from . import elemwise, math
from .arguments import choice, floating, pair, run, tensor
from .linalg import matmul
from .movement import broadcast_to, reshape, transpose
from .sampling import Sampler, clamped, images, numbers

__all__ = ["nms", "roi_align", "roi_pooling"]


def checked_regions(op: str, rois: Any, scale: float, count: int) -> Tensor:
    """Return regions (image, x1, y1, x2, y2) in floats, their values checked outside of a trace.

    Raises:
        ShapeError: where they are not (R, 5).
        AttrError: where the scale is not positive.
        DataError: where a value is not finite, or an image is not one of ``count``.
    """
    found = floating(tensor(op, rois, "rois"))
    if found.ndim != 2 or int(found.shape[1]) != 5:
        raise ShapeError(
            f"{op}: rois do not fit, got {shapes.format_shape(found.shape)}, expected (R, 5)"
        )
    if not scale > 0:
        raise AttrError(f"{op}: the scale must be positive, got {scale}, expected scale > 0")
    if not dispatch.is_known(found):
        return found
    values = dispatch.host_array(found, found._data).astype(np.float64)
    broken = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if broken.size:
        raise DataError(f"{op}: region {broken[0]} is not finite, got {values[broken[0]].tolist()}")
    if values.size and not (values[:, 0].min() >= 0 and values[:, 0].max() < int(count)):
        outside = values[:, 0].min() if values[:, 0].min() < 0 else values[:, 0].max()
        raise DataError(
            f"{op}: a region's image is out of range, got {outside:g}, "
            f"expected 0 to {int(count) - 1}"
        )
    return found


def _expect_upright(op: str, regions: Tensor) -> None:
    """Raise DataError where a region ends before it starts, outside of a trace."""
    if not dispatch.is_known(regions):
        return
    values = dispatch.host_array(regions, regions._data)
    empty = np.flatnonzero((values[:, 3:] < values[:, 1:3]).any(axis=1))
    if empty.size:
        raise DataError(
            f"{op}: region {empty[0]} is empty, got {values[empty[0]].tolist()}, "
            "expected x1 <= x2 and y1 <= y2"
        )


def roi_align(
    inp: Tensor,
    rois: Tensor,
    output_shape: Any,
    mode: str = "average",
    spatial_scale: float = 1.0,
    sample_points: Any = 2,
    aligned: bool = True,
) -> Tensor:
    """Cut regions (image, x1, y1, x2, y2) of images (N, C, H, W) to one size (R, C, OH, OW).

    Each output is the average, or largest, of evenly spaced samples of its part of the region.
    ``aligned`` puts pixel centres at halves; without it a region has at least one pixel.
    Follows He et al., Mask R-CNN, 2017.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where the mode is unknown.
        DataError: where a region is not finite, ends before it starts while ``aligned``, or
            names an image that is not there.

    >>> x, rois = Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), Tensor([[0.0, 0.0, 0.0, 2.0, 2.0]])
    >>> roi_align(x, rois, 2, sample_points=1).tolist()
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    """
    op = "roi_align"
    image = images(op, inp)
    regions = checked_regions(op, rois, spatial_scale, image.shape[0])
    mode = choice(op, "mode", mode, ("average", "max"))
    out = pair(op, "output_shape", output_shape, 1)
    samples = pair(op, "sample_points", sample_points, 1)
    if aligned:
        _expect_upright(op, regions)
    batch = cast(Tensor, regions[:, 0].cast("int32"))
    corners = elemwise.sub(elemwise.mul(regions[:, 1:], spatial_scale), 0.5 if aligned else 0.0)
    axes = []
    for axis in (1, 0):
        start, end = corners[:, axis : axis + 1], corners[:, axis + 2 : axis + 3]
        size = elemwise.sub(end, start)
        size = size if aligned else elemwise.maximum(size, 1.0)
        count = out[1 - axis] * samples[1 - axis]
        share = elemwise.div(elemwise.add(numbers(count, image, "float32"), 0.5), float(count))
        axes.append(elemwise.add(start, elemwise.mul(size, share)))
    rows, columns = regions.shape[0], [v.shape[1] for v in axes]
    grid, flat = (rows, *columns), (rows, columns[0] * columns[1])
    y = reshape(broadcast_to(reshape(axes[0], (rows, columns[0], 1)), grid), flat)
    x = reshape(broadcast_to(reshape(axes[1], (rows, 1, columns[1])), grid), flat)
    found = _region_samples(image, batch, y, x)
    apart = (rows, out[0], samples[0], out[1], samples[1], image.shape[1])
    pooled = (math.mean if mode == "average" else math.max)(reshape(found, apart), (2, 4))
    return transpose(pooled, (0, 3, 1, 2))


def _region_samples(image: Tensor, batch: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Sample with the border repeated for one pixel and zero beyond it."""
    height, width = image.shape[2:]
    near = elemwise.logical_and(_near(y, height), _near(x, width))
    inside = clamped(y, height), clamped(x, width)
    found = Sampler(image, batch, "replicate").linear(*inside)
    return elemwise.mul(found, reshape(near, (*near.shape, 1)).cast(found.dtype))


def _near(place: Tensor, extent: int) -> Tensor:
    return elemwise.logical_and(
        elemwise.greater_equal(place, -1), elemwise.less_equal(place, extent)
    )


def roi_pooling(
    inp: Tensor, rois: Tensor, output_shape: Any, mode: str = "max", scale: float = 1.0
) -> Tensor:
    """Reduce the pixels of regions (image, x1, y1, x2, y2) to one size (R, C, OH, OW).

    Corners are rounded to pixels and belong to the region; a part without pixels gives 0. Follows
    Girshick, Fast R-CNN, 2015. ``mode`` is max or average.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where the mode is unknown.
        DataError: where a region is not finite or names an image that is not there.

    >>> x, rois = Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), Tensor([[0.0, 0.0, 0.0, 1.0, 1.0]])
    >>> roi_pooling(x, rois, 1).tolist()
    [[[[4.0]]]]
    """
    op = "roi_pooling"
    image = images(op, inp)
    regions = checked_regions(op, rois, scale, image.shape[0])
    mode = choice(op, "mode", mode, ("max", "average"))
    out = pair(op, "output_shape", output_shape, 1)
    chosen = run("take", image, regions[:, 0].cast("int32"), axis=0)
    corners = elemwise.floor(elemwise.add(elemwise.mul(regions[:, 1:], scale), 0.5))
    rows = _parts(corners[:, 1:2], corners[:, 3:4], out[0], image.shape[2], image)
    columns = _parts(corners[:, 0:1], corners[:, 2:3], out[1], image.shape[3], image)
    if mode == "average":
        shares = [cast(Tensor, part.cast(image.dtype)) for part in (rows, columns)]
        high, wide = (
            elemwise.div(share, elemwise.maximum(math.sum(share, 2, True), 1.0)) for share in shares
        )
        high, wide = (reshape(v, (v.shape[0], 1, *v.shape[1:])) for v in (high, wide))
        return matmul(matmul(high, chosen), wide, transpose_b=True)
    count = regions.shape[0]
    lowest = cast(Tensor, image.full((), float("-inf")))
    across = reshape(columns, (count, 1, 1, *columns.shape[1:]))
    pixels = reshape(chosen, (*chosen.shape[:3], 1, chosen.shape[3]))
    found = math.max(run("where", across, pixels, lowest), 4)
    down = reshape(rows, (count, 1, rows.shape[1], rows.shape[2], 1))
    lines = reshape(found, (*found.shape[:2], 1, *found.shape[2:]))
    found = math.max(run("where", down, lines, lowest), 3)
    return run("where", elemwise.greater(found, lowest), found, image.full((), 0.0))


def _parts(start: Tensor, end: Tensor, count: int, extent: int, like: Tensor) -> Tensor:
    """Tell by bool (R, count, extent) which pixels of an axis belong to each part of a region."""
    size = elemwise.maximum(elemwise.add(elemwise.sub(end, start), 1.0), 1.0)
    step = elemwise.div(size, float(count))
    number = numbers(count, like, "float32")
    first = elemwise.add(elemwise.floor(elemwise.mul(number, step)), start)
    last = elemwise.add(elemwise.ceil(elemwise.mul(elemwise.add(number, 1.0), step)), start)
    place = numbers(extent, like, "float32")
    first, last = (reshape(v, (v.shape[0], count, 1)) for v in (first, last))
    return elemwise.logical_and(elemwise.less_equal(first, place), elemwise.less(place, last))


def nms(boxes: Tensor, scores: Tensor, iou_thresh: float, max_output: int | None = None) -> Tensor:
    """Return int32 indices of boxes (N, 4), best first, that overlap no better one too much.

    Boxes are (x1, y1, x2, y2); the overlap is intersection over union. The count of indices
    depends on the data, so this is refused inside a trace.

    Raises:
        ShapeError: where boxes are not (N, 4) or scores not (N,).
        TraceError: inside a trace.

    >>> boxes = Tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    >>> nms(boxes, Tensor([0.5, 0.9, 0.3]), 0.5).tolist()
    [1, 2]
    """
    rank_ok = tensor("nms", boxes, "boxes").ndim == 2 and tensor("nms", scores, "scores").ndim == 1
    if not rank_ok or int(boxes.shape[1]) != 4 or int(boxes.shape[0]) != int(scores.shape[0]):
        raise ShapeError(
            f"nms: shapes do not fit, got {shapes.format_shape(boxes.shape)} and "
            f"{shapes.format_shape(scores.shape)}, expected (N, 4) and (N,)"
        )
    corners = concrete("nms", boxes).astype(np.float32)
    order = np.argsort(-concrete("nms", scores), kind="stable")
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    kept: list[int] = []
    while order.size and (max_output is None or len(kept) < max_output):
        best, order = int(order[0]), order[1:]
        kept.append(best)
        low = np.maximum(corners[best, :2], corners[order, :2])
        high = np.minimum(corners[best, 2:], corners[order, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[order] - shared
        order = order[shared <= iou_thresh * union]
    return Tensor(np.array(kept, np.int32), device=boxes.device)

"""Pool deformed parts of regions."""

from __future__ import annotations

from typing import Any, cast

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from . import elemwise, math
from .arguments import floating, run, tensor
from .movement import broadcast_to, reshape, transpose
from .picking import where
from .region import checked_regions
from .sampling import Sampler, clamped, expect_finite, images, numbers

__all__ = ["deformable_psroi_pooling"]


def deformable_psroi_pooling(
    inp: Tensor,
    rois: Tensor,
    trans: Tensor,
    no_trans: bool,
    part_size: int,
    pooled_h: int,
    pooled_w: int,
    sample_per_part: int,
    spatial_scale: float,
    trans_std: float = 0.1,
) -> Tensor:
    """Average parts of regions (image, x1, y1, x2, y2), each moved by an offset of its own.

    Each part of a region takes ``sample_per_part`` squared samples of (N, C, H, W), evenly spaced
    from its upper left corner on; samples outside are left out, and a part without any gives 0.
    ``trans`` (R, 2, pooled_h, pooled_w) moves the parts by (x, y) in units of ``trans_std`` times
    the region's extents, unless ``no_trans``. Returns (R, C, pooled_h, pooled_w). Follows Dai et
    al., Deformable convolutional networks, 2017.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where a count or a scale is not positive.
        DataError: where a region or an offset is not finite, or an image is not there.

    >>> x, rois = Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), Tensor([[0.0, 0.0, 0.0, 1.0, 1.0]])
    >>> deformable_psroi_pooling(x, rois, None, True, 1, 1, 1, 2, 1.0).tolist()
    [[[[1.75]]]]
    """
    op = "deformable_psroi_pooling"
    image = images(op, inp)
    regions = checked_regions(op, rois, spatial_scale, image.shape[0])
    for what, count in (
        ("part_size", part_size), ("pooled_h", pooled_h), ("pooled_w", pooled_w),
        ("sample_per_part", sample_per_part),
    ):  # fmt: skip
        if int(count) < 1:
            raise AttrError(f"{op}: {what} must be positive, got {count}, expected 1 or more")
    away = elemwise.floor(elemwise.add(elemwise.abs(regions[:, 1:]), 0.5))
    corners = elemwise.mul(away, math.sign(regions[:, 1:]))
    first = elemwise.sub(elemwise.mul(corners[:, :2], spatial_scale), 0.5)
    last = elemwise.sub(elemwise.mul(elemwise.add(corners[:, 2:], 1.0), spatial_scale), 0.5)
    size = elemwise.maximum(elemwise.sub(last, first), 0.1)
    rows, grid = regions.shape[0], (pooled_h, pooled_w)
    moved = None if no_trans else _offsets(op, trans, rows, grid, int(part_size), trans_std)
    places = []
    for axis, (count, line) in enumerate(((pooled_w, (1, pooled_w)), (pooled_h, (pooled_h, 1)))):
        start, extent = (reshape(value[:, axis], (rows, 1, 1)) for value in (first, size))
        part = elemwise.div(reshape(numbers(count, image, "float32"), (1, *line)), float(count))
        shift = part if moved is None else elemwise.add(part, moved[:, axis])
        places.append(broadcast_to(elemwise.add(start, elemwise.mul(shift, extent)),
                                   (rows, *grid)))  # fmt: skip
    steps = [
        elemwise.div(size[:, axis], float(count * sample_per_part))
        for axis, count in ((0, pooled_w), (1, pooled_h))
    ]
    batch = cast(Tensor, regions[:, 0].cast("int32"))
    return _averaged(image, batch, places, steps, int(sample_per_part))


def _offsets(
    op: str, trans: Any, rows: int, grid: tuple[int, int], part_size: int, scale: float
) -> Tensor:
    """Return (R, 2, pooled_h, pooled_w): the offset of each part, as a share of the region."""
    found = floating(tensor(op, trans, "trans"))
    want = (rows, 2, *grid)
    if tuple(map(int, found.shape)) != tuple(map(int, want)) or part_size > min(grid):
        raise ShapeError(
            f"{op}: trans does not fit, got {shapes.format_shape(found.shape)} and part_size "
            f"{part_size}, expected {shapes.format_shape(want)} and at most {min(grid)}"
        )
    expect_finite(op, "trans", found)
    for axis, count in ((2, grid[0]), (3, grid[1])):
        if part_size != count:
            index = Tensor([i * part_size // count for i in range(count)], "int32", found.device)
            found = run("take", found, index, axis=axis)
    return elemwise.mul(found, float(scale))


def _averaged(
    image: Tensor, batch: Tensor, places: list[Tensor], steps: list[Tensor], samples: int
) -> Tensor:
    """Average the samples of each part that lie inside, from its corner (x, y) on."""
    rows, ph, pw = places[0].shape
    offsets = numbers(samples, image, "float32")
    points = []
    for place, step, line in zip(places, steps, ((1, samples), (samples, 1)), strict=True):
        way = elemwise.mul(reshape(step, (rows, 1, 1, 1, 1)), reshape(offsets, (1, 1, 1, *line)))
        wide = elemwise.add(reshape(place, (rows, ph, pw, 1, 1)), way)
        flat = broadcast_to(wide, (rows, ph, pw, samples, samples))
        points.append(reshape(flat, (rows, ph * pw * samples * samples)))
    x, y = points
    inside = elemwise.logical_and(_near(x, image.shape[3]), _near(y, image.shape[2]))
    sampler = Sampler(image, batch, "replicate")
    read = sampler.linear(clamped(y, image.shape[2]), clamped(x, image.shape[3]))
    channels = image.shape[1]
    seen = reshape(inside, (rows, ph, pw, samples * samples, 1))
    values = reshape(read, (rows, ph, pw, samples * samples, channels))
    total = math.sum(where(seen, values, 0.0), 3)
    count = elemwise.maximum(math.sum(seen, 3), 1)
    return transpose(elemwise.div(total, count.cast(total.dtype)), (0, 3, 1, 2))


def _near(place: Tensor, extent: int) -> Tensor:
    """Tell which coordinates lie on the area of an axis' pixels."""
    return elemwise.logical_and(
        elemwise.greater_equal(place, -0.5), elemwise.less_equal(place, extent - 0.5)
    )

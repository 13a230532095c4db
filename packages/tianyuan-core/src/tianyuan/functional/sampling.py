"""Read images between pixels: remapping and warping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from .. import shapes
from ..errors import DataError, ShapeError
from ..imperative.state import state
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import choice, floating, is_image_of_bytes, pair, run, tensor
from .creation import arange
from .linalg import matmul
from .movement import broadcast_to, reshape, transpose

__all__ = ["remap", "warp_affine", "warp_perspective"]


def clamped(place: Tensor, extent: int) -> Tensor:
    """Move coordinates outside of an axis to its ends."""
    return elemwise.clip(place, 0, extent - 1)


def _wrapped(place: Tensor, extent: int) -> Tensor:
    return elemwise.mod(place, extent)


def _reflected(place: Tensor, extent: int) -> Tensor:
    """Mirror so that the border pixel is repeated: cba|abc|cba."""
    inside = elemwise.mod(place, 2 * extent)
    return elemwise.minimum(inside, elemwise.sub(2 * extent - 1, inside))


def _reflected_once(place: Tensor, extent: int) -> Tensor:
    """Mirror so that the border pixel is not repeated: cb|abc|ba."""
    period = 2 * extent - 2 if int(extent) > 1 else 1
    inside = elemwise.mod(place, period)
    return clamped(elemwise.minimum(inside, elemwise.sub(period, inside)), extent)


_BORDERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "replicate": clamped,
    "wrap": _wrapped,
    "reflect": _reflected,
    "reflect_101": _reflected_once,
    "constant": clamped,
}


def expect_finite(op: str, what: str, value: Tensor) -> None:
    """Raise DataError where a value that places samples is NaN or infinite.

    Inside a trace, and on devices that would have to be waited for, nothing is looked at.
    """
    data = value._data
    if state.recorder is None and isinstance(data, np.ndarray) and not np.isfinite(data).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(data))[0])
        raise DataError(f"{op}: {what} must be finite, got {data[place]} at {place}")


class Sampler:
    """Reads points of images (N, C, H, W).

    Images of uint8 stay so: coordinates are rounded to 1/32 of a pixel, and weights are integers.

    Args:
        image: the images.
        batch: integer tensor (R,) that names the image of each row of points.
        border: what lies outside: a key of MegEngine's border modes.
        scalar: the value outside, for ``constant``.
    """

    def __init__(self, image: Tensor, batch: Tensor, border: str, scalar: float = 0.0) -> None:
        n, c, self.height, self.width = image.shape
        self.pixels = reshape(transpose(image, (0, 2, 3, 1)), (n * self.height * self.width, c))
        self.first = elemwise.mul(reshape(batch, (-1, 1)), self.height * self.width)
        self.bytes = is_image_of_bytes(image)
        self.border = border
        self.scalar = min(max(math.floor(scalar + 0.5), 0), 255) if self.bytes else scalar

    def at(self, y: Tensor, x: Tensor) -> Tensor:
        """Return the pixels (R, P, C) at whole coordinates (R, P), given as float32 or int32."""
        place = _BORDERS[self.border]
        row, column = place(y, self.height), place(x, self.width)
        row, column = (cast(Tensor, v.cast("int32")) for v in (row, column))
        flat = elemwise.add(elemwise.add(elemwise.mul(row, self.width), column), self.first)
        found = run("take", self.pixels, flat, axis=0)
        if self.border != "constant":
            return found
        inside = elemwise.logical_and(_within(y, self.height), _within(x, self.width))
        outside = cast(Tensor, found.full((), self.scalar))
        return run("where", reshape(inside, (*inside.shape, 1)), found, outside)

    def linear(self, y: Tensor, x: Tensor) -> Tensor:
        """Return pixels (R, P, C) at coordinates (R, P), interpolated between four neighbours."""
        if self.bytes:
            return self._between_bytes(y, x)
        top, left = elemwise.floor(y), elemwise.floor(x)
        down, right = elemwise.sub(y, top), elemwise.sub(x, left)
        total: Tensor | None = None
        for i, row_share in ((0, elemwise.sub(1.0, down)), (1, down)):
            for j, column_share in ((0, elemwise.sub(1.0, right)), (1, right)):
                found = self.at(elemwise.add(top, i), elemwise.add(left, j))
                share = elemwise.mul(row_share, column_share)
                part = elemwise.mul(found, reshape(share, (*share.shape, 1)).cast(found.dtype))
                total = part if total is None else elemwise.add(total, part)
        assert total is not None
        return total

    def _between_bytes(self, y: Tensor, x: Tensor) -> Tensor:
        y, x = (_in_steps(v) for v in (y, x))
        top, left = (elemwise.right_shift(v, _BITS) for v in (y, x))
        down, right = (
            elemwise.sub(v, elemwise.left_shift(whole, _BITS)) for v, whole in ((y, top), (x, left))
        )
        total: Tensor | None = None
        for i, row_share in ((0, elemwise.sub(1 << _BITS, down)), (1, down)):
            for j, column_share in ((0, elemwise.sub(1 << _BITS, right)), (1, right)):
                found = self.at(elemwise.add(top, i), elemwise.add(left, j)).cast("int32")
                share = elemwise.mul(row_share, column_share)
                part = elemwise.mul(found, reshape(share, (*share.shape, 1)))
                total = part if total is None else elemwise.add(total, part)
        assert total is not None
        return to_bytes(total, 2 * _BITS)

    def nearest(self, y: Tensor, x: Tensor) -> Tensor:
        """Return pixels (R, P, C) nearest to coordinates (R, P), halves upwards."""
        return self.at(*(elemwise.floor(elemwise.add(v, 0.5)) for v in (y, x)))

    def rounded(self, y: Tensor, x: Tensor) -> Tensor:
        """Return pixels (R, P, C) nearest to coordinates (R, P), halves to the even one."""
        return self.at(elemwise.round(y), elemwise.round(x))


_BITS = 5  # of a coordinate's fraction, for images of uint8


def _in_steps(place: Tensor) -> Tensor:
    """Return coordinates in int32 steps of 2**-_BITS, halves upwards; far away they stop."""
    far = float(1 << (30 - _BITS))
    steps = elemwise.mul(elemwise.clip(place, -far, far), float(1 << _BITS))
    return cast(Tensor, elemwise.floor(elemwise.add(steps, 0.5)).cast("int32"))


def to_bytes(total: Tensor, bits: int) -> Tensor:
    """Divide int32 by 2**bits, round halves upwards, and return uint8, limited to 0 to 255."""
    found = elemwise.right_shift(elemwise.add(total, 1 << (bits - 1)), bits)
    return cast(Tensor, elemwise.clip(found, 0, 255).cast("uint8"))


def _within(place: Tensor, extent: int) -> Tensor:
    return elemwise.logical_and(
        elemwise.greater_equal(place, 0), elemwise.less_equal(place, extent - 1)
    )


def _sampled(
    image: Tensor,
    batch: Tensor,
    y: Tensor,
    x: Tensor,
    border_mode: str,
    scalar: float,
    interp_mode: str,
    op: str,
) -> Tensor:
    """Return (R, C, OH, OW) for coordinates (R, OH, OW)."""
    border = choice(op, "border_mode", border_mode, tuple(_BORDERS))
    mode = choice(op, "interp_mode", interp_mode, ("linear", "nearest"))
    rows, height, width = y.shape
    sampler = Sampler(image, batch, border, scalar)
    points = (reshape(v, (rows, height * width)) for v in (y, x))
    # MegEngine rounds as OpenCV does: points of a map to even, warped pixels upwards.
    nearest = sampler.rounded if op == "remap" else sampler.nearest
    read = sampler.linear if mode == "linear" else nearest
    found = reshape(read(*points), (rows, height, width, image.shape[1]))
    return transpose(found, (0, 3, 1, 2))


def images(op: str, inp: Any, format: str = "NCHW", bytes_stay: bool = False) -> Tensor:
    """Return images as (N, C, H, W), in floats, or in uint8 where those may stay.

    Raises:
        ShapeError: where the input has another rank than 4.
        AttrError: where the format is unknown.
    """
    found = tensor(op, inp)
    found = found if bytes_stay and is_image_of_bytes(found) else floating(found)
    format = choice(op, "format", format, ("NCHW", "NHWC"))
    if found.ndim != 4:
        raise ShapeError(
            f"{op}: input has the wrong rank, got shape {shapes.format_shape(found.shape)}, "
            f"expected {format}"
        )
    return found if format == "NCHW" else transpose(found, (0, 3, 1, 2))


def numbers(count: int, like: Tensor, dtype: str = "int32") -> Tensor:
    """Return 0 to below ``count`` on the device of another tensor."""
    return arange(count, dtype=dtype, device=like.device)


def remap(
    inp: Tensor,
    map_xy: Tensor,
    border_mode: str = "replicate",
    scalar: float = 0.0,
    interp_mode: str = "linear",
) -> Tensor:
    """Read images (N, C, H, W) at the points (x, y) of ``map_xy`` (N, OH, OW, 2).

    Border modes: replicate, reflect, reflect_101, wrap, constant (``scalar``). Halves are rounded
    to even for ``nearest``. Images of uint8 give uint8, at points rounded to 1/32 of a pixel.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where a mode is unknown.
        DataError: where a point is NaN or infinite.

    >>> remap(Tensor([[[[1.0, 3.0]]]]), Tensor([[[[0.5, 0.0]]]])).tolist()
    [[[[2.0]]]]
    """
    image = images("remap", inp, bytes_stay=True)
    points = floating(tensor("remap", map_xy, "map_xy"))
    fits = points.ndim == 4 and int(points.shape[3]) == 2
    if not fits or int(points.shape[0]) != int(image.shape[0]):
        raise ShapeError(
            f"remap: map_xy does not fit, got {shapes.format_shape(points.shape)} for "
            f"{shapes.format_shape(image.shape)}, expected (N, OH, OW, 2)"
        )
    expect_finite("remap", "map_xy", points)
    batch = numbers(image.shape[0], image)
    x, y = points[..., 0], points[..., 1]
    return _sampled(image, batch, y, x, border_mode, scalar, interp_mode, "remap")


def warp_perspective(
    inp: Tensor,
    mat: Tensor,
    out_shape: Any,
    mat_idx: Any = None,
    border_mode: str = "replicate",
    border_val: float = 0.0,
    format: str = "NCHW",
    interp_mode: str = "linear",
) -> Tensor:
    """Read images where matrices (N, 3, 3) map each output pixel (x, y, 1) to, after division.

    ``mat_idx`` names the image of each matrix where their counts differ.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where a mode or format is unknown.
        DataError: where a matrix holds NaN or infinity.

    >>> unit = Tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    >>> warp_perspective(Tensor([[[[1.0, 2.0]]]]), unit, (1, 2)).tolist()
    [[[[1.0, 2.0]]]]
    """
    op = "warp_perspective"
    image = images(op, inp, format, bytes_stay=True)
    return _warped(op, image, mat, 3, out_shape, mat_idx, border_mode, border_val, format,
                   interp_mode)  # fmt: skip


def warp_affine(
    inp: Tensor,
    mat: Tensor,
    out_shape: Any,
    border_mode: str = "replicate",
    border_val: float = 0.0,
    format: str = "NHWC",
    interp_mode: str = "linear",
) -> Tensor:
    """Read images where matrices (N, 2, 3) map each output pixel (x, y, 1) to.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where a mode or format is unknown.
        DataError: where a matrix holds NaN or infinity.

    >>> shift = Tensor([[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]])
    >>> warp_affine(Tensor([[[[1.0, 2.0, 3.0]]]]), shift, (1, 2), format="NCHW").tolist()
    [[[[2.0, 3.0]]]]
    """
    image = images("warp_affine", inp, format, bytes_stay=True)
    return _warped("warp_affine", image, mat, 2, out_shape, None, border_mode, border_val, format,
                   interp_mode)  # fmt: skip


def _warped(
    op: str,
    image: Tensor,
    mat: Any,
    rows: int,
    out_shape: Any,
    mat_idx: Any,
    border_mode: str,
    border_val: float,
    format: str,
    interp_mode: str,
) -> Tensor:
    matrix = floating(tensor(op, mat, "mat"))
    if matrix.ndim != 3 or tuple(map(int, matrix.shape[1:])) != (rows, 3):
        raise ShapeError(
            f"{op}: mat does not fit, got {shapes.format_shape(matrix.shape)}, "
            f"expected (N, {rows}, 3)"
        )
    expect_finite(op, "mat", matrix)
    if mat_idx is None:
        batch = numbers(image.shape[0], image)
    else:
        batch = mat_idx if isinstance(mat_idx, Tensor) else Tensor(list(mat_idx), "int32")
    if int(batch.shape[0]) != int(matrix.shape[0]):
        raise ShapeError(
            f"{op}: counts differ, got {int(matrix.shape[0])} matrices for "
            f"{int(batch.shape[0])} images, "
            "expected one matrix per image"
        )
    height, width = pair(op, "out_shape", out_shape, 1)
    column = numbers(width, image, "float32")
    line = reshape(numbers(height, image, "float32"), (height, 1))
    grid = [
        reshape(broadcast_to(v, (height, width)), (1, height * width))
        for v in (column, line, cast(Tensor, column.full((1,), 1.0)))
    ]
    mapped = matmul(matrix, run("concat", *grid, axis=0))
    x, y = mapped[:, 0], mapped[:, 1]
    if rows == 3:
        x, y = (elemwise.div(v, mapped[:, 2]) for v in (x, y))
    shape = (matrix.shape[0], height, width)
    found = _sampled(
        image, batch, reshape(y, shape), reshape(x, shape), border_mode, border_val, interp_mode, op
    )
    return found if format == "NCHW" else transpose(found, (0, 2, 3, 1))

"""Move the pixels of images: mirror, turn, resize, remap, crop; and fill polygons."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import functional as F
from ...errors import AttrError, ShapeError
from ...functional.arguments import choice, extents, real_number
from ...imperative.tensor import Tensor
from ...shapes import format_shape
from ..module import Module
from .base import images, like

_FORMATS = ("NCHW", "NHWC")


class _Turning(Module):
    """What functions of (N, H, W, C) do, on images of another format too."""

    def __init__(self, format: str) -> None:
        super().__init__()
        self.format = choice(type(self).__name__, "format", format, _FORMATS)

    def _last(self, inp: Tensor) -> Tensor:
        if inp.ndim != 4:
            raise ShapeError(
                f"{type(self).__name__}: input has the wrong rank, got {format_shape(inp.shape)}, "
                f"expected {self.format}"
            )
        result: Tensor = F.transpose(inp, (0, 2, 3, 1)) if self.format == "NCHW" else inp
        return result

    def _back(self, found: Tensor) -> Tensor:
        result: Tensor = F.transpose(found, (0, 3, 1, 2)) if self.format == "NCHW" else found
        return result


class Flip(_Turning):
    """Mirror images.

    Args:
        vertical: whether upside down.
        horizontal: whether left to right.
        format: NCHW or NHWC.

    >>> Flip(horizontal=False)(Tensor([[[[1.0], [2.0]]]])).numpy().ravel()
    array([2., 1.], dtype=float32)
    """

    def __init__(
        self, vertical: bool = True, horizontal: bool = True, *, format: str = "NCHW"
    ) -> None:
        super().__init__(format)
        self.vertical = vertical
        self.horizontal = horizontal

    def forward(self, inp: Tensor) -> Tensor:
        """Return the mirrored images."""
        return self._back(F.vision.flip(self._last(inp), self.vertical, self.horizontal))


class Rot90(_Turning):
    """Turn images by a quarter.

    Args:
        clockwise: which way.
        format: NCHW or NHWC.

    >>> Rot90()(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).numpy().ravel()
    array([3., 1., 4., 2.], dtype=float32)
    """

    def __init__(self, clockwise: bool = True, *, format: str = "NCHW") -> None:
        super().__init__(format)
        self.clockwise = clockwise

    def forward(self, inp: Tensor) -> Tensor:
        """Return images whose height is the width before."""
        return self._back(F.vision.rot90(self._last(inp), self.clockwise))


class Rotate(Module):
    """Turn images by an angle around their middle; what comes from outside is 0.

    Args:
        angle: degrees, counter-clockwise.
        format: NCHW or NHWC.
        interp_mode: bilinear, linear (the same) or nearest.

    >>> Rotate(180)(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).numpy().ravel().round(3)
    array([4., 3., 2., 1.], dtype=float32)
    """

    def __init__(
        self, angle: float = 0.0, format: str = "NCHW", interp_mode: str = "bilinear"
    ) -> None:
        super().__init__()
        self.angle = real_number("Rotate", "angle", angle)
        self.format = format
        self.interp_mode = interp_mode

    def forward(self, inp: Tensor) -> Tensor:
        """Return the turned images, of the input's shape."""
        result: Tensor = F.vision.rotate(inp, self.angle, self.format, self.interp_mode)
        return result


class Resize(Module):
    """Resample images to a size.

    Args:
        size: (height, width), or the extent of the shorter side.
        format: NCHW or NHWC.
        imode: linear, bilinear (the same), nearest or bicubic.

    >>> Resize((1, 4))(Tensor([[[[0.0, 4.0]]]])).numpy().ravel()
    array([0., 1., 3., 4.], dtype=float32)
    """

    def __init__(self, size: Any, format: str = "NCHW", imode: str = "linear") -> None:
        super().__init__()
        extents("Resize", "size", size, 1)
        self.size = size
        self.format = format
        self.imode = imode

    def forward(self, inp: Tensor) -> Tensor:
        """Return the resampled images."""
        mode = "bilinear" if self.imode == "linear" else self.imode
        result: Tensor = F.vision.resize(inp, self.size, self.format, mode)
        return result


class Remap(Module):
    """Read images at given points.

    >>> Remap()(Tensor([[[[0.0, 4.0]]]]), Tensor([[[[0.25, 0.0]]]])).numpy().ravel()
    array([1.], dtype=float32)
    """

    def forward(  # type: ignore[override]
        self,
        inp: Tensor,
        map_xy: Tensor,
        border_mode: str = "replicate",
        scalar: float = 0.0,
        interp_mode: str = "linear",
    ) -> Tensor:
        """Return (N, C, OH, OW) for images (N, C, H, W) and points (x, y) of (N, OH, OW, 2).

        Border and mode as for ``functional.vision.remap``.
        """
        result: Tensor = F.vision.remap(inp, map_xy, border_mode, scalar, interp_mode)
        return result


class CropAndPad(Module):
    """Cut off or add to the sides of images, then resample to the size before.

    Args:
        mode: bilinear, nearest or bicubic.
        align_corners: whether the outermost samples lie on the outermost pixels.

    >>> crop = CropAndPad(mode="nearest")
    >>> crop(Tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), px=(0, -2, 0, 0)).numpy().ravel()
    array([1., 1., 2., 2.], dtype=float32)
    """

    def __init__(self, mode: str = "bilinear", align_corners: bool = False) -> None:
        super().__init__()
        self.mode = choice("CropAndPad", "mode", mode, ("bilinear", "nearest", "bicubic"))
        self.align_corners = align_corners

    def forward(
        self, inp: Tensor, percent: Any = None, px: Any = None, pad_val: float = 0.0
    ) -> Tensor:
        """Return images of the input's shape (N, C, H, W).

        Args:
            inp: the images.
            percent: shares of height and width to add (or cut off, where negative), as one number
                or (top, right, bottom, left).
            px: the same in pixels; one of both is given.
            pad_val: what is added.

        Raises:
            ShapeError: where the input has another rank.
            AttrError: where not one of both is given, or nothing would be left.
        """
        image = images("CropAndPad", inp)
        height, width = (int(extent) for extent in image.shape[2:])
        if (percent is None) == (px is None):
            raise AttrError("CropAndPad: expected either percent or px")
        given = px if percent is None else percent
        sides = list(given) if isinstance(given, (tuple, list)) else [given] * 4
        if len(sides) != 4:
            raise AttrError(f"CropAndPad: sides do not fit, got {given!r}, expected 1 or 4 numbers")
        if percent is not None:
            extents = (height, width, height, width)
            sides = [round(s * n) for s, n in zip(sides, extents, strict=True)]
        top, right, bottom, left = map(int, sides)
        if min(height + min(top, 0) + min(bottom, 0), width + min(left, 0) + min(right, 0)) < 1:
            raise AttrError(f"CropAndPad: nothing is left of {height} by {width}, got {given!r}")
        rows = slice(max(-top, 0), height + min(bottom, 0))
        columns = slice(max(-left, 0), width + min(right, 0))
        ends = ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0)))
        found = F.nn.pad(image[:, :, rows, columns], ((0, 0), (0, 0), *ends), "constant", pad_val)
        corners = None if self.mode == "nearest" else self.align_corners
        size = (height, width)
        return like(F.vision.interpolate(found, size, mode=self.mode, align_corners=corners), inp)

    def _module_info_string(self) -> str:
        return f"mode={self.mode}, align_corners={self.align_corners}"


class FillPoly(Module):
    """Fill polygons: pixels whose middle lies inside by the even-odd rule, or on the boundary.

    >>> square = [[0, 0], [1, 0], [1, 1], [0, 1]]
    >>> FillPoly()(F.zeros((1, 1, 3, 3)), square, 5.0).numpy()[0, 0]
    array([[5., 5., 0.],
           [5., 5., 0.],
           [0., 0., 0.]], dtype=float32)
    """

    def forward(self, inp: Tensor, points: Any, color: Any) -> Tensor:  # type: ignore[override]
        """Return images (N, C, H, W) with a polygon filled.

        Args:
            inp: the images.
            points: corners (x, y) as (V, 2), or (N, V, 2) for a polygon per image.
            color: a number, or one per channel.

        Raises:
            ShapeError: where shapes do not fit.
        """
        images("FillPoly", inp)
        n, c, height, width = (int(extent) for extent in inp.shape)
        corners = np.asarray(points.numpy() if isinstance(points, Tensor) else points, np.float64)
        if corners.ndim not in (2, 3) or corners.shape[-1] != 2 or 0 in corners.shape:
            raise ShapeError(
                f"FillPoly: points do not fit, got shape {corners.shape}, expected (V, 2) or "
                f"({n}, V, 2)"
            )
        corners = np.broadcast_to(corners, (n, *corners.shape[-2:]))
        paint = np.asarray(color.numpy() if isinstance(color, Tensor) else color)
        if paint.shape not in ((), (c,)):
            raise ShapeError(
                f"FillPoly: color does not fit, got shape {paint.shape}, expected a number or {c}"
            )
        inside = np.stack([_covered(polygon, height, width) for polygon in corners])
        full = np.broadcast_to(paint.reshape(1, -1, 1, 1), (1, c, 1, 1)).astype(inp.dtype)
        brush = F.broadcast_to(Tensor(full, dtype=inp.dtype, device=inp.device), inp.shape)
        mask = F.broadcast_to(Tensor(inside[:, None], device=inp.device), inp.shape)
        result: Tensor = F.where(mask, brush, inp)
        return result


def _covered(polygon: np.ndarray, height: int, width: int) -> np.ndarray:
    """Tell by bool (height, width) which pixels a polygon (V, 2) covers."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    inside = np.zeros((height, width), bool)
    border = np.zeros((height, width), bool)
    for (x1, y1), (x2, y2) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        side = (x - x1) * (y2 - y1) - (y - y1) * (x2 - x1)
        within = (np.minimum(x1, x2) <= x) & (x <= np.maximum(x1, x2))
        within &= (np.minimum(y1, y2) <= y) & (y <= np.maximum(y1, y2))
        border |= (side == 0) & within
        # An edge meets the ray to the right where it passes y and lies beyond x.
        crosses = (y1 > y) != (y2 > y)
        inside ^= crosses & ((side < 0) if y2 > y1 else (side > 0))
    covered: np.ndarray = inside | border
    return covered

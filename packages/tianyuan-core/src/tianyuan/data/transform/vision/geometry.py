"""Decide how images, masks and coordinates are padded, resized, cropped and mirrored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import AttrError, ShapeError
from ....functional.arguments import extents, real_number, whole
from . import functional as F
from .arguments import image_of, interval, numbers
from .base import VisionTransform

Size = int | Sequence[int]
Order = Sequence[str] | None


def _pair(name: str, size: Size) -> tuple[int, int]:
    pair = tuple(size) if isinstance(size, (Sequence, np.ndarray)) else (size, size)
    if len(pair) != 2 or not all(
        isinstance(v, (int, np.integer)) and not isinstance(v, bool) and v > 0 for v in pair
    ):
        raise AttrError(f"{name}: output_size is wrong, got {size!r}, expected integers above 0")
    return int(pair[0]), int(pair[1])


class ToMode(VisionTransform):
    """Move the channels of images to the front: (height, width, channels) to (channels, …).

    Raises:
        AttrError: where mode is not ``CHW``.

    >>> import numpy as np
    >>> ToMode().apply(np.zeros((4, 6, 3))).shape
    (3, 4, 6)
    """

    def __init__(self, mode: str = "CHW", *, order: Order = None) -> None:
        super().__init__(order)
        if not isinstance(mode, str) or mode != "CHW":
            raise AttrError(f"ToMode: mode is unknown, got {mode!r}, expected 'CHW'")
        self.mode = mode

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        image_of("ToMode", image)
        planes = image[..., np.newaxis] if image.ndim == 2 else image
        return np.ascontiguousarray(planes.transpose(2, 0, 1))

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._apply_image(mask) if mask.ndim == 3 else mask


class Pad(VisionTransform):
    """Put a border around images: ``size`` is one width, (vertical, horizontal) or all four.

    >>> import numpy as np
    >>> Pad((0, 1)).apply(np.ones((1, 1, 1), np.uint8))[..., 0]
    array([[0, 1, 0]], dtype=uint8)
    """

    def __init__(
        self,
        size: Size = 0,
        value: float | Sequence[float] = 0,
        mask_value: float = 0,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(order)
        self.size = F.border(size)
        numbers("Pad", "value", value, finite=False)
        self.value = value
        self.mask_value = real_number("Pad", "mask_value", mask_value)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return F.pad(image, self.size, self.value)

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return np.asarray(coords + np.array([self.size[2], self.size[0]], coords.dtype))

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return F.pad(mask, self.size, self.mask_value)


class Resize(VisionTransform):
    """Resize images to (height, width), or their shorter side to one number.

    >>> import numpy as np
    >>> Resize(2).apply(np.zeros((4, 6, 3), np.uint8)).shape
    (2, 3, 3)
    """

    def __init__(
        self, output_size: Size, interpolation: int = F.INTER_LINEAR, *, order: Order = None
    ) -> None:
        super().__init__(order)
        _pair("Resize", output_size)
        self.output_size = output_size
        self.interpolation = F.check_interpolation(type(self).__name__, interpolation)
        self._source = self._target = (0, 0)

    def _draw(self, image: Any) -> None:
        if image is None:
            raise AttrError(f"Resize: order is wrong, got {self.order}, expected an image in it")
        self._source = height, width = _extent(type(self).__name__, image)
        if isinstance(self.output_size, (int, np.integer)):
            scale = self.output_size / min(height, width)
            long = max(1, round(scale * max(height, width)))
            short = int(self.output_size)
            self._target = (short, long) if height <= width else (long, short)
        else:
            self._target = _pair("Resize", self.output_size)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return F.resize(image, self._target, self.interpolation)

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        (height, width), (h, w) = self._target, self._source
        return np.asarray(coords * np.array([width / w, height / h]))

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return F.resize(mask, self._target, F.INTER_NEAREST)


class ShortestEdgeResize(Resize):
    """Resize images so that the shorter side has a drawn length and the longer one a largest.

    Args:
        min_size: length of the shorter side; a range or several lengths to draw from.
        max_size: largest length of the longer side, which outweighs ``min_size``.
        sample_style: ``range`` draws an integer from the first to the last of ``min_size``,
            ``choice`` one of its lengths.
        interpolation: ``INTER_LINEAR`` and so on.

    Raises:
        AttrError: where an argument does not fit.

    >>> import numpy as np
    >>> ShortestEdgeResize(4, 6).apply(np.zeros((2, 4, 3), np.uint8)).shape
    (3, 6, 3)
    """

    def __init__(
        self,
        min_size: Size,
        max_size: int,
        sample_style: str = "range",
        interpolation: int = F.INTER_LINEAR,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(1, interpolation, order=order)
        sizes = extents("ShortestEdgeResize", "min_size", min_size, 1)
        max_size = whole("ShortestEdgeResize", "max_size", max_size, 1)
        if not isinstance(sample_style, str) or sample_style not in ("range", "choice"):
            raise AttrError(
                f"ShortestEdgeResize: sample_style is unknown, got {sample_style!r}, expected "
                "'range' or 'choice'"
            )
        if not sizes or (sample_style == "range" and sizes[0] > sizes[-1]):
            raise AttrError(
                f"ShortestEdgeResize: min_size is wrong, got {min_size!r}, expected lengths, for "
                "a range the least first"
            )
        self.min_size, self.max_size, self.sample_style = sizes, max_size, sample_style

    def _draw(self, image: Any) -> None:
        if self.sample_style == "range":
            short = int(np.random.randint(self.min_size[0], self.min_size[-1] + 1))
        else:
            short = int(np.random.choice(self.min_size))
        super()._draw(image)
        height, width = self._source
        scale = min(short / min(height, width), self.max_size / max(height, width))
        self._target = max(1, round(height * scale)), max(1, round(width * scale))


class RandomResize(Resize):
    """Resize images by a factor drawn evenly from a range.

    Args:
        scale_range: (least, largest) factor.
        interpolation: ``INTER_LINEAR`` and so on.

    Raises:
        AttrError: where the range is none.

    >>> import numpy as np
    >>> RandomResize((2, 2)).apply(np.zeros((2, 4, 3), np.uint8)).shape
    (4, 8, 3)
    """

    def __init__(
        self,
        scale_range: Sequence[float],
        interpolation: int = F.INTER_LINEAR,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(1, interpolation, order=order)
        self.scale_range = interval("RandomResize", "scale_range", scale_range)

    def _draw(self, image: Any) -> None:
        super()._draw(image)
        scale = np.random.uniform(*self.scale_range)
        height, width = self._source
        self._target = max(1, round(height * scale)), max(1, round(width * scale))


class _Crop(VisionTransform):
    """Cut ``_size`` at (``_top``, ``_left``), which subclasses choose in ``_draw``."""

    _top = _left = 0
    _size = (0, 0)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        (height, width), top, left = self._size, self._top, self._left
        return np.ascontiguousarray(image[top : top + height, left : left + width])

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return np.asarray(coords - np.array([self._left, self._top], coords.dtype))

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._apply_image(mask)

    def _extent(self, image: Any) -> tuple[int, int]:
        if image is None:
            raise AttrError(
                f"{type(self).__name__}: order is wrong, got {self.order}, expected an image in it"
            )
        return _extent(type(self).__name__, image)


def _extent(owner: str, image: Any) -> tuple[int, int]:
    height, width = image_of(owner, image).shape[:2]
    if not height or not width:
        raise ShapeError(f"{owner}: image is empty, got {height} x {width}")
    return int(height), int(width)


class CenterCrop(_Crop):
    """Cut (height, width) from the middle of images.

    Raises:
        AttrError: on use, where an image is smaller than that.

    >>> import numpy as np
    >>> CenterCrop(1).apply(np.arange(9).reshape(3, 3, 1)).item()
    4
    """

    def __init__(self, output_size: Size, *, order: Order = None) -> None:
        super().__init__(order)
        self.output_size = self._size = _pair("CenterCrop", output_size)

    def _draw(self, image: Any) -> None:
        height, width = self._extent(image)
        if height < self._size[0] or width < self._size[1]:
            raise AttrError(
                f"CenterCrop: image is too small, got {height} x {width}, "
                f"expected {self._size[0]} x {self._size[1]} and more"
            )
        self._top = (height - self._size[0]) // 2
        self._left = (width - self._size[1]) // 2


class RandomCrop(_Crop):
    """Cut (height, width) from a random place of images.

    Args:
        output_size: one number or (height, width).
        padding_size: border put around images first; those still too small grow at the bottom
            and on the right.
        padding_value, padding_maskvalue: what the border holds.

    >>> import numpy as np
    >>> RandomCrop((2, 3)).apply(np.zeros((4, 6, 3), np.uint8)).shape
    (2, 3, 3)
    """

    def __init__(
        self,
        output_size: Size,
        padding_size: Size = 0,
        padding_value: float | Sequence[float] = (0, 0, 0),
        padding_maskvalue: float = 0,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(order)
        self.output_size = self._size = _pair("RandomCrop", output_size)
        self.padding_size = self._border = F.border(padding_size)
        numbers("RandomCrop", "padding_value", padding_value, finite=False)
        self.padding_value = padding_value
        self.padding_maskvalue = real_number("RandomCrop", "padding_maskvalue", padding_maskvalue)

    def _draw(self, image: Any) -> None:
        height, width = self._extent(image)
        top, bottom, left, right = self.padding_size
        bottom += max(0, self._size[0] - (top + height + bottom))
        right += max(0, self._size[1] - (left + width + right))
        self._border = top, bottom, left, right
        self._top = np.random.randint(top + height + bottom - self._size[0] + 1)
        self._left = np.random.randint(left + width + right - self._size[1] + 1)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        value = self.padding_value
        if isinstance(value, Sequence) and len(set(value)) == 1:
            value = value[0]  # the default serves images of any number of channels
        return super()._apply_image(F.pad(image, self._border, value))

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        border = np.array([self._border[2], self._border[0]], coords.dtype)
        return super()._apply_coords(coords + border)

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return super()._apply_image(F.pad(mask, self._border, self.padding_maskvalue))


class RandomResizedCrop(_Crop):
    """Cut a random part of images and resize it, as in Inception training (arXiv:1409.4842).

    Args:
        output_size: one number or (height, width).
        scale_range: least and greatest share of the image's area.
        ratio_range: least and greatest width over height, drawn evenly in the logarithm.
        interpolation: as for ``Resize``.

    >>> import numpy as np
    >>> RandomResizedCrop((2, 3)).apply(np.zeros((4, 6, 3), np.uint8)).shape
    (2, 3, 3)
    """

    def __init__(
        self,
        output_size: Size,
        scale_range: Sequence[float] = (0.08, 1.0),
        ratio_range: Sequence[float] = (3.0 / 4, 4.0 / 3),
        interpolation: int = F.INTER_LINEAR,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(order)
        self.output_size = _pair("RandomResizedCrop", output_size)
        self.scale_range = interval("RandomResizedCrop", "scale_range", scale_range)
        self.ratio_range = interval("RandomResizedCrop", "ratio_range", ratio_range)
        self._log_ratios = (math.log(self.ratio_range[0]), math.log(self.ratio_range[1]))
        self.interpolation = F.check_interpolation("RandomResizedCrop", interpolation)

    def _draw(self, image: Any) -> None:
        height, width = self._extent(image)
        for _ in range(10):
            area = height * width * np.random.uniform(*self.scale_range)
            ratio = math.exp(np.random.uniform(*self._log_ratios))
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < h <= height and 0 < w <= width:
                self._top = np.random.randint(height - h + 1)
                self._left = np.random.randint(width - w + 1)
                self._size = h, w
                return
        # No part of such a shape fits: take the largest one in the middle.
        low, high = self.ratio_range
        h = max(1, min(height, round(width / low)))
        w = max(1, min(width, round(height * high)))
        self._size = h, w
        self._top, self._left = (height - h) // 2, (width - w) // 2

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return F.resize(super()._apply_image(image), self.output_size, self.interpolation)

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        (height, width), (h, w) = self.output_size, self._size
        return np.asarray(super()._apply_coords(coords) * np.array([width / w, height / h]))

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return F.resize(super()._apply_image(mask), self.output_size, F.INTER_NEAREST)


class _RandomFlip(VisionTransform):
    """Mirror images with probability ``prob`` along the axis that subclasses name."""

    _code = 0
    _coordinate = 0

    def __init__(self, prob: float = 0.5, *, order: Order = None) -> None:
        super().__init__(order)
        self.prob = real_number(type(self).__name__, "prob", prob, 0.0, 1.0)
        self._flipped = False
        self._length = 0

    def _draw(self, image: Any) -> None:
        self._flipped = bool(np.random.random() < self.prob)
        if "image" in self.order:
            self._length = image_of(type(self).__name__, image).shape[1 - self._coordinate]

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return F.flip(image, self._code) if self._flipped else image

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        if not self._flipped:
            return coords
        moved = np.array(coords)
        moved[:, self._coordinate] = self._length - coords[:, self._coordinate]
        return moved

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._apply_image(mask)


class RandomHorizontalFlip(_RandomFlip):
    """Mirror images left to right with probability ``prob``.

    >>> import numpy as np
    >>> RandomHorizontalFlip(prob=1.0).apply(np.array([[[1], [2]]], np.uint8)).tolist()
    [[[2], [1]]]
    """

    _code, _coordinate = 1, 0


class RandomVerticalFlip(_RandomFlip):
    """Mirror images upside down with probability ``prob``.

    >>> import numpy as np
    >>> RandomVerticalFlip(prob=1.0).apply(np.array([[[1]], [[2]]], np.uint8)).tolist()
    [[[2]], [[1]]]
    """

    _code, _coordinate = 0, 1

"""Decide what the basic operations on images of shape (height, width, channels) do.

Colour images are in the order blue, green, red, as OpenCV reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from importlib import import_module
from typing import Any

import numpy as np

from ....errors import AttrError, MissingPackageError, ShapeError
from ....functional.arguments import extents, whole
from .arguments import fitting, image_of, numbers

# Numbered as in OpenCV, so that its constants can be given as well.
INTER_NEAREST, INTER_LINEAR, INTER_CUBIC, INTER_AREA, INTER_LANCZOS4 = range(5)

_BGR_TO_GRAY = np.array([0.114, 0.587, 0.299])  # ITU-R BT.601

_ImageFunction = Callable[..., np.ndarray]


def wrap_keepdims(func: _ImageFunction) -> _ImageFunction:
    """Let a function that drops the channel axis of a one-channel image keep it.

    >>> import numpy as np
    >>> wrap_keepdims(lambda image: image[..., 0])(np.zeros((2, 3, 1))).shape
    (2, 3, 1)
    """

    @wraps(func)
    def wrapper(image: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
        result = func(image, *args, **kwargs)
        return result[..., np.newaxis] if result.ndim < image.ndim else result

    return wrapper


def as_dtype_of(image: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values in an image's dtype: rounded to even and saturated where that is integer."""
    if image.dtype.kind in "iu":
        info = np.iinfo(image.dtype)
        values = np.clip(np.rint(values), info.min, info.max)
    return values.astype(image.dtype)


@wrap_keepdims
def to_gray(image: np.ndarray) -> np.ndarray:
    """Return the luma of a BGR image by ITU-R BT.601, as (height, width, 1).

    Raises:
        AttrError: where the image does not have three channels.

    >>> import numpy as np
    >>> to_gray(np.array([[[0, 255, 0]]], np.uint8))
    array([[[150]]], dtype=uint8)
    """
    _check_image("to_gray", image, 3)
    return as_dtype_of(image, image @ _BGR_TO_GRAY)


def to_bgr(image: np.ndarray) -> np.ndarray:
    """Return a grey image of shape (height, width[, 1]) with three equal channels.

    Raises:
        AttrError: where the image has several channels.

    >>> import numpy as np
    >>> to_bgr(np.array([[7]], np.uint8))
    array([[[7, 7, 7]]], dtype=uint8)
    """
    image_of("to_bgr", image)
    grey = image[..., np.newaxis] if image.ndim == 2 else image
    _check_image("to_bgr", grey, 1)
    return np.repeat(grey, 3, axis=2)


def pad(input: np.ndarray, size: int | Sequence[int], value: float | Sequence[float]) -> np.ndarray:
    """Put a border of constant value around an image.

    Args:
        input: image of shape (height, width[, channels]).
        size: one width, (vertical, horizontal), or (top, bottom, left, right).
        value: one number, or one per channel, which the image's dtype holds.

    Raises:
        AttrError: where size is none of these or negative, or the dtype does not hold the value.
        ShapeError: where there are not as many values as channels.

    >>> import numpy as np
    >>> pad(np.ones((1, 1), int), (0, 1), value=9)
    array([[9, 1, 9]])
    """
    top, bottom, left, right = border(size)
    height, width = image_of("pad", input).shape[:2]
    filling = numbers("pad", "value", value, finite=False)
    fitting("pad", "value", filling, input.shape[2:])
    if input.dtype.kind in "iu":
        info = np.iinfo(input.dtype)
        if not ((filling >= info.min) & (filling <= info.max)).all():
            raise AttrError(
                f"pad: value is wrong, got {value!r}, expected what {input.dtype} holds"
            )
    result = np.empty((top + height + bottom, left + width + right, *input.shape[2:]), input.dtype)
    result[...] = filling.astype(input.dtype)
    result[top : top + height, left : left + width] = input
    return result


def border(size: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return (top, bottom, left, right) for one width, (vertical, horizontal) or all four."""
    given = list(size) if isinstance(size, (Sequence, np.ndarray)) else [size]
    if len(given) not in (1, 2, 4) or not all(
        isinstance(v, (int, np.integer)) and not isinstance(v, bool) and v >= 0 for v in given
    ):
        raise AttrError(f"pad: size is wrong, got {size!r}, expected 1, 2 or 4 integers >= 0")
    if len(given) == 4:
        top, bottom, left, right = given
        return top, bottom, left, right
    return given[0], given[0], given[-1], given[-1]


def flip(image: np.ndarray, flipCode: int) -> np.ndarray:
    """Mirror an image: left to right for code > 0, upside down for 0, both for code < 0.

    >>> import numpy as np
    >>> flip(np.array([[1, 2]]), 1)
    array([[2, 1]])
    """
    image_of("flip", image)
    if whole("flip", "flipCode", flipCode) > 0:
        return np.ascontiguousarray(image[:, ::-1])
    return np.ascontiguousarray(image[::-1, ::-1] if flipCode < 0 else image[::-1])


def resize(input: np.ndarray, size: Sequence[int], interpolation: int = INTER_LINEAR) -> np.ndarray:
    """Resize an image with OpenCV, or else with Pillow.

    Pillow averages over the area that a pixel covers when it makes an image smaller, which
    OpenCV does only for ``INTER_AREA``, so the results differ there.

    Args:
        input: uint8 or float32 image of shape (height, width[, channels]).
        size: (height, width).
        interpolation: ``INTER_LINEAR`` and so on, numbered as in OpenCV.

    Raises:
        AttrError: where size, interpolation or dtype is none of these.
        ImportError: where neither library is installed.

    >>> import numpy as np
    >>> resize(np.array([[1, 2]], np.uint8), (2, 2), INTER_NEAREST)
    array([[1, 2],
           [1, 2]], dtype=uint8)
    """
    image_of("resize", input)
    pair = extents("resize", "size", size, None)
    if len(pair) != 2 or min(pair) <= 0 or not input.size:
        raise AttrError(
            f"resize: size is wrong, got {input.shape} to {size!r}, expected two numbers above 0 "
            "and an image that is not empty"
        )
    height, width = pair
    check_interpolation("resize", interpolation)
    if input.dtype not in (np.uint8, np.float32):
        raise AttrError(f"resize: dtype is wrong, got {input.dtype}, expected uint8 or float32")
    if (height, width) == input.shape[:2]:
        return np.array(input)
    resized = _resizer()(input, height, width, interpolation)
    return np.asarray(resized).reshape(height, width, *input.shape[2:])


def check_interpolation(owner: str, interpolation: Any) -> int:
    """Return an interpolation that is one of the five.

    Raises:
        AttrError: where it is none.

    >>> check_interpolation("Resize", INTER_LINEAR)
    1
    """
    whole_number = isinstance(interpolation, (int, np.integer))
    if not whole_number or isinstance(interpolation, bool) or not 0 <= interpolation < 5:
        raise AttrError(f"{owner}: interpolation is wrong, got {interpolation!r}, expected 0 to 4")
    return int(interpolation)


def _resizer() -> Callable[[np.ndarray, int, int, int], np.ndarray]:
    for name, resizer in (("cv2", _resize_opencv), ("PIL.Image", _resize_pillow)):
        with suppress(ImportError):
            return partial(resizer, import_module(name))
    raise MissingPackageError(
        "resize: needs OpenCV or Pillow, got neither, expected "
        "`pip install pillow` or `pip install opencv-python-headless`"
    )


def _resize_opencv(cv2: Any, image: np.ndarray, height: int, width: int, how: int) -> np.ndarray:
    return np.asarray(cv2.resize(image, (width, height), interpolation=how))


def _resize_pillow(pillow: Any, image: np.ndarray, height: int, width: int, how: int) -> np.ndarray:
    name = ("NEAREST", "BILINEAR", "BICUBIC", "BOX", "LANCZOS")[how]
    method = getattr(pillow.Resampling, name)
    planes = np.moveaxis(image.reshape(*image.shape[:2], -1), 2, 0)
    return np.stack(
        [np.asarray(pillow.fromarray(p).resize((width, height), method)) for p in planes], axis=2
    )


def _check_image(name: str, image: np.ndarray, channels: int) -> None:
    image_of(name, image, planes=False)
    if image.ndim != 3 or image.shape[2] != channels:
        raise ShapeError(
            f"{name}: image is wrong, got shape {image.shape}, expected (height, width, {channels})"
        )

"""Turn and mirror images."""

from __future__ import annotations

import math as numbers
from typing import Any

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from .arguments import choice, tensor
from .joining import cut
from .movement import broadcast_to, transpose
from .sampling import warp_affine

__all__ = ["flip", "rot90", "rotate"]


def _image(op: str, inp: Any) -> Tensor:
    found = tensor(op, inp)
    if found.ndim != 4:
        raise ShapeError(
            f"{op}: input has the wrong rank, got shape {shapes.format_shape(found.shape)}, "
            "expected (N, H, W, C)"
        )
    return found


def _mirrored(image: Tensor, axis: int) -> Tensor:
    extent = image.shape[axis]
    return cut(image, axis, extent - 1, extent, -1)


def flip(inp: Tensor, vertical: bool = True, horizontal: bool = True) -> Tensor:
    """Mirror images (N, H, W, C) upside down, left to right, or both.

    ``functional.flip`` reverses chosen axes of any tensor.

    Raises:
        ShapeError: where the input has another rank than 4.

    >>> flip(Tensor([[[[1], [2]], [[3], [4]]]]), horizontal=False).numpy().reshape(2, 2).tolist()
    [[3, 4], [1, 2]]
    """
    image = _image("flip", inp)
    image = _mirrored(image, 1) if vertical else image
    return _mirrored(image, 2) if horizontal else image


def rot90(inp: Tensor, clockwise: bool = True) -> Tensor:
    """Turn images (N, H, W, C) by a quarter; the result is (N, W, H, C).

    Raises:
        ShapeError: where the input has another rank than 4.

    >>> rot90(Tensor([[[[1], [2]], [[3], [4]]]])).numpy().reshape(2, 2).tolist()
    [[3, 1], [4, 2]]
    """
    turned = transpose(_image("rot90", inp), (0, 2, 1, 3))
    return _mirrored(turned, 2 if clockwise else 1)


def rotate(
    inp: Tensor, angle: float = 0.0, format: str = "NCHW", interp_mode: str = "bilinear"
) -> Tensor:
    """Turn images counter-clockwise by degrees around their centre; what comes from outside is 0.

    The result has the input's shape. ``interp_mode`` is bilinear, linear (the same) or nearest.

    Raises:
        ShapeError: where the input has another rank than 4.
        AttrError: where the angle is not finite or a mode or format is unknown.

    >>> rotate(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 180).numpy().round(3).tolist()
    [[[[4.0, 3.0], [2.0, 1.0]]]]
    """
    format = choice("rotate", "format", format, ("NCHW", "NHWC"))
    interp_mode = choice("rotate", "interp_mode", interp_mode, ("bilinear", "linear", "nearest"))
    if not numbers.isfinite(angle):
        raise AttrError(f"rotate: angle must be finite, got {angle}, expected degrees")
    image = tensor("rotate", inp)
    if image.ndim != 4:
        raise ShapeError(
            f"rotate: input has the wrong rank, got shape {shapes.format_shape(image.shape)}, "
            f"expected {format}"
        )
    height, width = image.shape[2:] if format == "NCHW" else image.shape[1:3]
    middle_y, middle_x = (int(height) - 1) / 2, (int(width) - 1) / 2
    # Whole quarters are exact, so that pixels on the border stay inside.
    exact = {0.0: (1.0, 0.0), 90.0: (0.0, 1.0), 180.0: (-1.0, 0.0), 270.0: (0.0, -1.0)}
    turn = numbers.radians(angle)
    cosine, sine = exact.get(float(angle) % 360.0, (numbers.cos(turn), numbers.sin(turn)))
    rows = [
        [cosine, -sine, middle_x - cosine * middle_x + sine * middle_y],
        [sine, cosine, middle_y - sine * middle_x - cosine * middle_y],
    ]
    matrix = broadcast_to(Tensor([rows], "float32", image.device), (image.shape[0], 2, 3))
    mode = "nearest" if interp_mode == "nearest" else "linear"
    return warp_affine(image, matrix, (height, width), "constant", 0.0, format, mode)

"""Image functions that are part of a model; resampling is a product with small matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from .arguments import (
    choice,
    extents,
    fixed,
    floating,
    is_image_of_bytes,
    numbers_of,
    pair,
    real_number,
    run,
    tensor,
    triple,
)
from .color import cvt_color
from .matching import correlation
from .movement import transpose
from .orientation import flip, rot90, rotate
from .region import nms, roi_align, roi_pooling
from .sampling import remap, to_bytes, warp_affine, warp_perspective

__all__ = [
    "correlation", "cvt_color", "flip", "interpolate", "nms", "remap", "resize", "roi_align",
    "roi_pooling", "rot90", "rotate", "warp_affine", "warp_perspective",
]  # fmt: skip

_MODES = ("bilinear", "linear", "nearest", "bicubic", "trilinear")
_RANKS = {"linear": 3, "trilinear": 5}
# Of the weights of uint8 images, by how many axes multiply them: their products fit int32.
_BITS = {1: 11, 2: 11, 3: 7}


def interpolate(
    inp: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "bilinear",
    align_corners: bool | None = None,
) -> Tensor:
    """Resample images (N, C, H, W) to a size or by a factor.

    With ``linear`` they are signals (N, C, L), with ``trilinear`` volumes (N, C, D, H, W).
    Sample i of an axis lies at (i + 0.5) * H/OH - 0.5, with ``align_corners`` at
    i * (H - 1)/(OH - 1); ``nearest`` takes floor(i * H/OH). Borders are repeated; the cubic
    kernel has a = -0.75. Images of uint8 give uint8, with weights of 11 bits (7 for volumes);
    ``nearest`` keeps any dtype.

    Raises:
        ShapeError: where the rank does not fit the mode.
        AttrError: where not exactly one of size and scale_factor is given, or a mode is unknown.

    >>> interpolate(Tensor([[[[1.0, 3.0]]]]), (1, 4)).tolist()
    [[[[1.0, 1.5, 2.5, 3.0]]]]
    """
    mode = choice("interpolate", "mode", mode, _MODES)
    found = tensor("interpolate", inp)
    whole = is_image_of_bytes(found) and mode != "nearest"
    if whole:
        found = cast(Tensor, found.cast("int32"))
    elif mode != "nearest":
        found = floating(found)
    rank = _RANKS.get(mode, 4)
    if found.ndim != rank:
        raise ShapeError(
            f"interpolate: input has the wrong rank, got {shapes.format_shape(found.shape)}, "
            f"expected {rank} dimensions for mode {mode!r}"
        )
    if mode == "nearest" and align_corners:
        raise AttrError("interpolate: align_corners does not apply to mode 'nearest'")
    have = tuple(fixed(extent) for extent in found.shape[2:])
    want = _target(have, size, scale_factor)
    weights = _CUBIC if mode == "bicubic" else _LINEAR
    for axis, (old, new) in enumerate(zip(have, want, strict=True), start=2):
        if mode == "nearest":
            index = np.minimum(np.arange(new) * old // new, old - 1)
            found = run("take", found, Tensor(index, "int32", found.device), axis=axis)
            continue
        shares = _resampling(old, new, bool(align_corners), weights)
        shares = _in_integers(shares, _BITS[len(have)]) if whole else shares
        found = _along(found, Tensor(shares, found.dtype, found.device), axis)
    return to_bytes(found, _BITS[len(have)] * len(have)) if whole else found


def _in_integers(matrix: np.ndarray, bits: int) -> np.ndarray:
    """Return a matrix of weights times 2**bits, whose rows add up to that in integers."""
    scaled: np.ndarray = np.rint(matrix * (1 << bits)).astype(np.int32)
    scaled[np.arange(len(scaled)), scaled.argmax(1)] += (1 << bits) - scaled.sum(1)
    return scaled


def _along(found: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply an axis by a matrix (new, old)."""
    if axis == found.ndim - 1:
        return run("matmul", found, matrix, transpose_a=False, transpose_b=True)
    lead, rest = found.shape[: axis + 1], found.shape[axis + 1 :]
    flat = run("reshape", found, shape=(*lead, shapes.volume(rest)))
    product = run("matmul", matrix, flat, transpose_a=False, transpose_b=False)
    return run("reshape", product, shape=(*product.shape[:-1], *rest))


def _target(have: tuple[int, ...], size: Any, scale_factor: Any) -> tuple[int, ...]:
    if (size is None) == (scale_factor is None):
        raise AttrError(
            f"interpolate: size and scale_factor do not fit, got {size!r} and {scale_factor!r}, "
            "expected exactly one of them"
        )
    size, scale_factor = numbers_of(size), numbers_of(scale_factor)
    if size is not None:
        if len(have) == 1:
            return pair("interpolate", "size", size if isinstance(size, int) else size[0], 1)[:1]
        return (pair if len(have) == 2 else triple)("interpolate", "size", size, 1)
    given = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * len(have)
    factors = [real_number("interpolate", "scale_factor", factor) for factor in given]
    want = tuple(int(n * float(f)) for n, f in zip(have, factors, strict=False))
    if len(given) != len(have) or min(want) < 1:
        raise AttrError(
            f"interpolate: scale_factor is not valid, got {scale_factor!r}, "
            "expected positive numbers"
        )
    return want


def _linear(distance: np.ndarray) -> np.ndarray:
    share: np.ndarray = np.maximum(0.0, 1.0 - np.abs(distance))
    return share


def _cubic(distance: np.ndarray) -> np.ndarray:
    """Return Keys' cubic convolution kernel with a = -0.75."""
    a, d = -0.75, np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


_Weights = tuple[Callable[[np.ndarray], np.ndarray], int]
_LINEAR: _Weights = (_linear, 1)
_CUBIC: _Weights = (_cubic, 2)


def _resampling(old: int, new: int, corners: bool, weights: _Weights) -> np.ndarray:
    """Return the (new, old) matrix that resamples an axis."""
    kernel, reach = weights
    rows = np.arange(new)
    if corners:
        place = rows * ((old - 1) / (new - 1) if new > 1 else 0.0)
    else:
        place = (rows + 0.5) * (old / new) - 0.5
    if kernel is _linear:
        place = np.clip(place, 0, old - 1)
    base = np.floor(place).astype(int)
    matrix = np.zeros((new, old))
    for offset in range(1 - reach, reach + 1):
        neighbour = base + offset
        share = kernel(place - neighbour)
        np.add.at(matrix, (rows, np.clip(neighbour, 0, old - 1)), share)
    return matrix


def resize(
    inp: Tensor,
    size: Any,
    format: str = "NCHW",
    imode: str = "bilinear",
    max_size: int | None = None,
) -> Tensor:
    """Resample images to (height, width); one int is the extent of the shorter side.

    ``max_size`` bounds the longer side then. Samples lie as in ``interpolate``.

    Raises:
        ShapeError: where the input has another rank than 4.
        AttrError: where a mode or format is unknown.

    >>> resize(Tensor([[[[1.0, 3.0]]]]), (1, 2)).tolist()
    [[[[1.0, 3.0]]]]
    """
    format = choice("resize", "format", format, ("NCHW", "NHWC"))
    imode = choice("resize", "imode", imode, ("bilinear", "nearest", "bicubic"))
    image = tensor("resize", inp)
    if image.ndim != 4:
        raise ShapeError(
            f"resize: input has the wrong rank, got {shapes.format_shape(image.shape)}, "
            f"expected {format}"
        )
    image = image if format == "NCHW" else transpose(image, (0, 3, 1, 2))
    wanted = list(extents("resize", "size", size, 1))
    if len(wanted) == 1:
        height, width = (fixed(extent) for extent in image.shape[2:])
        scale = int(wanted[0]) / min(height, width)
        if max_size is not None:
            scale = min(scale, max_size / max(height, width))
        wanted = [max(int(extent * scale + 1e-6), 1) for extent in (height, width)]
    found = interpolate(image, tuple(wanted), mode=imode)
    return found if format == "NCHW" else transpose(found, (0, 2, 3, 1))

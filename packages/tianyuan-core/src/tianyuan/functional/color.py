"""Convert images between colour spaces, in fixed point for uint8 so that bits are equal everywhere.

Coefficients are those of ITU-R BT.601; which rounding belongs to which mode follows MegEngine.
"""

from __future__ import annotations

from typing import Any, cast

from .. import shapes
from ..errors import DTypeError, ShapeError
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import choice, floating, run, tensor
from .joining import concat, cut
from .movement import broadcast_to, reshape

__all__ = ["cvt_color"]

# Luma of red, green and blue, and the scales of its differences to blue and red, times 2**14.
_LUMA = (4899, 9617, 1868)
_TO_BLUE, _TO_RED = 8061, 14369
# From (Y, U, V): blue from U, green from U and V, red from V, times 2**14.
_BLUE_U, _GREEN_U, _GREEN_V, _RED_V = 33292, 6472, 9519, 18678
_ORDERS = {
    "RGBA2RGB": (4, (0, 1, 2)),
    "RGBA2BGR": (4, (2, 1, 0)),
    "RGB2BGR": (3, (2, 1, 0)),
    "BGR2RGB": (3, (2, 1, 0)),
    "GRAY2RGB": (1, (0, 0, 0)),
}
_GRAYS = {"RGB2GRAY": (3, False), "BGR2GRAY": (3, True), "RGBA2GRAY": (4, False)}
_PLANAR = ("NV21", "NV12", "YV12", "YU12")
_SUBSAMPLED = {
    f"{prefix}YUV2{target}_{layout}": (target, layout, bool(prefix))
    for prefix, targets in (("", ("GRAY", "RGB", "BGR")), ("BT601_", ("RGB", "BGR")))
    for target in targets
    for layout in _PLANAR
} | {f"YCrCb2{target}": (target, "NV21", False) for target in ("RGB", "BGR")}
_FLOAT_MODES = ("RGB2GRAY", "BGR2GRAY", "RGB2YUV", "YUV2RGB", "GRAY2RGB")
_MODES = (*_GRAYS, *_ORDERS, "RGB2YUV", "YUV2RGB", *_SUBSAMPLED)


def cvt_color(inp: Tensor, mode: str = "") -> Tensor:
    """Convert images (N, H, W, C) from one colour space to another.

    uint8 takes every mode: RGB2GRAY, BGR2GRAY, RGBA2GRAY, RGB2YUV, YUV2RGB, GRAY2RGB, RGBA2RGB,
    RGBA2BGR, RGB2BGR, BGR2RGB, and ``YUV2{RGB,BGR,GRAY}_{NV12,NV21,YV12,YU12}``, which read
    (N, 3/2 * H, W, 1): a plane of Y and below it U and V of half the extents, interleaved (NV) or
    one after the other. These take the full range of 256 values; ``BT601_`` before the name takes
    the video range (Y from 16 to 235). ``YCrCb2RGB`` and ``YCrCb2BGR`` read NV21. float32 images,
    from 0 to 1, take RGB2GRAY, BGR2GRAY, RGB2YUV, YUV2RGB and GRAY2RGB.

    As in MegEngine, RGB2YUV and YUV2RGB hold blue in channel 0 and red in channel 2.

    Raises:
        AttrError: where the mode is unknown.
        DTypeError: where the mode does not take the dtype.
        ShapeError: where the shape is not one that the mode reads.

    >>> cvt_color(Tensor([[[[10, 20, 30]]]], "uint8"), "RGB2GRAY").tolist()
    [[[[18]]]]
    """
    image = tensor("cvt_color", inp)
    image = image if image.qparams is None else floating(image)
    mode = choice("cvt_color", "mode", mode, tuple(_MODES))
    if image.dtype.name not in ("uint8", "float32"):
        raise DTypeError(
            f"cvt_color: dtype is not accepted, got {image.dtype.name}, expected uint8 or float32"
        )
    whole = image.dtype.name == "uint8"
    if not whole and mode not in _FLOAT_MODES:
        raise DTypeError(
            f"cvt_color: mode {mode} takes uint8 only, got float32, "
            f"expected one of {', '.join(_FLOAT_MODES)} for float32"
        )
    if mode in _SUBSAMPLED:
        return _from_planes(_expect(image, mode, 1), *_SUBSAMPLED[mode])
    if mode in _ORDERS:
        count, order = _ORDERS[mode]
        parts = _channels(_expect(image, mode, count))
        return concat([parts[i] for i in order], 3)
    if mode in _GRAYS:
        count, backward = _GRAYS[mode]
        parts = _channels(_expect(image, mode, count))[:3]
        return _rounded([_luma(parts[::-1] if backward else parts)], whole)
    parts = _channels(_expect(image, mode, 3))
    return (_to_yuv if mode == "RGB2YUV" else _from_yuv)(parts, whole)


def _expect(image: Tensor, mode: str, channels: int) -> Tensor:
    fits = image.ndim == 4 and int(image.shape[3]) == channels
    wanted = f"(N, H, W, {channels})"
    if mode in _SUBSAMPLED:
        fits = fits and int(image.shape[1]) % 3 == 0 and int(image.shape[2]) % 2 == 0
        wanted = "(N, H, W, 1) with H a multiple of 3 and W even"
    if not fits:
        raise ShapeError(
            f"cvt_color: shape does not fit {mode}, got {shapes.format_shape(image.shape)}, "
            f"expected {wanted}"
        )
    return image


def _channels(image: Tensor) -> list[Tensor]:
    return [cut(image, 3, i, 1) for i in range(int(image.shape[3]))]


def _wide(part: Tensor) -> Tensor:
    """Return uint8 in the int32 that sums are computed in, and floats as they are."""
    return cast(Tensor, part.cast("int32")) if part.dtype.name == "uint8" else part


def _weighted(parts: Any, weights: Any, bits: int = 14) -> Tensor:
    """Return a weighted sum: times 2**bits for integers, as it is for floats."""
    total: Tensor | None = None
    for part, weight in zip(parts, weights, strict=True):
        part = _wide(part)
        factor = weight if part.dtype.name == "int32" else weight / (1 << bits)
        term = elemwise.mul(part, factor)
        total = term if total is None else elemwise.add(total, term)
    assert total is not None
    return total


def _shifted(value: Tensor, bits: int = 14) -> Tensor:
    """Divide integers by 2**bits and round to the nearest; floats stay as they are."""
    if value.dtype.name != "int32":
        return value
    return elemwise.right_shift(elemwise.add(value, 1 << (bits - 1)), bits)


def _rounded(parts: list[Tensor], whole: bool) -> Tensor:
    """Join channels and bring them back to 0 to 255."""
    joined = parts[0] if len(parts) == 1 else concat(parts, 3)
    return cast(Tensor, elemwise.clip(joined, 0, 255).cast("uint8")) if whole else joined


def _luma(parts: list[Tensor]) -> Tensor:
    # Floats take the rounded decimals of the standard, integers their fixed-point neighbours.
    if parts[0].dtype.name == "uint8":
        return _shifted(_weighted(parts, _LUMA))
    return _weighted(parts, (0.299, 0.587, 0.114), 0)


def _to_yuv(parts: list[Tensor], whole: bool) -> Tensor:
    blue, red = _wide(parts[0]), _wide(parts[2])
    luma = _luma(parts[::-1])
    found = [luma]
    for colour, scale, decimal in ((blue, _TO_BLUE, 0.492), (red, _TO_RED, 0.877)):
        apart = elemwise.sub(colour, luma)
        if whole:
            found.append(elemwise.add(_shifted(elemwise.mul(apart, scale)), 128))
        else:
            found.append(elemwise.add(elemwise.mul(apart, decimal), 0.5))
    return _rounded(found, whole)


def _from_yuv(parts: list[Tensor], whole: bool) -> Tensor:
    luma, u, v = (_wide(part) for part in parts)
    u, v = (elemwise.sub(part, 128 if whole else 0.5) for part in (u, v))
    if whole:
        blue, red = elemwise.mul(u, _BLUE_U), elemwise.mul(v, _RED_V)
        green = elemwise.neg(_weighted((u, v), (_GREEN_U, _GREEN_V)))
    else:
        blue, red = elemwise.mul(u, 2.032), elemwise.mul(v, 1.14)
        green = elemwise.neg(_weighted((u, v), (0.395, 0.581), 0))
    return _rounded([elemwise.add(luma, _shifted(x)) for x in (blue, green, red)], whole)


def _from_planes(image: Tensor, target: str, layout: str, video: bool) -> Tensor:
    n, rows, width = image.shape[:3]
    height = rows // 3 * 2
    luma = cut(image, 1, 0, height)
    if target == "GRAY":
        return luma
    low = cut(image, 1, height, rows // 3)
    if layout in ("NV12", "NV21"):
        first, second = (cut(low, 2, i, width // 2, 2) for i in (0, 1))
    else:
        halves = reshape(low, (n, 2, height // 2, width // 2))
        first, second = (
            reshape(cut(halves, 1, i, 1), (n, height // 2, width // 2, 1)) for i in (0, 1)
        )
    u, v = (first, second) if layout in ("NV12", "YU12") else (second, first)
    y, u, v = _wide(luma), _spread(u), _spread(v)
    # Red and blue need one difference each, green both; the divisions round down.
    if video:
        scaled = elemwise.right_shift(elemwise.mul(y, 257 * 18997), 16)
        y, bits, red, blue, green = elemwise.sub(scaled, 1160), 6, 102, 128, (25, 52)
    else:
        bits, red, blue, green = 8, 359, 454, (88, 183)
    found = []
    for delta, sign in (
        (elemwise.mul(v, red), 1), (_weighted((u, v), green), -1), (elemwise.mul(u, blue), 1)
    ):  # fmt: skip
        combine = elemwise.add if sign > 0 else elemwise.sub
        if video:
            found.append(elemwise.right_shift(combine(y, delta), bits))
        else:
            found.append(combine(y, elemwise.right_shift(delta, bits)))
    return _rounded(found if target == "RGB" else found[::-1], True)


def _spread(plane: Tensor) -> Tensor:
    """Repeat each element of (N, H, W, 1) twice along both axes, as a difference from 128."""
    n, h, w = plane.shape[:3]
    apart = reshape(elemwise.sub(_wide(plane), 128), (n, h, 1, w, 1))
    return run("reshape", broadcast_to(apart, (n, h, 2, w, 2)), shape=(n, h * 2, w * 2, 1))

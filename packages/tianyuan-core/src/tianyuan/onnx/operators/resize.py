"""Resampling along axes, as products with matrices or picks of the nearest element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import AttrError, ShapeError
from ..limits import check_size
from ..node import Node
from ..table import operator
from .common import Array, Tensor, constant, extents, is_float, moved, normal_axes, reshaped, run

_PLACES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize", "tf_half_pixel_for_nn",
)  # fmt: skip
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class _Axis:
    """How one axis is resampled."""

    old: int
    new: int
    scale: float
    roi: tuple[float, float]


def positions(axis: _Axis, mode: str) -> Array:
    """Return where in the input each element of the output lies."""
    x = np.arange(axis.new, dtype=np.float64)
    old, scale = axis.old, axis.scale
    wide = scale * old
    if mode == "align_corners":
        return x * ((old - 1) / (wide - 1)) if wide != 1 else x * 0.0
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if mode == "tf_crop_and_resize":
        start, end = axis.roi
        if axis.new == 1:
            return np.full(1, (start + end) * (old - 1) / 2)
        return start * (old - 1) + x * ((end - start) * (old - 1) / (axis.new - 1))
    place = (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel" and axis.new == 1:
        return place * 0.0
    if mode == "half_pixel_symmetric":
        return place + old / 2 * (1 - axis.new / wide)
    return place


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _matrix(axis: _Axis, place: Array, node: Node, cubic: bool) -> Array:
    """Return the (new, old) matrix that interpolates at places along an axis."""
    reach = 2 if cubic else 1
    shrink = min(axis.scale, 1.0) if node.flag("antialias") else 1.0
    first = int(np.floor(-reach / shrink)) + 1
    base = np.ceil(place).astype(np.int64) - 1
    ratio = place - base
    taps = np.arange(first, 2 - first)
    distance = (taps[None, :] - ratio[:, None]) * shrink
    a = node.float("cubic_coeff_a", -0.75)
    weights = _cubic(distance, a) if cubic else np.clip(1 - np.abs(distance), 0, 1)
    index = base[:, None] + taps[None, :]
    if shrink != 1.0:
        weights = weights / weights.sum(axis=1, keepdims=True)
    if node.flag("exclude_outside"):
        weights = np.where((index < 0) | (index >= axis.old), 0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.new, axis.old))
    rows = np.broadcast_to(np.arange(axis.new)[:, None], index.shape)
    np.add.at(matrix, (rows, np.clip(index, 0, axis.old - 1)), weights)
    return matrix


def nearest_index(place: Array, old: int, how: str) -> Array:
    """Return which element is the nearest to each place."""
    if how == "floor":
        index = np.floor(place)
    elif how == "ceil":
        index = np.ceil(place)
    elif how == "round_prefer_floor":
        index = np.ceil(place - 0.5)
    else:
        index = np.floor(place + 0.5)
    found: Array = np.clip(index, 0, old - 1).astype(np.int64)
    return found


def _resampled(node: Node, x: Tensor, chosen: dict[int, _Axis], outside: Any) -> Tensor:
    mode = node.text("mode", "nearest", ("nearest", "linear", "cubic"))
    where = node.text("coordinate_transformation_mode", "half_pixel", _PLACES)
    how = node.text("nearest_mode", "round_prefer_floor", _NEAREST)
    dtype = x.dtype
    crop = where == "tf_crop_and_resize"
    inside: Tensor | None = None
    if mode != "nearest" and not is_float(x):
        x = x.astype("float32")
    for number, axis in chosen.items():
        place = positions(axis, where)
        if crop:
            held = (place >= 0) & (place <= axis.old - 1)
            line = [axis.new if a == number else 1 for a in range(x.ndim)]
            mask = constant(held.reshape(line))
            inside = mask if inside is None else run("logical_and", inside, mask)
        if axis.old == axis.new and np.array_equal(place, np.arange(axis.new)):
            continue
        if mode == "nearest":
            x = run("take", x, constant(nearest_index(place, axis.old, how)), axis=number)
            continue
        matrix = constant(_matrix(axis, place, node, mode == "cubic"), x.dtype)
        x = along(x, matrix, number)
    if inside is not None:
        x = run("where", inside, x, constant(outside, x.dtype))
    if x.dtype == dtype:
        return x
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = run("minimum", run("maximum", x, constant(low, x.dtype)), constant(high, x.dtype))
    return run("round", x).astype(dtype)


def along(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply an axis by a (new, old) matrix."""
    last = moved(x, axis, x.ndim - 1)
    rows = int(np.prod([int(n) for n in last.shape[:-1]]))
    flat = reshaped(last, (rows, last.shape[-1]))
    y = run("matmul", flat, matrix, transpose_a=False, transpose_b=True)
    return moved(reshaped(y, (*last.shape[:-1], matrix.shape[0])), x.ndim - 1, axis)


def _scales(node: Node, x: Tensor, axes: Sequence[int], sizes: list[int]) -> dict[int, float]:
    """Return the scale of each axis that is resized to a size."""
    ratios = [int(n) / int(x.shape[a]) for a, n in zip(axes, sizes, strict=True)]
    policy = node.text(
        "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
    )
    if policy != "stretch":
        chosen = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [chosen] * len(ratios)
    return dict(zip(axes, ratios, strict=True))


@operator("Resize", 11, known=(1, 2, 3))
def resize(
    node: Node, x: Tensor, roi: Array | None = None, scales: Array | None = None,
    sizes: Array | None = None,
) -> Tensor:  # fmt: skip
    """Resample some axes to sizes or by scales."""
    axes = normal_axes(node.ints("axes", tuple(range(x.ndim))), x.ndim)
    have = [int(n) for n in x.shape]
    if any(n == 0 for n in have):
        raise ShapeError(f"an empty input cannot be resized, got {tuple(have)}")
    by_size = sizes is not None and sizes.size > 0
    if by_size:
        assert sizes is not None
        want = extents(sizes)
        if len(want) != len(axes):
            raise ShapeError(f"sizes do not fit, got {len(want)} for {len(axes)} axes")
        factors = _scales(node, x, axes, want)
        stretched = node.text("keep_aspect_ratio_policy", "stretch") == "stretch"
        new = {
            a: int(n) if stretched else int(np.floor(factors[a] * have[a] + 0.5))
            for a, n in zip(axes, want, strict=True)
        }
    else:
        given = [] if scales is None else [float(s) for s in scales.reshape(-1)]
        if len(given) != len(axes) or any(s <= 0 for s in given):
            raise ShapeError(f"scales do not fit, got {given} for {len(axes)} axes")
        factors = dict(zip(axes, given, strict=True))
        new = {a: int(np.floor(have[a] * s)) for a, s in factors.items()}
    region = [0.0] * len(axes) + [1.0] * len(axes)
    if roi is not None and roi.size == 2 * len(axes):
        region = [float(r) for r in roi.reshape(-1)]
    check_size([new.get(a, n) for a, n in enumerate(have)], x.dtype)
    for a, n in new.items():
        check_size((n, have[a]), np.float64)
    chosen = {
        a: _Axis(have[a], new[a], factors[a], (region[i], region[i + len(axes)]))
        for i, a in enumerate(axes)
    }
    return _resampled(node, x, chosen, node.float("extrapolation_value", 0.0))


def _upsampled(node: Node, x: Tensor, scales: Sequence[float]) -> Tensor:
    mode = node.text("mode", "nearest", ("nearest", "linear"))
    if len(scales) != x.ndim or any(s <= 0 for s in scales):
        raise AttrError(f"scales do not fit, got {tuple(scales)} for rank {x.ndim}")
    for number, scale in enumerate(scales):
        old = int(x.shape[number])
        axis = _Axis(old, int(np.floor(old * scale)), scale, (0.0, 1.0))
        check_size((axis.new, old), np.float64)
        if axis.new == old:
            continue
        place = positions(axis, "asymmetric")
        if mode == "nearest":
            x = run("take", x, constant(nearest_index(place, old, "floor")), axis=number)
        else:
            x = along(x, constant(_matrix(axis, place, node, False), x.dtype), number)
    return x


@operator("Resize", 10, 10, known=(1,))
def resize_by_scales(node: Node, x: Tensor, scales: Array) -> Tensor:
    return _upsampled(node, x, [float(s) for s in scales])


@operator("Upsample", 9, 9, known=(1,))
def upsample(node: Node, x: Tensor, scales: Array) -> Tensor:
    return _upsampled(node, x, [float(s) for s in scales])


@operator("Upsample", 7, 8)
def upsample_by_attribute(node: Node, x: Tensor) -> Tensor:
    return _upsampled(node, x, node.floats("scales"))

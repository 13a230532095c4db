"""Fourier transforms as matrix products, windows, and mel filters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ... import shapes
from ...errors import ShapeError
from ..limits import check_size
from ..node import Node
from ..reader import dtype_of
from ..table import operator
from .common import (
    Array,
    Tensor,
    constant,
    moved,
    normal_axis,
    reshaped,
    run,
    single,
    zero_padded,
)


def _matrices(length: int, rows: int, inverse: bool, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (rows, length) of a transform."""
    check_size((rows, length), np.float64)
    angle = np.outer(np.arange(rows), np.arange(length)) % max(length, 1) * (2 * np.pi / length)
    scale = 1 / length if inverse else 1.0
    sine = np.sin(angle) if inverse else -np.sin(angle)
    return constant(np.cos(angle) * scale, like.dtype), constant(sine * scale, like.dtype)


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    return run("matmul", x, matrix, transpose_a=False, transpose_b=True)


def transform(x: Tensor, axis: int, length: int, inverse: bool, onesided: bool) -> Tensor:
    """Transform along an axis of (…, 1 or 2), whose last axis is the real and imaginary part."""
    parts = int(x.shape[-1])
    if parts not in (1, 2):
        raise ShapeError(f"the last axis must be 1 or 2, got {shapes.format_shape(x.shape)}")
    last = x.ndim - 2
    x = moved(x, axis, last)
    size = int(x.shape[last])
    if inverse and onesided and parts == 2:
        return moved(_real_inverse(x, length), last, axis)
    if size < length:
        x = zero_padded(x, (0,) * x.ndim, (*(0,) * last, length - size, 0))
    lead = tuple(x.shape[:last])
    count = shapes.volume(lead)
    rows = length // 2 + 1 if onesided else length
    sizes = (*lead, length, 1)
    real, *imaginary = (
        reshaped(
            run("slice", x, starts=(*(0,) * (last + 1), k), sizes=sizes, steps=(1,) * x.ndim),
            (count, length),
        )
        for k in range(parts)
    )
    cosine, sine = _matrices(length, rows, inverse, x)
    re, im = _product(real, cosine), _product(real, sine)
    if imaginary:
        re = run("sub", re, _product(imaginary[0], sine))
        im = run("add", im, _product(imaginary[0], cosine))
    both = run("concat", reshaped(re, (count, rows, 1)), reshaped(im, (count, rows, 1)), axis=2)
    return moved(reshaped(both, (*lead, rows, 2)), last, axis)


def _real_inverse(x: Tensor, length: int) -> Tensor:
    """Turn half a spectrum (…, bins, 2) into a real signal (…, length, 1)."""
    check_size((length, length), np.float64)
    last = x.ndim - 2
    lead, bins = tuple(x.shape[:last]), int(x.shape[last])
    count, rows = shapes.volume(lead), length // 2 + 1
    used = min(bins, rows)
    weight = np.full(used, 2.0)
    weight[0] = 1.0
    if length % 2 == 0 and used == rows:
        weight[-1] = 1.0
    angle = np.outer(np.arange(length), np.arange(used)) % length * (2 * np.pi / length)
    flat = []
    for k, matrix in ((0, np.cos(angle)), (1, -np.sin(angle))):
        part = run("slice", x, starts=(*(0,) * (last + 1), k), sizes=(*lead, used, 1),
                   steps=(1,) * x.ndim)  # fmt: skip
        flat.append(_product(reshaped(part, (count, used)),
                             constant(matrix * weight / length, x.dtype)))  # fmt: skip
    return reshaped(run("add", *flat), (*lead, length, 1))


def _dft(node: Node, x: Tensor, length: Array | None, axis: int) -> Tensor:
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    axis = normal_axis(axis, x.ndim)
    size = int(x.shape[axis])
    natural = 2 * (size - 1) if inverse and onesided else size
    count = natural if length is None else int(single(length))
    if count < 1:
        raise ShapeError(f"the length must be positive, got {count}")
    if count < size and not (inverse and onesided):
        sizes = tuple(count if a == axis else n for a, n in enumerate(x.shape))
        x = run("slice", x, starts=(0,) * x.ndim, sizes=sizes, steps=(1,) * x.ndim)
    return transform(x, axis, count, inverse, onesided)


@operator("DFT", 20, known=(1, 2))
def dft(node: Node, x: Tensor, length: Array | None = None, axis: Array | None = None) -> Tensor:
    return _dft(node, x, length, -2 if axis is None else int(single(axis)))


@operator("DFT", 17, 19, known=(1,))
def dft_by_attribute(node: Node, x: Tensor, length: Array | None = None) -> Tensor:
    return _dft(node, x, length, node.int("axis", 1))


@operator("STFT", 17, known=(1, 3))
def stft(
    node: Node, x: Tensor, step: Array, window: Tensor | None = None, length: Array | None = None
) -> Tensor:
    """Transform overlapping frames of signals (batch, time, 1 or 2)."""
    time, hop = int(x.shape[1]), int(single(step))
    if length is not None:
        size = int(single(length))
    else:
        size = time if window is None else int(window.shape[0])
    if hop < 1 or not 1 <= size <= time:
        raise ShapeError(f"frames do not fit, got length {size} and step {hop} for {time}")
    count = (time - size) // hop + 1
    check_size((count, size), np.int64)
    index = np.arange(count)[:, None] * hop + np.arange(size)[None, :]
    frames = run("take", x, constant(index), axis=1)
    if window is not None:
        frames = run("mul", frames, reshaped(window, (1, 1, size, 1)))
    return transform(frames, 2, size, False, node.flag("onesided", True))


def _enter_window(name: str, shape: Callable[[Array], Array]) -> None:
    @operator(name, 17, known=(0,))
    def window(node: Node, size: Array) -> Tensor:
        count = int(single(size))
        check_size((count,), np.float64)
        span = count if node.flag("periodic", True) else count - 1
        angle = np.arange(count) * (2 * np.pi / max(span, 1))
        dtype = dtype_of(node.int("output_datatype", 1))
        return constant(shape(angle), dtype)


_enter_window("HannWindow", lambda a: 0.5 - 0.5 * np.cos(a))
_enter_window("HammingWindow", lambda a: 25 / 46 - 21 / 46 * np.cos(a))
_enter_window("BlackmanWindow", lambda a: 0.42 - 0.5 * np.cos(a) + 0.08 * np.cos(2 * a))


@operator("MelWeightMatrix", 17, known=(0, 1, 2, 3, 4))
def mel_weight_matrix(
    node: Node, bins: Array, length: Array, rate: Array, low: Array, high: Array
) -> Tensor:
    """Return triangular filters (spectrum bins, mel bins) that are even on the mel scale."""
    count, size = int(single(bins)), int(single(length))
    check_size((count + 2, size), np.float64)
    edges = [2595 * np.log10(1 + float(single(v)) / 700) for v in (low, high)]
    mels = edges[0] + np.arange(count + 2) * ((edges[1] - edges[0]) / (count + 2))
    hertz = 700 * (10 ** (mels / 2595) - 1)
    places = ((size + 1) * hertz // float(single(rate))).astype(int)
    rows = size // 2 + 1
    if places.min(initial=0) < 0 or places.max(initial=0) > rows:
        raise ShapeError(f"the edges lie outside of the spectrum of {rows} bins")
    found = np.zeros((rows, count))
    for i in range(count):
        left, centre, right = places[i : i + 3]
        if left == centre:
            found[centre, i] = 1
        else:
            found[left : centre + 1, i] = np.arange(centre - left + 1) / (centre - left)
        if right > centre:
            found[centre:right, i] = np.arange(right - centre, 0, -1) / (right - centre)
    return constant(found, dtype_of(node.int("output_datatype", 1)))

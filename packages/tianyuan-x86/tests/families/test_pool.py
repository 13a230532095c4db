"""Pooling, plain and in channel blocks, against windows written out in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

F = np.float32
IMAGES = [
    (1, 1, 5, 7),
    (2, 3, 9, 8),
    (2, 17, 13, 33),
    (1, 40, 28, 28),
    (1, 3, 20, 70),
    (0, 3, 9, 9),
]
# kernel, stride, padding (top, left, bottom, right)
WINDOWS = [
    ((2, 2), (2, 2), (0, 0, 0, 0)), ((3, 3), (2, 2), (1, 1, 1, 1)), ((3, 2), (1, 3), (1, 0, 1, 0)),
    ((3, 3), (1, 1), (1, 1, 1, 1)), ((1, 1), (1, 1), (0, 0, 0, 0)), ((5, 5), (3, 2), (2, 2, 2, 2)),
    ((3, 3), (2, 2), (1, 0, 0, 2)),
]  # fmt: skip

Window = tuple[int, int, slice, slice]


def fixed(shape: Any, kernel: Any, stride: Any, padding: Any) -> Iterator[Window]:
    """Yield the output place and the clipped slices of every window."""
    h, w = shape[2:]
    for i in range((h + padding[0] + padding[2] - kernel[0]) // stride[0] + 1):
        for j in range((w + padding[1] + padding[3] - kernel[1]) // stride[1] + 1):
            top, left = i * stride[0] - padding[0], j * stride[1] - padding[1]
            rows = slice(max(top, 0), min(top + kernel[0], h))
            yield i, j, rows, slice(max(left, 0), min(left + kernel[1], w))


def adaptive(shape: Any, size: Any) -> Iterator[Window]:
    """Yield the output place and the slices of every adaptive window."""
    h, w = shape[2:]
    for i in range(size[0]):
        for j in range(size[1]):
            rows = slice(i * h // size[0], -(-(i + 1) * h // size[0]))
            yield i, j, rows, slice(j * w // size[1], -(-(j + 1) * w // size[1]))


def lanes(patch: np.ndarray) -> np.ndarray:
    """Flatten the pixels of a patch, which may have no images."""
    n, c, h, w = patch.shape
    return patch.reshape(n, c, h * w)


def pooled(x: np.ndarray, windows: list[Window], reduce: Any) -> np.ndarray:
    """Reduce every window of every plane to a number."""
    size = (windows[-1][0] + 1, windows[-1][1] + 1)
    y = np.empty((*x.shape[:2], *size))
    for i, j, rows, columns in windows:
        y[:, :, i, j] = reduce(lanes(x[:, :, rows, columns]))
    return y


def winners(x: np.ndarray, windows: list[Window]) -> list[tuple[int, int, np.ndarray, np.ndarray]]:
    """Return each window's place and the coordinates of its first largest element."""
    found = []
    for i, j, rows, columns in windows:
        patch = x[:, :, rows, columns]
        at = lanes(patch).argmax(-1)
        width = patch.shape[3]
        found.append((i, j, rows.start + at // width, columns.start + at % width))
    return found


def _image(rng: np.random.Generator, shape: Any) -> np.ndarray:
    """Return an image with many equal values."""
    return np.where(rng.random(shape) < 0.3, 0.5, rng.normal(size=shape)).astype(F)


def _cases() -> list[Any]:
    return [
        (shape, kernel, stride, padding)
        for shape in IMAGES
        for kernel, stride, padding in WINDOWS
        if shape[2] + padding[0] + padding[2] >= kernel[0]
        and shape[3] + padding[1] + padding[3] >= kernel[1]
    ]


def _check_max(apply: Any, rng: np.random.Generator, x: Any, windows: Any, op: str, a: Any) -> None:
    want = pooled(x, windows, lambda v: v.max(-1))
    y = apply(op, x, **a)
    np.testing.assert_array_equal(y, want)
    g, t = rng.normal(size=y.shape).astype(F), rng.normal(size=x.shape).astype(F)
    dx, picked = np.zeros(x.shape), np.zeros(y.shape)
    n, c = np.ogrid[: x.shape[0], : x.shape[1]]
    for i, j, row, column in winners(x, windows):
        dx[n, c, row, column] += g[:, :, i, j]
        picked[:, :, i, j] = t[n, c, row, column]
    np.testing.assert_allclose(apply(f"{op}_backward", x, g, **a), dx, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(apply(f"{op}_pick", x, t, **a), picked)


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), _cases())
def test_max_pool(
    apply: Any, rng: np.random.Generator, shape: Any, kernel: Any, stride: Any, padding: Any
) -> None:
    x = _image(rng, shape)
    attrs = {"kernel": kernel, "stride": stride, "padding": padding}
    windows = list(fixed(shape, **attrs))
    _check_max(apply, rng, x, windows, "max_pool2d", attrs)
    plain = apply("max_pool2d", x, **attrs)
    np.testing.assert_array_equal(apply("max_pool2d", x, variant="blocked", **attrs), plain)


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), _cases())
@pytest.mark.parametrize("whole", [False, True])
def test_avg_pool(
    apply: Any,
    rng: np.random.Generator,
    shape: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    whole: bool,
) -> None:
    x = _image(rng, shape)
    window = {"kernel": kernel, "stride": stride, "padding": padding}
    windows = list(fixed(shape, **window))
    attrs = {**window, "count_include_pad": whole}
    area = kernel[0] * kernel[1]
    want = pooled(x, windows, lambda v: v.sum(-1) / (area if whole else v.shape[-1]))
    for variant in (None, "blocked"):
        y = apply("avg_pool2d", x, variant=variant, **attrs)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    g = rng.normal(size=want.shape).astype(F)
    dx = np.zeros(shape)
    for i, j, rows, columns in windows:
        count = area if whole else (rows.stop - rows.start) * (columns.stop - columns.start)
        dx[:, :, rows, columns] += g[:, :, i, j, None, None] / count
    got = apply("avg_pool2d_backward", g, size=shape[2:], **attrs)
    np.testing.assert_allclose(got, dx, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 5), (9, 9)])
def test_adaptive_pool(apply: Any, rng: np.random.Generator, shape: Any, size: Any) -> None:
    x = _image(rng, shape)
    windows = list(adaptive(shape, size))
    want = pooled(x, windows, lambda v: v.mean(-1, dtype=np.float64))
    for variant in (None, "blocked", *(("blocked_to_plain",) if size == (1, 1) else ())):
        y = apply("adaptive_avg_pool2d", x, variant=variant, size=size)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    g = rng.normal(size=want.shape).astype(F)
    dx = np.zeros(shape)
    for i, j, rows, columns in windows:
        count = (rows.stop - rows.start) * (columns.stop - columns.start)
        dx[:, :, rows, columns] += g[:, :, i, j, None, None] / count
    got = apply("adaptive_avg_pool2d_backward", g, size=shape[2:])
    np.testing.assert_allclose(got, dx, rtol=1e-5, atol=1e-6)
    _check_max(apply, rng, x, windows, "adaptive_max_pool2d", {"size": size})


def test_nan_wins_and_the_first_of_them(apply: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=(1, 2, 8, 8)).astype(F)
    x[0, 0, 3, 3] = x[0, 0, 3, 4] = np.nan
    attrs = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}
    windows = list(fixed(x.shape, **attrs))
    want = pooled(x, windows, lambda v: v.max(-1))
    assert np.isnan(want).any()
    for variant in (None, "blocked"):
        np.testing.assert_array_equal(apply("max_pool2d", x, variant=variant, **attrs), want)
    t = np.arange(x.size, dtype=F).reshape(x.shape)
    picked = np.zeros(want.shape)
    n, c = np.ogrid[:1, :2]
    for i, j, row, column in winners(x, windows):  # numpy's argmax also takes the first NaN
        picked[:, :, i, j] = t[n, c, row, column]
    np.testing.assert_array_equal(apply("max_pool2d_pick", x, t, **attrs), picked)


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("keepdims", [False, True])
def test_mean_of_blocked_images(
    apply: Any, rng: np.random.Generator, shape: Any, keepdims: bool
) -> None:
    x = _image(rng, shape)
    got = apply("mean", x, variant="blocked_images", axes=(2, 3), keepdims=keepdims)
    want = x.mean((2, 3), keepdims=keepdims, dtype=np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

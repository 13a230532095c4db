"""Movement ops against numpy's indexing, for items of every size."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

F = np.float32
DTYPES = ["float32", "uint8", "int64", "float16"]
SHAPES = [
    (3, 5), (2, 3, 4), (40, 33), (2, 17, 9, 35), (1, 3, 1, 4), (70, 70), (0, 3), (),
    (2, 3, 4, 5, 6), (100, 3), (3, 100), (128, 256), (16, 128, 8, 64),
]  # fmt: skip


def _array(rng: np.random.Generator, shape: Any, dtype: str) -> np.ndarray:
    return np.asarray(rng.integers(0, 100, shape)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transpose(apply: Any, rng: np.random.Generator, dtype: str, shape: Any) -> None:
    x = _array(rng, shape, dtype)
    every = list(itertools.permutations(range(len(shape))))
    for perm in every if x.size < 20000 else every[::5]:
        np.testing.assert_array_equal(apply("transpose", x, perm=perm), x.transpose(perm))
    np.testing.assert_array_equal(apply("reshape", x, shape=(x.size,)), x.reshape(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((3, 1), (3, 5)), ((), (4,)), ((5,), (2, 3, 5)), ((1, 3, 1), (2, 3, 300)),
        ((2, 1, 4), (2, 3, 4)), ((1,), (20000,)), ((3,), (0, 3)), ((1, 17, 1, 1), (2, 17, 9, 9)),
    ],
)  # fmt: skip
def test_broadcast_to(
    apply: Any, rng: np.random.Generator, dtype: str, shape: Any, target: Any
) -> None:
    x = _array(rng, shape, dtype)
    got = apply("broadcast_to", x, shape=target)
    np.testing.assert_array_equal(got, np.broadcast_to(x, target))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("axis", "shapes"),
    [
        (0, [(2, 3), (1, 3), (0, 3), (4, 3)]), (1, [(2, 3, 4), (2, 1, 4), (2, 5, 4)]),
        (2, [(2, 3, 4), (2, 3, 1)]), (0, [(5,)]), (0, [(30000,), (50000,)]),
    ],
)  # fmt: skip
def test_concat(apply: Any, rng: np.random.Generator, dtype: str, axis: int, shapes: Any) -> None:
    arrays = [_array(rng, shape, dtype) for shape in shapes]
    np.testing.assert_array_equal(apply("concat", *arrays, axis=axis), np.concatenate(arrays, axis))


PADS = [
    ((3, 4), (1, 2), (0, 3)), ((2, 3, 5, 6), (0, 0, 1, 2), (0, 0, 2, 1)), ((5,), (2,), (3,)),
    ((2, 3, 8, 8), (0, 0, 3, 3), (0, 0, 3, 3)), ((4, 5), (0, 0), (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [*DTYPES, "bool", "int32", "float64"])
@pytest.mark.parametrize(("shape", "before", "after"), PADS)
def test_pad(
    apply: Any, rng: np.random.Generator, dtype: str, shape: Any, before: Any, after: Any
) -> None:
    x = _array(rng, shape, dtype)
    widths = list(zip(before, after, strict=True))
    for value in (0.0, 1.0, 2.0):
        got = apply("pad", x, before=before, after=after, mode="constant", value=value)
        want = np.pad(x, widths, constant_values=np.float64(value).astype(dtype))
        np.testing.assert_array_equal(got, want)
    for mode in ("reflect", "edge"):
        got = apply("pad", x, before=before, after=after, mode=mode, value=0.0)
        np.testing.assert_array_equal(got, np.pad(x, widths, mode=mode))


@pytest.mark.parametrize(("shape", "before", "after"), PADS)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_backward(
    apply: Any, rng: np.random.Generator, shape: Any, before: Any, after: Any, mode: Any
) -> None:
    numbers = np.arange(np.prod(shape)).reshape(shape)
    widths = list(zip(before, after, strict=True))
    options = {"constant_values": -1} if mode == "constant" else {}
    source = np.pad(numbers, widths, mode=mode, **options)
    g = rng.normal(size=source.shape).astype(F)
    want = np.zeros(numbers.size)
    np.add.at(want, source[source >= 0], g[source >= 0])
    got = apply("pad_backward", g, before=before, after=after, mode=mode)
    np.testing.assert_allclose(got, want.reshape(shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "starts", "sizes", "steps"),
    [
        ((10,), (8,), (4,), (-2,)), ((10, 20), (1, 2), (3, 5), (2, 3)),
        ((6, 7, 8), (0, 0, 0), (6, 7, 8), (1, 1, 1)),
        ((6, 7, 8), (5, 0, 7), (6, 7, 8), (-1, 1, -1)),
        ((4, 5), (1, 1), (0, 2), (1, 1)), ((3, 300, 200), (0, 5, 3), (3, 100, 190), (1, 2, 1)),
        ((), (), (), ()),
    ],
)  # fmt: skip
def test_slices(
    apply: Any,
    rng: np.random.Generator,
    dtype: str,
    shape: Any,
    starts: Any,
    sizes: Any,
    steps: Any,
) -> None:
    x, v = _array(rng, shape, dtype), _array(rng, sizes, dtype)
    region: Any = ()
    if shape:
        lines = zip(starts, sizes, steps, strict=True)
        region = np.ix_(*(np.arange(size) * step + start for start, size, step in lines))
    where = {"starts": starts, "steps": steps}
    np.testing.assert_array_equal(apply("slice", x, sizes=sizes, **where), x[region])
    changed, placed = x.copy(), np.zeros_like(x)
    changed[region] = placed[region] = v
    np.testing.assert_array_equal(apply("slice_set", x, v, sizes=sizes, **where), changed)
    np.testing.assert_array_equal(apply("slice_backward", v, shape=shape, **where), placed)

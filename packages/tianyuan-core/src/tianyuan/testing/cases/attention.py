"""Calls of attention: masks of every form, rows that see nothing, odd tails and empty extents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.attention import Attention
from . import FLOATS, Case, Invalid, Source, fixed, flags, real, spec

# (queries, keys, extent of keys, extent of values)
SIZES = (
    (1, 1, 1, 1), (3, 5, 7, 2), (15, 33, 8, 17), (14, 32, 16, 32), (29, 31, 64, 65), (1, 70, 33, 9),
    (33, 1, 5, 16), (6, 257, 20, 31), (200, 300, 9, 33), (5, 600, 3, 4), (0, 4, 5, 6), (4, 0, 5, 6),
    (4, 5, 0, 6), (4, 5, 6, 0),
)  # fmt: skip
LEADS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 3), (2, 3), (2, 3)), ((2, 3), (3,), ()), ((), (4,), (1,)), ((2, 1), (1, 3), (2, 3)),
    ((0,), (), ()),
)  # fmt: skip
INF = float("inf")


def _case(
    size: Sequence[int],
    attrs: Attention,
    mask: Source | None = None,
    dtype: str = "float32",
    leads: Sequence[tuple[int, ...]] = ((), (), ()),
    grad: tuple[int, ...] = (),
) -> Case:
    rows, keys, depth, width = size
    shapes = ((rows, depth), (keys, depth), (keys, width))
    inputs = tuple(real((*lead, *shape), dtype) for lead, shape in zip(leads, shapes, strict=True))
    inputs += () if mask is None else (mask,)
    # An error of a score is one of its weight, relative to it.
    return Case(
        "attention", inputs, attrs, length=depth + keys + 8, magnitude=4, ulps=32, grad=grad
    )


def _hides_all(rows: int, keys: int) -> Source:
    """Make a mask whose second row sees nothing."""

    def source(rng: np.random.Generator) -> np.ndarray:
        seen = flags((rows, keys))(rng)
        seen[1:2] = False
        return seen

    return source


def _plain() -> Iterator[Case]:
    for size in SIZES:
        rows, keys = size[:2]
        scale = 0.25 if size[2] > 8 else -0.7
        yield _case(size, Attention(scale))
        yield _case(size, Attention(scale, causal=True))
        yield _case(size, Attention(scale), _hides_all(rows, keys))
        yield _case(size, Attention(scale, causal=True), _hides_all(rows, keys))
        yield _case(size, Attention(scale), real((rows, keys), low=-9))
        yield _case(size, Attention(scale, causal=True), real((rows, 1), low=-9))
    for dtype in FLOATS:
        yield _case((3, 5, 7, 4), Attention(0.5), dtype=dtype)
        yield _case((3, 5, 7, 4), Attention(0.5, causal=True), real((1, 5), dtype), dtype)
        yield _case((3, 5, 7, 4), Attention(0.5), _hides_all(3, 5), dtype)
    for leads in LEADS:
        yield _case((5, 19, 6, 3), Attention(0.5), None, "float32", leads)
        for mask in ((1, 19), (5, 1), (1, 1), (1, 5, 19)):
            yield _case((5, 19, 6, 3), Attention(0.5), flags(mask), "float32", leads)
        yield _case((5, 19, 6, 3), Attention(0.5), real((5, 19)), "float32", leads)
    yield _case((5, 19, 6, 3), Attention(0.5), real((2, 1, 5, 19)), "float32", LEADS[0])


def _special() -> Iterator[Case]:
    """Yield scores that are infinite or no numbers, which stay within their rows."""
    queries = np.zeros((5, 4), np.float32)
    queries[1], queries[2], queries[3, 0] = np.nan, 3e4, INF
    keys = np.eye(300, 4, dtype=np.float32) + 0.5
    for values in (queries, queries[:2]):
        given = (fixed(values), fixed(keys), real((300, 3)))
        for causal in (False, True):
            yield Case("attention", given, Attention(1.0, causal), length=320, magnitude=4)
    lows = np.zeros((4, 600), np.float32)
    lows[0], lows[1, :599], lows[2, 1:] = -INF, -INF, -INF
    inputs = (real((4, 6)), real((600, 6)), real((600, 3)), fixed(lows))
    yield Case("attention", inputs, Attention(0.5), length=620, magnitude=4, ulps=32)


def _gradients() -> Iterator[Case]:
    size, leads = (2, 3, 2, 2), ((2,), (), ())
    yield _case(size, Attention(0.5), None, "float64", leads, (0, 1, 2))
    yield _case(size, Attention(0.5, True), real((1, 3), "float64"), "float64", leads, (0, 1, 2, 3))
    yield _case(size, Attention(-0.5), _hides_all(2, 3), "float64", leads, (0, 1, 2))


def _backward(case: Case) -> Case:
    """Turn a call into one of the gradient; what it gets as the result need not be one."""
    arrays = case.arrays()
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in arrays[:3]))
    shape, dtype = (*lead, arrays[0].shape[-2], arrays[2].shape[-1]), arrays[0].dtype.name
    inputs = (*case.inputs[:3], real(shape, dtype), real(shape, dtype), *case.inputs[3:])
    terms = sum(arrays[0].shape[-2:]) + sum(arrays[2].shape[-2:]) + 8
    return Case(
        "attention_backward",
        inputs,
        case.attrs,
        length=terms,
        magnitude=8,
        ulps=64,
        grad=tuple(range(5)) if case.grad else (),
    )


CASES: tuple[Case, ...] = (
    *_plain(),
    *_special(),
    *_gradients(),
    *(_backward(case) for case in (*_plain(), *_gradients())),
)

_Q, _K, _V = spec((2, 3)), spec((4, 3)), spec((4, 5))
_PLAIN = Attention()
INVALID: tuple[Invalid, ...] = (
    Invalid("attention", (spec((3,)), _K, _V), ShapeError, "shapes do not fit", _PLAIN),
    Invalid("attention", (_Q, spec((4, 2)), _V), ShapeError, "shapes do not fit", _PLAIN),
    Invalid("attention", (_Q, _K, spec((3, 5))), ShapeError, "shapes do not fit", _PLAIN),
    Invalid(
        "attention", (spec((2, 2, 3)), spec((3, 4, 3)), _V), ShapeError, "do not broadcast", _PLAIN
    ),
    Invalid("attention", (_Q, _K, spec((4, 5), "float64")), DTypeError, "one dtype", _PLAIN),
    Invalid("attention", (spec((2, 3), "int32"), _K, _V), DTypeError, "query must be", _PLAIN),
    Invalid("attention", (_Q, _K, _V, spec((2, 4), "int32")), DTypeError, "mask has", _PLAIN),
    Invalid("attention", (_Q, _K, _V, spec((4,), "bool")), ShapeError, "mask does not", _PLAIN),
    Invalid("attention", (_Q, _K, _V, spec((2, 2, 4))), ShapeError, "mask does not", _PLAIN),
    Invalid("attention", (_Q, _K, _V), AttrError, "scale is no number", Attention(float("nan"))),
    Invalid(
        "attention_backward",
        (_Q, _K, _V, spec((2, 4)), spec((2, 5))),
        ShapeError,
        "the result has the wrong shape",
        _PLAIN,
    ),
    Invalid(
        "attention_backward",
        (_Q, _K, _V, spec((2, 5)), spec((1, 5))),
        ShapeError,
        "the gradient has the wrong shape",
        _PLAIN,
    ),
    Invalid(
        "attention_backward",
        (_Q, _K, _V, spec((2, 5)), spec((2, 5), "float64")),
        DTypeError,
        "one dtype",
        _PLAIN,
    ),
)

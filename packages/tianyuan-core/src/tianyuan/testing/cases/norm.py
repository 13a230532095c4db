"""Calls of the normalisations: ranks 2 to 5, odd extents, and inputs far from zero."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.norm import Eps, GroupNorm, LayerNorm
from . import FLOATS, Case, Invalid, Source, real, spec

Shape = tuple[int, ...]
BATCHED: tuple[Shape, ...] = (
    (4, 3), (5, 17), (2, 3, 7), (2, 5, 9, 7), (3, 19, 4, 4), (1, 32, 6, 6), (2, 3, 2, 3, 4),
)  # fmt: skip
SOME = ((5, 17), (2, 5, 9, 7))
SMALL = ((4, 2), (3, 2, 2, 3))


def _vectors(count: int, shape: Shape, dtype: str) -> tuple[Source, ...]:
    return tuple(real(shape, dtype) for _ in range(count))


def _reduced(shape: Shape, dtype: str) -> tuple[int, float]:
    """Return the length of a channel's sum, and how many units its rounding may cost."""
    length = 1
    for axis, extent in enumerate(shape):
        length *= extent if axis != 1 else 1
    # 16-bit decompositions round after each op, kernels once.
    return length + 8, 256.0 if dtype in ("float16", "bfloat16") else 64.0


def _batch() -> Iterator[Case]:
    for dtype in FLOATS:
        for shape in (*BATCHED, (0, 3, 2, 2), (2, 67, 3, 0)) if dtype == "float32" else SOME:
            length, ulps = _reduced(shape, dtype)
            channels = shape[1:2]
            x, g = real(shape, dtype), real(shape, dtype)
            var = real(channels, dtype, 0.5, 2)
            mean, weight, bias = _vectors(3, channels, dtype)
            yield Case("batch_norm", (x, mean, var, weight, bias), Eps(), magnitude=4, ulps=ulps)
            if not shape[0]:
                continue
            yield Case(
                "batch_norm_train", (x, weight, bias), Eps(), length=length, magnitude=4, ulps=ulps
            )
            yield Case(
                "batch_norm_backward",
                (x, weight, mean, var, g),
                Eps(),
                length=length,
                magnitude=16,
                ulps=ulps,
            )
    for shape in SMALL:
        channels = shape[1:2]
        x, g = real(shape, "float64"), real(shape, "float64")
        var = real(channels, "float64", 0.5, 2)
        mean, weight, bias = _vectors(3, channels, "float64")
        yield Case("batch_norm", (x, mean, var, weight, bias), Eps(), grad=(0, 1, 2, 3, 4))
        yield Case("batch_norm_train", (x, weight, bias), Eps(1e-3), grad=(0, 1, 2))
        yield Case("batch_norm_backward", (x, weight, mean, var, g), Eps(), grad=(0, 1, 2, 3, 4))
    # A mean that is large against the deviation must not cancel.
    far = real((4, 3, 5, 5), "float32", 99, 101)
    yield Case("batch_norm_train", (far, *_vectors(2, (3,), "float32")), Eps(), 8, 4, ulps=256)


def _layer() -> Iterator[Case]:
    for dtype in FLOATS:
        ulps = _reduced((1,), dtype)[1]
        for shape in (*BATCHED, (1, 1030), (0, 4)) if dtype == "float32" else SOME:
            for ndim in range(1, len(shape)):
                inner = shape[-ndim:]
                length = 8
                for extent in inner:
                    length *= max(extent, 1)
                x, g = real(shape, dtype), real(shape, dtype)
                weight, bias = _vectors(2, inner, dtype)
                for affine in (True, False):
                    attrs = LayerNorm(ndim, 1e-5, affine)
                    given = (weight, bias) if affine else ()
                    yield Case(
                        "layer_norm", (x, *given), attrs, length=length, magnitude=4, ulps=ulps
                    )
                    yield Case(
                        "layer_norm_backward",
                        (x, g, *given[:1]),
                        attrs,
                        length=length * max(1, shape[0]),
                        magnitude=16,
                        ulps=ulps,
                    )
    for shape, ndim in (((3, 4), 1), ((2, 3, 2), 2), ((4,), 1)):
        weight, bias = _vectors(2, shape[-ndim:], "float64")
        x, g = real(shape, "float64"), real(shape, "float64")
        for affine in (True, False):
            attrs = LayerNorm(ndim, 1e-3, affine)
            given = (weight, bias) if affine else ()
            every = (0, 1, 2) if affine else (0,)
            yield Case("layer_norm", (x, *given), attrs, grad=every)
            back = (0, 1, 2) if affine else (0, 1)
            yield Case("layer_norm_backward", (x, g, *given[:1]), attrs, grad=back)
    far = real((3, 33), "float32", 99, 101)
    yield Case("layer_norm", (far,), LayerNorm(1, 1e-5, False), 8, 4, ulps=256)


def _group() -> Iterator[Case]:
    places = (((2, 6, 5, 3), 3), ((3, 4), 2), ((1, 32, 7, 7), 8), ((2, 5, 9), 1), ((2, 5, 3, 3), 5),
              ((0, 4, 2, 2), 2))  # fmt: skip
    for dtype in FLOATS:
        ulps = _reduced((1,), dtype)[1]
        for shape, groups in places if dtype == "float32" else places[:1]:
            x, vectors = real(shape, dtype), _vectors(2, shape[1:2], dtype)
            length = 8
            for extent in shape[1:]:
                length *= extent
            attrs = GroupNorm(groups, 1e-5)
            yield Case("group_norm", (x, *vectors), attrs, length=length, magnitude=4, ulps=ulps)
    for shape, groups in (((2, 4, 2, 2), 2), ((1, 2, 3), 1)):
        inputs = (real(shape, "float64"), *_vectors(2, shape[1:2], "float64"))
        yield Case("group_norm", inputs, GroupNorm(groups, 1e-3), grad=(0, 1, 2))


CASES: tuple[Case, ...] = (*_batch(), *_layer(), *_group())

_X, _C = spec((2, 4, 3)), spec((4,))
_INT, _INTC = spec((2, 4, 3), "int32"), spec((4,), "int32")
_COUNTS = (
    ("batch_norm", 4, Eps()),
    ("batch_norm_train", 2, Eps()),
    ("group_norm", 2, GroupNorm(2)),
)
INVALID: tuple[Invalid, ...] = (
    *(
        case
        for name, count, attrs in _COUNTS
        for case in (
            Invalid(name, (_X, *(spec((3,)),) * count), ShapeError, "has the wrong shape", attrs),
            Invalid(name, (_INT, *(_INTC,) * count), DTypeError, "must be floating", attrs),
            Invalid(name, (_X, *(spec((4,), "float64"),) * count), DTypeError, "one dtype", attrs),
            Invalid(name, (_C, *(_C,) * count), ShapeError, "at least 2 dimensions", attrs),
        )
    ),
    Invalid(
        "batch_norm_backward", (_X, _C, _C, _C, spec((2, 4, 2))), ShapeError, "gradient has", Eps()
    ),
    Invalid("batch_norm_backward", (_X, spec((3,)), _C, _C, _X), ShapeError, "weight has", Eps()),
    Invalid("layer_norm", (_X,), AttrError, "ndim is out of range", LayerNorm(4, 1e-5, False)),
    Invalid("layer_norm", (_X,), AttrError, "ndim is out of range", LayerNorm(0, 1e-5, False)),
    Invalid("layer_norm", (_X,), AttrError, "number of inputs", LayerNorm(1, 1e-5, True)),
    Invalid("layer_norm", (_X, _C, _C), ShapeError, "weight has", LayerNorm(1, 1e-5, True)),
    Invalid("layer_norm", (_INT,), DTypeError, "must be floating", LayerNorm(1, 1e-5, False)),
    Invalid("layer_norm_backward", (_X, _C), ShapeError, "gradient has", LayerNorm(1, 1e-5, False)),
    Invalid(
        "layer_norm_backward", (_X, _X, _C), ShapeError, "weight has", LayerNorm(1, 1e-5, True)
    ),
    Invalid(
        "layer_norm_backward", (_X, _X), AttrError, "number of inputs", LayerNorm(1, 1e-5, True)
    ),
    *(
        Invalid("group_norm", (_X, _C, _C), AttrError, "must divide", GroupNorm(groups))
        for groups in (3, 0)
    ),
)

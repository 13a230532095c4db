"""Calls of linear maps with stored integer weights: odd extents, short groups, one row, no row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.quantized_linear import LinearDynamic, LinearInt4
from . import Case, Invalid, fixed, real, spec
from .quantized import stored

Shape = tuple[int, ...]


def _dynamic(x: Shape, outputs: int, bias: bool) -> Case:
    inputs = [real(x), stored((outputs, x[-1])), real((outputs,), low=0.001, high=0.02)]
    inputs += [real((outputs,))] if bias else []
    return Case("linear_dynamic", tuple(inputs), LinearDynamic(bias), length=x[-1], exact=True)


def _int4(x: Shape, outputs: int, group: int, bias: bool) -> Case:
    inner = x[-1]
    inputs = [real(x), stored((outputs, -(-inner // 2)), "uint8")]
    inputs += [real((outputs, -(-inner // group)), low=0.01, high=0.1)]
    inputs += [real((outputs,))] if bias else []
    return Case(
        "linear_int4", tuple(inputs), LinearInt4(group, bias), length=inner, magnitude=2.0
    )  # fmt: skip


def _cases() -> Iterator[Case]:
    for bias in (False, True):
        yield _dynamic((7, 65), 37, bias)
        yield _dynamic((2, 3, 32), 16, bias)
        yield _int4((5, 64), 48, 32, bias)
        yield _int4((2, 3, 33), 7, 8, bias)
    yield _dynamic((3, 4096), 5, True)
    yield _dynamic((16,), 4, True)
    yield _dynamic((0, 8), 4, True)
    yield _dynamic((3, 0), 17, True)
    yield _int4((1, 1000), 64, 128, True)
    yield _int4((16,), 4, 16, False)
    yield _int4((0, 8), 4, 4, False)
    yield _int4((3, 8), 0, 4, False)
    odds = (
        [0.0, 0.0],
        [1e-42, 3.0],
        [np.nan, 1.0],
        [1.0, np.nan],
        [np.inf, 1.0],
        [-np.inf, 1.0],
        [-1.0, -3.0],
        [2.0, 5.0],
        [3e38, -3e38],
        [1e-44, -1e-43],
        [-1.0, 254.0],
        [-0.5, 127.0],
    )
    for odd in ([row] for row in odds):
        inputs = (fixed(odd), fixed([[3, -5]], "int8"), fixed([0.5]))
        yield Case("linear_dynamic", inputs, LinearDynamic(), exact=True)


CASES: tuple[Case, ...] = tuple(_cases())

_X, _W, _S = spec((3, 8)), spec((4, 8), "int8"), spec((4,))
_PACKED, _GROUPS = spec((4, 4), "uint8"), spec((4, 2))
INVALID: tuple[Invalid, ...] = (
    Invalid("linear_dynamic", (_X, _W, _S), AttrError, "wrong number of inputs",
            LinearDynamic(True)),
    Invalid("linear_dynamic", (spec((3, 8), "int8"), _W, _S), DTypeError, "input has the wrong",
            LinearDynamic()),
    Invalid("linear_dynamic", (_X, _PACKED, _S), DTypeError, "weight has the wrong dtype",
            LinearDynamic()),
    Invalid("linear_dynamic", (_X, spec((4, 7), "int8"), _S), ShapeError, "weight has the wrong",
            LinearDynamic()),
    Invalid("linear_dynamic", (_X, _W, spec((5,))), ShapeError, "scales has the wrong shape",
            LinearDynamic()),
    Invalid("linear_dynamic", (_X, spec((8,), "int8"), _S), ShapeError, "ranks are wrong",
            LinearDynamic()),
    Invalid("linear_dynamic", (spec((1, 200_000)), spec((4, 200_000), "int8"), _S), ShapeError,
            "too long for an int32 accumulator", LinearDynamic()),
    Invalid("linear_int4", (_X, _PACKED, _GROUPS), AttrError, "group is too small",
            LinearInt4(0)),
    Invalid("linear_int4", (_X, _PACKED, _GROUPS), ShapeError, "scales has the wrong shape",
            LinearInt4(8)),
    Invalid("linear_int4", (_X, _PACKED, _GROUPS, spec((3,))), ShapeError, "bias has the wrong",
            LinearInt4(4, True)),
    Invalid("linear_int4", (_X, spec((4, 8), "uint8"), _GROUPS), ShapeError,
            "weight has the wrong shape", LinearInt4(4)),
)  # fmt: skip

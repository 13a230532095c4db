"""Calls of the random ops: odd counts, skipped blocks, seeds and offsets beyond 32 bits."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.attrs import RandomFill
from . import FLOATS, Case, Invalid, fixed, spec

STATES = ([0, 0], [1234567, 5], [-1, -2], [0x1234567890ABCDEF, 0xFFFFFFFF], [7, 2**62])


def _cases() -> Iterator[Case]:
    for state in STATES:
        for shape in ((), (1,), (7,), (3, 11), (0, 2), (130,)):
            for skip in (0, 9):
                source = fixed(state, "int64")
                bits = RandomFill(shape, "uint32", skip)
                yield Case("philox_bits", (source,), bits, exact=True)
                for dtype in FLOATS:
                    attrs = RandomFill(shape, dtype, skip)
                    yield Case("philox_uniform", (source,), attrs, exact=True)
                    yield Case("philox_normal", (source,), attrs)


CASES: tuple[Case, ...] = tuple(_cases())

_state = spec((2,), "int64")
INVALID: tuple[Invalid, ...] = (
    Invalid("philox_bits", (_state,), DTypeError, "expected uint32", RandomFill((2,), "int32")),
    *(
        Invalid(name, (_state,), DTypeError, "expected a float", RandomFill((2,), "int32"))
        for name in ("philox_uniform", "philox_normal")
    ),
    *(
        Invalid(name, (spec((2,), "int32"),), DTypeError, "state", RandomFill((2,), "float32"))
        for name in ("philox_uniform", "philox_normal")
    ),
    Invalid(
        "philox_uniform", (spec((), "int64"),), ShapeError, "rank", RandomFill((2,), "float32")
    ),
    Invalid("philox_normal", (_state,), AttrError, "negative", RandomFill((2,), "float32", -1)),
)

"""Calls of fused elementwise programs: every opcode, constants, broadcasting, several outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.attrs import FusedElementwise
from ...ops.codes import ELEMENTWISE, ELEMENTWISE_CODES
from . import LARGE, Case, Invalid, Source, flags, real, spec, whole

_FIRST_BINARY = ELEMENTWISE_CODES["add"]
_INTEGER_ONLY = ("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift",
                 "right_shift")  # fmt: skip


def program(
    *lines: tuple[str, int, int, int], constants: Sequence[float] = (), outputs: Sequence[int]
) -> FusedElementwise:
    """Return the attributes of a program given as lines of op name and registers."""
    code = [n for name, *registers in lines for n in (ELEMENTWISE_CODES[name], *registers)]
    return FusedElementwise(tuple(code), tuple(constants), tuple(outputs))


def _each_op() -> Iterator[Case]:
    """Run every op between an addition before and a multiplication behind it."""
    for name in ELEMENTWISE:
        if name in _INTEGER_ONLY or name in ("isnan", "isinf", "logical_not", "where"):
            continue
        narrow = name in ("asin", "acos", "atanh", "acosh")
        x = real((3, 37), "float32", 0.2, 0.8)
        y = real((3, 37), "float32", 0.2, 0.8)
        start = ("add", 0, 2, 0)  # acosh needs at least 1, the others at most 1
        shift = 1.0 if name == "acosh" else 0.1 if narrow else 0.5
        if ELEMENTWISE_CODES[name] < _FIRST_BINARY:
            lines = (start, (name, 3, 0, 0), ("mul", 4, 1, 0))
        elif _gives_bool(name):
            lines = (start, (name, 3, 1, 0), ("where", 4, 3, 1))
        else:
            lines = (start, (name, 3, 1, 0), ("mul", 4, 1, 0))
        yield Case(
            "fused_elementwise", (x, y), program(*lines, constants=(shift,), outputs=(5,)), ulps=24
        )


def _gives_bool(name: str) -> bool:
    return name.startswith(("equal", "not_equal", "less", "greater", "logical"))


def _chains() -> Iterator[Case]:
    silu = program(("sigmoid", 0, 0, 0), ("mul", 0, 2, 0), ("add", 3, 1, 0), outputs=(4,))
    scaled = program(
        ("mul", 0, 2, 0), ("add", 4, 1, 0), ("maximum", 5, 3, 0), constants=(0.5, 0.0), outputs=(6,)
    )
    both = program(("add", 0, 1, 0), ("relu", 2, 0, 0), outputs=(3, 2))
    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((33,), (33,)), ((3, 5, 17), (3, 5, 17)), ((4, 67), (67,)), ((2, 16, 9), (16, 1)),
        ((0, 3), (0, 3)), ((), ()), ((1,), (1,)), ((40000,), (40000,)), (LARGE, LARGE),
        ((7, 9), ()), ((2, 19, 3, 4), (2, 19, 3, 4)),
    )  # fmt: skip
    for a, b in pairs:
        for attrs in (silu, scaled, both):
            for dtype in (
                ("float32",) if len(a) > 2 else ("float32", "float16", "bfloat16", "float64")
            ):
                inputs: tuple[Source, ...] = (real(a, dtype), real(b, dtype))
                yield Case("fused_elementwise", inputs, attrs, ulps=24)
    bits = program(("bitwise_and", 0, 1, 0), ("left_shift", 2, 1, 0), outputs=(3,))
    small = (whole((41,), "int32", 0, 7), whole((41,), "int32", 0, 7))
    yield Case("fused_elementwise", small, bits, exact=True)
    choice = program(("logical_not", 0, 0, 0), ("where", 3, 1, 2), outputs=(4,))
    inputs = (flags((5, 9)), real((5, 9)), real((9,)))
    yield Case("fused_elementwise", inputs, choice, exact=True)
    untouched = program(("neg", 0, 0, 0), outputs=(1, 0))
    yield Case("fused_elementwise", (real((9,)),), untouched, exact=True)
    for attrs in (silu, scaled):
        inputs = (real((2, 3), "float64"), real((3,), "float64", 1.1, 2))
        yield Case("fused_elementwise", inputs, attrs, grad=(0, 1))


CASES: tuple[Case, ...] = (*_each_op(), *_chains())

_x = (spec((3,)), spec((3,)))
INVALID: tuple[Invalid, ...] = (
    Invalid("fused_elementwise", _x, AttrError, "cut short", FusedElementwise((39, 0), (), (0,))),
    Invalid(
        "fused_elementwise",
        _x,
        AttrError,
        "unknown opcode",
        FusedElementwise((999, 0, 0, 0), (), (0,)),
    ),
    Invalid(
        "fused_elementwise",
        _x,
        AttrError,
        "register is not set",
        program(("add", 0, 2, 0), outputs=(2,)),
    ),
    Invalid(
        "fused_elementwise",
        _x,
        AttrError,
        "register is not set",
        program(("neg", 0, 0, 0), outputs=(5,)),
    ),
    Invalid("fused_elementwise", _x, AttrError, "no output", program(("neg", 0, 0, 0), outputs=())),
    Invalid(
        "fused_elementwise",
        (spec((3,)), spec((2,))),
        ShapeError,
        "do not broadcast",
        program(("add", 0, 1, 0), outputs=(2,)),
    ),
    Invalid(
        "fused_elementwise",
        (spec((3,)), spec((3,), "int32")),
        DTypeError,
        "one dtype",
        program(("add", 0, 1, 0), outputs=(2,)),
    ),
)

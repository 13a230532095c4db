"""Calls of attention on heads in columns: packed and apart, gaps, masks, causal, odd tails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...errors import AttrError, DTypeError, ShapeError
from ...ops.attention_heads import AttentionHeads
from . import FLOATS, Case, Invalid, Source, flags, real, spec

# (queries, keys, attributes): heads side by side; keys, queries and values of a head together;
# one head; heads that share keys and values.
PLACES: tuple[tuple[int, int, AttentionHeads], ...] = (
    (5, 9, AttentionHeads(0.5, False, 3, 4, 2, (0, 0, 0), (4, 4, 2))),
    (17, 33, AttentionHeads(0.25, False, 2, 8, 17, (3, 16, 32), (8, 8, 17))),
    (6, 7, AttentionHeads(-0.7, False, 4, 5, 5, (5, 0, 10), (15, 15, 15))),
    (1, 300, AttentionHeads(0.5, False, 2, 3, 40, (0, 6, 12), (3, 3, 40))),
    (300, 270, AttentionHeads(0.25, False, 2, 16, 32, (0, 32, 64), (16, 16, 32))),
    (29, 31, AttentionHeads(0.5, False, 1, 6, 33, (1, 2, 3), (0, 0, 0))),
    (7, 11, AttentionHeads(0.5, False, 3, 4, 5, (0, 2, 6), (4, 0, 0))),
    (0, 4, AttentionHeads(0.5, False, 2, 3, 2, (0, 0, 0), (3, 3, 2))),
    (4, 0, AttentionHeads(0.5, False, 2, 3, 2, (0, 0, 0), (3, 3, 2))),
)
WIDE = 1024  # rows that lie multiples of 4 KiB apart


def _columns(attrs: AttentionHeads, spare: int = 1) -> list[int]:
    """Return how many columns each operand needs, with some behind."""
    given = zip(attrs.starts, attrs.steps, attrs.sizes, strict=True)
    return [start + (attrs.heads - 1) * step + size + spare for start, step, size in given]


def _case(
    rows: int,
    keys: int,
    attrs: AttentionHeads,
    mask: Source | None = None,
    dtype: str = "float32",
    leads: tuple[tuple[int, ...], ...] = ((2,), (2,), (2,)),
    columns: list[int] | None = None,
    grad: tuple[int, ...] = (),
) -> Case:
    extents = zip(leads, (rows, keys, keys), columns or _columns(attrs), strict=True)
    inputs = tuple(real((*lead, count, wide), dtype) for lead, count, wide in extents)
    inputs += () if mask is None else (mask,)
    length = attrs.depth + keys + 8
    return Case("attention_heads", inputs, attrs, length=length, magnitude=4, ulps=32, grad=grad)


def _cases() -> Iterator[Case]:
    for rows, keys, attrs in PLACES:
        heads, causal = attrs.heads, replace(attrs, causal=True)
        yield _case(rows, keys, attrs)
        yield _case(rows, keys, causal)
        yield _case(rows, keys, attrs, flags((rows, keys)))
        yield _case(rows, keys, attrs, real((2, 1, rows, keys), low=-9))
        yield _case(rows, keys, causal, real((heads, 1, keys), low=-9))
        yield _case(rows, keys, attrs, flags((2, heads, rows, keys)))
    rows, keys, attrs = PLACES[0]
    for dtype in FLOATS:
        yield _case(rows, keys, attrs, dtype=dtype)
        yield _case(rows, keys, attrs, real((1, keys), dtype), dtype)
    for leads in (((), (), ()), ((2, 3), (3,), ()), ((), (4,), (1,)), ((0,), (), ())):
        yield _case(rows, keys, attrs, leads=leads)
    for rows in (3, 40):
        yield _case(rows, 50, PLACES[4][2], columns=[WIDE, WIDE, WIDE])
    attrs = AttentionHeads(0.5, False, 2, 2, 3, (1, 0, 2), (2, 2, 3))
    for mask in (None, real((1, 3), "float64")):
        wanted = (0, 1, 2) if mask is None else (0, 1, 2, 3)
        yield _case(2, 3, attrs, mask, "float64", ((2,), (), ()), grad=wanted)


CASES: tuple[Case, ...] = tuple(_cases())

_PLAIN = AttentionHeads(1.0, False, 2, 3, 2, (0, 0, 0), (3, 3, 2))
_Q, _K, _V = spec((5, 6)), spec((4, 6)), spec((4, 4))
INVALID: tuple[Invalid, ...] = (
    Invalid("attention_heads", (_Q, _K, spec((4,))), ShapeError, "too few columns", _PLAIN),
    Invalid("attention_heads", (_Q, spec((4, 5)), _V), ShapeError, "too few columns", _PLAIN),
    Invalid("attention_heads", (_Q, _K, spec((3, 4))), ShapeError, "shapes do not fit", _PLAIN),
    Invalid("attention_heads", (_Q, _K, spec((4, 4), "float64")), DTypeError, "one dtype", _PLAIN),
    Invalid("attention_heads", (_Q, _K, _V, spec((4,), "bool")), ShapeError, "mask does", _PLAIN),
    Invalid(
        "attention_heads", (_Q, _K, _V, spec((3, 5, 4))), ShapeError, "do not broadcast", _PLAIN
    ),
    Invalid("attention_heads", (_Q, _K, _V), AttrError, "heads is", replace(_PLAIN, heads=0)),
    Invalid("attention_heads", (_Q, _K, _V), AttrError, "width is", replace(_PLAIN, width=0)),
    Invalid("attention_heads", (_Q, _K, _V), AttrError, "starts are", replace(_PLAIN, starts=(0,))),
    Invalid(
        "attention_heads", (_Q, _K, _V), AttrError, "steps are", replace(_PLAIN, steps=(3, -3, 2))
    ),
    Invalid(
        "attention_heads",
        (_Q, _K, _V),
        AttrError,
        "scale is no number",
        replace(_PLAIN, scale=float(np.nan)),
    ),
)

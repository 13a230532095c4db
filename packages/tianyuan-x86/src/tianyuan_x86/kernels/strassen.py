"""Describe the products by one level of Strassen's method: whom they serve, cost and error.

Seven products of quarters instead of eight, in Winograd's form with 15 sums of quarters (Strassen
1969, Winograd 1971). Weights lie as for ordinary products; sums of their panels are made on the
way, with AVX-512 while other products read one of the terms.

Rows of one matrix meet each other in sums of a. They may be of different samples, as in (sequence,
batch, columns), so blocks of rows where one holds a NaN or an infinity, or values more than 16
times those of the row that it meets, take eight ordinary products: a row errs by at most 16 times
the bound of its own largest result, whatever the others hold. Columns of b meet each other
unlooked at, as only weights are packed beforehand.

Where operands have two axes and lie as they are (`plain`), either may hold samples. There, pairs of
panels are packed when their turn comes, and those with columns of such a kind take ordinary
products. Rows, which differ as much as samples do where a is a gradient, are divided by powers of
two, and results multiplied by them, so that rows of any size meet, and a row of zeros gives zeros.

Largest error over largest magnitude against float64 on standard normal data, direct in brackets:
128 x 384 x 1536 1.6e-6 (7e-7), 128 x 1536 x 384 2.0e-6 (1.5e-6).
"""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from ._product import extents
from .matmul import BANDWIDTH, RATE, TILE_ROWS, oriented, panel_layout

_ROW_TILES, _TERMS = 24, 768  # rows in tiles and terms of a block (strassen.hpp)
_TOLERANCE = 5e-6
_STAGGER = 80  # floats between sums
# Seconds on one thread: for a value of b, of a, and of the result in each block of terms, to be
# summed and stored; and to begin a tile. Ratios to the direct product were measured for 16 to 256
# rows of 384 to 1536 terms and columns, with AVX-512 (AVX2): 1.01 (1.2) at 16 rows, 0.93 (1.0) at
# 32, 0.92 (0.98) at 64, 0.91 (0.93) at 128, 0.89 (0.92) at 256.
_B, _A, _C, _TILE = 9e-11, 8e-11, 1.5e-10, 1.2e-8
_RATE = 0.985  # of the direct product's, since quarters have shorter tiles
_HANDICAP = 1.02  # so much faster it must be for its larger error to be worth it


def _blocks(k: int) -> int:
    return -(-k // _TERMS)


def _extent_refusal(lanes: int, call: Call) -> str | None:
    _, m, n, k = extents(call)
    if m % 2 or k % 2 or k == 0 or n % (4 * lanes):
        return (
            f"serves even m and k, k above 0, and n in multiples of {4 * lanes}, "
            f"got {m}, {k} and {n}"
        )
    return None


def _plain_refusal(lanes: int, call: Call) -> str | None:
    if call.attrs.transpose_a or any(spec.ndim != 2 for spec in call.inputs[:2]):
        return "serves operands of 2 axes, the left one not transposed"
    _, m, _, _ = extents(call)
    most = _ROW_TILES * TILE_ROWS[lanes]
    if m > most:  # the right operand would be packed anew for each
        return f"serves one block of rows, {most} at most, got {m}"
    return _extent_refusal(lanes, call)


def _refusal(transposed: bool, lanes: int, call: Call) -> str | None:
    if call.attrs.transpose_a:
        return "serves a left operand that is not transposed"
    if call.inputs[0].ndim < 3:
        return f"serves a left operand of 3 axes or more, got {call.inputs[0].ndim}"
    return _extent_refusal(lanes, call) or oriented(transposed, call)


def _workspace(lanes: int, plain: bool, call: Call) -> int:
    _, m, _, k = extents(call)
    rows, panel = TILE_ROWS[lanes], 2 * lanes
    half, depth = min(m, _ROW_TILES * rows) // 2, min(k, _TERMS) // 2
    floats = half * (7 * depth + 2 * panel) + (rows + 4 * depth) * panel
    floats += 4 * depth * panel + 2 * half if plain else 0
    return 4 * (-(-floats // 16) * 16 + 13 * _STAGGER) * call.threads


def _cost(lanes: int, plain: bool, call: Call) -> float:
    batch, m, n, k = extents(call)
    rows, panel = TILE_ROWS[lanes], 2 * lanes
    chunks = batch * -(-m // (_ROW_TILES * rows))
    tiles = 7.0 * batch * -(-m // (2 * rows)) * n / (2 * panel) * _blocks(k)
    products = 1.75 * batch * m * n * k / (_RATE * RATE[lanes])
    sums = _B * chunks * n * k + _C * batch * m * n * _blocks(k) + _TILE * tiles
    threads = min(float(call.threads), chunks * n / (2.0 * panel)) or 1.0
    packed = 4.0 * n * k / BANDWIDTH if plain else 0.0
    return 5e-7 + _HANDICAP * ((products + sums) / threads + _A * batch * m * k) + packed


def kernels(tier: Tier) -> list[Kernel]:
    """Return the products of a tier: for constants as others pack them, and for plain operands."""
    found = []
    for op in ("matmul", "matmul_fused"):
        for variant, transposed in (("", False), ("_transposed", True), ("_plain", None)):
            plain = transposed is None
            right = PLAIN if plain else panel_layout(tier.lanes, bool(transposed))
            refusal = _plain_refusal if plain else partial(_refusal, bool(transposed))
            found.append(
                tier.kernel(
                    f"{op}_f32",
                    f"strassen_winograd{variant}",
                    op,
                    dtypes=("float32",),
                    layouts=Layouts((PLAIN, right, PLAIN), (PLAIN,)),
                    supports=partial(refusal, tier.lanes),
                    cost=partial(_cost, tier.lanes, plain),
                    workspace=partial(_workspace, tier.lanes, plain),
                    tolerance=_TOLERANCE,
                )
            )
    return found

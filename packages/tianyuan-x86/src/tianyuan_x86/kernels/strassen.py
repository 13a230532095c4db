"""Describe the products by one level of Strassen's method: whom they serve, cost and error.

Seven products of quarters instead of eight, in Winograd's form with 15 sums of quarters (Strassen
1969, Winograd 1971). Weights lie as for ordinary products; sums of their panels are made on the
way, with AVX-512 while other products read one of the terms.

Rows of one matrix meet each other in sums of a. They may be of different samples, as in (sequence,
batch, columns), so blocks of rows where one holds a NaN or an infinity, or values more than 16
times those of the row that it meets, take eight ordinary products: a row errs by at most 16 times
the bound of its own largest result, whatever the others hold. Columns of b meet each other
unlooked at. They are of samples where b is no weight, so operands of two axes are refused.

Largest error over largest magnitude against float64 on standard normal data, direct in brackets:
128 x 384 x 1536 1.6e-6 (7e-7), 128 x 1536 x 384 2.0e-6 (1.5e-6).
"""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from .matmul import RATE, TILE_ROWS, extents, oriented, panel_layout

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


def _refusal(lanes: int, transposed: bool, call: Call) -> str | None:
    if call.attrs.transpose_a:
        return "serves a left operand that is not transposed"
    if call.inputs[0].ndim < 3:
        return f"serves a left operand of 3 axes or more, got {call.inputs[0].ndim}"
    _, m, n, k = extents(call)
    if m % 2 or k % 2 or n % (4 * lanes):
        return f"serves even m and k and n in multiples of {4 * lanes}, got {m}, {k} and {n}"
    return oriented(transposed, call)


def _workspace(lanes: int, call: Call) -> int:
    _, m, _, k = extents(call)
    rows, panel = TILE_ROWS[lanes], 2 * lanes
    half, depth = min(m, _ROW_TILES * rows) // 2, min(k, _TERMS) // 2
    floats = half * (7 * depth + 2 * panel) + (rows + 4 * depth) * panel
    return 4 * (-(-floats // 16) * 16 + 11 * _STAGGER) * call.threads


def _cost(lanes: int, call: Call) -> float:
    batch, m, n, k = extents(call)
    rows, panel = TILE_ROWS[lanes], 2 * lanes
    chunks = batch * -(-m // (_ROW_TILES * rows))
    tiles = 7.0 * batch * -(-m // (2 * rows)) * n / (2 * panel) * _blocks(k)
    products = 1.75 * batch * m * n * k / (_RATE * RATE[lanes])
    sums = _B * chunks * n * k + _C * batch * m * n * _blocks(k) + _TILE * tiles
    threads = min(float(call.threads), chunks * n / (2.0 * panel)) or 1.0
    return 5e-7 + _HANDICAP * ((products + sums) / threads + _A * batch * m * k)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the products of a tier; they compete for constants with those of packed operands."""
    return [
        tier.kernel(
            f"{op}_f32",
            "strassen_winograd_transposed" if transposed else "strassen_winograd",
            op,
            dtypes=("float32",),
            layouts=Layouts((PLAIN, panel_layout(tier.lanes, transposed), PLAIN), (PLAIN,)),
            supports=partial(_refusal, tier.lanes, transposed),
            cost=partial(_cost, tier.lanes),
            workspace=partial(_workspace, tier.lanes),
            tolerance=_TOLERANCE,
        )
        for op in ("matmul", "matmul_fused")
        for transposed in (False, True)
    ]

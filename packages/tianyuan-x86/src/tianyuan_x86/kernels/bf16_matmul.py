"""Describe the matrix products that multiply in bfloat16 and sum in float32."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import BF16, PLAIN, Call, Kernel, Layouts

from .._tier import BF16_TIERS, PAIR_TIERS, Tier
from . import _bf16 as b16
from .matmul import extents, oriented

TIERS = PAIR_TIERS

_RATE = 1.9e11  # operations per second and thread
_BANDWIDTH = 4e10  # bytes per second
_PANEL = 32
_CHUNK = 126  # rows of a piece (ROW_CHUNK of bf16_matmul.cpp)
_STEP = 32  # terms that a tile of rows holds


def _rows(call: Call) -> int:
    batch, m, _, _ = extents(call)
    return batch * m


def _supports(transposed: bool, call: Call) -> str | None:
    if call.attrs.transpose_a:
        return "serves a left operand that is not transposed"
    if call.inputs[0].ndim < 2:
        return "serves a left operand of 2 axes or more"
    return oriented(transposed, call)


def _workspace(call: Call) -> int:
    _, _, _, k = extents(call)
    return _rows(call) * (-(-2 * k // 64) * 64 + 64)


def _multiplied(tier: Tier, call: Call) -> float:
    """Return the seconds of multiplication alone, on one thread."""
    _, _, n, k = extents(call)
    rows, columns = _rows(call), -(-n // _PANEL) * _PANEL
    if tier.name not in BF16_TIERS:
        pieces = -(-rows // _CHUNK)
        height = pieces * b16.height_of(-(-rows // pieces)) if pieces else 0
        return b16.tile_seconds(height, -(-k // _STEP), n, rows * n)
    return 2.0 * rows * columns * k / b16.vector_rate(tier, _RATE)


def _cost(tier: Tier, call: Call) -> float:
    _, _, n, k = extents(call)
    flops = 2.0 * _rows(call) * n * k
    moved = call.inputs[0].nbytes * 1.5 + call.outputs[0].nbytes + 2.0 * n * k
    threads = min(call.threads, max(1.0, flops / 4e5))
    return 5e-7 + (_multiplied(tier, call) + moved / _BANDWIDTH) / threads


def kernels(tier: Tier) -> list[Kernel]:
    """Return the products of a tier, whose right operands are constants in pairs."""
    return [
        tier.kernel(
            f"{op}_bf16",
            "packed_transposed" if transposed else "packed",
            op,
            dtypes=("float32",),
            layouts=Layouts((PLAIN, b16.MATRIX_TRANSPOSED if transposed else b16.MATRIX, PLAIN)),
            supports=partial(_supports, transposed),
            cost=partial(_cost, tier),
            workspace=_workspace,
            # GELU keeps what bfloat16 would; one row sums in another order than several.
            tolerance=b16.ROUNDING if op == "matmul_fused" else None,
            reproducible=False,
            precision=BF16,
        )
        for op in ("matmul", "matmul_fused")
        for transposed in (False, True)
    ]

"""Describe the matrix products that multiply in bfloat16 and sum in float32."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import BF16, PLAIN, Call, Kernel, Layouts

from .._tier import BF16_TIERS, Tier
from . import _bf16 as b16
from ._product import extents
from .matmul import oriented

_RATE = 1.9e11  # operations per second and thread
_BANDWIDTH = 4e10  # bytes per second
_PANEL = 32
_CHUNK = 126  # rows of a piece (ROW_CHUNK of bf16_matmul.cpp)


def _rows(call: Call) -> int:
    batch, m, _, _ = extents(call)
    return batch * m


def _supports(transposed: bool, call: Call) -> str | None:
    if call.attrs.transpose_a:
        return "serves a left operand that is not transposed"
    if call.inputs[0].ndim < 2:
        return "serves a left operand of 2 axes or more"
    return oriented(transposed, call)


def _keeps(left: str, result: str, transposed: bool, call: Call) -> str | None:
    """Refuse what rows of pairs, which products leave to each other, do not hold."""
    reason = _supports(transposed, call)
    if left == b16.ROWS:
        reason = reason or b16.holds(call.inputs[0])
    if result == b16.ROWS:
        reason = reason or b16.holds(call.outputs[0])
        if call.attrs.has_residual:
            reason = reason or "adds residuals in float32 only"
    return reason


def _workspace(call: Call) -> int:
    _, _, _, k = extents(call)
    return _rows(call) * (-(-2 * k // 64) * 64 + 64)


def _no_workspace(call: Call) -> int:
    return 0


def _multiplied(tier: Tier, call: Call) -> float:
    """Return the seconds of multiplication alone, on one thread."""
    _, _, n, k = extents(call)
    rows, columns = _rows(call), -(-n // _PANEL) * _PANEL
    if tier.name not in BF16_TIERS:
        pieces = -(-rows // _CHUNK)
        height = pieces * b16.height_of(-(-rows // pieces)) if pieces else 0
        return b16.tile_seconds(height, -(-k // b16.STEP), n, rows * n)
    return 2.0 * rows * columns * k / b16.vector_rate(tier, _RATE)


def _cost(tier: Tier, left: str, result: str, call: Call) -> float:
    _, _, n, k = extents(call)
    flops = 2.0 * _rows(call) * n * k
    # A left operand in float32 is read and rounded first.
    moved = call.inputs[0].nbytes * (0.5 if left == b16.ROWS else 1.5) + 2.0 * n * k
    moved += call.outputs[0].nbytes * (0.5 if result == b16.ROWS else 1.0)
    threads = min(call.threads, max(1.0, flops / 4e5))
    return 5e-7 + (_multiplied(tier, call) + moved / _BANDWIDTH) / threads


# Variants by the layouts of the left operand and the result.
_KEPT = {
    (b16.ROWS, PLAIN): "_from_kept",
    (PLAIN, b16.ROWS): "_to_kept",
    (b16.ROWS, b16.ROWS): "_kept",
}


def kernels(tier: Tier) -> list[Kernel]:
    """Return the products of a tier, whose right operands are constants in pairs."""
    found = []
    for op, forms in (("matmul", ()), ("matmul_fused", tuple(_KEPT))):
        for transposed in (False, True):
            for left, result in ((PLAIN, PLAIN), *forms):
                suffix = _KEPT.get((left, result), "")
                weight = b16.MATRIX_TRANSPOSED if transposed else b16.MATRIX
                kernel = tier.kernel(
                    f"{op}_bf16",
                    f"packed{'_transposed' if transposed else ''}{suffix}",
                    op,
                    dtypes=("float32",),
                    layouts=Layouts((left, weight, PLAIN), (result,)),
                    supports=partial(_keeps, left, result, transposed)
                    if suffix
                    else partial(_supports, transposed),
                    cost=partial(_cost, tier, left, result),
                    workspace=_no_workspace if left == b16.ROWS else _workspace,
                    # GELU keeps what bfloat16 would; one row sums in another order than several.
                    tolerance=b16.ROUNDING if op == "matmul_fused" else None,
                    reproducible=False,
                    precision=BF16,
                )
                found.append(kernel)
    return found

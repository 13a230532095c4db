"""Describe the matrix products that multiply in bfloat16 and sum in float32."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import BF16, PLAIN, Call, Kernel, Layouts

from .._tier import BF16_TIERS, Tier
from . import _bf16 as b16
from .matmul import extents, oriented

TIERS = BF16_TIERS

_RATE = 1.9e11  # operations per second and thread
_BANDWIDTH = 4e10  # bytes per second
_PANEL = 32


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


def _cost(rate: float, call: Call) -> float:
    _, _, n, k = extents(call)
    rows, panels = _rows(call), -(-n // _PANEL)
    flops = 2.0 * rows * panels * _PANEL * k
    moved = call.inputs[0].nbytes * 1.5 + call.outputs[0].nbytes + 2.0 * n * k
    threads = min(call.threads, max(1.0, flops / 4e5))
    return 5e-7 + (flops / rate + moved / _BANDWIDTH) / threads


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
            cost=partial(_cost, b16.vector_rate(tier, _RATE)),
            workspace=_workspace,
            # GELU keeps what bfloat16 would; one row sums in another order than several.
            tolerance=b16.ROUNDING if op == "matmul_fused" else None,
            reproducible=False,
            precision=BF16,
        )
        for op in ("matmul", "matmul_fused")
        for transposed in (False, True)
    ]

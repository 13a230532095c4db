"""Describe the products of floats, made integers when they run, with weights of int8."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _int8 as q8

_RATE = {"avx2": 1.0e11, "vnni": 3.0e11}  # operations per second and thread
_BANDWIDTH, _PACKED, _CONVERTED = 2e10, 1e9, 5e9  # bytes per second
_OPERAND = {"avx2": 2, "vnni": 1, "amx": 1}  # bytes of a term of the first operand


def _extents(call: Call) -> tuple[int, int, int]:
    n, k = map(int, call.inputs[1].shape)
    return int(call.outputs[0].size) // max(n, 1), n, k


def _workspace(tier: str, packs: bool, call: Call) -> int:
    rows, n, k = _extents(call)
    k4 = -(-k // 4)
    size = 64 * call.threads + 3 * q8.table_bytes(n)
    size += q8.round_up(rows * q8.row_room(tier, k4) * _OPERAND[tier], 64)
    return size + (q8.packed_bytes(n, k4) if packs else 0)


def _cost(tier: str, packs: bool, call: Call) -> float:
    rows, n, k = _extents(call)
    flops = 2.0 * rows * q8.round_up(n, 16) * k
    threads = min(float(call.threads), max(1.0, flops / 1e6))
    if tier == "amx":
        seconds = q8.tile_seconds(rows, -(-k // 64), n, rows * n)
    else:
        seconds = flops / _RATE[tier]
    seconds += call.inputs[0].nbytes / _CONVERTED
    seconds += (call.inputs[1].nbytes + call.outputs[0].nbytes) / _BANDWIDTH
    return 5e-7 + seconds / threads + (n * k / _PACKED if packs else 0.0)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels of a tier."""
    return [
        tier.kernel(
            "linear_dynamic_q8",
            variant,
            "linear_dynamic",
            layouts=Layouts((PLAIN, form, PLAIN), (PLAIN,)),
            cost=partial(_cost, tier.name, packs),
            workspace=partial(_workspace, tier.name, packs),
        )
        for variant, form, packs in (
            ("packed", q8.MATRIX_TRANSPOSED, False),
            ("unpacked", PLAIN, True),
        )
    ]

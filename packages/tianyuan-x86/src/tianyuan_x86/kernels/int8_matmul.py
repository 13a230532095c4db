"""Describe the matrix products of 8-bit integers."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _int8 as q8
from ._product import extents

_RATE = {"avx2": 1.0e11, "vnni": 3.0e11}  # operations per second and thread
_BANDWIDTH, _PACKED = 2e10, 1e9  # bytes per second: read and written, packed
_OPERAND = {"avx2": 2, "vnni": 1, "amx": 1}  # bytes of a term of the first operand


def _workspace(tier: str, packs: bool, call: Call) -> int:
    batch, m, n, k = extents(call)
    rows, k4 = m if packs else m * batch, -(-k // 4)
    size = 3 * q8.table_bytes(n) + q8.round_up(4 * rows, 64)
    size += q8.round_up(rows * q8.row_room(tier, k4) * _OPERAND[tier], 64)
    return size + (q8.packed_bytes(n, k4) if packs else 0)


def _cost(tier: str, packs: bool, call: Call) -> float:
    batch, m, n, k = extents(call)
    flops = 2.0 * batch * m * q8.round_up(n, 16) * k
    threads = min(float(call.threads), max(1.0, flops / 1e6))
    moved = sum(spec.nbytes for spec in (*call.inputs, *call.outputs))
    if tier == "amx":
        products = batch if packs else 1
        rows = m * batch // products
        seconds = products * q8.tile_seconds(rows, -(-k // 64), n, rows * n) / threads
    else:
        seconds = flops / (_RATE[tier] * threads)
    seconds += moved / _BANDWIDTH
    if packs:
        seconds += batch * (5e-7 + n * k / _PACKED)
    return 5e-7 + seconds


def _packed_reason(wanted: bool, call: Call) -> str | None:
    weight = call.inputs[1]
    if weight.ndim != 2 or weight.dtype.name != "int8":
        return f"serves one matrix of int8 as second operand, got {weight}"
    if bool(call.attrs.transpose_b) == wanted:
        return None
    return f"serves a second operand that is {'' if wanted else 'not '}transposed"


def _accepts(call: Call) -> str | None:
    return None


def kernels(tier: Tier) -> list[Kernel]:
    """Return the matrix products of a tier."""
    found = []
    for variant, form, supports, packs in (
        ("packed", q8.MATRIX, partial(_packed_reason, False), False),
        ("packed_transposed", q8.MATRIX_TRANSPOSED, partial(_packed_reason, True), False),
        ("unpacked", PLAIN, _accepts, True),
    ):
        found.append(
            tier.kernel(
                "matmul_q8",
                variant,
                "matmul_quantized",
                layouts=Layouts((PLAIN, form, PLAIN), (PLAIN,)),
                supports=supports,
                cost=partial(_cost, tier.name, packs),
                workspace=partial(_workspace, tier.name, packs),
            )
        )
    return found

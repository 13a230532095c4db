"""Describe the float32 matrix products: what they cost and the workspace they pack into."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tianyuan.kernel import Call, Kernel
from tianyuan.shapes import volume

from .._tier import Tier

# Extents of the blocks that matmul_impl.cpp packs, in k, rows and columns.
_BLOCK_K, _BLOCK_M_TILES, _BLOCK_N = 512, 12, 1024
_TILE_ROWS = {8: 6, 16: 14}
_RATE = {8: 8e10, 16: 9.5e10}  # floating-point operations per second and thread
_BANDWIDTH = 8e10  # bytes per second


def extents(call: Call) -> tuple[int, int, int, int]:
    """Return batch, rows, columns and inner extent of a product."""
    a, out = call.inputs[0].shape, call.outputs[0].shape
    inner = a[-2] if call.attrs.transpose_a else a[-1]
    return volume(out[:-2]), int(out[-2]), int(out[-1]), int(inner)


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def _workspace(lanes: int, call: Call) -> int:
    batch, m, n, k = extents(call)
    # Batch items that share b are multiplied as one product with all their rows.
    rows = min(m * batch, _BLOCK_M_TILES * _TILE_ROWS[lanes])
    cols = min(_round_up(n, 2 * lanes), _BLOCK_N)
    floats = _round_up((rows + cols) * min(k, _BLOCK_K), 16) + 16
    return 4 * floats * call.threads


def _cost(lanes: int, call: Call) -> float:
    batch, m, n, k = extents(call)
    tile = 2 * lanes
    vector = m == 1 or n == 1
    # Lanes behind the last column cost as much as columns.
    padded = n if vector else _round_up(n, lanes if n <= lanes else tile)
    flops = 2.0 * batch * m * padded * k
    moved = sum(spec.nbytes for spec in (*call.inputs, *call.outputs))
    packed = 0 if vector else 4.0 * batch * k * (m + n)
    threads = min(call.threads, max(1.0, flops / 4e5))
    return 3e-7 + flops / (_RATE[lanes] * threads) + (moved + packed) / _BANDWIDTH


def _describe(tier: Tier, family: str, op: str) -> Kernel:
    workspace: Callable[[Call], int] = partial(_workspace, tier.lanes)
    cost: Callable[[Call], float] = partial(_cost, tier.lanes)
    return tier.kernel(family, "tiled", op, dtypes=("float32",), cost=cost, workspace=workspace)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the matrix products of a tier."""
    return [
        _describe(tier, "matmul_f32", "matmul"),
        _describe(tier, "matmul_fused_f32", "matmul_fused"),
    ]

"""Describe the float32 attention that never holds the matrix of scores, and its gradient.

Its error is that of sums of E and of S terms in float32, whatever the threads: 1e-6 of the largest
value at 512 keys. With 128 and 512 queries and keys of 64 elements it ran at 84 % of the measured
AVX-512 peak of one thread (118 GFLOP/s), exponentials included, and at 72 % of the AVX2 peak; up to
4 queries it is bound by reading keys and values. Heads in columns take the time of heads apart.
"""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import Call, Kernel
from tianyuan.shapes import volume

from .._tier import Tier
from ._cost import START
from .matmul import product_floats

# Keys of a block, rows of a tile and the most tiles of a piece, as in native/kernels/attention.cpp.
_KEYS = 256
_TILE_ROWS, _TILES = {8: 6, 16: 14}, {8: 24, 16: 12}
_RATE = {8: 7e10, 16: 9e10}  # floating-point operations per second and thread, in both products
_WEIGHT_SECONDS = {8: 1.2e-9, 16: 7e-10}  # for the exponential of one score
_BANDWIDTH = 4e10  # bytes per second of packing
_BACK_ROWS, _BACK_KEYS = 168, 256  # of a block, as in native/kernels/attention_backward.cpp


def round_up(value: int, to: int) -> int:
    """Return the least multiple of ``to`` that is not below ``value``."""
    return -(-value // to) * to


def extents(call: Call) -> tuple[int, int, int, int, int]:
    """Return batch, heads included, queries, keys, and the extents of keys and values."""
    if call.op.name == "attention_heads":
        *lead, rows, _ = call.outputs[0].shape
        attrs = call.attrs
        batch, keys = volume(lead) * attrs.heads, int(call.inputs[1].shape[-2])
        return batch, int(rows), keys, attrs.depth, attrs.width
    out, (keys, depth) = call.outputs[0].shape, call.inputs[1].shape[-2:]
    return volume(out[:-2]), int(out[-2]), int(keys), int(depth), int(out[-1])


def _workspace(lanes: int, call: Call) -> int:
    _, rows, keys, depth, width = extents(call)
    tile, panel = _TILE_ROWS[lanes], 2 * lanes
    rows = min(rows, tile * _TILES[lanes])
    keys = min(round_up(keys, panel), _KEYS)
    tail = panel if width % panel else 0
    floats = keys * (depth + tail + tile) + rows * round_up(width, panel)
    floats += 2 * lanes * -(-rows // tile) + tile * depth
    return 4 * round_up(floats, 16) * call.threads


def _cost(lanes: int, call: Call) -> float:
    batch, rows, keys, depth, width = extents(call)
    scores = float(batch) * rows * round_up(keys, 2 * lanes)
    scores *= 0.55 if call.attrs.causal and rows > 1 else 1.0
    flops = 2.0 * scores * (depth + width)
    packed = 8.0 * batch * keys * depth * -(-rows // (_TILE_ROWS[lanes] * _TILES[lanes]))
    threads = min(call.threads, max(1.0, flops / 4e5))
    work = flops / _RATE[lanes] + scores * _WEIGHT_SECONDS[lanes] + packed / _BANDWIDTH
    return START + work / threads


def _backward_workspace(lanes: int, call: Call) -> int:
    (rows, depth), width = call.inputs[0].shape[-2:], int(call.inputs[2].shape[-1])
    height, keys, depth = _BACK_ROWS, _BACK_KEYS, int(depth)
    products = (
        (height, keys, depth),
        (height, keys, width),
        (keys, width, height),
        (height, depth, keys),
        (keys, depth, height),
    )
    packed = max(product_floats(lanes, *extents) for extents in products)
    floats = 2 * height * keys + 3 * round_up(int(rows), 16) + round_up(packed, 16)
    return 4 * floats * call.threads


def _backward_cost(lanes: int, call: Call) -> float:
    batch, rows, depth = volume(call.outputs[0].shape[:-2]), *map(int, call.inputs[0].shape[-2:])
    keys, width = map(int, call.inputs[2].shape[-2:])
    scores = float(batch) * rows * keys * (0.55 if call.attrs.causal and rows > 1 else 1.0)
    again = 2.0 if keys > _BACK_KEYS else 1.0
    flops = 2.0 * scores * (depth * (again + 2.0) + 2.0 * width)
    threads = min(call.threads, max(1.0, float(batch)))
    work = flops / (0.75 * _RATE[lanes]) + 2.0 * scores * _WEIGHT_SECONDS[lanes]
    return START + work / threads


def kernels(tier: Tier) -> list[Kernel]:
    """Return the streaming attention of a tier and its gradient."""
    return [
        *(
            tier.kernel(
                f"{op}_f32",
                "streaming",
                op,
                dtypes=("float32", "float32", "float32", "float32|bool"),
                workspace=partial(_workspace, tier.lanes),
                cost=partial(_cost, tier.lanes),
            )
            for op in ("attention", "attention_heads")
        ),
        tier.kernel(
            "attention_backward_f32",
            "streaming",
            "attention_backward",
            dtypes=(*("float32",) * 5, "float32|bool"),
            workspace=partial(_backward_workspace, tier.lanes),
            cost=partial(_backward_cost, tier.lanes),
        ),
    ]

"""Describe the attention whose products are taken in bfloat16, softmax and sums in float32."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import BF16, PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _bf16 as b16
from ._cost import START
from .attention import extents, round_up

_PANEL, _TILE_ROWS = 32, 14
_MOST_KEYS = 2048  # a tile's scores of so many keys take 112 KiB
_FEW_ROWS = 8  # fewer queries do not pay for packing the keys
_RATE = 1.8e11  # floating-point operations per second and thread, in both products
_WEIGHT_SECONDS = 1.5e-10  # for the exponential of one score
_BANDWIDTH = 3e10  # bytes per second of packing


def _supports(call: Call) -> str | None:
    _, rows, keys, depth, _ = extents(call)
    if call.attrs.causal:
        return "serves masks that are added, got causal attention"
    if rows < _FEW_ROWS or not 0 < keys <= _MOST_KEYS or depth == 0:
        return (
            f"serves at least {_FEW_ROWS} queries and at most {_MOST_KEYS} keys, "
            f"got {rows} and {keys}"
        )
    return None


def _supports_kept(call: Call) -> str | None:
    reason, attrs = _supports(call), call.attrs
    for spec in (*call.inputs[:3], *call.outputs):
        reason = reason or b16.holds(spec)
    if attrs.depth % 2:
        reason = reason or f"serves an even depth, got {attrs.depth}"
    return reason


def _row_bytes(values: int) -> int:
    return round_up(2 * values, 64) + 64


def _workspace(call: Call) -> int:
    _, rows, keys, depth, width = extents(call)
    padded = round_up(keys, _PANEL)
    columns = round_up(width, _PANEL)
    words = padded * -(-depth // 2) + columns * -(-keys // 2) + _TILE_ROWS * max(padded, columns)
    room = rows * _row_bytes(depth) + 4 * words + _TILE_ROWS * _row_bytes(padded)
    return round_up(room, 64) * call.threads


def _cost(rate: float, value: int, call: Call) -> float:
    batch, rows, keys, depth, width = extents(call)
    scores = float(batch) * rows * round_up(keys, _PANEL)
    flops = 2.0 * scores * (depth + width)
    moved = (2.0 + value) * batch * (rows * (depth + width) + keys * (depth + width))
    threads = min(call.threads, max(1.0, flops / 4e5))
    return START + (flops / rate + scores * _WEIGHT_SECONDS + moved / _BANDWIDTH) / threads


def kernels(tier: Tier) -> list[Kernel]:
    """Return the attention of a tier that holds a tile's scores of all keys."""
    rows = Layouts((b16.ROWS, b16.ROWS, b16.ROWS, PLAIN), (b16.ROWS,))
    return [
        tier.kernel(
            f"{op}_bf16",
            variant,
            op,
            dtypes=("float32",),
            layouts=layouts,
            supports=supports,
            workspace=_workspace,
            cost=partial(_cost, b16.vector_rate(tier, _RATE), value),
            tolerance=2 * b16.ROUNDING,
            precision=BF16,
        )
        for op, variant, layouts, supports, value in (
            ("attention", "whole", Layouts(), _supports, 4),
            ("attention_heads", "whole", Layouts(), _supports, 4),
            ("attention_heads", "whole_kept", rows, _supports_kept, 2),
        )
    ]

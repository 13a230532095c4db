"""Describe what stands between convolutions in bfloat16: pooling, channels, elementwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tianyuan.kernel import BF16, PLAIN, Call, Kernel, Layouts

from .._tier import BF16_TIERS, Tier
from . import _bf16 as b16
from . import channels, pool
from ._cost import START, memory_cost

TIERS = BF16_TIERS

Reason = Callable[[Call], "str | None"]
Seconds = Callable[[Call], float]

_UNARY = {"relu": 0.01, "relu6": 0.01, "hswish": 0.1, "silu": 0.4, "tanh": 0.4, "gelu": 0.6}
_BINARY = ("add", "sub", "mul", "maximum", "minimum")


def _same_images(call: Call) -> str | None:
    shape = call.outputs[0].shape
    if len(shape) != 4 or any(spec.shape != shape for spec in call.inputs):
        return "serves images of one shape"
    return None


def _halved(cost: Seconds, call: Call) -> float:
    """Return a cost that is all memory traffic for values of half the size."""
    return START + 0.55 * (cost(call) - START)


def _element_cost(nanoseconds: float, call: Call) -> float:
    return _halved(memory_cost, call) + call.outputs[0].size * nanoseconds * 1e-9


def _between(tier: Tier, op: str, cost: Seconds, supports: Reason | None = None) -> Kernel:
    more: dict[str, Any] = {} if supports is None else {"supports": supports}
    return tier.kernel(
        f"{op}_bf16",
        "blocked",
        op,
        dtypes=("float32", "int32|int64") if op == "take" else ("float32",),
        layouts=Layouts((b16.IMAGE, PLAIN) if op == "take" else (b16.IMAGE,), (b16.IMAGE,)),
        cost=cost,
        precision=BF16,
        tolerance=b16.ROUNDING,
        **more,
    )


def _to_plain(tier: Tier, op: str, variant: str, supports: Reason) -> Kernel:
    return tier.kernel(
        f"{op}_bf16",
        variant,
        op,
        dtypes=("float32",),
        layouts=Layouts((b16.IMAGE,), (PLAIN,)),
        supports=supports,
        cost=partial(_halved, pool.average_cost),
        precision=BF16,
        tolerance=b16.ROUNDING,
    )


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels of a tier that work on images in bfloat16."""
    window = partial(_halved, pool.window_cost(0.03))
    moved = partial(_halved, memory_cost)
    return [
        *(_between(tier, op, window) for op in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")),
        _to_plain(tier, "mean", "blocked_images", pool.averages_images),
        _to_plain(tier, "adaptive_avg_pool2d", "blocked_to_plain", pool.to_one_pixel),
        *(_between(tier, op, moved, reason) for op, reason in channels.REASONS.items()),
        *(
            _between(tier, op, partial(_element_cost, nanoseconds), _same_images)
            for op, nanoseconds in (*_UNARY.items(), *((op, 0.01) for op in _BINARY))
        ),
    ]

"""Describe the kernels of the optimisers' updates."""

from __future__ import annotations

from tianyuan.kernel import Kernel

from .._tier import Tier
from ._cost import element_cost


def kernels(tier: Tier) -> list[Kernel]:
    """Return the update kernels of a tier; new values may replace the old ones in place."""
    floats = ("float32",)
    return [
        tier.kernel(
            "sgd_update_f32",
            "simd",
            "sgd_update",
            dtypes=floats,
            cost=element_cost(0.05),
            inplace=((0, 0), (1, 3)),
        ),
        tier.kernel(
            "adam_update_f32",
            "simd",
            "adam_update",
            dtypes=floats,
            cost=element_cost(0.4),
            inplace=((0, 0), (1, 2), (2, 3)),
        ),
    ]

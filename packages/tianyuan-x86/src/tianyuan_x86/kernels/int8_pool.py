"""Describe the pooling of 8-bit images whose channels lie last."""

from __future__ import annotations

from tianyuan.kernel import Call, Kernel, Layouts
from tianyuan.shapes import volume

from .._tier import Tier
from . import _int8 as q8
from ._cost import memory_cost

_RATE = {"avx2": 4e9, "vnni": 8e9}  # window elements per second


def _cost(tier: Tier, call: Call) -> float:
    kernel = getattr(call.attrs, "kernel", None)
    window = volume(kernel) if kernel is not None else 1
    elements = max(int(call.outputs[0].size) * window, int(call.inputs[0].size))
    return memory_cost(call) + elements / _RATE[tier.name]


def kernels(tier: Tier) -> list[Kernel]:
    """Return the poolings of a tier."""
    return [
        tier.kernel(
            f"{op}_q8",
            "image",
            op,
            dtypes=(q8.FORMS,),
            layouts=Layouts((q8.IMAGE,), (q8.IMAGE,)),
            cost=lambda call: _cost(tier, call),
        )
        for op in ("max_pool2d", "avg_pool2d_quantized", "adaptive_avg_pool2d_quantized")
    ]

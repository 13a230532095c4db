"""Describe the kernel of cast, which serves every pair of dtypes but those with uint64."""

from __future__ import annotations

from tianyuan.kernel import SAME, Call, Kernel, Layouts

from .._tier import Tier
from ._cost import element_cost


def _supports(call: Call) -> str | None:
    if "uint64" in (call.inputs[0].dtype.name, call.outputs[0].dtype.name):
        return "uint64 is not served"
    return None


def kernels(tier: Tier) -> list[Kernel]:
    """Return the cast kernel of a tier."""
    flat = Layouts((SAME,), (SAME,))
    cost = element_cost(0.2)
    return [tier.kernel("cast_any", "loop", "cast", supports=_supports, layouts=flat, cost=cost)]

"""Describe the kernel of copy."""

from __future__ import annotations

from tianyuan.kernel import Call, Kernel, bytes_cost

from .._tier import Tier


def _cost(call: Call) -> float:
    return 3e-7 + bytes_cost(call, 2e10)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the copy kernel of a tier."""
    return [tier.kernel("copy_any", "memcpy", "copy", cost=_cost)]

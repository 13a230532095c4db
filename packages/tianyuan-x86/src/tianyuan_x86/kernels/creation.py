"""Describe the kernels that make values from attributes alone."""

from __future__ import annotations

from tianyuan.kernel import Call, Kernel

from .._tier import Tier
from ._cost import memory_cost

_RANGES = ("int32", "int64", "uint8", "float32", "float64")


def _fits_double(call: Call) -> str | None:
    """Refuse fills that a 64-bit integer could not hold exactly."""
    if call.outputs[0].dtype.name == "uint64":
        return "uint64 is not served"
    return None


def _arange(call: Call) -> str | None:
    name = call.outputs[0].dtype.name
    return None if name in _RANGES else f"serves {', '.join(_RANGES)}, not {name}"


def kernels(tier: Tier) -> list[Kernel]:
    """Return the creation kernels of a tier."""
    return [
        tier.kernel("full_any", "fill", "full", cost=memory_cost, supports=_fits_double),
        tier.kernel("arange_any", "loop", "arange", cost=memory_cost, supports=_arange),
        tier.kernel("eye_any", "fill", "eye", cost=memory_cost),
    ]

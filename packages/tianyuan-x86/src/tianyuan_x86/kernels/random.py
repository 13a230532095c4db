"""Describe the Philox kernels: bits, uniform and normal numbers."""

from __future__ import annotations

from collections.abc import Callable

from tianyuan.kernel import Call, Kernel

from .._tier import Tier
from ._cost import element_cost


def _gives(dtype: str) -> Callable[[Call], str | None]:
    def supports(call: Call) -> str | None:
        name = call.outputs[0].dtype.name
        return None if name == dtype else f"gives {dtype}, not {name}"

    return supports


def kernels(tier: Tier) -> list[Kernel]:
    """Return the random kernels of a tier."""
    served = (
        ("philox_bits", "u32", "uint32", 1.0),
        ("philox_uniform", "f32", "float32", 1.0),
        ("philox_uniform", "f64", "float64", 2.0),
        ("philox_normal", "f32", "float32", 25.0),
        ("philox_normal", "f64", "float64", 25.0),
    )
    return [
        tier.kernel(
            f"{op}_{suffix}",
            "lanes",
            op,
            supports=_gives(dtype),
            cost=element_cost(nanoseconds),
        )
        for op, suffix, dtype, nanoseconds in served
    ]

"""Describe the kernels of sort and topk."""

from __future__ import annotations

from tianyuan.kernel import Call, Kernel

from .._tier import Tier
from ._cost import element_cost


def _workspace(call: Call) -> int:
    """Return two lanes of packed keys per thread."""
    return max(1, call.threads) * 2 * int(call.inputs[0].shape[call.attrs.axis]) * 8


def _supports(call: Call) -> str | None:
    return None if call.inputs[0].size else "value is empty"


def kernels(tier: Tier) -> list[Kernel]:
    """Return the sorting kernels of a tier."""
    return [
        tier.kernel(
            f"{op}_{suffix}",
            "radix",
            op,
            dtypes=(dtype,),
            supports=_supports,
            cost=element_cost(12.0),
            workspace=_workspace,
        )
        for op in ("sort", "topk")
        for suffix, dtype in (("f32", "float32"), ("i32", "int32"))
    ]

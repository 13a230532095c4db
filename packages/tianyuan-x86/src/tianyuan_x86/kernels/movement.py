"""Describe the kernels that move values: they copy items and do not look at the dtype."""

from __future__ import annotations

from tianyuan.kernel import Call, Kernel

from .._tier import Tier
from ._cost import memory_cost

_OPS = (
    "reshape", "transpose", "broadcast_to", "concat", "pad", "slice", "slice_backward", "slice_set",
)  # fmt: skip


def _transpose_cost(call: Call) -> float:
    return 2.0 * memory_cost(call)


def _pad(call: Call) -> str | None:
    if call.attrs.mode != "constant" and not call.inputs[0].ndim:
        return "a scalar has no neighbours"
    return None


def _pad_backward(call: Call) -> str | None:
    if call.attrs.mode == "constant":
        return None
    if call.inputs[0].dtype.name != "float32" or not call.inputs[0].ndim:
        return "adds float32 only"
    return None


def kernels(tier: Tier) -> list[Kernel]:
    """Return the movement kernels of a tier."""
    found = []
    for op in (*_OPS, "pad_backward"):
        family, variant = f"{op}_any", "strided"
        if op == "transpose":
            kernel = tier.kernel(family, variant, op, cost=_transpose_cost)
        elif op == "pad":
            kernel = tier.kernel(family, variant, op, cost=memory_cost, supports=_pad)
        elif op == "pad_backward":
            kernel = tier.kernel(family, variant, op, cost=memory_cost, supports=_pad_backward)
        elif op == "slice_set":
            kernel = tier.kernel(family, variant, op, cost=memory_cost, inplace=((0, 0),))
        else:
            kernel = tier.kernel(family, variant, op, cost=memory_cost)
        found.append(kernel)
    return found

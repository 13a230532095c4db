"""Describe the kernels that move whole channels of blocked images."""

from __future__ import annotations

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from ._cost import memory_cost
from .layouts import activation_layout


def _channels(call: Call) -> str | None:
    return None if call.attrs.axis == 1 else f"moves along axis 1, got axis {call.attrs.axis}"


def _take(call: Call) -> str | None:
    if call.inputs[0].ndim != 4 or call.inputs[1].ndim != 1:
        return "serves images and indices of 1 axis"
    return _channels(call)


def _concat(call: Call) -> str | None:
    return "serves images" if call.inputs[0].ndim != 4 else _channels(call)


def _slice(call: Call) -> str | None:
    x, y = call.inputs[0], call.outputs[0]
    if x.ndim != 4:
        return "serves images"
    axes = (0, 2, 3)
    if any(x.shape[i] != y.shape[i] or call.attrs.steps[i] != 1 for i in axes):
        return "cuts along axis 1 only"
    return None


REASONS = {"take": _take, "concat": _concat, "slice": _slice}


def kernels(tier: Tier) -> list[Kernel]:
    """Return the channel kernels of a tier, which serve blocks of its own vector width."""
    blocked = activation_layout(tier.lanes)
    found = []
    for op, supports in REASONS.items():
        layouts = Layouts((blocked, PLAIN) if op == "take" else (blocked,), (blocked,))
        dtypes = ("float32", "int32|int64") if op == "take" else ("float32",)
        kernel = tier.kernel(
            f"{op}_f32",
            "channels",
            op,
            dtypes=dtypes,
            layouts=layouts,
            supports=supports,
            cost=memory_cost,
        )
        found.append(kernel)
    return found

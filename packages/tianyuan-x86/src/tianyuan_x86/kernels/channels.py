"""Describe the kernels that move whole channels of blocked images, in either element."""

from __future__ import annotations

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from ._cost import memory_cost
from ._element import element_of


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


_REASONS = {"take": _take, "concat": _concat, "slice": _slice}


def kernels(tier: Tier) -> list[Kernel]:
    """Return the channel kernels of a tier, which serve blocks of its own vector width."""
    element = element_of(tier)
    image, found = element.image, []
    for op, supports in _REASONS.items():
        kernel = tier.kernel(
            f"{op}_{element.name}",
            "blocked" if element.name == "bf16" else "channels",
            op,
            dtypes=("float32", "int32|int64") if op == "take" else ("float32",),
            layouts=Layouts((image, PLAIN) if op == "take" else (image,), (image,)),
            supports=supports,
            cost=element.moving(memory_cost),
            **element.described,
        )
        found.append(kernel)
    return found

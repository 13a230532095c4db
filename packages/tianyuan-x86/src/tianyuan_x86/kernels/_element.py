"""Know what the blocked images of a tier hold: float32, or bfloat16 in the tier of that name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tianyuan.kernel import BF16, Call
from tianyuan.records import record

from .._tier import BF16_TIERS, Tier
from . import _bf16 as b16
from ._cost import START
from .layouts import activation_layout

Seconds = Callable[[Call], float]


@record()
class Element:
    """An element's name in those of kernels, the layout of its images, and fields of Kernel."""

    name: str
    image: str
    described: Mapping[str, Any]

    def moving(self, cost: Seconds) -> Seconds:
        """Return a cost that is all memory traffic, given that of float32."""
        if self.name == "f32":
            return cost
        return lambda call: START + 0.55 * (cost(call) - START)


def element_of(tier: Tier) -> Element:
    """Return the element of a tier's blocked images."""
    if tier.name in BF16_TIERS:
        return Element("bf16", b16.IMAGE, {"tolerance": b16.ROUNDING, "precision": BF16})
    return Element("f32", activation_layout(tier.lanes), {})

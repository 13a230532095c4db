"""Describe the elementwise ops on images in bfloat16."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import Call, Kernel, Layouts

from .._tier import Tier
from ._cost import memory_cost
from ._element import Seconds, element_of

# Nanoseconds of arithmetic for each value.
_OPS = {
    "relu": 0.01, "relu6": 0.01, "hswish": 0.1, "silu": 0.4, "tanh": 0.4, "gelu": 0.6,
    "add": 0.01, "sub": 0.01, "mul": 0.01, "maximum": 0.01, "minimum": 0.01,
}  # fmt: skip


def _same_images(call: Call) -> str | None:
    shape = call.outputs[0].shape
    if len(shape) != 4 or any(spec.shape != shape for spec in call.inputs):
        return "serves images of one shape"
    return None


def _cost(moved: Seconds, nanoseconds: float, call: Call) -> float:
    return moved(call) + call.outputs[0].size * nanoseconds * 1e-9


def kernels(tier: Tier) -> list[Kernel]:
    """Return the elementwise kernels of a tier that work on images in bfloat16."""
    element = element_of(tier)
    return [
        tier.kernel(
            f"{op}_bf16",
            "blocked",
            op,
            dtypes=("float32",),
            layouts=Layouts((element.image,), (element.image,)),
            supports=_same_images,
            cost=partial(_cost, element.moving(memory_cost), nanoseconds),
            **element.described,
        )
        for op, nanoseconds in _OPS.items()
    ]

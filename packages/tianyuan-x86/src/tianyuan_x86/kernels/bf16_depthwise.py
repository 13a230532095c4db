"""Describe the depthwise convolutions in bfloat16."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _bf16 as b16
from . import _conv_geometry as geo
from ._element import element_of
from .conv import depthwise, epilogue_form
from .layouts import depthwise_layout

_START = 1e-6  # seconds to enter a kernel
_RATE = 7.5e10  # operations per second and thread
_VALUES = 4e10  # bytes per second


def _cost(call: Call) -> float:
    g = geo.geometry(call)
    moved = (call.outputs[0].nbytes + call.inputs[0].nbytes) / 2
    threads = min(float(call.threads), max(1.0, g.flops / 1e6))
    return _START + (g.flops / _RATE + moved / _VALUES) / threads


def kernels(tier: Tier) -> list[Kernel]:
    """Return the depthwise convolutions of a tier."""
    element = element_of(tier)
    image, found = element.image, []
    for op, variant, rest, supports in (
        ("conv2d", "depthwise", (), depthwise),
        ("conv2d_fused", "depthwise", (PLAIN, image), partial(epilogue_form, False, depthwise)),
        ("conv2d_fused", "depthwise_unbiased", (image,), partial(epilogue_form, True, depthwise)),
    ):
        kernel = tier.kernel(
            f"{op}_bf16",
            variant,
            op,
            layouts=Layouts((image, depthwise_layout(b16.LANES), *rest), (image,)),
            supports=supports,
            cost=_cost,
            dtypes=("float32",),
            **element.described,
        )
        found.append(kernel)
    return found

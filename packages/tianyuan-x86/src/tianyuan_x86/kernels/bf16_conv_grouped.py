"""Describe the convolutions in bfloat16 whose groups do not fill blocks of channels."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import BF16, PLAIN, Call, Kernel, Layouts

from .._tier import BF16_TIERS, Tier
from . import _bf16 as b16
from . import _conv_geometry as geo
from .conv import depthwise, epilogue_form
from .conv_grouped import pointwise_groups, table_bytes
from .layouts import depthwise_layout

TIERS = BF16_TIERS

_START = 1e-6  # seconds to enter a kernel
_RATE = 1.6e11  # operations per second and thread, on padded channels
_DEPTHWISE_RATE = 7.5e10
_VALUES = 4e10  # bytes per second


def _grouped(groups: int, call: Call) -> str | None:
    inputs = int(call.inputs[1].shape[1])
    if inputs % 2:
        return f"serves groups of an even number of inputs, got {inputs}"
    return pointwise_groups(b16.LANES, groups, call)


def _threads(call: Call, g: geo.Geometry) -> float:
    return min(float(call.threads), max(1.0, g.flops / 1e6))


def _grouped_cost(rate: float, call: Call) -> float:
    g = geo.geometry(call)
    vectors = b16.grouped_vectors(g.groups, g.o) * (g.c // g.groups)
    seconds = 2.0 * g.n * g.oh * g.ow * vectors * b16.LANES / rate
    moved = (call.outputs[0].nbytes + call.inputs[0].nbytes) / 2
    return _START + (seconds + moved / _VALUES) / _threads(call, g)


def _depthwise_cost(call: Call) -> float:
    g = geo.geometry(call)
    moved = (call.outputs[0].nbytes + call.inputs[0].nbytes) / 2
    seconds = g.flops / _DEPTHWISE_RATE + moved / _VALUES
    return _START + seconds / _threads(call, g)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the depthwise convolutions of a tier, and a pointwise one for each count of groups."""
    image, found = b16.IMAGE, []
    more: tuple[str, ...]
    common = {"dtypes": ("float32",), "tolerance": b16.ROUNDING, "precision": BF16}
    for groups in b16.GROUPS:
        weight = b16.grouped_layout(groups)
        for op, more in (("conv2d", ()), ("conv2d_fused", (PLAIN, image))):
            kernel = tier.kernel(
                f"{op}_bf16",
                f"grouped_{groups}",
                op,
                layouts=Layouts((image, weight, *more), (image,)),
                supports=partial(_grouped, groups),
                cost=partial(_grouped_cost, b16.vector_rate(tier, _RATE)),
                workspace=partial(table_bytes, b16.LANES),
                **common,
            )
            found.append(kernel)
    weight = depthwise_layout(b16.LANES)
    for op, variant, more, supports in (
        ("conv2d", "depthwise", (), depthwise),
        ("conv2d_fused", "depthwise", (PLAIN, image), partial(epilogue_form, False, depthwise)),
        ("conv2d_fused", "depthwise_unbiased", (image,), partial(epilogue_form, True, depthwise)),
    ):
        kernel = tier.kernel(
            f"{op}_bf16",
            variant,
            op,
            layouts=Layouts((image, weight, *more), (image,)),
            supports=supports,
            cost=_depthwise_cost,
            **common,
        )
        found.append(kernel)
    return found

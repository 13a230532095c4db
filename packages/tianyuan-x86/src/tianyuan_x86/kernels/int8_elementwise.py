"""Describe the kernels that convert, add and join 8-bit values."""

from __future__ import annotations

from collections.abc import Callable

from tianyuan.kernel import PLAIN, SAME, Call, Kernel, Layouts

from .._tier import Tier
from . import _int8 as q8
from ._cost import element_cost

_FLAT, _IMAGE = Layouts((SAME,), (SAME,)), Layouts((q8.IMAGE,), (q8.IMAGE,))
_TABLES = Layouts((PLAIN, PLAIN), (PLAIN,)), Layouts((q8.IMAGE, PLAIN), (q8.IMAGE,))

Reason = Callable[[Call], "str | None"]


def _accepts(call: Call) -> str | None:
    return None


def _whole_tensor(call: Call) -> str | None:
    dtypes = {spec.dtype.name for spec in (*call.inputs, *call.outputs)} - {"float32"}
    if dtypes > {"int32"} or dtypes == {"int32"}:
        return "serves storage of 8 bits, got int32"
    return None if call.attrs.axis < 0 else "serves one scale for the whole value"


def _is_image(call: Call) -> str | None:
    rank = call.inputs[0].ndim
    return None if rank == 4 else f"serves images, got {rank} dimensions"


def _same_shapes(call: Call) -> str | None:
    shape = call.outputs[0].shape
    if all(spec.shape == shape for spec in call.inputs):
        return None
    return "serves inputs of one shape"


def _same_images(call: Call) -> str | None:
    return q8.image_reason(call) or _same_shapes(call)


def _joins_channels(call: Call) -> str | None:
    axis = call.attrs.axis
    return q8.image_reason(call) or (None if axis == 1 else f"joins channels, got axis {axis}")


def _joins_one_form(call: Call) -> str | None:
    if len({spec.dtype for spec in call.inputs}) > 1:
        return "joins values of one dtype"
    return _joins_channels(call)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels of a tier."""
    found = []
    for family, variant, op, dtypes, layouts, supports in (
        ("quantize", "flat", "quantize", "float32", _FLAT, _whole_tensor),
        ("dequantize", "flat", "dequantize", q8.FORMS, _FLAT, _whole_tensor),
        ("requantize", "flat", "requantize", q8.FORMS, _FLAT, _accepts),
        ("requantize", "image", "requantize", q8.FORMS, _IMAGE, q8.image_reason),
        ("lookup", "flat", "lookup_quantized", q8.FORMS, _TABLES[0], _accepts),
        ("lookup", "image", "lookup_quantized", q8.FORMS, _TABLES[1], _is_image),
        ("add", "flat", "add_quantized", q8.FORMS, _FLAT, _same_shapes),
        ("add", "image", "add_quantized", q8.FORMS, _IMAGE, _same_images),
        ("concat_quantized", "plain", "concat_quantized", q8.FORMS, Layouts(), _accepts),
        ("concat_quantized", "image", "concat_quantized", q8.FORMS, _IMAGE, _joins_channels),
        ("concat", "image", "concat", q8.FORMS, _IMAGE, _joins_one_form),
    ):
        found.append(
            tier.kernel(
                f"{family}_q8",
                variant,
                op,
                dtypes=(dtypes,),
                layouts=layouts,
                supports=supports,
                cost=element_cost(0.05 if tier.name == "vnni" else 0.1),
            )
        )
    return found

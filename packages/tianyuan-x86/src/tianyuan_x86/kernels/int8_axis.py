"""Describe the conversions with a scale per channel, and those to and from 32 bits."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _int8 as q8
from ._cost import element_cost


def _is_wide(call: Call) -> bool:
    return "int32" in (call.inputs[0].dtype.name, call.outputs[0].dtype.name)


def _reason(wide: bool, call: Call) -> str | None:
    if _is_wide(call) != wide:
        return f"serves storage of {'32' if wide else '8'} bits"
    return None if wide or call.attrs.axis >= 0 else "serves a scale per channel"


def _workspace(call: Call) -> int:
    axis = call.attrs.axis
    return 2 * q8.table_bytes(1 if axis < 0 else int(call.inputs[0].shape[axis]))


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels of a tier."""
    return [
        tier.kernel(
            "quantize_q8" if op == "quantize" else "dequantize_q8",
            "wide" if wide else "axis",
            op,
            dtypes=("float32" if op == "quantize" else "int32" if wide else q8.FORMS,),
            layouts=Layouts((PLAIN,), (PLAIN,)),
            supports=partial(_reason, wide),
            cost=element_cost(1.0 if wide else 0.1),
            workspace=_workspace,
        )
        for op in ("quantize", "dequantize")
        for wide in (False, True)
    ]

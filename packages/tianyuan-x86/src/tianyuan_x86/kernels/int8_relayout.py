"""Describe the kernels that repack images and weights of 8-bit values."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _int8 as q8
from ._cost import memory_cost

_WEIGHTS = (
    q8.CONV_WEIGHT, q8.DEPTHWISE_WEIGHT, q8.COLUMNS_WEIGHT, q8.MATRIX, q8.MATRIX_TRANSPOSED,
)  # fmt: skip


def _repacks(source: str, target: str, call: Call) -> str | None:
    if (call.attrs.source, call.attrs.target) == (source, target):
        return None
    return f"repacks {source} to {target}"


def _workspace(call: Call) -> int:
    """Return the bytes of a weight whose terms are put in order before they are packed."""
    return call.inputs[0].nbytes if call.attrs.target == q8.COLUMNS_WEIGHT else 0


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels of a tier; weights are packed as layouts do it, and never unpacked."""
    named = [("pack_nhwc", PLAIN, q8.IMAGE, q8.FORMS), ("unpack_nhwc", q8.IMAGE, PLAIN, q8.FORMS)]
    named += [(f"pack_{layout}", PLAIN, layout, "int8") for layout in _WEIGHTS]
    return [
        tier.kernel(
            "relayout_q8",
            variant,
            "relayout",
            dtypes=(dtypes,),
            layouts=Layouts((source,), (target,)),
            supports=partial(_repacks, source, target),
            cost=memory_cost,
            workspace=_workspace,
        )
        for variant, source, target, dtypes in named
    ]

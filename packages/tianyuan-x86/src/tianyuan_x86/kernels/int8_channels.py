"""Describe the kernel that picks whole channels of 8-bit images, such as a shuffle of them."""

from __future__ import annotations

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _int8 as q8
from ._cost import memory_cost

_BLOCK = 16 * 16 + 16 * 8 + 16  # bytes that describe 16 channels (Block of int8_channels.cpp)


def _reason(call: Call) -> str | None:
    x, indices = call.inputs
    if x.ndim != 4 or indices.ndim != 1 or call.attrs.axis != 1:
        return "serves images and indices of 1 axis, along axis 1"
    if min(int(x.shape[1]), int(call.outputs[0].shape[1])) <= 4:
        return "serves more than 4 channels"
    return None


def _workspace(call: Call) -> int:
    return q8.round_up(-(-int(call.outputs[0].shape[1]) // 16) * _BLOCK, 64)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernel of a tier."""
    return [
        tier.kernel(
            "take_q8",
            "channels",
            "take",
            dtypes=(q8.FORMS, "int32|int64"),
            layouts=Layouts((q8.IMAGE, PLAIN), (q8.IMAGE,)),
            supports=_reason,
            cost=memory_cost,
            workspace=_workspace,
        )
    ]

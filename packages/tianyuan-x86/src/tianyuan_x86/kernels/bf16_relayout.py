"""Describe the kernels that bring images into bfloat16 and back."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _bf16 as b16
from ._element import element_of
from .layouts import activation_layout, serves

_RATES = {PLAIN: 1.2e10, activation_layout(b16.LANES): 6e10}  # bytes per second, read and written


def _cost(form: str, call: Call) -> float:
    return 5e-7 + 1.5 * call.inputs[0].nbytes / _RATES[form]


def kernels(tier: Tier) -> list[Kernel]:
    """Return the relayout kernels between plain images, blocks and blocks in bfloat16."""
    blocked = activation_layout(b16.LANES)
    return [
        tier.kernel(
            "relayout_bf16",
            variant,
            "relayout",
            dtypes=("float32",),
            layouts=Layouts((source,), (target,)),
            supports=serves(source, target),
            cost=partial(_cost, source if target == b16.IMAGE else target),
            **element_of(tier).described,
        )
        for variant, source, target in (
            ("pack_nchw", PLAIN, b16.IMAGE),
            ("unpack_nchw", b16.IMAGE, PLAIN),
            ("narrow", blocked, b16.IMAGE),
            ("widen", b16.IMAGE, blocked),
        )
    ]

"""Describe the kernels of batch, layer and group normalisation."""

from __future__ import annotations

from collections.abc import Callable

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from ._cost import memory_cost
from .layouts import activation_layout

_PARTS = 16  # partial sums of the weights' gradient, as in native/kernels/layer_norm.cpp


def _passes(count: float) -> Callable[[Call], float]:
    """Return the cost of reading the images ``count`` times more than memory_cost counts."""

    def cost(call: Call) -> float:
        return memory_cost(call) + count * call.inputs[0].nbytes / 2e10

    return cost


def _needs_rank(call: Call) -> str | None:
    return "serves images" if call.inputs[0].ndim != 4 else None


def _gradient_workspace(call: Call) -> int:
    if not call.attrs.affine:
        return 0
    whole_vectors = -(-call.inputs[2].size // 16) * 16
    return _PARTS * 2 * whole_vectors * (8 + 4)


def _batch(tier: Tier) -> list[Kernel]:
    blocked = activation_layout(tier.lanes)
    # How often each pass over the images costs more, and the layouts of the blocked form.
    served = {
        "batch_norm": (0.0, Layouts((blocked, PLAIN), (blocked,))),
        "batch_norm_train": (2.0, Layouts((blocked, PLAIN), (blocked, PLAIN))),
        "batch_norm_backward": (
            2.0,
            Layouts((blocked, PLAIN, PLAIN, PLAIN, blocked), (blocked, PLAIN)),
        ),
    }
    found = []
    for op, (passes, layouts) in served.items():
        family, cost = f"{op}_f32", _passes(passes)
        inplace = ((0, 0),)
        found += [
            tier.kernel(family, "planes", op, dtypes=("float32",), cost=cost, inplace=inplace),
            tier.kernel(
                family,
                "blocked",
                op,
                dtypes=("float32",),
                layouts=layouts,
                supports=_needs_rank,
                cost=cost,
                inplace=inplace,
            ),
        ]
    return found


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels of normalisation."""
    floats, inplace = ("float32",), ((0, 0),)
    return [
        *_batch(tier),
        tier.kernel(
            "layer_norm_f32", "rows", "layer_norm", dtypes=floats, cost=_passes(1), inplace=inplace
        ),
        tier.kernel(
            "layer_norm_backward_f32",
            "rows",
            "layer_norm_backward",
            dtypes=floats,
            cost=_passes(6),
            workspace=_gradient_workspace,
            inplace=inplace,
        ),
        tier.kernel(
            "group_norm_f32", "rows", "group_norm", dtypes=floats, cost=_passes(1), inplace=inplace
        ),
    ]

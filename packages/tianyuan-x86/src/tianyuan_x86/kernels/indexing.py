"""Describe the kernels that address values by integer arrays, and one_hot."""

from __future__ import annotations

from tianyuan.kernel import Call, Kernel

from .._tier import Tier
from ._cost import element_cost

_COPIES = ("take", "gather", "scatter", "index", "index_set")
_SUMS = (("f32", "float32"), ("i32", "int32"), ("i64", "int64"), ("f64", "float64"))
_INDEX = "int32|int64"
_INPLACE = {"scatter", "scatter_add", "index_set", "index_add"}  # the value that they change


def _few_indices(call: Call) -> str | None:
    return "addresses more than 8 axes" if call.attrs.count > 8 else None


def kernels(tier: Tier) -> list[Kernel]:
    """Return the indexing kernels of a tier."""
    cost = element_cost(0.5)
    found = []
    for op in _COPIES:
        inplace = ((0, 0),) if op in _INPLACE else ()
        if op.startswith("index"):
            kernel = tier.kernel(
                f"{op}_any", "rows", op, cost=cost, inplace=inplace, supports=_few_indices
            )
        else:
            kernel = tier.kernel(f"{op}_any", "rows", op, cost=cost, inplace=inplace)
        found.append(kernel)
    for suffix, dtype in _SUMS:
        for op in ("scatter_add", "index_add"):
            dtypes = (dtype, _INDEX, dtype) if op == "scatter_add" else (dtype, dtype, _INDEX)
            family = f"{op}_{suffix}"
            found.append(
                tier.kernel(family, "rows", op, dtypes=dtypes, cost=cost, inplace=((0, 0),))
            )
    served = ("float32", _INDEX)
    backward = tier.kernel("take_backward_f32", "rows", "take_backward", dtypes=served, cost=cost)
    return [*found, backward, tier.kernel("one_hot_any", "fill", "one_hot", cost=cost)]

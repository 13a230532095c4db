"""Describe the kernels of reductions and of what works along one axis."""

from __future__ import annotations

from tianyuan.kernel import Call, Kernel

from .._tier import Tier
from ._cost import element_cost, memory_cost

# As in native/kernels/reduce.cpp: outputs that are cut into pieces keep partial results.
_SPLIT_SIZE = 131072
_PARTIAL_BYTES = 7 * 64 * 256 * 8

# Types of an op's kernels: the suffix of the name, and the dtypes.
_ALL_EXTREMES = (
    ("f32", "float32"), ("i32", "int32"), ("i64", "int64"), ("u8", "uint8|bool"), ("i8", "int8"),
    ("f64", "float64"),
)  # fmt: skip
_SUMS = (("f32", "float32"), ("i32", "int32"), ("i64", "int64"), ("f64", "float64"))
_REDUCTIONS = {
    "sum": _SUMS,
    "sum_to": (("f32", "float32"), ("i32", "int32"), ("f64", "float64")),
    "mean": (("f32", "float32"), ("f64", "float64")),
    "prod": (("f32", "float32"), ("i32", "int32")),
    "max": _ALL_EXTREMES,
    "min": _ALL_EXTREMES,
}
_ARG = (("f32", "float32"), ("i32", "int32"), ("i64", "int64"), ("u8", "uint8|bool"))
_CUMULATIVE = (("f32", "float32"), ("i32", "int32"), ("i64", "int64"))
_SOFTMAX = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")


def _workspace(call: Call) -> int:
    return _PARTIAL_BYTES if call.inputs[0].size >= _SPLIT_SIZE else 0


def _refuse_empty(call: Call) -> str | None:
    return None if call.inputs[0].size else "value is empty"


def _neighbouring_axes(call: Call) -> str | None:
    axes = [int(axis) for axis in call.attrs.axes]
    if not axes or not call.inputs[0].size:
        return "reduces nothing"
    if axes[-1] - axes[0] + 1 != len(axes):
        return "axes are not neighbours"
    return None


def _reductions(tier: Tier) -> list[Kernel]:
    return [
        tier.kernel(
            f"{op}_{suffix}",
            "blocked",
            op,
            dtypes=(dtypes,),
            cost=memory_cost,
            workspace=_workspace,
        )
        for op, types in _REDUCTIONS.items()
        for suffix, dtypes in types
    ]


def _along_axis(tier: Tier) -> list[Kernel]:
    found = []
    for ops, types in ((("argmax", "argmin"), _ARG), (("cumsum", "cumprod"), _CUMULATIVE)):
        for op in ops:
            for suffix, dtypes in types:
                family = f"{op}_{suffix}"
                cost = element_cost(1.0)
                found.append(
                    tier.kernel(
                        family, "axis", op, dtypes=(dtypes,), cost=cost, supports=_refuse_empty
                    )
                )
    return found


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels of reductions and of ops along an axis."""
    softmax = [
        tier.kernel(f"{op}_f32", "axis", op, dtypes=("float32",), cost=element_cost(0.8))
        for op in _SOFTMAX
    ]
    logsumexp = tier.kernel(
        "logsumexp_f32",
        "axis",
        "logsumexp",
        dtypes=("float32",),
        cost=element_cost(0.8),
        supports=_neighbouring_axes,
    )
    return [*_reductions(tier), *_along_axis(tier), *softmax, logsumexp]

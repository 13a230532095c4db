"""A third party's backend: one C kernel for ``square``, cheaper than anyone's by its own word."""

from __future__ import annotations

from collections.abc import Iterable

from tianyuan.plugin import Call, Kernel, functions_of_table, hookimpl

TIANYUAN_API = (1, 0)


def _free(call: Call) -> float:
    return 0.0


@hookimpl
def tianyuan_kernels(device: str) -> Iterable[Kernel]:
    """Return the kernel for the host."""
    if device != "cpu":
        return []
    from . import _kernels

    functions = functions_of_table(_kernels.kernel_table())
    name = "square_f32__any_stranger"
    return [Kernel(name, "square", functions[name], dtypes=("float32",), cost=_free)]

"""The numpy backend: a plugin like any other, which also brings references as the last resort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ... import ops
from ...kernel import Call, DeviceSpec, Kernel
from ...op import Op
from ...ops.reference import evaluate
from ...plugin import hookimpl

TIANYUAN_API = (1, 0)

_MODULES = (
    "elementwise", "fused", "reduction", "movement", "indexing", "random", "update", "matmul",
    "conv", "pool", "norm", "quantized", "quantized_linear", "attention",
)  # fmt: skip
_REFERENCE_SECONDS_PER_ELEMENT = 1e-6


def _reference_cost(call: Call) -> float:
    return _REFERENCE_SECONDS_PER_ELEMENT * sum(s.size for s in (*call.inputs, *call.outputs))


def reference_kernel(op: Op) -> Kernel:
    """Make the kernel of last resort of an op: its reference, or its decomposition's."""

    def run(
        ctx: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        attrs: Any,
        workspace: np.ndarray | None,
    ) -> None:
        for out, result in zip(outputs, evaluate(op, inputs, attrs), strict=True):
            np.copyto(out, result)

    name = f"{op.name}_any__reference"
    return Kernel(name, op.name, run, cost=_reference_cost, is_reference=True)


@hookimpl
def tianyuan_devices() -> tuple[DeviceSpec, ...]:
    """Return the host."""
    return (DeviceSpec("cpu"),)


@hookimpl
def tianyuan_kernels(device: str) -> tuple[Kernel, ...]:
    """Return numpy's kernels and the references for the host, nothing for other devices."""
    if device != "cpu":
        return ()
    found: list[Kernel] = []
    for module in _MODULES:
        found += import_module(f".{module}", __name__).KERNELS
    found += [reference_kernel(op) for op in ops.register_all()]
    return tuple(found)


@hookimpl
def tianyuan_report() -> Mapping[str, Any]:
    """Return numpy's version."""
    return {"numpy": np.__version__}

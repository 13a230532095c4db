"""The numpy backend: a plugin like any other, which also brings references as the last resort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ... import ops, registry
from ...kernel import Call, DeviceSpec, Kernel, KernelGroup
from ...op import Op
from ...plugin import hookimpl

TIANYUAN_API = (1, 0)

# Modules that have kernels for the ops of the family of their name, and for no others.
_FAMILIES = (
    "elementwise",
    "fused",
    "reduction",
    "random",
    "matmul",
    "conv",
    "pool",
    "norm",
    "quantized_linear",
    "attention",
)

# The ops that each module of this folder has kernels for: it is imported when one is looked up.
_OPS = {
    **{family: ops.FAMILIES[family] for family in _FAMILIES},
    "movement": (
        "cast copy reshape transpose broadcast_to concat pad pad_backward slice "
        "slice_backward slice_set full arange eye relayout"
    ),
    "indexing": (
        "take take_backward gather scatter scatter_add index index_set index_add one_hot sort topk"
    ),
    "update": "sgd_update adam_update",
    "quantized": (
        "conv2d_quantized matmul_quantized quantize dequantize requantize "
        "lookup_quantized add_quantized concat_quantized avg_pool2d_quantized "
        "adaptive_avg_pool2d_quantized"
    ),
}
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
        from ...ops.reference import evaluate

        for out, result in zip(outputs, evaluate(op, inputs, attrs), strict=True):
            np.copyto(out, result)

    name = f"{op.name}_any__reference"
    return Kernel(name, op.name, run, cost=_reference_cost, is_reference=True)


@hookimpl
def tianyuan_devices() -> tuple[DeviceSpec, ...]:
    """Return the host."""
    return (DeviceSpec("cpu"),)


@hookimpl
def tianyuan_kernels(device: str) -> tuple[KernelGroup, ...]:
    """Return numpy's kernels and the references for the host, nothing for other devices."""
    if device != "cpu":
        return ()
    own = (KernelGroup(tuple(text.split()), partial(_of, name)) for name, text in _OPS.items())
    return (
        *own,
        KernelGroup(tuple(ops.MODULES), lambda name: [reference_kernel(registry.get_op(name))]),
    )


def _of(module: str, op: str) -> list[Kernel]:
    return [k for k in import_module(f".{module}", __name__).KERNELS if k.op == op]


@hookimpl
def tianyuan_report() -> Mapping[str, Any]:
    """Return numpy's version."""
    return {"numpy": np.__version__}

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

# The ops that each module of this folder has kernels for: it is imported when one is looked up.
_OPS = {
    "elementwise": (
        "abs neg sign floor ceil round square sqrt rsqrt reciprocal exp expm1 log log1p "
        "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf relu relu6 "
        "sigmoid hsigmoid hswish silu gelu softplus isnan isinf logical_not bitwise_not "
        "add sub mul div floor_div mod pow maximum minimum atan2 logaddexp equal "
        "not_equal less less_equal greater greater_equal logical_and logical_or "
        "logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift where "
        "gelu_backward"
    ),
    "fused": "fused_elementwise",
    "reduction": (
        "sum prod max min mean logsumexp argmax argmin sum_to softmax log_softmax "
        "softmax_backward log_softmax_backward cumsum cumprod"
    ),
    "movement": (
        "cast copy reshape transpose broadcast_to concat pad pad_backward slice "
        "slice_backward slice_set full arange eye relayout"
    ),
    "indexing": (
        "take take_backward gather scatter scatter_add index index_set index_add one_hot sort topk"
    ),
    "random": "philox_bits philox_uniform philox_normal",
    "update": "sgd_update adam_update",
    "matmul": "matmul matmul_fused",
    "conv": "conv2d conv2d_fused conv2d_backward_data conv2d_backward_weight",
    "pool": (
        "max_pool2d max_pool2d_backward max_pool2d_pick avg_pool2d avg_pool2d_backward "
        "adaptive_avg_pool2d adaptive_avg_pool2d_backward adaptive_max_pool2d "
        "adaptive_max_pool2d_backward adaptive_max_pool2d_pick"
    ),
    "norm": (
        "batch_norm batch_norm_train batch_norm_backward layer_norm layer_norm_backward group_norm"
    ),
    "quantized": (
        "conv2d_quantized matmul_quantized quantize dequantize requantize "
        "lookup_quantized add_quantized concat_quantized avg_pool2d_quantized "
        "adaptive_avg_pool2d_quantized"
    ),
    "quantized_linear": "linear_dynamic linear_int4",
    "attention": "attention attention_backward",
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

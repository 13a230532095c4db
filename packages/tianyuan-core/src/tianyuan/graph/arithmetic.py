"""Estimate how many operations a step takes and in which arithmetic it takes them.

A multiplication and an addition count as two, whatever the algorithm saves of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..kernel import BF16
from .program import Slot, Step

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"


def arithmetic_of(step: Step) -> str:
    """Return in which arithmetic a step multiplies: each has a peak of its own."""
    if step.op.name in _OF_BYTES:
        return INT8
    return BFLOAT16 if step.kernel.precision == BF16 else FLOAT32


def operations(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    """Return about how many operations a step takes."""
    if step.op.name in _RULES:
        return int(_RULES[step.op.name](step, inputs, outputs))
    if step.op.family == "movement":
        return 0
    return max(int(slot.spec.size) for slot in (*inputs, *outputs))


def in_words(count: int) -> str:
    """Write a number of operations for people.

    >>> in_words(12_600_000), in_words(640)
    ('12.6 M operations', '640 operations')
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit} operations"
    return f"{count} operations"


def _conv(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    weight = inputs[1].spec
    return 2 * outputs[0].spec.size * (weight.size // max(weight.shape[0], 1))


def _conv_data(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    weight = inputs[1].spec
    return 2 * inputs[0].spec.size * (weight.size // max(weight.shape[0], 1))


def _conv_weight(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    weight = outputs[0].spec
    return 2 * inputs[1].spec.size * (weight.size // max(weight.shape[0], 1))


def _bottleneck(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    x, y = inputs[0].spec, outputs[0].spec
    weights = [slot.spec for slot in inputs[1:] if slot.spec.ndim == 4]
    pixels = x.size // max(int(x.shape[1]), 1), y.size // max(int(y.shape[1]), 1)
    expand = 2 * pixels[0] * weights[0].size if step.attrs.expands else 0
    filters, project = weights[1:3] if step.attrs.expands else weights[:2]
    return expand + 2 * pixels[1] * (filters.size + project.size)


def _matmul(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    inner = inputs[0].spec.shape[-2 if step.attrs.transpose_a else -1]
    return 2 * outputs[0].spec.size * inner


def _linear(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    # Of the input, since a stored weight may hold two values in a byte.
    return 2 * outputs[0].spec.size * inputs[0].spec.shape[-1]


def _attention(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    out, (keys, depth) = outputs[0].spec, inputs[1].spec.shape[-2:]
    rows = out.size // max(int(out.shape[-1]), 1)
    return 2 * rows * int(keys) * (int(depth) + int(out.shape[-1]))


def _heads(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    out, attrs = outputs[0].spec, step.attrs
    scores = out.size // int(attrs.width) * int(inputs[1].spec.shape[-2])
    return 2 * scores * int(attrs.depth + attrs.width)


def _attention_backward(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    # The scores anew, then the gradients of weights, values, queries and keys.
    g, (keys, depth) = inputs[4].spec, inputs[1].spec.shape[-2:]
    rows = g.size // max(int(g.shape[-1]), 1)
    return 2 * rows * int(keys) * (3 * int(depth) + 2 * int(g.shape[-1]))


def _pool(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    window: int = math.prod(step.attrs.kernel)
    return outputs[0].spec.size * window


def _fused(step: Step, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> int:
    return outputs[0].spec.size * (len(step.attrs.code) // 4)


_RULES: dict[str, Callable[[Step, Sequence[Slot], Sequence[Slot]], int]] = {
    "conv2d": _conv,
    "conv2d_fused": _conv,
    "conv2d_quantized": _conv,
    "bottleneck": _bottleneck,
    "conv2d_backward_data": _conv_data,
    "conv2d_backward_weight": _conv_weight,
    "matmul": _matmul,
    "matmul_fused": _matmul,
    "matmul_quantized": _matmul,
    "linear_dynamic": _linear,
    "linear_int4": _linear,
    "attention": _attention,
    "attention_heads": _heads,
    "attention_backward": _attention_backward,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "avg_pool2d_quantized": _pool,
    "fused_elementwise": _fused,
}
_OF_BYTES = frozenset({"conv2d_quantized", "matmul_quantized", "linear_dynamic", "linear_int4"})

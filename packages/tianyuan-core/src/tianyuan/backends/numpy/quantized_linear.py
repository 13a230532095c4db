"""Compute linear maps with stored integer weights by BLAS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernel import Call, Kernel, bytes_cost
from ...ops.quantized_linear import activation_form, float_weight

Arrays = Sequence[np.ndarray]

# float32 holds every sum of so many products of such integers.
_EXACT_TERMS = 2**24 // (255 * 128)


def _dynamic(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    (x, w, scales), (out,) = inputs[:3], outputs
    if not out.size:
        return
    form = activation_form(x)
    if form is None:
        out[...] = np.nan
        return
    scale, zero = form
    q = np.asarray(x / scale)
    np.rint(q, out=q)
    np.clip(q, -zero, 255 - zero, out=q)
    if x.shape[-1] <= _EXACT_TERMS:
        sums = np.matmul(q, w.astype(np.float32).T)
    else:
        wide = np.matmul(q.astype(np.float64), w.astype(np.float64).T)
        sums = wide.astype(np.float32)
    np.multiply(sums, scales * scale, out=out)
    if attrs.has_bias:
        out += inputs[3]


def _int4(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    (x, stored, scales), (out,) = inputs[:3], outputs
    if not out.size:
        return
    np.matmul(x, float_weight(stored, scales, x.shape[-1], attrs.group).T, out=out)
    if attrs.has_bias:
        out += inputs[3]


def _cost(call: Call) -> float:
    inner = int(call.inputs[0].shape[-1])
    return 2e-5 + bytes_cost(call) * 4 + call.outputs[0].size * inner * 1e-10


def _rows(call: Call) -> str | None:
    return None if call.inputs[0].ndim > 1 else "takes rows, got one row without an axis for them"


KERNELS: tuple[Kernel, ...] = (
    Kernel("linear_dynamic_q8__numpy_blas", "linear_dynamic", _dynamic, cost=_cost),
    Kernel("linear_int4_f32__numpy_blas", "linear_int4", _int4, cost=_cost, supports=_rows),
)

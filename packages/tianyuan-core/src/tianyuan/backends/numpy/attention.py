"""Attention through BLAS, one item of the batch at a time, so that few scores are held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernel import Call, Kernel
from ...ops.attention import lowest_score
from .epilogue import widened


def _attention(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (out,) = outputs
    rows, columns = inputs[0].shape[-2], inputs[1].shape[-2]
    lead = out.shape[:-2]
    query, key, value, *masks = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in inputs)
    earlier = np.tri(rows, columns, dtype=np.bool_) if attrs.causal else None
    for item in np.ndindex(lead):
        scores = np.matmul(
            widened(query[item]) * widened(query[item]).dtype.type(attrs.scale),
            widened(key[item]).T,
        )
        seen = earlier
        for mask in (mask[item] for mask in masks):
            if mask.dtype.kind != "b":
                scores += widened(mask)
            else:
                seen = mask if seen is None else mask & seen
        out[item] = np.matmul(_weights(scores, seen), widened(value[item]))


def _weights(scores: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    """Turn scores into weights, in place; hidden keys weigh nothing."""
    hidden = None if seen is None else ~np.broadcast_to(seen, scores.shape)
    if hidden is not None:
        scores[hidden] = lowest_score(scores.dtype)
    with np.errstate(all="ignore"):
        scores -= np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        np.exp(scores, out=scores)
        scores /= np.sum(scores, axis=-1, keepdims=True)
    if hidden is not None:
        scores[hidden] = 0
    return scores


def _cost(call: Call) -> float:
    out, keys = call.outputs[0], call.inputs[1].shape[-2]
    products = 2.0 * out.size * keys * 2
    return products / 2e10 + out.size / max(1, out.shape[-1]) * keys * 4e-9 + 2e-5


# BLAS splits sums by thread count and by the number of rows, so the results are not reproducible.
KERNELS: tuple[Kernel, ...] = (
    Kernel("attention_float__numpy_blas", "attention", _attention, cost=_cost, reproducible=False),
)

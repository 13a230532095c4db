"""Attention through BLAS, a part of the batch at a time, so that few scores are held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernel import Call, Kernel
from ...ops.attention import lowest_score
from .widening import widened

_SCORES = 1 << 18  # held at once, where a batch can be cut


def _attention(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    (out,) = outputs
    rows, columns = inputs[0].shape[-2], inputs[1].shape[-2]
    wide = [np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:])) for x in inputs]
    _attend(wide, out, attrs.scale, np.tri(rows, columns, dtype=np.bool_) if attrs.causal else None)


def _attend(
    inputs: Sequence[np.ndarray], out: np.ndarray, scale: float, seen: np.ndarray | None
) -> None:
    query, key, value, *masks = inputs
    if out.ndim > 2 and math.prod(query.shape[:-1]) * key.shape[-2] > _SCORES:
        for item in range(out.shape[0]):
            _attend([x[item] for x in inputs], out[item], scale, seen)
        return
    scores = _scores(widened(query), widened(key), masks, scale, seen)
    out[...] = np.matmul(_weights(*scores), widened(value))


def _attention_backward(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    lead = outputs[0].shape[:-2]
    rows, columns = inputs[0].shape[-2], inputs[1].shape[-2]
    wide = [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in inputs]
    seen = np.tri(rows, columns, dtype=np.bool_) if attrs.causal else None
    _go_back(wide, outputs, attrs.scale, seen)


def _go_back(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    scale: float,
    seen: np.ndarray | None,
) -> None:
    query, key, value, out, g, *masks = inputs
    if out.ndim > 2 and math.prod(query.shape[:-1]) * key.shape[-2] > _SCORES:
        for item in range(out.shape[0]):
            _go_back([x[item] for x in inputs], [x[item] for x in outputs], scale, seen)
        return
    query, key, value, out, g = map(widened, (query, key, value, out, g))
    weights = _weights(*_scores(query, key, masks, scale, seen))
    of_query, of_key, of_value = outputs
    of_value[...] = np.matmul(weights.swapaxes(-1, -2), g)
    of_scores = np.matmul(g, value.swapaxes(-1, -2))
    of_scores -= np.sum(g * out, axis=-1, keepdims=True)
    of_scores *= weights
    of_scores *= of_scores.dtype.type(scale)
    of_query[...] = np.matmul(of_scores, key)
    of_key[...] = np.matmul(of_scores.swapaxes(-1, -2), query)


def _scores(
    query: np.ndarray,
    key: np.ndarray,
    masks: Sequence[np.ndarray],
    scale: float,
    seen: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the scores, what is added included, and which keys are seen."""
    scores = np.matmul(query * query.dtype.type(scale), key.swapaxes(-1, -2))
    for mask in masks:
        if mask.dtype.kind != "b":
            scores += widened(mask)
        else:
            seen = mask if seen is None else mask & seen
    return scores, seen


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
    Kernel(
        "attention_backward_float__numpy_blas",
        "attention_backward",
        _attention_backward,
        cost=lambda call: 2.5 * _cost(call),
        reproducible=False,
    ),
)

"""Answers for attention: one query after the other, over the keys that it sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def _weights(arrays: Sequence[np.ndarray], masks: Sequence[np.ndarray], attrs: Any) -> np.ndarray:
    """Return the weights in float64 by index loops; sums run over seen keys only."""
    query, key = (x.astype(np.float64) for x in arrays[:2])
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    rows, keys = query.shape[-2], key.shape[-2]
    query, key = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (query, key))
    mask = masks[0] if masks else np.ones((1, 1), np.bool_)
    mask = np.broadcast_to(mask, (*lead, rows, keys))
    is_bool = mask.dtype.kind == "b"
    weights = np.zeros((*lead, rows, keys))
    for place in np.ndindex(*lead, rows):
        item, row = place[:-1], place[-1]
        last = row if attrs.causal else keys
        seen = [c for c in range(keys) if c <= last and (not is_bool or mask[place][c])]
        if not seen:
            continue
        scores = np.array([np.sum(query[place] * attrs.scale * key[item][c]) for c in seen])
        if not is_bool:
            scores += mask[place][seen].astype(np.float64)
        most = np.max(scores)
        if most == -np.inf and len(seen) < keys:
            continue  # even a hidden key scores more than -inf, and weighs nothing
        with np.errstate(invalid="ignore"):
            powers = np.exp(scores - most)
        weights[place][seen] = powers / np.sum(powers)
    return weights


def attention(arrays: Sequence[np.ndarray], attrs: Any) -> list[np.ndarray]:
    """Return attention in float64: each query's values, one after the other."""
    weights = _weights(arrays[:3], arrays[3:], attrs)
    value = np.broadcast_to(arrays[2], (*weights.shape[:-2], *arrays[2].shape[-2:]))
    out = np.zeros((*weights.shape[:-1], value.shape[-1]))
    for place in np.ndindex(*weights.shape[:-1]):
        seen = np.flatnonzero(weights[place])  # NaN is not zero
        kept = weights[place][seen][:, None] * value[place[:-1]][seen].astype(np.float64)
        out[place] = np.sum(kept, axis=0)
    return [out.astype(arrays[0].dtype)]


def attention_heads(arrays: Sequence[np.ndarray], attrs: Any) -> list[np.ndarray]:
    """Return attention in float64, one head after the other."""
    *rest, rows, keys = np.broadcast_shapes(
        (*np.broadcast_shapes(*(x.shape[:-2] for x in arrays[:3])), attrs.heads, 1, 1),
        (arrays[0].shape[-2], arrays[1].shape[-2]),
    )
    mask = np.broadcast_to(arrays[3], (*rest, rows, keys)) if len(arrays) == 4 else None
    found = []
    for head in range(attrs.heads):
        given = []
        for index, size in enumerate((attrs.depth, attrs.depth, attrs.width)):
            first = attrs.starts[index] + head * attrs.steps[index]
            given.append(arrays[index][..., first : first + size])
        given += [] if mask is None else [mask[..., head, :, :]]
        found += attention(given, attrs)
    return [np.concatenate(found, axis=-1)]


def attention_backward(arrays: Sequence[np.ndarray], attrs: Any) -> list[np.ndarray]:
    """Return the gradients in float64, one query after the other."""
    query, key, value, out, g, *masks = arrays
    weights = _weights((query, key, value), masks, attrs)
    lead = weights.shape[:-2]
    wide = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (query, key, value, out, g))
    query, key, value, out, g = (x.astype(np.float64) for x in wide)
    found = [np.zeros(x.shape) for x in (query, key, value)]
    for place in np.ndindex(*weights.shape[:-1]):
        item = place[:-1]
        inner = np.sum(g[place] * out[place])
        for c, weight in enumerate(weights[place]):  # a weight of zero times NaN is NaN
            slope = attrs.scale * weight * (np.sum(g[place] * value[item][c]) - inner)
            found[0][place] += slope * key[item][c]
            found[1][item][c] += slope * query[place]
            found[2][item][c] += weight * g[place]
    return [x.astype(arrays[0].dtype) for x in found]

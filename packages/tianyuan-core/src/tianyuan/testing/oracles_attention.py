"""Answers for attention: one query after the other, over the keys that it sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def attention(arrays: Sequence[np.ndarray], attrs: Any) -> list[np.ndarray]:
    """Return attention in float64 by index loops; scores and sums run over seen keys only."""
    query, key, value = (x.astype(np.float64) for x in arrays[:3])
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in arrays[:3]))
    rows, keys = query.shape[-2], key.shape[-2]
    query, key, value = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (query, key, value))
    mask = arrays[3] if len(arrays) == 4 else np.ones((1, 1), np.bool_)
    mask = np.broadcast_to(mask, (*lead, rows, keys))
    is_bool = mask.dtype.kind == "b"
    out = np.zeros((*lead, rows, value.shape[-1]))
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
        out[place] = np.sum((powers / np.sum(powers))[:, None] * value[item][seen], axis=0)
    return [out.astype(arrays[0].dtype)]

"""Attention as ATen's fused operator computes it."""

from __future__ import annotations

import math

from ... import functional as F
from ...functional.arguments import run
from ...imperative.tensor import Tensor
from .table import aten


@aten("scaled_dot_product_attention", modal=True)
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False, training: bool,
) -> Tensor:  # fmt: skip
    """Return softmax(scale Q K^T + mask) V; a bool mask tells which pairs take part."""
    if enable_gqa:
        times = int(query.shape[-3]) // int(key.shape[-3])
        key, value = (F.repeat(part, times, axis=part.ndim - 3) for part in (key, value))
    factor = 1 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    adds = attn_mask is None or attn_mask.dtype.kind != "b"
    if adds and not (is_causal and attn_mask is not None) and not (dropout_p and training):
        return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, factor)
    scores = F.matmul(F.mul(query, factor), key, transpose_b=True)
    if is_causal:
        scores = _kept(scores, causal(scores, query.shape[-2], key.shape[-2]))
    if attn_mask is not None:
        whole = attn_mask.dtype.kind != "b"
        scores = F.add(scores, attn_mask) if whole else _kept(scores, attn_mask)
    weights = F.nn.softmax(scores, -1)
    if dropout_p and training:
        weights = F.nn.dropout(weights, dropout_p, training=True)
    return F.matmul(weights, value)


def causal(like: Tensor, rows: int, columns: int) -> Tensor:
    """Return a (rows, columns) mask that is true on and below the diagonal."""
    vertical = F.expand_dims(F.arange(0, rows, dtype="int32"), 1)
    horizontal = F.expand_dims(F.arange(0, columns, dtype="int32"), 0)
    return F.less_equal(horizontal, vertical)


def _kept(scores: Tensor, mask: Tensor) -> Tensor:
    return run("where", mask, scores, scores.full((), -math.inf))

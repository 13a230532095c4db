"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import AttrError, ShapeError
from ..functional.arguments import share, whole
from ..functional.attention import streamed, streams
from ..imperative.tensor import Parameter, Tensor
from ..shapes import format_shape
from . import init
from .linear import Dropout, Linear
from .module import Module

# Far below every score, yet finite, so that a row without any key stays free of NaN.
_MASKED = -1e9


class MultiHeadAttention(Module):
    """Attend to values by the likeness of keys to queries, in several heads (Vaswani et al. 2017).

    Each head computes softmax(Q K^T / sqrt(d)) V on its share of the projected inputs; the heads
    are joined and projected again.

    Args:
        embed_dim: extent of queries and outputs, a multiple of ``num_heads``.
        num_heads: count of heads.
        attn_dropout: probability of dropping an attention weight in training.
        out_dropout: probability of dropping an output element in training.
        bias: whether the four projections have biases.
        add_bias_kv: whether every query also sees a learned key and value, ``bias_k`` and
            ``bias_v``, (1, 1, embed_dim), which start from zero.
        add_zero_attn: whether every query also sees a key and value of zeros.
        kdim, vdim: extents of keys and values; ``embed_dim`` if None.

    Raises:
        AttrError: where the heads do not divide the extent.

    >>> x = F.ones((2, 5, 8))
    >>> outputs, weights = MultiHeadAttention(8, 2)(x, x, x, need_weights=True)
    >>> outputs.shape, weights.shape
    ((2, 5, 8), (2, 2, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attn_dropout: float = 0.0,
        out_dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        name = type(self).__name__
        embed_dim = whole(name, "embed_dim", embed_dim, 1)
        num_heads = whole(name, "num_heads", num_heads)
        kdim = embed_dim if kdim is None else whole(name, "kdim", kdim, 1)
        vdim = embed_dim if vdim is None else whole(name, "vdim", vdim, 1)
        attn_dropout = share(name, "attn_dropout", attn_dropout)
        out_dropout = share(name, "out_dropout", out_dropout)
        if num_heads < 1 or embed_dim % num_heads:
            raise AttrError(
                f"MultiHeadAttention: num_heads must divide embed_dim, got {num_heads} heads for "
                f"{embed_dim}, "
                "expected a divisor"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = Linear(embed_dim, embed_dim, bias)
        self.k_proj = Linear(kdim, embed_dim, bias)
        self.v_proj = Linear(vdim, embed_dim, bias)
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        self.add_zero_attn = add_zero_attn
        empty = np.zeros((1, 1, embed_dim), np.float32)
        self.bias_k = Parameter(empty) if add_bias_kv else None
        self.bias_v = Parameter(empty) if add_bias_kv else None
        self.attn_drop = Dropout(attn_dropout)
        self.out_drop = Dropout(out_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections anew by ``xavier_uniform_`` and set the biases to zero."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                init.zeros_(projection.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.zeros_(extra)

    def _heads(self, x: Tensor) -> Tensor:
        """Cut (N, L, E) into heads (N, heads, L, E / heads)."""
        cut = F.reshape(x, (x.shape[0], x.shape[1], self.num_heads, self.head_dim))
        result: Tensor = F.transpose(cut, (0, 2, 1, 3))
        return result

    def _extended(self, projected: Tensor, bias: Tensor | None) -> Tensor:
        """Put the keys or values that every query sees behind those of the sequence."""
        row = (projected.shape[0], 1, self.embed_dim)
        more = [] if bias is None else [F.broadcast_to(bias.cast(projected.dtype), row)]
        if self.add_zero_attn:
            more.append(projected.full(row, 0.0))
        result: Tensor = F.concat([projected, *more], 1) if more else projected
        return result

    def _covering(self, mask: Tensor, keys: Tensor) -> Tensor:
        """Lengthen a mask by the added keys, which it does not know of and which stay in sight."""
        count = int(keys.shape[-2]) - int(mask.shape[-1])
        if not count:
            return mask
        ends = ((0, 0),) * (mask.ndim - 1) + ((0, count),)
        if mask.dtype.kind != "b":
            result: Tensor = F.nn.pad(mask, ends)
            return result
        covering: Tensor = F.nn.pad(mask.cast("int32"), ends).cast("bool")
        return covering

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs (N, L, embed_dim), and the weights (N, heads, L, S) if asked for.

        S counts added keys in the weights, not in the masks.

        Args:
            query, key, value: (N, L, embed_dim), (N, S, kdim), (N, S, vdim).
            key_padding_mask: (N, S), true where a key is left out.
            attn_mask: (L, S), (N, L, S) or (N, heads, L, S); bool, true where a pair is left out,
                or a float that is added to the scores.
            need_weights: whether the weights are returned, else None in their place.
            average_attn_weights: whether they are averaged over heads: (N, L, S).
            is_causal: whether a query sees no later key.

        Raises:
            ShapeError: where an input has another rank than 3.
        """
        for what, given in (("query", query), ("key", key), ("value", value)):
            if given.ndim != 3:
                raise ShapeError(
                    f"MultiHeadAttention: {what} has the wrong rank, got "
                    f"{format_shape(given.shape)}, expected 3 dimensions"
                )
        q = self._heads(self.q_proj(query))
        k = self._heads(self._extended(self.k_proj(key), self.bias_k))
        v = self._heads(self._extended(self.v_proj(value), self.bias_v))
        masks = []
        if is_causal:
            rows = F.arange(0, query.shape[1]).reshape(-1, 1)
            masks.append(F.arange(0, key.shape[1]).reshape(1, -1) > rows)
        if attn_mask is not None:
            masks.append(F.expand_dims(attn_mask, 1) if attn_mask.ndim == 3 else attn_mask)
        if key_padding_mask is not None:
            masks.append(F.expand_dims(key_padding_mask, (1, 2)))
        scale = 1 / math.sqrt(self.head_dim)
        weights = None
        dropped = self.attn_drop.training and self.attn_drop.drop_prob != 0
        if need_weights or dropped or not streams():
            scores = F.matmul(q * scale, k, transpose_b=True)
            for mask in masks:
                scores = _masked(scores, self._covering(mask, k))
            weights = F.nn.softmax(scores, axis=-1)
            joined = F.matmul(self.attn_drop(weights), v)
        else:
            total = None
            for mask in masks:
                start = q.full((), 0.0) if total is None else total
                total = _masked(start, self._covering(mask, k))
            joined = streamed(q, k, v, total, scale)
        joined = F.transpose(joined, (0, 2, 1, 3))
        joined = F.reshape(joined, (query.shape[0], query.shape[1], self.embed_dim))
        outputs = self.out_drop(self.out_proj(joined))
        if not need_weights or weights is None:
            return outputs, None
        return outputs, F.mean(weights, axis=1) if average_attn_weights else weights


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Put scores out of reach where a bool mask is true; add a float mask."""
    if mask.dtype.kind != "b":
        result: Tensor = scores + mask.cast(scores.dtype)
        return result
    chosen: Tensor = F.where(mask, scores.full((), _MASKED), scores)
    return chosen

"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any

from .. import functional as F
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
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
        add_bias_kv, add_zero_attn: must be False.
        kdim, vdim: extents of keys and values; ``embed_dim`` if None.

    Raises:
        AttrError: where the heads do not divide the extent, or an option must be False.

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
        if num_heads < 1 or embed_dim % num_heads:
            raise AttrError(
                f"MultiHeadAttention: num_heads must divide embed_dim, got {num_heads} heads for "
                f"{embed_dim}"
            )
        for option, value in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if value:
                raise AttrError(
                    f"MultiHeadAttention: {option} is not supported, got {value}, expected False"
                )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = Linear(embed_dim, embed_dim, bias)
        self.k_proj = Linear(embed_dim if kdim is None else kdim, embed_dim, bias)
        self.v_proj = Linear(embed_dim if vdim is None else vdim, embed_dim, bias)
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        self.attn_drop = Dropout(attn_dropout)
        self.out_drop = Dropout(out_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections anew by ``xavier_uniform_`` and set the biases to zero."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                init.zeros_(projection.bias)

    def _heads(self, x: Tensor) -> Tensor:
        """Cut (N, L, E) into heads (N, heads, L, E / heads)."""
        cut = F.reshape(x, (x.shape[0], x.shape[1], self.num_heads, self.head_dim))
        result: Tensor = F.transpose(cut, (0, 2, 1, 3))
        return result

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
        q = self._heads(self.q_proj(query)) * (1 / math.sqrt(self.head_dim))
        k, v = self._heads(self.k_proj(key)), self._heads(self.v_proj(value))
        scores = F.matmul(q, k, transpose_b=True)
        if is_causal:
            rows = F.arange(0, query.shape[1]).reshape(-1, 1)
            scores = _masked(scores, F.arange(0, key.shape[1]).reshape(1, -1) > rows)
        if attn_mask is not None:
            mask = F.expand_dims(attn_mask, 1) if attn_mask.ndim == 3 else attn_mask
            scores = _masked(scores, mask)
        if key_padding_mask is not None:
            scores = _masked(scores, F.expand_dims(key_padding_mask, (1, 2)))
        weights = F.nn.softmax(scores, axis=-1)
        joined = F.transpose(F.matmul(self.attn_drop(weights), v), (0, 2, 1, 3))
        joined = F.reshape(joined, (query.shape[0], query.shape[1], self.embed_dim))
        outputs = self.out_drop(self.out_proj(joined))
        if not need_weights:
            return outputs, None
        return outputs, F.mean(weights, axis=1) if average_attn_weights else weights


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Put scores out of reach where a bool mask is true; add a float mask."""
    if mask.dtype.kind != "b":
        result: Tensor = scores + mask.cast(scores.dtype)
        return result
    chosen: Tensor = F.where(F.broadcast_to(mask, scores.shape), scores.full((), _MASKED), scores)
    return chosen

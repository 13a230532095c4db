"""Attention: weigh values by the likeness of keys to queries, and turn positions into rotations."""

from __future__ import annotations

import math as numbers
from typing import Any, cast

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.state import state
from ..imperative.tensor import Tensor
from . import elemwise
from .activation import softmax
from .arguments import floating, run, same_dtype, tensor
from .creation import arange
from .joining import concat, cut
from .layers import dropout
from .linalg import matmul
from .movement import reshape
from .picking import where

__all__ = ["rotary_embedding", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(query @ key.T * scale + mask) @ value, as PyTorch's function of that name.

    ``query`` is (..., L, E), ``key`` (..., S, E) and ``value`` (..., S, V); leading axes
    broadcast. ``attn_mask`` broadcasts to (..., L, S): a bool one is true where a query may see a
    key, a float one is added. ``is_causal`` lets query i see the keys up to i. ``scale`` is
    1/sqrt(E) by default. Weights are dropped with probability ``dropout_p`` at every call. A query
    that sees no key of a bool mask gives zeros. Where no gradient is recorded and nothing is
    dropped, it is one op, whose kernels need not hold the weights. Follows Vaswani et al.,
    Attention is all you need, 2017.

    Raises:
        ShapeError: where a rank is below 2 or the extents do not fit.
        AttrError: where both a mask and ``is_causal`` are given.

    >>> x = Tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> scaled_dot_product_attention(x, x, x, is_causal=True)[0, 0].tolist()
    [1.0, 0.0]
    """
    op = "scaled_dot_product_attention"
    q, k, v = (floating(tensor(op, x, what)) for x, what in
               ((query, "query"), (key, "key"), (value, "value")))  # fmt: skip
    q, k, v = same_dtype(op, q, k, v)
    fits = min(q.ndim, k.ndim, v.ndim) >= 2 and int(q.shape[-1]) == int(k.shape[-1])
    if not fits or int(k.shape[-2]) != int(v.shape[-2]):
        got = ", ".join(shapes.format_shape(x.shape) for x in (q, k, v))
        raise ShapeError(
            f"{op}: shapes do not fit, got {got}, expected (..., L, E), (..., S, E), (..., S, V)"
        )
    if attn_mask is not None and is_causal:
        raise AttrError(f"{op}: a mask and is_causal were given, expected one of them")
    factor = 1 / numbers.sqrt(int(q.shape[-1])) if scale is None else float(scale)
    if dropout_p == 0 and streams():
        return streamed(q, k, v, attn_mask, factor, is_causal)
    scores = matmul(elemwise.mul(q, factor), k, transpose_b=True)
    if is_causal:
        attn_mask = causal_mask(q.shape[-2], k.shape[-2], q)
    if attn_mask is None:
        weights = softmax(scores, axis=-1)
    elif tensor(op, attn_mask, "attn_mask").dtype.kind == "b":
        weights = masked_softmax(scores, attn_mask)
    else:
        weights = softmax(elemwise.add(scores, attn_mask.cast(scores.dtype)), axis=-1)
    return matmul(dropout(weights, dropout_p), v)


def streams() -> bool:
    """Tell whether attention is best one op: nothing records the weights for a gradient.

    Autocast lowers products, and not the sums between them.
    """
    return not state.tapes and state.precision is None


def streamed(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool = False
) -> Tensor:
    """Attend in one op that need not hold the scores; masks as of scaled_dot_product_attention."""
    masks = []
    if mask is not None:
        given = tensor("attention", mask, "mask")
        given = given if given.dtype.kind == "b" else given.cast(q.dtype)
        short = max(0, 2 - given.ndim)
        masks.append(reshape(given, (*(1,) * short, *given.shape)) if short else given)
    return run("attention", q, k, v, *masks, scale=scale, causal=bool(causal))


def causal_mask(queries: int, keys: int, like: Tensor) -> Tensor:
    """Tell by bool (L, S) which keys lie at or before each query."""
    rows = reshape(arange(queries, dtype="int32", device=like.device), (-1, 1))
    return elemwise.less_equal(arange(keys, dtype="int32", device=like.device), rows)


def masked_softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Return the softmax along the last axis over what is seen; zeros where nothing is."""
    # A finite number far below every score keeps rows without any key free of NaN.
    lowest = -6e4 if scores.dtype.itemsize == 2 else -1e30
    weights = softmax(where(seen, scores, lowest), axis=-1)
    return cast(Tensor, where(seen, weights, 0.0))


def rotary_embedding(
    inp: Tensor,
    positions: Tensor | None = None,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_dim: int | None = None,
) -> Tensor:
    """Rotate pairs of the last axis of (..., L, D) by angles that grow with the position.

    Pair i of position p turns by p * base**(-2i / D). A pair is (i, i + D/2), or neighbours
    (2i, 2i + 1) where ``interleaved``. ``positions`` are 0 to L - 1 by default, else they
    broadcast to (..., L). ``rotary_dim`` turns only so many leading elements of D. Follows Su et
    al., RoFormer, 2021.

    Raises:
        ShapeError: where the rank is below 2.
        AttrError: where the extent that turns is not even, or larger than D.

    >>> rotary_embedding(Tensor([[1.0, 0.0], [1.0, 0.0]])).numpy().round(2).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8399999737739563]]
    """
    op = "rotary_embedding"
    x = floating(tensor(op, inp))
    if x.ndim < 2:
        raise ShapeError(
            f"{op}: input has the wrong rank, got {shapes.format_shape(x.shape)}, "
            "expected (..., L, D)"
        )
    extent = int(x.shape[-1])
    size = extent if rotary_dim is None else int(rotary_dim)
    if size % 2 or not 0 < size <= extent:
        raise AttrError(
            f"{op}: rotary_dim must be even and in 2 to {extent}, got {size}, "
            "expected an even extent that fits"
        )
    place = arange(x.shape[-2], device=x.device) if positions is None else positions
    place = tensor(op, place, "positions").cast("float32")
    rates = elemwise.exp(
        elemwise.mul(arange(size // 2, device=x.device), -2.0 * numbers.log(base) / size)
    )
    angles = elemwise.mul(reshape(place, (*place.shape, 1)), rates)
    cosine, sine = (f(angles).cast(x.dtype) for f in (elemwise.cos, elemwise.sin))
    turned = _turned(cut(x, x.ndim - 1, 0, size), cosine, sine, interleaved)
    if size == extent:
        return turned
    return concat([turned, cut(x, x.ndim - 1, size, extent - size)], -1)


def _turned(x: Tensor, cosine: Any, sine: Any, interleaved: bool) -> Tensor:
    size, axis = int(x.shape[-1]), x.ndim - 1
    step, second = (2, 1) if interleaved else (1, size // 2)
    a, b = cut(x, axis, 0, size // 2, step), cut(x, axis, second, size // 2, step)
    first = elemwise.sub(elemwise.mul(a, cosine), elemwise.mul(b, sine))
    last = elemwise.add(elemwise.mul(a, sine), elemwise.mul(b, cosine))
    if not interleaved:
        return concat([first, last], -1)
    pairs = run(
        "concat",
        *(reshape(part, (*part.shape, 1)) for part in (first, last)),
        axis=first.ndim,
    )
    return reshape(pairs, (*first.shape[:-1], size))

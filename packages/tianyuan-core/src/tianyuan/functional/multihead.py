"""Multi-head attention whose projections lie in one packed tensor, as MegEngine passes them."""

from __future__ import annotations

import functools
import math as numbers
from dataclasses import dataclass
from typing import Any

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from . import elemwise, math
from .arguments import floating, run, same_dtype, same_shape, tensor
from .attention import causal_mask, streamed, streams
from .creation import full, zeros
from .joining import concat, cut
from .layers import dropout
from .linalg import matmul
from .movement import broadcast_to, reshape, transpose
from .picking import where

__all__ = ["multi_head_attention"]

_OP = "multi_head_attention"


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_heads: int,
    attn_drop: float,
    out_drop: float,
    io_weight_bias: Tensor | None,
    qproj_size: int | None = None,
    kproj_size: int | None = None,
    vproj_size: int | None = None,
    oproj_size: int | None = None,
    qbias: bool = False,
    kbias: bool = False,
    vbias: bool = False,
    obias: bool = False,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    add_zero_attn: bool = False,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    need_weights: bool = False,
    average_attn_weights: bool = False,
    is_causal: bool = False,
    maybe_cudnn_style_mask: bool = False,
    reslink: bool = False,
    training: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Attend from queries (N, L, E) to keys (N, S, EK) and values (N, S, EV) in several heads.

    Every head computes softmax(Q K^T / sqrt(embed_dim / num_heads) + mask) V on its share of the
    projections. ``io_weight_bias`` holds, one after the other and flattened: the weights
    (E, qproj_size), (EK, kproj_size), (EV, vproj_size) and (vproj_size, oproj_size), by which
    inputs are multiplied from the right, then the biases that the flags name. A size of 0 leaves
    a projection out; None means ``embed_dim``, or 0 where nothing is packed.

    A bool mask is true where a key is left out; any other is added to the scores.
    ``key_padding_mask`` is (N, S), ``attn_mask`` (L, S) or (N * heads, L, S); ``is_causal`` hides
    later keys. ``bias_k`` and ``bias_v`` are one more key and value, ``add_zero_attn`` one of
    zeros. ``reslink`` adds the query to the result. Weights and result are dropped with the
    probabilities ``attn_drop`` and ``out_drop`` in training. Follows Vaswani et al., 2017.

    Returns:
        The result (N, L, oproj_size), and, where ``need_weights``, the weights
        (N * heads, L, S), or their average over heads (N, L, S); else None.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where the heads do not cut the extents, or a mask in cuDNN's style is given.

    >>> x = Tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> multi_head_attention(x, x, x, 2, 1, 0.0, 0.0, None, is_causal=True)[0][0, 0].tolist()
    [1.0, 0.0]
    """
    if maybe_cudnn_style_mask:
        raise AttrError(f"{_OP}: maybe_cudnn_style_mask is not offered, expected False")
    given = _inputs(query, key, value)
    width = 0 if io_weight_bias is None else int(embed_dim)
    wanted = (qproj_size, kproj_size, vproj_size, oproj_size)
    sizes = [width if size is None else int(size) for size in wanted]
    weights, biases = _unpacked(io_weight_bias, given, sizes, (qbias, kbias, vbias, obias))
    q, k, v = map(_projected, given, weights[:3], biases[:3])
    heads = _Heads(int(embed_dim), int(num_heads))
    k, v, more = _lengthened(k, v, bias_k, bias_v, add_zero_attn)
    masks = []
    if is_causal:
        masks.append(elemwise.logical_not(causal_mask(q.shape[1], key.shape[1], q)))
    if attn_mask is not None:
        masks.append(heads.mask(tensor(_OP, attn_mask, "attn_mask"), query.shape, key.shape))
    if key_padding_mask is not None:
        masks.append(_padding(key_padding_mask, key.shape))
    masks = [_widened(mask, more) for mask in masks]
    if need_weights or (training and attn_drop != 0) or not streams() or q.dtype.itemsize == 2:
        attention = _weights(heads.scores(q, k), masks)
        joined = heads.join(matmul(dropout(attention, attn_drop, training), heads.cut(v)))
    else:
        attention = None
        parts = (heads.cut(q), heads.cut(k), heads.cut(v))
        joined = heads.join(streamed(*parts, _sum(masks, q), heads.scale))
    result = dropout(_projected(joined, weights[3], biases[3]), out_drop, training)
    if reslink:
        result = elemwise.add(result, given[0])
    if not need_weights or attention is None:
        return result, None
    return result, _reported(attention, average_attn_weights)


def _reported(attention: Tensor, average: bool) -> Tensor:
    """Return weights (N, heads, L, S) averaged over heads, or with heads and batch as one axis."""
    if average:
        return math.mean(attention, 1)
    n, count, rows, columns = attention.shape
    return reshape(attention, (n * count, rows, columns))


def _inputs(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    found = same_dtype(_OP, *(
        floating(tensor(_OP, x, what))
        for what, x in (("query", query), ("key", key), ("value", value))
    ))  # fmt: skip
    q, k, v = found
    fits = all(x.ndim == 3 for x in found)
    if not fits or int(q.shape[0]) != int(k.shape[0]) or not same_shape(k.shape[:2], v.shape[:2]):
        got = ", ".join(shapes.format_shape(x.shape) for x in found)
        raise ShapeError(
            f"{_OP}: shapes do not fit, got {got}, expected (N, L, E), (N, S, EK), (N, S, EV)"
        )
    return found


class _Packed:
    """Takes weights one after the other from a packed tensor."""

    def __init__(self, packed: Tensor | None, like: Tensor) -> None:
        self.values: Tensor | None = None
        if packed is not None:
            found = tensor(_OP, packed, "io_weight_bias").cast(like.dtype)
            self.values = reshape(found, (-1,))
        self.place = 0

    def _count(self) -> int:
        return 0 if self.values is None else int(self.values.shape[0])

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Return the next weight, of the shape given."""
        size = int(shapes.volume(shape))
        if self.values is None or self.place + size > self._count():
            raise ShapeError(
                f"{_OP}: io_weight_bias is too short, got {self._count()} elements, "
                f"expected {self.place + size} or more"
            )
        found = cut(self.values, 0, self.place, size)
        self.place += size
        return reshape(found, shape)

    def expect_end(self) -> None:
        """Raise ShapeError where elements are left over."""
        if self.place != self._count():
            raise ShapeError(
                f"{_OP}: io_weight_bias is too long, got {self._count()} elements, "
                f"expected {self.place}"
            )


def _unpacked(
    packed: Tensor | None, given: list[Tensor], sizes: list[int], flags: tuple[bool, ...]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Return the weights and the biases of the four projections, None where there is none."""
    source = _Packed(packed, given[0])
    extents = [int(x.shape[-1]) for x in given]
    entries = [*extents, sizes[2] or extents[2]]
    weights = [source.take((n, s)) if s else None for n, s in zip(entries, sizes, strict=True)]
    biases = [source.take((s,)) if s and f else None for s, f in zip(sizes, flags, strict=True)]
    source.expect_end()
    return weights, biases


def _projected(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = x if weight is None else matmul(x, weight)
    return y if bias is None else elemwise.add(y, bias)


def _lengthened(
    k: Tensor, v: Tensor, bias_k: Any, bias_v: Any, zero: bool
) -> tuple[Tensor, Tensor, int]:
    """Append the keys and values that every query sees; return how many there are."""
    if (bias_k is None) != (bias_v is None):
        raise AttrError(f"{_OP}: only one of bias_k and bias_v was given, expected both or none")
    more = 0
    if bias_k is not None:
        k, v = (_appended(x, tensor(_OP, b, what)) for x, b, what in
                ((k, bias_k, "bias_k"), (v, bias_v, "bias_v")))  # fmt: skip
        more += 1
    if zero:
        k, v = (_appended(x, zeros((1,), dtype=x.dtype, device=x.device)) for x in (k, v))
        more += 1
    return k, v, more


def _appended(x: Tensor, row: Tensor) -> Tensor:
    wide = broadcast_to(reshape(row, (1, 1, -1)), (x.shape[0], 1, x.shape[2]))
    return concat([x, wide.cast(x.dtype)], 1)


@dataclass(frozen=True)
class _Heads:
    """How extents are cut into heads."""

    extent: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.extent % self.count:
            raise AttrError(
                f"{_OP}: num_heads must divide embed_dim, got {self.count} heads for "
                f"{self.extent}, expected a divisor"
            )

    def cut(self, x: Tensor) -> Tensor:
        """Return (N, L, D) as (N, heads, L, D / heads)."""
        if int(x.shape[2]) % self.count:
            raise AttrError(
                f"{_OP}: num_heads must divide the projections, got {self.count} heads for "
                f"{int(x.shape[2])}, expected a divisor"
            )
        n, length, size = x.shape
        apart = reshape(x, (n, length, self.count, size // self.count))
        return transpose(apart, (0, 2, 1, 3))

    def join(self, x: Tensor) -> Tensor:
        """Return (N, heads, L, D / heads) as (N, L, D)."""
        n, count, length, size = x.shape
        return reshape(transpose(x, (0, 2, 1, 3)), (n, length, count * size))

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return 1 / numbers.sqrt(self.extent / self.count)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores (N, heads, L, S)."""
        return matmul(elemwise.mul(self.cut(q), self.scale), self.cut(k), transpose_b=True)

    def mask(self, mask: Tensor, query: shapes.Shape, key: shapes.Shape) -> Tensor:
        """Return a mask (L, S) or (N * heads, L, S) so that it broadcasts to the scores."""
        flat = (query[1], key[1])
        if same_shape(mask.shape, flat):
            return mask
        if same_shape(mask.shape, (int(query[0]) * self.count, *flat)):
            return reshape(mask, (query[0], self.count, *flat))
        raise ShapeError(
            f"{_OP}: attn_mask does not fit, got {shapes.format_shape(mask.shape)}, expected "
            f"{shapes.format_shape(flat)} or "
            f"{shapes.format_shape((int(query[0]) * self.count, *flat))}"
        )


def _padding(mask: Tensor, key: shapes.Shape) -> Tensor:
    if not same_shape(tensor(_OP, mask, "key_padding_mask").shape, key[:2]):
        raise ShapeError(
            f"{_OP}: key_padding_mask does not fit, got {shapes.format_shape(mask.shape)}, "
            f"expected {shapes.format_shape(key[:2])}"
        )
    return reshape(mask, (key[0], 1, 1, key[1]))


def _widened(mask: Tensor, more: int) -> Tensor:
    """Let a mask see the keys that were appended."""
    if not more:
        return mask
    tail = full((*mask.shape[:-1], more), 0, dtype=mask.dtype, device=mask.device)
    return concat([mask, tail], -1)


def _weights(scores: Tensor, masks: list[Tensor]) -> Tensor:
    for mask in masks:
        scores = _masked(scores, mask)
    return run("softmax", scores, axis=3)


def _sum(masks: list[Tensor], like: Tensor) -> Tensor | None:
    """Return what masks add to scores."""
    if not masks:
        return None
    return functools.reduce(_masked, masks, zeros((), dtype=like.dtype, device=like.device))


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype.kind == "b":
        # Finite, so that a row without any key stays free of NaN.
        return where(mask, -6e4 if scores.dtype.itemsize == 2 else -1e30, scores)  # type: ignore[no-any-return]
    return elemwise.add(scores, mask.cast(scores.dtype))

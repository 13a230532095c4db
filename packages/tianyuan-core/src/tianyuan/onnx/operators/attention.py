"""Attention: scaled dot products with masks and caches, its linear relative, causal convolution."""

from __future__ import annotations

import math

import numpy as np

from ... import dtypes
from ...errors import AttrError, ShapeError
from ..node import Node
from ..reader import dtype_of
from ..table import operator
from .common import Tensor, binary, constant, permuted, reshaped, run, scalar, zero_padded
from .conv import Window, convolve, with_bias
from .recurrent import picked


def _heads(x: Tensor, count: int | None) -> Tensor:
    """Return (batch, heads, time, size), from (batch, time, heads * size) where it is so."""
    if x.ndim == 4:
        return x
    if x.ndim != 3 or not count or int(x.shape[2]) % count:
        raise ShapeError(f"input does not fit {count} heads, got rank {x.ndim}")
    apart = reshaped(x, (x.shape[0], x.shape[1], count, x.shape[2] // count))
    return permuted(apart, (0, 2, 1, 3))


def _repeated(x: Tensor, times: int) -> Tensor:
    """Repeat each head."""
    if times == 1:
        return x
    n, h, t, d = x.shape
    wide = run("broadcast_to", reshaped(x, (n, h, 1, t, d)), shape=(n, h, times, t, d))
    return reshaped(wide, (n, h * times, t, d))


def _line(count: int) -> Tensor:
    ones = run("broadcast_to", constant(1, np.int64), shape=(count,))
    return binary("sub", run("cumsum", ones, axis=0), 1)


@operator("Attention", 23)
def attention(
    node: Node, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None,
    past_key: Tensor | None = None, past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return softmax(q k' * scale + bias) v, the caches, and the scores if asked for."""
    flat = q.ndim == 3
    kv_heads = node.int("kv_num_heads", None)
    q = _heads(q, node.int("q_num_heads", None))
    k, v = _heads(k, kv_heads), _heads(v, kv_heads)
    if (past_key is None) != (past_value is None):
        raise AttrError("past_key and past_value are used together, got one of them")
    if past_key is not None:
        k = run("concat", past_key, k, axis=2)
        v = run("concat", past_value, v, axis=2)
    keys, values = k, v
    if int(q.shape[1]) % int(k.shape[1]):
        raise ShapeError(f"heads do not fit, got {int(q.shape[1])} and {int(k.shape[1])}")
    times = int(q.shape[1]) // int(k.shape[1])
    k, v = _repeated(k, times), _repeated(v, times)
    scale = node.float("scale", 1 / math.sqrt(int(q.shape[-1])))
    if past_key is None and lengths is None and _is_plain(node, k, mask):
        masks = () if mask is None else (mask,)
        y = run("attention", q, k, v, *masks, scale=scale, causal=node.flag("is_causal"))
        return (_joined(y) if flat else y), keys, values
    root = math.sqrt(scale)
    scores = run("matmul", binary("mul", q, root), binary("mul", k, root),
                 transpose_a=False, transpose_b=True)  # fmt: skip
    stages = [scores]
    cap = node.float("softcap", 0.0)
    if cap:
        scores = binary("mul", run("tanh", binary("div", scores, cap)), cap)
    stages.append(scores)
    bias = _bias(node, scores, mask, past_key, lengths)
    scores = scores if bias is None else run("add", scores, bias)
    stages.append(scores)
    weights = _weights(node, scores, bias)
    stages.append(weights)
    y = run("matmul", weights, v, transpose_a=False, transpose_b=False)
    y = _joined(y) if flat else y
    mode = node.int("qk_matmul_output_mode", 0)
    if not 0 <= mode <= 3:
        raise AttrError(f"qk_matmul_output_mode is wrong, got {mode}, expected 0 to 3")
    return y, keys, values, stages[mode]


def _is_plain(node: Node, keys: Tensor, mask: Tensor | None) -> bool:
    """Tell whether the op ``attention`` computes the node: it gives zeros to rows without a key."""
    given = ("softcap", "softmax_precision", "qk_matmul_output_mode", "left_window_size",
             "right_window_size")  # fmt: skip
    if len(node.outputs) > 3 or any(node.has(name) for name in given):
        return False
    if mask is None:
        return True
    whole = mask.ndim >= 2 and int(mask.shape[-1]) == int(keys.shape[-2])
    return whole and bool(dtypes.is_bool(mask.dtype))


def _joined(y: Tensor) -> Tensor:
    """Return (batch, time, heads * size) from (batch, heads, time, size)."""
    n, h, t, d = y.shape
    return reshaped(permuted(y, (0, 2, 1, 3)), (n, t, h * d))


def _weights(node: Node, scores: Tensor, bias: Tensor | None) -> Tensor:
    """Return the softmax of scores; a row without any key is zero."""
    code = node.int("softmax_precision", 0)
    wide = scores.astype(dtype_of(code)) if code else scores
    found = run("softmax", wide, axis=wide.ndim - 1)
    if bias is not None:
        most = run("max", bias, axes=(bias.ndim - 1,), keepdims=True)
        found = run("where", binary("equal", most, -np.inf), scalar(found, 0), found)
    return found.astype(scores.dtype)


def _bias(
    node: Node, scores: Tensor, mask: Tensor | None, past: Tensor | None, lengths: Tensor | None
) -> Tensor | None:
    """Return what is added to scores, with -inf where a query must not see a key."""
    rows, cols = scores.shape[-2:]
    allowed: Tensor | None = None

    def narrow(held: Tensor) -> None:
        nonlocal allowed
        allowed = held if allowed is None else run("logical_and", allowed, held)

    offset = constant(0 if past is None else int(past.shape[2]), np.int64)
    if lengths is not None:
        count = reshaped(lengths.astype("int64"), (lengths.shape[0], 1, 1, 1))
        narrow(run("less", reshaped(_line(cols), (1, 1, 1, cols)), count))
        if past is None:
            offset = binary("sub", count, int(rows))
    place = run("add", reshaped(_line(rows), (1, 1, rows, 1)), offset)
    key = reshaped(_line(cols), (1, 1, 1, cols))
    left, right = node.int("left_window_size", -1), node.int("right_window_size", -1)
    if node.flag("is_causal"):
        narrow(run("less_equal", key, place))
    if left >= 0:
        narrow(run("greater_equal", key, binary("sub", place, left)))
    if right >= 0:
        narrow(run("less_equal", key, binary("add", place, right)))
    total: Tensor | None = None
    if mask is not None:
        missing = int(cols) - int(mask.shape[-1])
        if missing > 0:
            fill = 0.0 if dtypes.is_bool(mask.dtype) else -np.inf
            mask = zero_padded(mask, (0,) * mask.ndim, (*(0,) * (mask.ndim - 1), missing), fill)
        if dtypes.is_bool(mask.dtype):
            narrow(mask)
        else:
            total = mask.astype(scores.dtype)
    if allowed is not None:
        hidden = run("where", allowed, scalar(scores, 0), scalar(scores, -np.inf))
        total = hidden if total is None else run("add", total, hidden)
    if total is None:
        return None
    shape = tuple(1 for _ in range(4 - total.ndim)) + tuple(total.shape)
    return reshaped(total, shape)


_RULES = ("linear", "gated", "delta", "gated_delta")


@operator("LinearAttention", 27)
def linear_attention(
    node: Node, q: Tensor, k: Tensor, v: Tensor, past: Tensor | None = None,
    decay: Tensor | None = None, beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Keep a state of key-value products over time, forget by decay, correct by beta."""
    rule = node.text("update_rule", "gated_delta", _RULES)
    gated, corrected = "gated" in rule, "delta" in rule
    if gated != (decay is not None) or corrected != (beta is not None):
        raise AttrError(f"decay or beta does not fit the rule {rule!r}")
    heads, kv = node.int("q_num_heads"), node.int("kv_num_heads")
    if kv < 1 or heads < kv or heads % kv:
        raise AttrError(f"heads do not fit, got {heads} and {kv}")
    kind, state_kind = q.dtype, q.dtype if past is None else past.dtype
    q, k, v = (_heads(x, n).astype("float32") for x, n in ((q, heads), (k, kv), (v, kv)))
    n, _, t, size = q.shape
    if decay is not None:
        decay = run("exp", _heads(decay, kv).astype("float32"))
    if beta is not None:
        beta = _heads(beta, int(beta.shape[2])).astype("float32")
    width = v.shape[3]
    state = q.full((n, kv, size, width), 0.0) if past is None else past.astype("float32")
    scale = node.float("scale", 0.0) or 1 / math.sqrt(int(size))
    rows = []
    for time in range(int(t)):
        qt, kt, vt = (_at(x, time) for x in (q, k, v))
        if decay is not None:
            gate = _at(decay, time)
            state = run("mul", state, reshaped(gate, (*gate.shape, 1)))
        column = reshaped(kt, (*kt.shape, 1))
        if beta is not None:
            have = run("sum", run("mul", state, column), axes=(2,), keepdims=False)
            vt = run("mul", _at(beta, time), run("sub", vt, have))
        state = run("add", state, run("mul", column, reshaped(vt, (*kt.shape[:2], 1, width))))
        read = _repeated(state, heads // kv)
        seen = run("sum", run("mul", read, reshaped(qt, (*qt.shape, 1))), axes=(2,), keepdims=False)
        rows.append(reshaped(binary("mul", seen, scale), (n, 1, heads * width)))
    return run("concat", *rows, axis=1).astype(kind), state.astype(state_kind)


def _at(x: Tensor, time: int) -> Tensor:
    """Return one moment of (batch, heads, time, size)."""
    return picked(permuted(x, (2, 0, 1, 3)), time)


@operator("CausalConvWithState", 27)
def causal_conv(
    node: Node, x: Tensor, w: Tensor, bias: Tensor | None = None, past: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Convolve each channel of (batch, channels, time) with what came before."""
    kind = node.text("activation", "none", ("none", "silu", "swish"))
    if x.ndim != 3 or w.ndim != 3:
        raise ShapeError(f"ranks must be 3, got {x.ndim} and {w.ndim}")
    reach = int(w.shape[2])
    if past is None:
        whole = zero_padded(x, (0, 0, reach - 1), (0, 0, 0))
    else:
        whole = run("concat", past, x, axis=2)
    at = Window((reach,), (1,), (1,), (0,), (0,))
    y = with_bias(convolve(whole, w, at, int(x.shape[1])), bias)
    if kind != "none":
        y = run("silu", y.astype("float32")).astype(y.dtype)
    sizes = (*x.shape[:2], reach - 1)
    kept = run("slice", whole, starts=(0, 0, whole.shape[2] - (reach - 1)), sizes=sizes,
               steps=(1, 1, 1))  # fmt: skip
    return y, kept

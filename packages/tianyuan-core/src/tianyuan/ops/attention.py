"""Scaled dot-product attention as one op, so that a kernel need not hold the matrix of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import shapes
from ..errors import AttrError, DTypeError, ShapeError
from ..op import GradContext, Op, Specs, TensorSpec, Work, expect_float, expect_same_dtype
from ..records import record
from .creation import ARANGE
from .elementwise import LESS_EQUAL, LOGICAL_AND, WHERE
from .matmul import MATMUL
from .operand import unbroadcast
from .reduction import SOFTMAX, SUM
from .shape import RESHAPE


@record()
class Attention:
    """What scores are multiplied by, and whether query i sees only the keys up to i."""

    scale: float = 1.0
    causal: bool = False


def lowest_score(dtype: Any) -> float:
    """Return the score of a hidden key: finite, so that a query without keys stays free of NaN."""
    return -6e4 if dtype.itemsize == 2 else -1e30


def _expect_mask(op: str, mask: TensorSpec, query: TensorSpec, scores: shapes.Shape) -> None:
    if mask.dtype.kind != "b" and mask.dtype != query.dtype:
        raise DTypeError(
            f"{op}: mask has the wrong dtype, got {mask.dtype.name}, expected bool or "
            f"{query.dtype.name}"
        )
    wide = shapes.broadcast(op, scores, mask.shape) if mask.ndim >= 2 else ()
    if tuple(map(int, wide)) != tuple(map(int, scores)):
        raise ShapeError(
            f"{op}: mask does not fit, got {shapes.format_shape(mask.shape)}, expected two "
            f"axes or more that broadcast to {shapes.format_shape(scores)}"
        )


def _infer(specs: Specs, attrs: Attention) -> Specs:
    return (result_of("attention", specs, attrs),)


def result_of(op: str, specs: Specs, attrs: Attention) -> TensorSpec:
    """Return what attention gives for query, key, value and perhaps a mask, which ``op`` takes."""
    query, key, value = specs[:3]
    if attrs.scale != attrs.scale:
        raise AttrError(f"{op}: scale is no number, got {attrs.scale}, expected a finite one")
    for what, spec in zip(("query", "key", "value"), specs, strict=False):
        expect_float(op, spec, what)
    expect_same_dtype(op, specs[:3])
    fits = min(spec.ndim for spec in specs[:3]) >= 2
    fits = fits and int(query.shape[-1]) == int(key.shape[-1])
    if not fits or int(key.shape[-2]) != int(value.shape[-2]):
        got = ", ".join(shapes.format_shape(spec.shape) for spec in specs[:3])
        raise ShapeError(
            f"{op}: shapes do not fit, got {got}, expected (..., L, E), (..., S, E) and (..., S, V)"
        )
    lead = shapes.broadcast(op, *(spec.shape[:-2] for spec in specs[:3]))
    if len(specs) == 4:
        _expect_mask(op, specs[3], query, (*lead, query.shape[-2], key.shape[-2]))
    return query.with_shape((*lead, query.shape[-2], value.shape[-1]))


def _line(like: Any, count: int, shape: shapes.Shape) -> Any:
    """Return 0, 1, ... in the runtime of another value."""
    line = like._apply(ARANGE, (), ARANGE.attrs(0.0, 1.0, count, "int32"))
    return RESHAPE(line, shape=shape)


def _weights(query: Any, key: Any, masks: Sequence[Any], attrs: Attention) -> Any:
    """Return what each query weighs each key by; hidden ones weigh nothing."""
    scores = MATMUL(query * attrs.scale, key, transpose_a=False, transpose_b=True)
    seen = None
    for mask in masks:
        if mask.dtype.kind == "b":
            seen = mask
        else:
            scores = scores + mask
    if attrs.causal:
        rows, columns = scores.shape[-2:]
        line = _line(query, columns, (1, columns))
        earlier = LESS_EQUAL(line, _line(query, rows, (rows, 1)))
        seen = earlier if seen is None else LOGICAL_AND(seen, earlier)
    if seen is not None:
        scores = WHERE(seen, scores, scores.full((), lowest_score(scores.dtype)))
    weights = SOFTMAX(scores, axis=scores.ndim - 1)
    return weights if seen is None else WHERE(seen, weights, weights.full((), 0.0))


def _decompose(inputs: tuple[Any, ...], attrs: Attention) -> Any:
    query, key, value, *masks = inputs
    weights = _weights(query, key, masks, attrs)
    return MATMUL(weights, value, transpose_a=False, transpose_b=False)


def _of_scores(inputs: tuple[Any, ...], attrs: Attention) -> tuple[Any, Any]:
    """Return the weights, and what the gradient of the scores is."""
    query, key, value, out, g, *masks = inputs
    weights = _weights(query, key, masks, attrs)
    of_weights = MATMUL(g, value, transpose_a=False, transpose_b=True)
    return weights, weights * (of_weights - SUM(g * out, axes=(g.ndim - 1,), keepdims=True))


def _grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (g,), (out,) = grads, ctx.outputs
    if g is None:
        return (None,) * len(ctx.inputs)
    query, key, value, *masks = ctx.inputs
    inputs = (query, key, value, out, g, *masks)
    given = {"scale": ctx.attrs.scale, "causal": ctx.attrs.causal}
    found = [None, None, None]
    if any(ctx.needs[:3]):
        found = list(ATTENTION_BACKWARD(*inputs, **given))
    if masks:
        found.append(_of_scores(inputs, ctx.attrs)[1] if ctx.needs[3] else None)
    return [
        unbroadcast(value, x.shape) if value is not None and needed else None
        for value, x, needed in zip(found, ctx.inputs, ctx.needs, strict=True)
    ]


def _infer_backward(specs: Specs, attrs: Attention) -> Specs:
    query, key, value, out, g, *masks = specs
    wanted = result_of("attention_backward", (query, key, value, *masks), attrs)
    expect_same_dtype("attention_backward", (query, out, g))
    for what, spec in (("the result", out), ("the gradient", g)):
        if tuple(map(int, spec.shape)) != tuple(map(int, wanted.shape)):
            raise ShapeError(
                f"attention_backward: {what} has the wrong shape, got "
                f"{shapes.format_shape(spec.shape)}, expected {shapes.format_shape(wanted.shape)}"
            )
    return tuple(x.with_shape((*wanted.shape[:-2], *x.shape[-2:])) for x in (query, key, value))


def _decompose_backward(inputs: tuple[Any, ...], attrs: Attention) -> Any:
    query, key, _, _, g, *_ = inputs
    weights, of_scores = _of_scores(inputs, attrs)
    of_products = of_scores * attrs.scale
    return (
        MATMUL(of_products, key, transpose_a=False, transpose_b=False),
        MATMUL(of_products, query, transpose_a=True, transpose_b=False),
        MATMUL(weights, g, transpose_a=True, transpose_b=False),
    )


def _work(inputs: Specs, outputs: Specs, attrs: Any) -> Work:
    out, (keys, depth) = outputs[0], inputs[1].shape[-2:]
    return Work(shapes.volume(out.shape[:-1]) * keys * (depth + out.shape[-1]))


def _work_backward(inputs: Specs, outputs: Specs, attrs: Any) -> Work:
    # The scores anew, then the gradients of weights, values, queries and keys.
    g, (keys, depth) = inputs[4], inputs[1].shape[-2:]
    return Work(shapes.volume(g.shape[:-1]) * keys * (3 * depth + 2 * g.shape[-1]))


# Vaswani et al., Attention is all you need, 2017.
ATTENTION = Op(
    "attention",
    infer=_infer,
    grad=_grad,
    decompose=_decompose,
    attrs=Attention,
    n_inputs=(3, 4),
    work=_work,
    family="matmul",
)
# Query, key, value, the result, its gradient and perhaps a mask; returns the gradients of the first
# three over the batch of the result (Dao 2023, FlashAttention-2, section 3.1).
ATTENTION_BACKWARD = Op(
    "attention_backward",
    infer=_infer_backward,
    decompose=_decompose_backward,
    attrs=Attention,
    n_inputs=(5, 6),
    work=_work_backward,
    family="matmul",
)
OPS: tuple[Op, ...] = (ATTENTION, ATTENTION_BACKWARD)

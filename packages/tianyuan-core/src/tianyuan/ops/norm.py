"""Batch, layer and group normalisation, with the gradients that kernels compute directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import shapes
from ..errors import AttrError, ShapeError
from ..op import GradContext, Op, Specs, TensorSpec, expect_float, expect_same_dtype
from ..records import record
from .elementwise import SQRT, SQUARE
from .reduction import MEAN, SUM
from .shape import RESHAPE


@record()
class Eps:
    """What is added to the variance."""

    eps: float = 1e-5


@record()
class LayerNorm:
    """How many trailing axes are normalised, and whether weight and bias follow."""

    ndim: int = 1
    eps: float = 1e-5
    affine: bool = True


@record()
class GroupNorm:
    """Into how many groups the channels are split."""

    groups: int = 1
    eps: float = 1e-5


def _expect_shape(op: str, what: str, spec: TensorSpec, shape: Sequence[int]) -> None:
    if tuple(map(int, spec.shape)) != tuple(map(int, shape)):
        raise ShapeError(
            f"{op}: {what} has the wrong shape, got {shapes.format_shape(spec.shape)}, "
            f"expected {shapes.format_shape(shape)}"
        )


def _expect_channels(op: str, specs: Specs, names: Sequence[str]) -> TensorSpec:
    """Check an input of shape (N, C, ...) followed by one vector per channel for each name."""
    x = specs[0]
    expect_float(op, x)
    expect_same_dtype(op, specs)
    if x.ndim < 2:
        raise ShapeError(
            f"{op}: input has the wrong rank, got shape {shapes.format_shape(x.shape)}, "
            "expected at least 2 dimensions"
        )
    for name, spec in zip(names, specs[1:], strict=False):
        _expect_shape(op, name, spec, (x.shape[1],))
    return x


def _over_channels(vector: Any, rank: int) -> Any:
    """Give a per-channel vector the shape (1, C, 1, ...)."""
    return RESHAPE(vector, shape=(1, vector.shape[0], *(1,) * (rank - 2)))


def _batch_axes(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank))


# Batch normalisation, Ioffe and Szegedy 2015.


def _infer_batch(specs: Specs, attrs: Eps) -> Specs:
    return (_expect_channels("batch_norm", specs, ("mean", "variance", "weight", "bias")),)


def _decompose_batch(inputs: tuple[Any, ...], attrs: Eps) -> Any:
    x = inputs[0]
    mean, var, weight, bias = (_over_channels(vector, x.ndim) for vector in inputs[1:])
    return (x - mean) / SQRT(var + attrs.eps) * weight + bias


def _infer_batch_train(specs: Specs, attrs: Eps) -> Specs:
    x = _expect_channels("batch_norm_train", specs, ("weight", "bias"))
    statistic = x.with_shape((x.shape[1],))
    return (x, statistic, statistic)


def _decompose_batch_train(inputs: tuple[Any, ...], attrs: Eps) -> Any:
    x, weight, bias = inputs
    axes = _batch_axes(x.ndim)
    mean = MEAN(x, axes=axes, keepdims=False)
    centred = x - _over_channels(mean, x.ndim)
    var = MEAN(SQUARE(centred), axes=axes, keepdims=False)
    scale = SQRT(_over_channels(var, x.ndim) + attrs.eps)
    y = centred / scale * _over_channels(weight, x.ndim) + _over_channels(bias, x.ndim)
    return (y, mean, var)


def _grad_batch_train(ctx: GradContext, grads: Any) -> Sequence[Any]:
    x, weight, _ = ctx.inputs
    _, mean, var = ctx.outputs
    dy, dmean, dvar = grads
    dx = dweight = dbias = None
    if dy is not None:
        dx, dweight, dbias = BATCH_NORM_BACKWARD(x, weight, mean, var, dy, eps=ctx.attrs.eps)
    if dmean is not None or dvar is not None:
        # A tensor, not a number, so that it follows a dynamic batch.
        count = SUM(x.full(x.shape, 1.0, x.dtype), axes=_batch_axes(x.ndim), keepdims=False)
        for term in (
            None if dmean is None else _over_channels(dmean / count, x.ndim),
            None
            if dvar is None
            else (x - _over_channels(mean, x.ndim)) * _over_channels(dvar / count * 2.0, x.ndim),
        ):
            if term is not None:
                dx = x.full(x.shape, 0.0, x.dtype) + term if dx is None else dx + term
    return (dx, dweight, dbias)


def _infer_batch_backward(specs: Specs, attrs: Eps) -> Specs:
    x = _expect_channels("batch_norm_backward", specs, ("weight", "mean", "variance"))
    _expect_shape("batch_norm_backward", "gradient", specs[4], x.shape)
    return (x, specs[1], specs[1])


def _decompose_batch_backward(inputs: tuple[Any, ...], attrs: Eps) -> Any:
    x, weight, mean, var, g = inputs
    axes = _batch_axes(x.ndim)
    scale = SQRT(_over_channels(var, x.ndim) + attrs.eps)
    normal = (x - _over_channels(mean, x.ndim)) / scale
    dbias = SUM(g, axes=axes, keepdims=False)
    dweight = SUM(g * normal, axes=axes, keepdims=False)
    centred = g - MEAN(g, axes=axes, keepdims=True)
    centred = centred - normal * MEAN(g * normal, axes=axes, keepdims=True)
    return (_over_channels(weight, x.ndim) / scale * centred, dweight, dbias)


# Layer normalisation, Ba, Kiros and Hinton 2016.


def _expect_layer(op: str, specs: Specs, attrs: LayerNorm, plain: int, affine: int) -> TensorSpec:
    x = specs[0]
    expect_float(op, x)
    expect_same_dtype(op, specs)
    if not 1 <= attrs.ndim <= x.ndim:
        raise AttrError(
            f"{op}: ndim is out of range, got {attrs.ndim}, expected 1 to {x.ndim} for shape "
            f"{shapes.format_shape(x.shape)}"
        )
    count = affine if attrs.affine else plain
    if len(specs) != count:
        raise AttrError(
            f"{op}: wrong number of inputs, got {len(specs)}, expected {count} with "
            f"affine={attrs.affine}"
        )
    return x


def _infer_layer(specs: Specs, attrs: LayerNorm) -> Specs:
    x = _expect_layer("layer_norm", specs, attrs, 1, 3)
    for name, spec in zip(("weight", "bias"), specs[1:], strict=False):
        _expect_shape("layer_norm", name, spec, x.shape[x.ndim - attrs.ndim :])
    return (x,)


def _normalised(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any]:
    """Return x with mean 0 and variance 1 over the axes, and what it was divided by."""
    centred = x - MEAN(x, axes=axes, keepdims=True)
    scale = SQRT(MEAN(SQUARE(centred), axes=axes, keepdims=True) + eps)
    return centred / scale, scale


def _decompose_layer(inputs: tuple[Any, ...], attrs: LayerNorm) -> Any:
    x = inputs[0]
    y, _ = _normalised(x, tuple(range(x.ndim - attrs.ndim, x.ndim)), attrs.eps)
    return y * inputs[1] + inputs[2] if attrs.affine else y


def _grad_layer(ctx: GradContext, grads: Any) -> Sequence[Any]:
    (g,), attrs = grads, ctx.attrs
    if g is None:
        return (None,) * len(ctx.inputs)
    given = {"ndim": attrs.ndim, "eps": attrs.eps, "affine": attrs.affine}
    if attrs.affine:
        return tuple(LAYER_NORM_BACKWARD(ctx.inputs[0], g, ctx.inputs[1], **given))
    return (LAYER_NORM_BACKWARD(ctx.inputs[0], g, **given),)


def _infer_layer_backward(specs: Specs, attrs: LayerNorm) -> Specs:
    op = "layer_norm_backward"
    x = _expect_layer(op, specs, attrs, 2, 3)
    _expect_shape(op, "gradient", specs[1], x.shape)
    if not attrs.affine:
        return (x,)
    _expect_shape(op, "weight", specs[2], x.shape[x.ndim - attrs.ndim :])
    return (x, specs[2], specs[2])


def _decompose_layer_backward(inputs: tuple[Any, ...], attrs: LayerNorm) -> Any:
    x, g = inputs[:2]
    axes = tuple(range(x.ndim - attrs.ndim, x.ndim))
    normal, scale = _normalised(x, axes, attrs.eps)
    inner = g * inputs[2] if attrs.affine else g
    centred = inner - MEAN(inner, axes=axes, keepdims=True)
    dx = (centred - normal * MEAN(inner * normal, axes=axes, keepdims=True)) / scale
    if not attrs.affine:
        return dx
    lead = tuple(range(x.ndim - attrs.ndim))
    return (dx, SUM(g * normal, axes=lead, keepdims=False), SUM(g, axes=lead, keepdims=False))


# Group normalisation, Wu and He 2018.


def _infer_group(specs: Specs, attrs: GroupNorm) -> Specs:
    x = _expect_channels("group_norm", specs, ("weight", "bias"))
    if attrs.groups < 1 or int(x.shape[1]) % attrs.groups:
        raise AttrError(
            f"group_norm: groups must divide the channels, got {attrs.groups} groups for "
            f"{int(x.shape[1])} channels, expected a divisor"
        )
    return (x,)


def _decompose_group(inputs: tuple[Any, ...], attrs: GroupNorm) -> Any:
    x, weight, bias = inputs
    members = x.shape[1] // attrs.groups
    grouped = RESHAPE(x, shape=(x.shape[0], attrs.groups, members, *x.shape[2:]))
    y, _ = _normalised(grouped, tuple(range(2, grouped.ndim)), attrs.eps)
    y = RESHAPE(y, shape=x.shape)
    return y * _over_channels(weight, x.ndim) + _over_channels(bias, x.ndim)


BATCH_NORM = Op(
    "batch_norm",
    infer=_infer_batch,
    decompose=_decompose_batch,
    attrs=Eps,
    n_inputs=5,
    family="norm",
)
BATCH_NORM_TRAIN = Op(
    "batch_norm_train",
    infer=_infer_batch_train,
    decompose=_decompose_batch_train,
    grad=_grad_batch_train,
    attrs=Eps,
    n_inputs=3,
    family="norm",
)
BATCH_NORM_BACKWARD = Op(
    "batch_norm_backward",
    infer=_infer_batch_backward,
    decompose=_decompose_batch_backward,
    attrs=Eps,
    n_inputs=5,
    family="norm",
)
LAYER_NORM = Op(
    "layer_norm",
    infer=_infer_layer,
    decompose=_decompose_layer,
    grad=_grad_layer,
    attrs=LayerNorm,
    n_inputs=(1, 3),
    family="norm",
)
LAYER_NORM_BACKWARD = Op(
    "layer_norm_backward",
    infer=_infer_layer_backward,
    decompose=_decompose_layer_backward,
    attrs=LayerNorm,
    n_inputs=(2, 3),
    family="norm",
)
GROUP_NORM = Op(
    "group_norm",
    infer=_infer_group,
    decompose=_decompose_group,
    attrs=GroupNorm,
    n_inputs=3,
    family="norm",
)
OPS: tuple[Op, ...] = (
    BATCH_NORM,
    BATCH_NORM_TRAIN,
    BATCH_NORM_BACKWARD,
    LAYER_NORM,
    LAYER_NORM_BACKWARD,
    GROUP_NORM,
)

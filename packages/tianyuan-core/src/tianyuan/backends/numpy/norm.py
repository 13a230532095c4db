"""Normalisation in a few passes over the data, in float32 at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernel import Kernel
from .widening import widened


def _over_channels(vector: np.ndarray, rank: int) -> np.ndarray:
    return widened(vector).reshape(1, -1, *(1,) * (rank - 2))


def _batch_axes(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank))


def _mean(array: np.ndarray, axes: tuple[int, ...], keepdims: bool = True) -> np.ndarray:
    """Return the mean, NaN over nothing."""
    count = int(np.prod([array.shape[axis] for axis in axes]))
    total: np.ndarray = array.sum(axis=axes, keepdims=keepdims)
    return total / count if count else np.full_like(total, np.nan)


def _batch_norm(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    x, (out,) = widened(inputs[0]), outputs
    mean, var, weight, bias = (_over_channels(vector, x.ndim) for vector in inputs[1:])
    result = x - mean
    result *= weight / np.sqrt(var + var.dtype.type(attrs.eps))
    result += bias
    out[...] = result


def _batch_norm_train(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    x, (out, mean_out, var_out) = widened(inputs[0]), outputs
    weight, bias = (_over_channels(vector, x.ndim) for vector in inputs[1:])
    axes = _batch_axes(x.ndim)
    mean = _mean(x, axes)
    result = x - mean
    var = _mean(np.square(result), axes)
    result *= weight / np.sqrt(var + var.dtype.type(attrs.eps))
    result += bias
    out[...] = result
    mean_out[...] = mean.reshape(-1)
    var_out[...] = var.reshape(-1)


def _batch_norm_backward(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    x, g = widened(inputs[0]), widened(inputs[4])
    weight, mean, var = (_over_channels(vector, x.ndim) for vector in inputs[1:4])
    dx_out, dweight_out, dbias_out = outputs
    axes = _batch_axes(x.ndim)
    scale = 1 / np.sqrt(var + var.dtype.type(attrs.eps))
    normal = (x - mean) * scale
    product = g * normal
    normal *= _mean(product, axes)
    dweight_out[...] = product.sum(axis=axes)
    dbias_out[...] = g.sum(axis=axes)
    np.subtract(g, normal, out=normal)
    normal -= _mean(g, axes)
    normal *= weight * scale
    dx_out[...] = normal


def _normalised(x: np.ndarray, axes: tuple[int, ...], eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Return x with mean 0 and variance 1 over the axes, and one over what it was divided by."""
    result = x - _mean(x, axes)
    scale = 1 / np.sqrt(_mean(np.square(result), axes) + x.dtype.type(eps))
    result *= scale
    return result, scale


def _layer_norm(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    x, (out,) = widened(inputs[0]), outputs
    result, _ = _normalised(x, tuple(range(x.ndim - attrs.ndim, x.ndim)), attrs.eps)
    if attrs.affine:
        result *= widened(inputs[1])
        result += widened(inputs[2])
    out[...] = result


def _layer_norm_backward(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    x, g = widened(inputs[0]), widened(inputs[1])
    axes = tuple(range(x.ndim - attrs.ndim, x.ndim))
    lead = tuple(range(x.ndim - attrs.ndim))
    normal, scale = _normalised(x, axes, attrs.eps)
    if attrs.affine:
        outputs[1][...] = (g * normal).sum(axis=lead)
        outputs[2][...] = g.sum(axis=lead)
        g = g * widened(inputs[2])
    normal *= _mean(g * normal, axes)
    outputs[0][...] = (g - _mean(g, axes) - normal) * scale


def _group_norm(
    ctx: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    attrs: Any,
    workspace: np.ndarray | None,
) -> None:
    x, (out,) = widened(inputs[0]), outputs
    weight, bias = (_over_channels(vector, x.ndim) for vector in inputs[1:])
    shape = (x.shape[0], attrs.groups, x.shape[1] // attrs.groups, *x.shape[2:])
    grouped, _ = _normalised(x.reshape(shape), tuple(range(2, len(shape))), attrs.eps)
    out[...] = grouped.reshape(x.shape) * weight + bias


_RUNS = {
    "batch_norm": _batch_norm,
    "batch_norm_train": _batch_norm_train,
    "batch_norm_backward": _batch_norm_backward,
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "group_norm": _group_norm,
}
KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(f"{op}_float__numpy_passes", op, run) for op, run in _RUNS.items()
)

"""Activations, softmax and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .. import shapes
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import accepts_keepdim, floating, run, tensor, tensors


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0)."""
    return run("relu", tensor("relu", x))


def relu6(x: Tensor) -> Tensor:
    """Return min(max(x, 0), 6)."""
    return run("relu6", tensor("relu6", x))


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return run("sigmoid", floating(tensor("sigmoid", x)))


def hsigmoid(x: Tensor) -> Tensor:
    """Return relu6(x + 3) / 6."""
    return run("hsigmoid", floating(tensor("hsigmoid", x)))


def hswish(x: Tensor) -> Tensor:
    """Return x * relu6(x + 3) / 6."""
    return run("hswish", floating(tensor("hswish", x)))


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x)."""
    return run("silu", floating(tensor("silu", x)))


def gelu(x: Tensor) -> Tensor:
    """Return x * Phi(x) with the exact normal distribution function Phi."""
    return run("gelu", floating(tensor("gelu", x)))


def softplus(inp: Tensor) -> Tensor:
    """Return log(1 + exp(x)) without overflow."""
    return run("softplus", floating(tensor("softplus", inp)))


def logsigmoid(inp: Tensor) -> Tensor:
    """Return log(sigmoid(x)) without overflow."""
    return elemwise.neg(softplus(elemwise.neg(floating(tensor("logsigmoid", inp)))))


def leaky_relu(inp: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where positive and ``negative_slope`` * x elsewhere."""
    return _sloped(floating(tensor("leaky_relu", inp)), negative_slope)


def prelu(x: Tensor, y: Any) -> Tensor:
    """Return x where positive and y * x elsewhere; the slope y broadcasts."""
    return _sloped(*tensors("prelu", x, y))


def _sloped(x: Tensor, slope: Any) -> Tensor:
    below = elemwise.mul(x, slope)
    x = cast(Tensor, x.cast(below.dtype))
    return run("where", elemwise.greater(x, 0), x, below)


def softmax(inp: Tensor, axis: int | None = None) -> Tensor:
    """Return exp(x) / sum(exp(x)) along an axis.

    Without one it is axis 0 for 0, 1 or 3 dimensions and axis 1 for others, as in MegEngine.
    """
    found = floating(tensor("softmax", inp))
    if axis is None:
        axis = 0 if found.ndim in (0, 1, 3) else 1
    return run("softmax", found, axis=shapes.normalize_axis("softmax", axis, found.ndim))


def logsoftmax(inp: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Return log(softmax(x)) along one axis or several together."""
    found = floating(tensor("logsoftmax", inp))
    axes = shapes.normalize_axes("logsoftmax", axis, found.ndim)
    if len(axes) == 1:
        return run("log_softmax", found, axis=axes[0])
    return elemwise.sub(found, run("logsumexp", found, axes=axes, keepdims=True))


@accepts_keepdim
def logsumexp(inp: Tensor, axis: int | Sequence[int], keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over axes without overflow."""
    found = floating(tensor("logsumexp", inp))
    axes = shapes.normalize_axes("logsumexp", axis, found.ndim)
    return run("logsumexp", found, axes=axes, keepdims=bool(keepdims))


__all__ = [
    "gelu", "hsigmoid", "hswish", "leaky_relu", "logsigmoid", "logsoftmax", "logsumexp", "prelu",
    "relu", "relu6", "sigmoid", "silu", "softmax", "softplus",
]  # fmt: skip

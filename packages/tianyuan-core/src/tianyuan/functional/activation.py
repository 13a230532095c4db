"""Activations, softmax and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from .. import shapes
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import accepts_keepdim, floating, run, tensor, tensors

# From here on mish is x in all dtypes, and from minus that on it is 0.
_FLAT, _GONE = 20.0, 1e3


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0).

    >>> relu(Tensor([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 2.0]
    """
    return run("relu", tensor("relu", x))


def relu6(x: Tensor) -> Tensor:
    """Return min(max(x, 0), 6).

    >>> relu6(Tensor([-1.0, 2.0, 9.0])).tolist()
    [0.0, 2.0, 6.0]
    """
    return run("relu6", tensor("relu6", x))


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)).

    >>> sigmoid(Tensor([0.0])).tolist()
    [0.5]
    """
    return run("sigmoid", floating(tensor("sigmoid", x)))


def hsigmoid(x: Tensor) -> Tensor:
    """Return relu6(x + 3) / 6.

    >>> hsigmoid(Tensor([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return run("hsigmoid", floating(tensor("hsigmoid", x)))


def hswish(x: Tensor) -> Tensor:
    """Return x * relu6(x + 3) / 6.

    >>> hswish(Tensor([0.0, 1.0, 3.0])).numpy().round(3)
    array([0.   , 0.667, 3.   ], dtype=float32)
    """
    return run("hswish", floating(tensor("hswish", x)))


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x).

    >>> silu(Tensor([0.0, 1.0])).numpy().round(3)
    array([0.   , 0.731], dtype=float32)
    """
    return run("silu", floating(tensor("silu", x)))


def gelu(x: Tensor) -> Tensor:
    """Return x * Phi(x) with the exact normal distribution function Phi.

    >>> gelu(Tensor([0.0, 1.0])).numpy().round(3)
    array([0.   , 0.841], dtype=float32)
    """
    return run("gelu", floating(tensor("gelu", x)))


def softplus(inp: Tensor) -> Tensor:
    """Return log(1 + exp(x)) without overflow.

    >>> softplus(Tensor([0.0, 100.0])).numpy().round(3)
    array([  0.693, 100.   ], dtype=float32)
    """
    return run("softplus", floating(tensor("softplus", inp)))


def logsigmoid(inp: Tensor) -> Tensor:
    """Return log(sigmoid(x)) without overflow.

    >>> logsigmoid(Tensor([0.0, -100.0])).numpy().round(3)
    array([  -0.693, -100.   ], dtype=float32)
    """
    return elemwise.neg(softplus(elemwise.neg(floating(tensor("logsigmoid", inp)))))


def leaky_relu(inp: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where positive and ``negative_slope`` * x elsewhere.

    >>> leaky_relu(Tensor([-2.0, 1.0]), 0.5).tolist()
    [-1.0, 1.0]
    """
    return _sloped(floating(tensor("leaky_relu", inp)), negative_slope)


def prelu(x: Tensor, y: Any) -> Tensor:
    """Return x where positive and y * x elsewhere; the slope y broadcasts.

    Raises:
        ShapeError: where the slope does not broadcast; one per channel has shape (1, C, 1, 1).

    >>> prelu(Tensor([-2.0, 1.0]), Tensor([0.25])).tolist()
    [-0.5, 1.0]
    """
    found, slope = tensors("prelu", x, y)
    shapes.broadcast("prelu", found.shape, slope.shape)
    return _sloped(found, slope)


def _sloped(x: Tensor, slope: Any) -> Tensor:
    below = elemwise.mul(x, slope)
    x = cast(Tensor, x.cast(below.dtype))
    return run("where", elemwise.greater(x, 0), x, below)


def softmax(inp: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Return exp(x) / sum(exp(x)) along one axis or several together.

    Without one it is axis 0 for 0, 1 or 3 dimensions and axis 1 for others, as in MegEngine.

    >>> softmax(Tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    found = floating(tensor("softmax", inp))
    if axis is None:
        axis = 0 if found.ndim in (0, 1, 3) else 1
    axes = shapes.normalize_axes("softmax", axis, found.ndim)
    if len(axes) == 1:
        return run("softmax", found, axis=axes[0])
    return elemwise.exp(logsoftmax(found, axes))


def logsoftmax(inp: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Return log(softmax(x)) along one axis or several together.

    >>> logsoftmax(Tensor([0.0, 0.0]), 0).numpy().round(3)
    array([-0.693, -0.693], dtype=float32)
    """
    return _log_softmax("logsoftmax", inp, axis)


def _log_softmax(op: str, inp: Any, axis: Any) -> Tensor:
    """Return the logarithm of softmax for ``op``, which errors name."""
    found = floating(tensor(op, inp))
    axes = shapes.normalize_axes(op, axis, found.ndim)
    if len(axes) == 1:
        return run("log_softmax", found, axis=axes[0])
    return elemwise.sub(found, run("logsumexp", found, axes=axes, keepdims=True))


@accepts_keepdim
def logsumexp(inp: Tensor, axis: int | Sequence[int], keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over axes without overflow.

    >>> f"{logsumexp(Tensor([1000.0, 1000.0]), 0).item():.3f}"
    '1000.693'
    """
    found = floating(tensor("logsumexp", inp))
    axes = shapes.normalize_axes("logsumexp", axis, found.ndim)
    return run("logsumexp", found, axes=axes, keepdims=bool(keepdims))


def log_softmax(inp: Tensor, axis: int | Sequence[int] = -1) -> Tensor:
    """Return log(softmax(x)): ``logsoftmax`` with PyTorch's spelling, along the last axis.

    >>> log_softmax(Tensor([0.0, 0.0])).numpy().round(3).tolist()
    [-0.6930000185966492, -0.6930000185966492]
    """
    return _log_softmax("log_softmax", inp, axis)


def elu(inp: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where positive and alpha * (exp(x) - 1) elsewhere (Clevert et al., 2015).

    >>> elu(Tensor([1.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    x = floating(tensor("elu", inp))
    above = elemwise.greater(x, 0)
    # The exponential of what is positive would overflow, and its gradient with it.
    rest = run("where", above, x.full((), 0.0), x)
    return run("where", above, x, elemwise.mul(elemwise.expm1(rest), float(alpha)))


def selu(inp: Tensor) -> Tensor:
    """Return the scaled exponential unit (Klambauer et al., Self-normalizing networks, 2017).

    >>> selu(Tensor([1.0])).numpy().round(4).tolist()
    [1.0506999492645264]
    """
    return elemwise.mul(elu(tensor("selu", inp), 1.6732632423543772), 1.0507009873554805)


def mish(inp: Tensor) -> Tensor:
    """Return x * tanh(softplus(x)) (Misra, 2019).

    >>> mish(Tensor([0.0])).tolist()
    [0.0]
    """
    x = floating(tensor("mish", inp))
    # Where the second factor is 1 or 0 its slope is cut, which infinity would multiply.
    slope = elemwise.tanh(softplus(elemwise.minimum(x, _FLAT)))
    return elemwise.mul(_at_least(x, -_GONE), slope)


def _at_least(x: Tensor, low: float) -> Tensor:
    """Return the larger of two, with NaN's gradient where ``maximum`` has none."""
    return run("where", elemwise.less(x, low), x.full((), low), x)


def hardtanh(inp: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return x limited to min_val..max_val.

    Raises:
        AttrError: where the limits are crossed.

    >>> hardtanh(Tensor([-2.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    return elemwise.clip(floating(tensor("hardtanh", inp)), float(min_val), float(max_val))


def softsign(inp: Tensor) -> Tensor:
    """Return x / (1 + |x|).

    >>> softsign(Tensor([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    x = floating(tensor("softsign", inp))
    most = 6e4 if x.dtype.name == "float16" else 3e38
    # Infinity by itself is no number.
    x = elemwise.neg(_at_least(elemwise.neg(_at_least(x, -most)), -most))
    return elemwise.div(x, elemwise.add(elemwise.abs(x), 1.0))


__all__ = [
    "elu", "gelu", "hardtanh", "hsigmoid", "hswish", "leaky_relu", "log_softmax", "logsigmoid",
    "logsoftmax", "logsumexp", "mish", "prelu", "relu", "relu6", "selu", "sigmoid", "silu",
    "softmax", "softplus", "softsign",
]  # fmt: skip

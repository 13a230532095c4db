"""Bound gradients before a step."""

from __future__ import annotations

from collections.abc import Iterable

from .. import functional as F
from ..errors import AttrError
from ..functional.arguments import real_number
from ..imperative.tensor import Tensor
from .optimizer import parameters_of


def clip_grad_norm(tensors: Tensor | Iterable[Tensor], max_norm: float, ord: float = 2.0) -> Tensor:
    """Scale all gradients so that their joint norm is at most ``max_norm``; return the norm.

    Args:
        tensors: whose gradients are scaled; those without one are left out.
        max_norm: the bound.
        ord: which p-norm; ``inf`` for the largest absolute value.

    Raises:
        AttrError: where the bound is negative.

    >>> from tianyuan import Parameter
    >>> weight = Parameter([1.0, 1.0])
    >>> weight.grad = Tensor([3.0, 4.0])
    >>> clip_grad_norm(weight, 1.0).item(), weight.grad.numpy().round(3)
    (5.0, array([0.6, 0.8], dtype=float32))
    """
    max_norm = real_number("clip_grad_norm", "max_norm", max_norm, 0.0)
    found = [tensor for tensor in parameters_of(tensors) if tensor.grad is not None]
    if not found:
        return Tensor(0.0)
    norms = [F.norm(F.reshape(_grad(tensor), (-1,)), ord=ord) for tensor in found]
    norm: Tensor = norms[0] if len(norms) == 1 else F.norm(F.stack(norms), ord=ord)
    # The small term keeps a zero gradient from dividing by zero.
    scale = F.minimum(max_norm / (norm + 1e-6), 1.0)
    for tensor in found:
        tensor.grad = _grad(tensor) * scale.cast(tensor.dtype)
    return norm


def clip_grad_value(tensors: Tensor | Iterable[Tensor], lower: float, upper: float) -> None:
    """Bound every element of all gradients to [lower, upper].

    Raises:
        AttrError: where ``lower`` exceeds ``upper``.

    >>> from tianyuan import Parameter
    >>> weight = Parameter([1.0, 1.0])
    >>> weight.grad = Tensor([3.0, -4.0])
    >>> clip_grad_value(weight, -1.0, 2.0)
    >>> weight.grad.numpy()
    array([ 2., -1.], dtype=float32)
    """
    lower = real_number("clip_grad_value", "lower", lower)
    upper = real_number("clip_grad_value", "upper", upper)
    if not lower <= upper:
        raise AttrError(
            f"clip_grad_value: bounds are reversed, got {lower} and {upper}, "
            "expected lower <= upper"
        )
    for tensor in parameters_of(tensors):
        if tensor.grad is not None:
            tensor.grad = F.clip(tensor.grad, lower, upper)


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad

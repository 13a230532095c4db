"""Gradients: ``GradManager`` for tensors, transforms for functions, ``Function`` for one's own.

Example:
    >>> import tianyuan as ty
    >>> ty.autodiff.grad(lambda x: x * x)(ty.Tensor(3.0)).item()
    6.0
"""

from .function import Function
from .grad_manager import GradManager, GradManagerGroup
from .transforms import (
    detach,
    grad,
    hessian_vector_product,
    jvp,
    no_grad,
    stop_gradient,
    value_and_grad,
    vjp,
)

__all__ = [
    "Function",
    "GradManager",
    "GradManagerGroup",
    "detach",
    "grad",
    "hessian_vector_product",
    "jvp",
    "no_grad",
    "stop_gradient",
    "value_and_grad",
    "vjp",
]

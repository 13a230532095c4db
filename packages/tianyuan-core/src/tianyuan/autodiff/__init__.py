"""Gradients: ``GradManager`` for tensors, transforms for functions, ``Function`` for one's own."""

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

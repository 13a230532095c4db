"""Gradients: ``GradManager`` for tensors, ``Function`` for gradients of one's own."""

from .function import Function
from .grad_manager import GradManager, GradManagerGroup

__all__ = ["Function", "GradManager", "GradManagerGroup"]

"""Trace modules into graphs that can be looked at, changed, saved and trained."""

from __future__ import annotations

from ..serialization import register_codec as _register_codec
from . import expr, fake_quant, node, pytree, serialization, traced_module
from ._passes import (
    BackwardPass,
    ForwardPass,
    PassContext,
    PatternMatcher,
    is_const,
    is_op,
    is_var,
    optimize,
    register_pass,
)
from .builder import trace_module
from .checker import disable_default_checker, enable_expr_checker
from .module import TracedModule
from .names import register_as_builtin, wrap
from .pytree import register_supported_type
from .reading import decode as _decode
from .writing import encode as _encode

__all__ = [
    "BackwardPass",
    "ForwardPass",
    "PassContext",
    "PatternMatcher",
    "TracedModule",
    "disable_default_checker",
    "enable_expr_checker",
    "expr",
    "fake_quant",
    "is_const",
    "is_op",
    "is_var",
    "node",
    "optimize",
    "pytree",
    "register_as_builtin",
    "register_pass",
    "register_supported_type",
    "serialization",
    "trace_module",
    "traced_module",
    "wrap",
]

_register_codec("traced_module", TracedModule, _encode, _decode)

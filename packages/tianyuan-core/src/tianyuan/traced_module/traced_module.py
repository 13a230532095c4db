"""Gather what MegEngine offers as ``traced_module.traced_module``."""

from __future__ import annotations

from typing import Any

from .builder import TracedModuleBuilder, trace_module
from .expr import Apply, OpDef
from .filters import (
    BaseFilter,
    ExprFilter,
    ExprFilterCallFunction,
    ExprFilterCallMethod,
    ExprFilterExprId,
    NodeFilter,
    NodeFilterName,
    NodeFilterNodeId,
    NodeFilterType,
)
from .graph import InternalGraph
from .module import TracedModule
from .names import register_as_builtin, wrap
from .namespace import NameSpace

__all__ = [
    "BaseFilter", "ExprFilter", "ExprFilterCallFunction", "ExprFilterCallMethod",
    "ExprFilterExprId", "InternalGraph", "NameSpace", "NodeFilter", "NodeFilterName",
    "NodeFilterNodeId", "NodeFilterType", "TracedModule", "TracedModuleBuilder",
    "cpp_apply_module_trace", "register_as_builtin", "trace_module", "wrap",
]  # fmt: skip


def cpp_apply_module_trace(opdef: OpDef, *args: Any) -> Any:
    """Apply an op to tensors, as ``Apply.apply_module_trace_hook`` does.

    >>> import tianyuan as ty
    >>> from tianyuan.op import NO_ATTRS
    >>> from tianyuan.registry import get_op
    >>> cpp_apply_module_trace(OpDef(get_op("neg"), NO_ATTRS), ty.Tensor([1.0])).numpy()
    array([-1.], dtype=float32)
    """
    return Apply.apply_module_trace_hook(opdef, *args)

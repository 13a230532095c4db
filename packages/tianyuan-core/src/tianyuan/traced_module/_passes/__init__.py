"""Rewrite traced modules by passes that users can add to."""

from __future__ import annotations

from .const_pass import AttrToConstant, FixInputShape, FlodConstant, NormElemWise
from .fold_scale_pass import BackwardFoldScale
from .fuse_pass import FuseAddMul, FuseConvBn
from .matcher import PatternMatcher
from .optimization import optimize
from .pass_base import (
    BackwardPass,
    BasePass,
    ForwardPass,
    PassContext,
    get_default_pass_context,
    get_registered_pass,
    register_pass,
)
from .pattern import any_node, is_const, is_op, is_var

__all__ = [
    "AttrToConstant", "BackwardFoldScale", "BackwardPass", "BasePass", "FixInputShape",
    "FlodConstant", "ForwardPass", "FuseAddMul", "FuseConvBn", "NormElemWise", "PassContext",
    "PatternMatcher", "any_node", "get_default_pass_context", "get_registered_pass", "is_const",
    "is_op", "is_var", "optimize", "register_pass",
]  # fmt: skip

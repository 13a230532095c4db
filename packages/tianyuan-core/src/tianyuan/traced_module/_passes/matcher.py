"""Decide whether expressions fit a pattern, and which expression fits which part."""

from __future__ import annotations

from typing import Any

from ..expr import Expr, is_call_module
from ..node import Node
from .pattern import CallPattern, ExprPattern, GetOutputPaterrn, OrPattern


class PatternMatcher:
    """Finds patterns in a graph.

    Attributes:
        matched_exprs: what fitted each part of the pattern: an expression, or a fixed argument.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> from tianyuan.traced_module import is_op, is_var
    >>> expr = traced.graph.exprs().as_unique()
    >>> PatternMatcher().match(is_op(F.relu)(is_var()), expr)
    True
    """

    def __init__(self) -> None:
        self.matched_exprs: dict[ExprPattern, Any] = {}

    def match(self, pattern: ExprPattern, expr: Expr) -> bool:
        """Tell whether an expression and what leads to it fit a pattern."""
        self.matched_exprs = {}
        return self._fits(pattern, expr)

    def _fits(self, pattern: ExprPattern, found: Any) -> bool:
        """Match a pattern against an expression, a node or a fixed argument."""
        expr = found.expr if isinstance(found, Node) else found
        if pattern in self.matched_exprs:
            return self.matched_exprs[pattern] is expr
        if pattern.users_checked and any(len(node.users) > 1 for node in expr.outputs):
            return False
        if isinstance(pattern, OrPattern):
            known = dict(self.matched_exprs)
            if not self._fits(pattern.left, found):
                self.matched_exprs = known
                if not self._fits(pattern.right, found):
                    return False
        elif isinstance(pattern, GetOutputPaterrn):
            outputs = expr.outputs if isinstance(expr, Expr) else []
            at = outputs.index(found) if isinstance(found, Node) else 0
            if not outputs or at != pattern.index or not self._fits(pattern.op, expr):
                return False
        elif isinstance(pattern, CallPattern):
            if not self._fits(pattern.op, expr) or not self._arguments(pattern, expr):
                return False
        elif not pattern.fits(expr):
            return False
        self.matched_exprs[pattern] = expr
        return True

    def _arguments(self, pattern: CallPattern, expr: Expr) -> bool:
        args = expr.args[1:] if is_call_module(expr) else expr.args
        return len(args) >= len(pattern.args) and all(
            self._fits(part, arg) for part, arg in zip(pattern.args, args, strict=False)
        )

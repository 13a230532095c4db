"""Describe a shape of expressions, to be found in a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...imperative.tensor import Tensor
from ...module import Module
from ...op import Op
from ..expr import (
    Constant,
    Expr,
    OpDef,
    is_apply_def,
    is_call_function,
    is_call_module,
    is_call_tensor_method,
)


class ExprPattern:
    """A pattern that an expression fits or does not.

    Calling it with patterns of the arguments gives a ``CallPattern``; ``|`` gives an
    ``OrPattern``, an index a ``GetOutputPaterrn``.
    """

    def __init__(self) -> None:
        self.users_checked = False

    def __call__(self, *args: ExprPattern) -> CallPattern:
        return CallPattern(self, *args)

    def __or__(self, other: ExprPattern) -> OrPattern:
        return OrPattern(self, other)

    def __getitem__(self, index: int) -> GetOutputPaterrn:
        return GetOutputPaterrn(self, index)

    def check_users(self, check: bool = True) -> ExprPattern:
        """Fit only where at most one expression reads each output."""
        self.users_checked = check
        return self

    def fits(self, expr: Any) -> bool:
        """Tell whether an expression itself fits, whatever its arguments."""
        raise NotImplementedError(f"{type(self).__name__}.fits")


class AnyPattern(ExprPattern):
    """Anything."""

    def fits(self, expr: Any) -> bool:
        """Fit always."""
        return True


class ConstantPattern(ExprPattern):
    """A constant of the graph, or a fixed argument."""

    def fits(self, expr: Any) -> bool:
        """Fit a constant."""
        return isinstance(expr, Constant) or not isinstance(expr, Expr)


class VarPattern(ExprPattern):
    """Anything but a constant."""

    def fits(self, expr: Any) -> bool:
        """Fit what is computed or given."""
        return isinstance(expr, Expr) and not isinstance(expr, Constant)


class FunctionPattern(ExprPattern):
    """A call of a function."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__()
        self.func = func

    def fits(self, expr: Any) -> bool:
        """Fit such a call."""
        return is_call_function(expr, self.func)


class TensorMethodPattern(ExprPattern):
    """A call of a tensor's method."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def fits(self, expr: Any) -> bool:
        """Fit such a call."""
        return is_call_tensor_method(expr, self.method)


class ModulePattern(ExprPattern):
    """A call of a module of one class exactly."""

    def __init__(self, module_cls: Any) -> None:
        super().__init__()
        self.module_cls = module_cls

    def fits(self, expr: Any) -> bool:
        """Fit such a call."""
        return is_call_module(expr, self.module_cls) and (
            type(expr.inputs[0].owner) is self.module_cls
        )


class ApplyDefPattern(ExprPattern):
    """An application of an op."""

    def __init__(self, opdef: OpDef | Op | str) -> None:
        super().__init__()
        self.opdef = opdef

    def fits(self, expr: Any) -> bool:
        """Fit such an application."""
        return is_apply_def(expr, self.opdef)


class CallPattern(ExprPattern):
    """An expression that fits a pattern, with arguments that fit patterns."""

    def __init__(self, op: ExprPattern, *args: ExprPattern) -> None:
        super().__init__()
        self.op = op
        self.args: Sequence[ExprPattern] = args

    def fits(self, expr: Any) -> bool:
        """Fit what the pattern of the call fits."""
        return self.op.fits(expr)


class OrPattern(ExprPattern):
    """What fits one of two patterns; the left is tried first."""

    def __init__(self, left: ExprPattern, right: ExprPattern) -> None:
        super().__init__()
        self.left, self.right = left, right

    def fits(self, expr: Any) -> bool:
        """Fit either."""
        return self.left.fits(expr) or self.right.fits(expr)


class GetOutputPaterrn(ExprPattern):
    """One of several outputs of an expression."""

    def __init__(self, op: ExprPattern, index: int) -> None:
        super().__init__()
        self.op, self.index = op, index

    def fits(self, expr: Any) -> bool:
        """Fit what the pattern of the expression fits."""
        return self.op.fits(expr)


def is_op(target: Any) -> ExprPattern:
    """Return a pattern of calls of a class of modules, a function, a tensor's method, or an op.

    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> pattern = is_op(F.relu)(is_op(M.Conv2d)(is_var()))
    """
    if inspect.isclass(target) and issubclass(target, Module):
        return ModulePattern(target)
    if isinstance(target, (Op, OpDef)):
        return ApplyDefPattern(target)
    if isinstance(target, str):
        return TensorMethodPattern(target)
    if callable(target):
        return FunctionPattern(target)
    raise TypeError(
        f"is_op: no pattern of it, got {type(target).__name__}, expected a class of modules, a "
        f"function, the name of a method of {Tensor.__name__}, or an op"
    )


def is_const() -> ConstantPattern:
    """Return the pattern of constants.

    >>> is_const().fits(2.5)
    True
    """
    return ConstantPattern()


def is_var() -> VarPattern:
    """Return the pattern of what is no constant.

    >>> is_var().fits(2.5)
    False
    """
    return VarPattern()


def any_node() -> AnyPattern:
    """Return the pattern of anything.

    >>> any_node().fits(2.5)
    True
    """
    return AnyPattern()

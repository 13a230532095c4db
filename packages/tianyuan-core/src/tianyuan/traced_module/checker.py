"""Decide whether a graph that was just recorded computes what the module computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import random
from ..errors import TraceError
from ..imperative import dispatch
from ..imperative.tensor import Tensor
from ..module import Module
from . import names
from .node import Size

if TYPE_CHECKING:
    from .recording import Scope
    from .steps import Expr


class _Settings:
    each_expr = False
    whole = True


settings = _Settings()


def enable_expr_checker() -> None:
    """Compute every expression a second time while it is recorded, and compare.

    It names the very expression whose repetition differs, and doubles the time of tracing.

    >>> enable_expr_checker()
    >>> settings.each_expr = False  # as before
    """
    settings.each_expr = True


def disable_default_checker() -> None:
    """Do not run a traced module once after tracing to compare its results with the original's.

    >>> disable_default_checker()
    >>> settings.whole = True  # as before
    """
    settings.whole = False


@contextmanager
def watching(scope: Scope, expr: Expr) -> Iterator[Callable[[Any], None]]:
    """Give a function that compares a result with that of the expression run again."""
    if not settings.each_expr or scope.editing:
        yield lambda outputs: None
        return
    numbers = random.get_state()
    given = [scope.value_of(node) for node in expr.inputs]

    def check(outputs: Any) -> None:
        in_place = getattr(expr, "method", "") in names.IN_PLACE
        if in_place or random.get_state() != numbers or _trains(given):
            return
        args, kwargs = expr.unflatten_args(
            [int(value) if isinstance(value, Size) else value for value in given]
        )
        compare(outputs, _again(expr, args, kwargs), f"expression {expr._body()}")

    yield check


def _trains(given: list[Any]) -> bool:
    return any(isinstance(value, Module) and value.training for value in given)


def _again(expr: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if hasattr(expr, "func"):
        return expr.func(*args, **kwargs)
    if hasattr(expr, "opdef"):
        return dispatch.apply(expr.opdef.op, args, expr.opdef.attrs)
    return getattr(args[0], expr.method)(*args[1:], **kwargs)


def compare(expected: Any, found: Any, what: str) -> None:
    """Raise TraceError unless two results agree."""
    from .pytree import tree_flatten

    left, left_def = tree_flatten(expected)
    right, right_def = tree_flatten(found)
    if len(left) != len(right):
        raise TraceError(f"trace_module: {what} gives {right_def}, expected {left_def}")
    for one, other in zip(left, right, strict=True):
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
            continue
        a, b = one.numpy(), other.numpy()
        same = a.shape == b.shape and a.dtype == b.dtype
        if same and a.dtype.kind in "fV":
            a, b = a.astype(np.float64), b.astype(np.float64)
            same = bool(np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True))
        elif same:
            same = bool(np.array_equal(a, b))
        if not same:
            raise TraceError(
                f"trace_module: {what} does not give the module's own result when it runs again; "
                "does the module keep values between calls, or draw numbers of its own? "
                "enable_expr_checker() finds the expression, disable_default_checker() accepts it"
            )

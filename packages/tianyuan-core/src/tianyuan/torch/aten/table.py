"""The table of ATen operators: which function of ours computes each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import TianyuanError

_Function = TypeVar("_Function", bound=Callable[..., Any])

# By ATen name, with overload (``max.dim``) or for all overloads (``add``).
TABLE: dict[str, Callable[..., Any]] = {}
# Those that behave differently in training take ``training=``.
MODAL: set[str] = set()


class UnsupportedError(TianyuanError):
    """Raise where an ATen operator is used in a way that has no counterpart."""


def aten(*names: str, modal: bool = False) -> Callable[[_Function], _Function]:
    """Enter a function into the table; its arguments are those of the ATen operator."""

    def enter(function: _Function) -> _Function:
        TABLE.update(dict.fromkeys(names, function))
        if modal:
            MODAL.update(names)
        return function

    return enter


def find(name: str) -> str | None:
    """Return the table's entry for an operator with its overload, or None."""
    if name in TABLE:
        return name
    base = name.partition(".")[0]
    return base if base in TABLE else None

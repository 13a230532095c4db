"""Decide how a user is told that a function or a default is about to go."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def deprecated_func(version: str, origin: str, name: str, tbd: bool) -> Callable[..., Any]:
    """Return a function that calls another by its new place, and warns on the first call.

    Args:
        version: since when the old place is deprecated.
        origin: module that defines the function now.
        name: its name there.
        tbd: whether nothing is decided yet, so that nobody is warned.

    >>> deprecated_func("1.0", "math", "sqrt", tbd=True)(4.0)
    2.0
    """
    warn = not tbd

    @functools.wraps(getattr(import_module(origin), name))
    def moved(*args: Any, **kwargs: Any) -> Any:
        nonlocal warn
        if warn:
            warn = False
            warnings.warn(
                f"{name}: its old name is deprecated since version {version}, use {origin}.{name}",
                DeprecationWarning,
                stacklevel=2,
            )
        return getattr(import_module(origin), name)(*args, **kwargs)

    return moved


def deprecated_kwargs_default(
    version: str, kwargs_name: str, kwargs_pos: int
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that warns where an argument is left at its default, which will change.

    Args:
        version: since when leaving it is deprecated.
        kwargs_name: the argument's name.
        kwargs_pos: its position, counted from 0.

    >>> @deprecated_kwargs_default("1.0", "axis", 1)
    ... def total(x, axis=None):
    ...     return x
    >>> total(3, axis=0)
    3
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def warned(*args: Any, **kwargs: Any) -> Any:
            if len(args) <= kwargs_pos and kwargs_name not in kwargs:
                warnings.warn(
                    f"{function.__name__}: leaving {kwargs_name!r} at its default is deprecated "
                    f"since version {version}, expected it to be given",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return function(*args, **kwargs)

        return warned

    return decorate

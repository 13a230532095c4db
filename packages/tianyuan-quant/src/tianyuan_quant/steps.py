"""Tell which values belong to one step: all that pass during one call of the whole network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_current: ContextVar[dict[int, Any] | None] = ContextVar("step", default=None)


@contextmanager
def one_step() -> Iterator[None]:
    """Let what passes inside belong to one step; a network inside of another has no own steps.

    >>> with one_step():
    ...     of_step(7, lambda: "first"), of_step(7, lambda: "second")
    (('first', True), ('first', False))
    """
    if _current.get() is not None:
        yield
        return
    token = _current.set({})
    try:
        yield
    finally:
        _current.reset(token)


def of_step(key: int, make: Any) -> tuple[Any, bool]:
    """Return what the step keeps under a key, made if need be, and whether it was made now.

    Outside of a step each call is one.
    """
    kept = _current.get()
    if kept is None:
        return make(), True
    if key in kept:
        return kept[key], False
    kept[key] = make()
    return kept[key], True

"""Hold, per thread, which graph is being recorded and what is hidden from the recording."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..imperative.state import state

if TYPE_CHECKING:
    from .recording import Scope


class _Active(threading.local):
    scope: Scope | None = None
    paused = False


_active = _Active()


def current() -> Scope | None:
    """Return the scope that records, or None where nothing does."""
    return None if _active.paused else _active.scope


@contextmanager
def entered(scope: Scope, interceptor: Any) -> Iterator[Scope]:
    """Record into a scope while a block runs; ops seen by no function reach the interceptor."""
    saved = _active.scope, _active.paused, state.interceptor
    _active.scope, _active.paused, state.interceptor = scope, False, interceptor
    try:
        yield scope
    finally:
        _active.scope, _active.paused, state.interceptor = saved
        scope.leave()


@contextmanager
def paused() -> Iterator[None]:
    """Run a block unseen."""
    saved = _active.paused, state.interceptor
    _active.paused, state.interceptor = True, None
    try:
        yield
    finally:
        _active.paused, state.interceptor = saved

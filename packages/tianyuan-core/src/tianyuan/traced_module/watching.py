"""Keep values of chosen nodes while graphs run, and stop once all that is wanted is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .node import Node


class Stop(BaseException):
    """Unwind a run whose end points are all there."""


class Watch:
    """What one run keeps."""

    def __init__(self, watched: Sequence[Node], ends: Sequence[Node]) -> None:
        self._watched = set(watched)
        self._waiting = set(ends)
        self._stops = bool(ends)
        self.values: dict[Node, Any] = {}

    def note(self, made: Mapping[Node, Any]) -> None:
        """Keep values that are wanted."""
        for node, value in made.items():
            if node in self._watched or node in self._waiting:
                self.values[node] = value
                self._waiting.discard(node)
        if self._stops and not self._waiting:
            raise Stop


class _Current(threading.local):
    watch: Watch | None = None


_current = _Current()


def current() -> Watch | None:
    """Return what the run of this thread keeps."""
    return _current.watch


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Keep values while a block runs."""
    saved, _current.watch = _current.watch, watch
    try:
        yield
    finally:
        _current.watch = saved

"""Tell a running trace which Python attributes its result depends on, and when any has changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..locks import ForkSafeLock
from .state import state


def note_read(owner: Any, name: str) -> None:
    """Note a read of ``owner.name``: a trace is made anew once the attribute differs."""
    if state.recorder is not None:
        state.recorder.note_read(owner, name)


class _Changes:
    """Says whether an attribute of any followed object may have changed: ``now`` differs then."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.now = 0

    def note(self) -> None:
        """Note a change that has been made; no number comes twice, whichever thread takes it."""
        self.now = next(self._numbers)


changes = _Changes()


class Followed:
    """Base of objects whose attributes a trace follows.

    What is read of them while tracing is noted; the program compares it again when an attribute
    of any followed object has changed. Running untraced costs nothing per read.
    """

    # What says that something else than an attribute has changed, such as a hook.
    _edition = 0
    # Attributes whose changes in place are told by ``_touch``, or go with another attribute's.
    _told: frozenset[str] = frozenset()

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__.get(name)
        super().__setattr__(name, value)
        if known is not value:
            changes.note()
            if state.recorder is not None:
                state.recorder.note_attribute(self, name, written=True)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        changes.note()

    def _touch(self) -> None:
        """Let traces that took the object's part notice that it was changed."""
        self._edition += 1

    def _contents(self) -> Any:
        """Return what a walk over all attributes finds; see ``note_walk``."""
        return ()


WALK = "*"  # stands for the name of an attribute where all are walked


def note_walk(owner: Followed) -> None:
    """Note that all that an object holds was looked at."""
    if state.recorder is not None:
        state.recorder.note_attribute(owner, WALK)


@contextmanager
def unobserved() -> Iterator[None]:
    """Let the block read and make what the trace at hand is not to know of."""
    saved, state.recorder = state.recorder, None
    try:
        yield
    finally:
        state.recorder = saved


def _read(self: Followed, name: str) -> Any:
    recorder = state.recorder
    if recorder is not None:
        recorder.note_attribute(self, name)
    return object.__getattribute__(self, name)


_lock = ForkSafeLock()
_tracing = 0


@contextmanager
def noting_reads() -> Iterator[None]:
    """Tell the thread's recorder each attribute of a followed object that the block reads."""
    global _tracing
    with _lock:
        _tracing += 1
        if _tracing == 1:
            Followed.__getattribute__ = _read  # type: ignore[assignment]
    try:
        yield
    finally:
        with _lock:
            _tracing -= 1
            if not _tracing:
                del Followed.__getattribute__

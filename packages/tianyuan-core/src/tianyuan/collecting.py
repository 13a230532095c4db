"""Decide when Python looks for garbage: not while objects are made that stay."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False  # whether a block below has switched the collector off


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside a block, and count what it made among the old objects then.

    Searching what stays takes a tenth of the time of an import, and a twentieth of what loading a
    model takes.
    """
    global _paused
    if not gc.isenabled():
        yield
        return
    _paused = True
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Among the old objects, unsearched: enabling alone would search all of them at once.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
        _paused = False


def _resume() -> None:
    """Let a forked child collect: the thread that would have gone on to do so may not be in it."""
    global _paused
    if _paused:
        gc.enable()
        _paused = False


os.register_at_fork(after_in_child=_resume)

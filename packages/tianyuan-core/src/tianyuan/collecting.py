"""Decide when Python looks for garbage: not while objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside a block, and count what it made among the old objects then.

    Searching what stays takes a tenth of the time of an import, and a twentieth of what loading a
    model takes.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Among the old objects, unsearched: enabling alone would search all of them at once.
            gc.freeze()
            gc.unfreeze()
        gc.enable()

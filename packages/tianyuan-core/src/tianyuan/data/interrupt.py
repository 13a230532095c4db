"""Decide when Ctrl-C may come: not while processes and shared memory are half made or half gone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off until the end of the block, also one that comes while the block is entered.

    >>> with uninterrupted():
    ...     pass
    """
    came = False
    while True:
        # Asks only, so that it can be tried again where a signal is handled on the way.
        try:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            break
        except KeyboardInterrupt:
            came = True
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    except KeyboardInterrupt:
        came = True  # raised after the mask was set
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if came:
            raise KeyboardInterrupt

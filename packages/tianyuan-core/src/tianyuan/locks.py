"""Locks that a forked child finds open, whatever other threads held when it was forked."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """A re-entrant lock for ``with``; a fork gives the child a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _known.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        """Take a new lock, held as often as the forking thread, which goes on, held the old one."""
        old, self._lock = self._lock, threading.RLock()
        try:
            while True:
                old.release()
                self._lock.acquire()
        except RuntimeError:
            return  # the old one is not, or no longer, this thread's


_known: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_known):
        lock._renew()


os.register_at_fork(after_in_child=_renew_all)

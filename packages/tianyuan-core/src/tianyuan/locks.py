"""Locks, and one kind that a forked child finds open, whoever held it when it was forked."""

from __future__ import annotations

import _thread
import os
import weakref

# What threading makes these names of: it would take a twentieth of core's import, and is loaded
# where a thread is started.
Lock = _thread.allocate_lock
RLock = _thread.RLock
Local = _thread._local


class ForkSafeLock:
    """A re-entrant lock for ``with``; a fork gives the child a new one."""

    def __init__(self) -> None:
        self._lock = RLock()
        _known.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        """Take a new lock, held as often as the forking thread, which goes on, held the old one."""
        old, self._lock = self._lock, RLock()
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

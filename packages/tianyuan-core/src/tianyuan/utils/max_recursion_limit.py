"""Let recursion go deeper for a while, as deep graphs need."""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import RLock

# What CPython takes at most; its frames live on the heap, so that memory is the true limit.
_MOST = 2**31 - 1
_STACK = 1 << 30  # bytes of the machine's own stack that C code in between may want

try:
    import resource
except ImportError:  # not a POSIX system, where the stack cannot grow
    resource = None  # type: ignore[assignment]


class AlternativeRecursionLimit:
    """Set Python's recursion limit inside a ``with`` block, and the stack's size as needed.

    Blocks of one object nest; the outermost puts back what was there.

    Args:
        new_py_limit: frames that may be active.

    >>> import sys
    >>> before = sys.getrecursionlimit()
    >>> with AlternativeRecursionLimit(5000):
    ...     sys.getrecursionlimit()
    5000
    >>> sys.getrecursionlimit() == before
    True
    """

    def __init__(self, new_py_limit: int) -> None:
        self.new_py_limit = new_py_limit
        self._lock = RLock()
        self._depth = 0
        self._limit = 0
        self._stack: tuple[int, int] | None = None

    def __enter__(self) -> AlternativeRecursionLimit:
        with self._lock:
            if self._depth == 0:
                self._limit = sys.getrecursionlimit()
                sys.setrecursionlimit(self.new_py_limit)
                self._stack = _grow_stack()
            self._depth += 1
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                sys.setrecursionlimit(self._limit)
                if self._stack is not None:
                    resource.setrlimit(resource.RLIMIT_STACK, self._stack)


def _grow_stack() -> tuple[int, int] | None:
    """Raise the soft limit of the stack; return the limits before, or None where they stay."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    want = _STACK if hard == resource.RLIM_INFINITY else min(_STACK, hard)
    if soft == resource.RLIM_INFINITY or soft >= want:
        return None
    with suppress(ValueError, OSError):  # a sandbox may forbid it: then the old size serves
        resource.setrlimit(resource.RLIMIT_STACK, (want, hard))
        return soft, hard
    return None


_shared = AlternativeRecursionLimit(_MOST)


def max_recursion_limit() -> AlternativeRecursionLimit:
    """Return a ``with`` block in which recursion is bounded by memory alone.

    >>> def depth(n):
    ...     return 0 if n == 0 else 1 + depth(n - 1)
    >>> with max_recursion_limit():
    ...     depth(3000)
    3000
    """
    return _shared

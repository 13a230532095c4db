"""Hand one value from one thread to another, and know that it has arrived."""

from __future__ import annotations

from threading import Event, Lock
from typing import Any

from ..errors import TianyuanError


class Future:
    """A value that one thread sets and another waits for.

    Args:
        ack: whether ``set`` waits until the value has been taken.

    >>> future = Future(ack=False)
    >>> future.set(3); future.get()
    3
    """

    def __init__(self, ack: bool = True) -> None:
        self._ready = Event()
        self._taken = Event() if ack else None
        self._claim = Lock()
        self._value: Any = None

    def set(self, value: Any) -> None:
        """Give the value; with ``ack``, wait until it is taken.

        Raises:
            TianyuanError: where it has been given before.
        """
        if not self._claim.acquire(blocking=False):
            raise TianyuanError("Future.set: the value has been given before, expected one call")
        self._value = value
        self._ready.set()
        if self._taken is not None:
            self._taken.wait()

    def get(self) -> Any:
        """Wait for the value and return it."""
        self._ready.wait()
        if self._taken is not None:
            self._taken.set()
        return self._value

"""Mark runs of sends and receives that belong together, as MegEngine's users do.

Sends never wait for their receiver (transport.py), so there is nothing to gather up; the marks are
checked to come in pairs.
"""

from __future__ import annotations

import threading

from ..errors import DistributedError


class _Open(threading.local):
    depth = 0


_open = _Open()


def group_start() -> None:
    """Begin a run of ``remote_send`` and ``remote_recv``; sends should stand first in it.

    Example::

        >>> group_start()
        >>> group_end()
    """
    _open.depth += 1


def group_end() -> None:
    """End the run that ``group_start`` began.

    Raises:
        DistributedError: where none was begun.

    Example::

        >>> group_end()
        Traceback (most recent call last):
        tianyuan.errors.DistributedError: group_end: no run is open, expected group_start before
    """
    if not _open.depth:
        raise DistributedError("group_end: no run is open, expected group_start before")
    _open.depth -= 1

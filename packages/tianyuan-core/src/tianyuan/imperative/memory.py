"""Say how much memory tensors hold, and follow it call by call where somebody asks for the peak.

Following costs a weak reference per result, so it is off until ``reset_max_memory_stats`` or
rematerialisation turns it on.
"""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from .. import device
from ..locks import RLock

following = False
_lock = RLock()
_live: dict[int, tuple[int, weakref.ref[Any]]] = {}  # owner's id -> bytes
_held = 0
_peak = 0


def owner_of(data: Any) -> Any:
    """Return the object that owns the memory that data lies in."""
    return data.base if isinstance(data, np.ndarray) and data.base is not None else data


def size_of(data: Any) -> int:
    """Return the bytes that the owner of data holds; 0 where it cannot be told."""
    return int(getattr(owner_of(data), "nbytes", 0) or 0)


def start() -> None:
    """Follow the results of eager ops from here on, and take what lives now as the peak."""
    global following, _held, _peak
    with _lock:
        if not following:
            _live.clear()
            _held = 0
            following = True
            note(_datas(None))
        _peak = _held


def stop() -> None:
    """Follow no further; what is asked for is counted anew."""
    global following
    with _lock:
        following = False
        _live.clear()


def note(datas: Iterable[Any]) -> None:
    """Count memory that has just been taken, until its owner is freed."""
    global _held, _peak
    for data in datas:
        owner = owner_of(data)
        size = size_of(data)
        key = id(owner)
        with _lock:
            if not size or key in _live:
                continue
            try:
                ref = weakref.ref(owner, lambda _, key=key: _forget(key))  # type: ignore[misc]
            except TypeError:  # memory of another library that tells nobody when it goes
                continue
            _live[key] = (size, ref)
            _held += size
            _peak = max(_peak, _held)


def _forget(key: int) -> None:
    global _held
    with _lock:
        if key not in _live:  # forgotten by stop()
            return
        size, _ = _live.pop(key)
        _held -= size


def _datas(where: str | None) -> list[Any]:
    from .tensor import Tensor

    return [
        item._data
        for item in gc.get_objects()
        if issubclass(type(item), Tensor)
        and hasattr(item, "_spec")
        and where in (None, item.device)
        if getattr(item._data, "nbytes", None) is not None
    ]


def held(where: str) -> int:
    """Return the bytes that live tensors on a device hold; shared memory counts once."""
    global _peak
    if where == "cpu" and following:
        return _held
    found = {id(owner_of(data)): size_of(data) for data in _datas(where)}
    total = sum(found.values())
    if where == "cpu":
        _peak = max(_peak, total)
    return total


@cache
def _release() -> Any:
    """Return the C allocator's function for that; each CDLL makes classes that know themselves."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim() -> None:
    """Give the C allocator's free pages back to the system, where it can."""
    release = _release()
    if release is not None:
        release(0)


class HostMemory:
    """What ``tianyuan.device`` asks about the memory of this machine and process."""

    def total_and_free(self) -> tuple[int, int]:
        """Return the machine's bytes of memory, and those that can still be taken."""
        table = _table("/proc/meminfo")
        if table:
            return table["MemTotal"], table.get("MemAvailable", table["MemFree"])
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")

    def allocated(self, where: str) -> int:
        """Return the bytes that live tensors hold."""
        return held(where)

    def max_allocated(self) -> int:
        """Return the most bytes that tensors held since following began, or at any question."""
        held("cpu")
        return _peak

    def reserved(self) -> int:
        """Return the resident bytes of the process."""
        return _status("VmRSS")

    def max_reserved(self) -> int:
        """Return the most resident bytes that the process had."""
        return _status("VmHWM")

    def reset(self) -> None:
        """Begin both peaks anew."""
        start()
        # 5 resets the high-water mark of the resident set (proc_pid_clear_refs(5)).
        if os.access("/proc/self/clear_refs", os.W_OK):
            with open("/proc/self/clear_refs", "w") as clear:
                clear.write("5")

    def coalesce(self) -> None:
        """Give memory that no object uses back to the system."""
        gc.collect()
        trim()


def _table(path: str) -> dict[str, int]:
    """Return the bytes that a file of /proc states by name, none where there is no such file."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        pairs = [line.split() for line in file]
    return {p[0].rstrip(":"): int(p[1]) * 1024 for p in pairs if len(p) > 1 and p[1].isdigit()}


def _status(name: str) -> int:
    table = _table("/proc/self/status")
    if table:
        return table.get(name, 0)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


device.install_memory(HostMemory())

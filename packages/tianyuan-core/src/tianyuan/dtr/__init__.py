"""Train in less memory: evict what backward will read, and compute it again when it does.

It works on eager training under one ``GradManager``; while several are nested nothing is evicted.
A trace takes ``dtr_config`` or ``sublinear_memory_config`` instead. Values do not change by a bit.

Attributes:
    eviction_threshold: bytes that tensors may hold before values are evicted, as int or like
        ``"5GB"``; 0 allows four fifths of the machine's memory.
    evictee_minimum_size: bytes of the smallest value that is evicted, as int or like ``"1MB"``.
    enable_sqrt_sampling: whether only the square root of the number of values is weighed each
        time, which decides faster and less well.

Example:
    >>> import numpy as np, tianyuan as ty
    >>> from tianyuan import dtr
    >>> dtr.eviction_threshold = "64KB"
    >>> dtr.evictee_minimum_size = 0
    >>> dtr.enable()
    >>> p = ty.Parameter(np.ones(4, np.float32))
    >>> with ty.autodiff.GradManager().attach(p) as gm:
    ...     gm.backward((p * p).sum())
    >>> dtr.disable()
    >>> p.grad.numpy().tolist()
    [2.0, 2.0, 2.0, 2.0]
"""

from __future__ import annotations

import re
import sys
from types import ModuleType

from ..errors import AttrError, GradError
from ..imperative import memory, rematerialise
from ..imperative.state import state
from ..imperative.tape import Tape, use_tapes

eviction_threshold: int | str
evictee_minimum_size: int | str
enable_sqrt_sampling: bool

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMG]?)B?\s*$", re.IGNORECASE)


def enable() -> None:
    """Evict values of the managers that begin to record from here on.

    Example:
        >>> from tianyuan import dtr
        >>> dtr.enable()
        >>> dtr.disable()
    """
    memory.start()
    use_tapes(rematerialise.make_tape)


def disable() -> None:
    """Keep every value again, in managers that begin to record from here on.

    Raises:
        GradError: inside a manager that records with eviction.

    Example:
        >>> from tianyuan import dtr
        >>> dtr.disable()
    """
    if any(isinstance(tape, rematerialise.RematerialisingTape) for tape in state.tapes):
        raise GradError("dtr.disable: a manager is recording, expected a call after its backward")
    use_tapes(Tape)
    memory.stop()


def _bytes(name: str, value: int | str) -> int:
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is not None:
        return int(float(match[1]) * _UNITS[match[2].upper()])
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise AttrError(f"dtr: {name} is wrong, got {value!r}, expected bytes or like '5GB'")
    return value


class _Dtr(ModuleType):
    """This module, with limits that check what is assigned to them."""

    @property
    def eviction_threshold(self) -> int:
        """Return the bytes that tensors may hold before values are evicted."""
        return rematerialise.limits.threshold

    @eviction_threshold.setter
    def eviction_threshold(self, value: int | str) -> None:
        rematerialise.limits.threshold = _bytes("eviction_threshold", value)

    @property
    def evictee_minimum_size(self) -> int:
        """Return the bytes of the smallest value that is evicted."""
        return rematerialise.limits.least

    @evictee_minimum_size.setter
    def evictee_minimum_size(self, value: int | str) -> None:
        rematerialise.limits.least = _bytes("evictee_minimum_size", value)

    @property
    def enable_sqrt_sampling(self) -> bool:
        """Tell whether only a sample of values is weighed."""
        return rematerialise.limits.sample

    @enable_sqrt_sampling.setter
    def enable_sqrt_sampling(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise AttrError(
                f"dtr: enable_sqrt_sampling is wrong, got {value!r}, expected True or False"
            )
        rematerialise.limits.sample = value


sys.modules[__name__].__class__ = _Dtr

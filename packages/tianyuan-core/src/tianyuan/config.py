"""Hold the process-wide switches that a user may turn while programs run.

Attributes:
    winograd: whether Winograd convolutions, and products and 1 x 1 convolutions by Strassen's
        method in Winograd's form, may serve in traced and loaded programs; they are faster and err
        more. Errors, NaN and infinities may then reach other values of one image, never other
        samples. Starts as False where the environment variable TIANYUAN_WINOGRAD is ``0``.
    benchmark_kernel: whether traced and loaded programs choose kernels by measured time (policy
        ``profile``) instead of estimated cost. Eager calls keep to the estimate: timing every
        kernel on each new shape would cost more than it gains.
    deterministic_kernel: whether only kernels serve whose result depends neither on the thread
        count nor on the batch (policy ``reproducible``), eagerly and in programs. Winograd's and
        Strassen's are left out, as costs choose them for some batches and not for others. It
        outweighs ``benchmark_kernel``.
    async_level: 0, 1 or 2, kept for MegEngine's sake. Eager ops on the host have always finished
        when they return, which is level 0; streams of other devices are their backend's affair.
    benchmark_with_subprocess: kept for MegEngine's sake. Kernels are timed in this process, since
        one that fails raises instead of ending it.
    disable_memory_forwarding: kept for MegEngine's sake. Only the memory plan shares memory, and
        the graph's validity rules hold that nobody can tell.
    verbose: whether each kernel call is logged with its op, shapes and time; starts as True where
        the environment variable TIANYUAN_VERBOSE is ``1``.
    detect_anomaly: whether every result is searched for NaN and infinity, and the first one raises;
        starts as True where TIANYUAN_DETECT_ANOMALY is ``1``. See ``utils.detect_anomaly``.

Turning a switch applies from the next call on, for which programs are then compiled anew (for
``verbose`` and ``detect_anomaly`` they are only run another way).

Example:
    >>> from tianyuan import config
    >>> with config._override(deterministic_kernel=True):
    ...     print(config.deterministic_kernel, config.policy())
    True reproducible
    >>> config.deterministic_kernel
    False
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from .errors import AttrError, did_you_mean

winograd: bool
benchmark_kernel: bool
benchmark_with_subprocess: bool
deterministic_kernel: bool
disable_memory_forwarding: bool
async_level: int
verbose: bool
detect_anomaly: bool

_DEFAULTS: dict[str, Any] = {
    "winograd": os.environ.get("TIANYUAN_WINOGRAD", "").strip() != "0",
    "benchmark_kernel": False,
    "benchmark_with_subprocess": False,
    "deterministic_kernel": False,
    "disable_memory_forwarding": False,
    "async_level": 2,
    "_compute_mode": "default",
    "_auto_format_convert": False,
}
# Switches that choose no kernels, but listeners to those that run.
_watching: dict[str, Any] = {
    "verbose": os.environ.get("TIANYUAN_VERBOSE", "").strip() == "1",
    "detect_anomaly": os.environ.get("TIANYUAN_DETECT_ANOMALY", "").strip() == "1",
}
_followers: dict[str, Callable[[bool], None]] = {}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "async_level": (0, 1, 2),
    "_compute_mode": ("default", "float32"),
}
_values = dict(_DEFAULTS)

# Numbers the settings met so far: part of every key that a choice of kernels is kept under.
setting = 0
_numbers: dict[tuple[Any, ...], int] = {tuple(_values.values()): 0}


def policy() -> str:
    """Return the policy by which kernels are chosen: heuristic, profile or reproducible.

    Example:
        >>> from tianyuan import config
        >>> config.policy()
        'heuristic'
    """
    if _values["deterministic_kernel"]:
        return "reproducible"
    return "profile" if _values["benchmark_kernel"] else "heuristic"


def _set(name: str, value: Any) -> None:
    global setting
    choices = _CHOICES.get(name, (False, True))
    kind = type(choices[0])
    if type(value) is not kind or value not in choices:
        expected = " or ".join(map(str, choices))
        raise AttrError(f"config: {name} is wrong, got {value!r}, expected {expected}")
    if name in _watching:
        _watching[name] = value
        if name in _followers:
            _followers[name](value)
        return
    _values[name] = value
    setting = _numbers.setdefault(tuple(_values.values()), len(_numbers))


def follow(name: str, follower: Callable[[bool], None]) -> None:
    """Call a function with a switch's value now and whenever it is assigned."""
    _followers[name] = follower
    follower(_watching[name])


@contextmanager
def _override(
    benchmark_kernel: bool | None = None,
    deterministic_kernel: bool | None = None,
    async_level: int | None = None,
    compute_mode: str | None = None,
) -> Iterator[None]:
    """Turn switches inside a block; those left None stay as they are."""
    wanted = {
        "benchmark_kernel": benchmark_kernel,
        "deterministic_kernel": deterministic_kernel,
        "async_level": async_level,
        "_compute_mode": compute_mode,
    }
    saved = dict(_values)
    try:
        for name, value in wanted.items():
            if value is not None:
                _set(name, value)
        yield
    finally:
        for name, value in saved.items():
            _set(name, value)


def _reset_execution_config(
    benchmark_kernel: bool | None = None,
    deterministic_kernel: bool | None = None,
    async_level: int | None = None,
    compute_mode: str | None = None,
) -> tuple[bool, bool, int, str]:
    """Turn switches for good and return what they were."""
    names = ("benchmark_kernel", "deterministic_kernel", "async_level", "_compute_mode")
    before = tuple(_values[name] for name in names)
    given = (benchmark_kernel, deterministic_kernel, async_level, compute_mode)
    for name, value in zip(names, given, strict=True):
        if value is not None:
            _set(name, value)
    return before


class _Switch:
    """A switch as attribute of this module, checked when it is assigned."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return _watching[self._name] if self._name in _watching else _values[self._name]

    def __set__(self, instance: Any, value: Any) -> None:
        _set(self._name, value)


class _Config(ModuleType):
    """This module, with switches that check what is assigned to them, and no others."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name.startswith("_") or hasattr(self, name)):
            known = (*_DEFAULTS, *_watching)
            raise AttrError(
                f"config: there is no switch of this name, got {name!r}"
                f"{did_you_mean(name, known)}, expected one of {', '.join(known)}"
            )
        super().__setattr__(name, value)


for _name in (*_DEFAULTS, *_watching):
    setattr(_Config, _name, _Switch(_name))

sys.modules[__name__].__class__ = _Config

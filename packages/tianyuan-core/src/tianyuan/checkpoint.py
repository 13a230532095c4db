"""Decide how a whole training run is kept in one file, and how it goes on from there.

The file is what ``tianyuan.save`` writes: no pickle, checked before it is believed, and replaced
in one step, so that a run that is killed while it saves still has the checkpoint before.
"""

from __future__ import annotations

import random as python_random
from collections.abc import Callable
from typing import Any

import numpy as np

from . import random
from .errors import ModelFormatError, StateDictError
from .serialization import File, MapLocation, load, save

_KIND = "tianyuan.checkpoint"
_VERSION = 1
# How an object of one's own gives its state, and takes it back.
_PROTOCOLS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


def save_checkpoint(f: File, **parts: Any) -> None:
    """Write a training run to a file, in one step.

    Kept are the states of all parts, the state of ``tianyuan.random``, ``numpy.random`` and
    ``random``, and plain values such as the number of the epoch. A loader's state includes its
    place in the pass, so that this may be called in the middle of an epoch.

    Args:
        f: path, or a file open for writing bytes.
        parts: objects with ``state_dict`` and ``load_state_dict`` (modules, optimisers, schedules,
            loaders, samplers, gradient scalers) or with ``get_state`` and ``set_state`` (random
            generators), and values that ``tianyuan.save`` takes, under any names.

    Raises:
        TypeError: for a part that cannot be saved, before a byte is written.
        OSError: where the file cannot be written; what was there before stays.

    >>> from tianyuan import load_checkpoint, save_checkpoint
    >>> from tianyuan.module import Linear
    >>> net, other = Linear(2, 2), Linear(2, 2)
    >>> save_checkpoint("run.ckpt", model=net, epoch=3)
    >>> load_checkpoint("run.ckpt", model=other)
    {'epoch': 3}
    >>> bool((net.weight.numpy() == other.weight.numpy()).all())
    True
    """
    states, values = {}, {}
    for name, part in parts.items():
        protocol = _protocol(part)
        if protocol is None:
            values[name] = part
        else:
            states[name] = getattr(part, protocol[0])()
    whole = {"states": states, "values": values, "random": _random_state()}
    save({"kind": _KIND, "version": _VERSION, **whole}, f)


def load_checkpoint(
    f: File,
    map_location: MapLocation = None,
    restore_random: bool = True,
    **parts: Any,
) -> dict[str, Any]:
    """Give objects the states that ``save_checkpoint`` wrote; return the plain values.

    Going on then gives the very numbers that the run would have given without a stop.

    Args:
        f: path, or a file open for reading bytes.
        map_location: where tensors among the values go, as for ``tianyuan.load``.
        restore_random: whether random generators go on from where they were.
        parts: the objects, under the names that they were saved by; others are left out.

    Raises:
        FileNotFoundError, IsADirectoryError: where there is no such file.
        ModelFormatError: where the file is damaged or holds something else.
        StateDictError: where a part is missing in the file or does not fit. Whatever is raised,
            all parts are as they were before.

    >>> from tianyuan.module import Linear
    >>> save_checkpoint("run.ckpt", model=Linear(2, 2), epoch=3)
    >>> load_checkpoint("run.ckpt", model=Linear(2, 2))
    {'epoch': 3}
    """
    found = load(f, map_location)
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        raise ModelFormatError(
            "load_checkpoint: not a checkpoint, got another saved value, expected one that "
            "save_checkpoint wrote"
        )
    if found.get("version") != _VERSION:
        raise ModelFormatError(
            f"load_checkpoint: unknown version, got {found.get('version')!r}, expected {_VERSION}"
        )
    states, values, generators = (_mapping(found, what) for what in ("states", "values", "random"))
    setters = _setters(parts, states)
    before = {name: getattr(part, _expected(name, part)[0])() for name, part in parts.items()}
    begun: list[str] = []
    drawn = _random_state()
    try:
        for name, setter in setters.items():
            begun.append(name)
            setter(states[name])
        if restore_random:
            _set_random_state(generators)
    except BaseException:
        _put_random_state(drawn)
        for name in reversed(begun):
            setters[name](before[name])
        raise
    return values


def _mapping(found: dict[str, Any], what: str) -> dict[str, Any]:
    """Return one of a checkpoint's parts, each of which has names."""
    part = found.get(what)
    if not isinstance(part, dict):
        raise ModelFormatError(
            f"load_checkpoint: {what} are wrong, got {type(part).__name__}, expected a dict"
        )
    return part


def _protocol(part: Any) -> tuple[str, str] | None:
    """Return the names of the methods that give and take an object's state, None for a value."""
    for protocol in _PROTOCOLS:
        if all(callable(getattr(part, name, None)) for name in protocol):
            return protocol
    return None


def _expected(name: str, part: Any) -> tuple[str, str]:
    protocol = _protocol(part)
    if protocol is None:
        raise StateDictError(
            f"load_checkpoint: {name} has no state, got {type(part).__name__}, expected an object "
            "with load_state_dict or set_state"
        )
    return protocol


def _setters(parts: dict[str, Any], states: dict[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """Return what takes each part's state.

    Raises:
        StateDictError: where an object takes none, or the file lacks it.
    """
    setters = {name: getattr(part, _expected(name, part)[1]) for name, part in parts.items()}
    missing = sorted(set(parts) - set(states))
    if missing:
        raise StateDictError(
            f"load_checkpoint: parts are missing in the file, got {sorted(states)}, expected "
            f"{missing} too"
        )
    return setters


def _random_state() -> dict[str, Any]:
    return {
        "tianyuan": random.get_state(),
        "numpy": np.random.get_state(legacy=False),
        "python": python_random.getstate(),
    }


def _set_random_state(state: dict[str, Any]) -> None:
    """Give every generator its state.

    Raises:
        ModelFormatError: where one does not take it.
    """
    try:
        _put_random_state(state)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFormatError(
            f"load_checkpoint: the state of a random generator is wrong, got {error}, expected "
            "one that save_checkpoint wrote"
        ) from error


def _put_random_state(state: dict[str, Any]) -> None:
    np.random.set_state(state["numpy"])
    python_random.setstate(state["python"])
    random.set_state(state["tianyuan"])

"""Check what observers, fake quantisers and registrations are given."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from tianyuan import Tensor
from tianyuan.errors import AttrError, DTypeError, did_you_mean
from tianyuan.functional.arguments import real_number, whole

from .params import QParams, QuantMode

FAR = float(np.finfo(np.float32).max)


def least_scale(owner: str, eps: Any) -> float:
    """Return the least scale of an observer, a positive float32.

    Raises:
        AttrError: where it is none.

    >>> least_scale("MinMaxObserver", 0.5)
    0.5
    """
    found = real_number(owner, "eps", eps)
    if not 0 < found <= FAR:
        raise AttrError(
            f"{owner}: eps must be positive and finite, got {eps}, expected a float32 above 0"
        )
    return found


def matches(name: str, pattern: str) -> bool:
    """Tell whether a pattern is that of a module, or of one that holds it.

    >>> [matches("block.conv", pattern) for pattern in ("block", "block.c*", "bl", "conv")]
    [True, True, False, False]
    """
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def any_matches(names: Iterable[str], pattern: str) -> bool:
    """Tell whether a pattern is that of one of some modules, or of one that holds it.

    >>> any_matches(["stem", "block.conv"], "block")
    True
    """
    return any(matches(name, pattern) for name in names)


def named_or_close(lost: Iterable[str], known: Iterable[str]) -> str:
    """Write names that are not known, each with one that is close to it.

    >>> named_or_close(["haed", "x"], ["head", "stem"])
    "'haed' (did you mean 'head'?), 'x'"
    """
    known = tuple(known)
    return ", ".join(f"{name!r}{did_you_mean(name, known)}" for name in lost)


def mode_of(owner: str, mode: Any) -> QuantMode:
    """Return a mode of quantisation.

    Raises:
        AttrError: where it is none.

    >>> mode_of("MinMaxObserver", QuantMode.SYMMERTIC).name
    'SYMMERTIC'
    """
    if not isinstance(mode, QuantMode):
        raise AttrError(
            f"{owner}: mode is wrong, got {mode!r}, expected QuantMode.SYMMERTIC or .ASYMMERTIC"
        )
    return mode


def channel_of(owner: str, axis: Any) -> int | None:
    """Return the axis that scales go along, counted from the front, or None.

    Raises:
        AttrError: where it is no int of at least 0.

    >>> channel_of("MinMaxObserver", 1)
    1
    """
    return None if axis is None else whole(owner, "channel_axis", axis, 0)


def switch(owner: str, name: str, value: Any) -> bool:
    """Return True or False.

    Raises:
        AttrError: where it is something else, which need not mean what its truth says.

    >>> switch("FakeQuantize", "enable", True)
    True
    """
    if not isinstance(value, (bool, np.bool_)):
        raise AttrError(f"{owner}: {name} is wrong, got {value!r}, expected True or False")
    return bool(value)


def tensor_of(owner: str, x: Any) -> Tensor:
    """Return what must be a tensor.

    Raises:
        DTypeError: where it is none.

    >>> tensor_of("Observer", Tensor(1.0)).item()
    1.0
    """
    if not isinstance(x, Tensor):
        raise DTypeError(f"{owner}: input is wrong, got {type(x).__name__}, expected a Tensor")
    return x


def params_of(owner: str, qparams: Any) -> QParams:
    """Return what must be quantisation parameters.

    Raises:
        AttrError: where they are none.

    >>> from .params import create_qparams
    >>> params_of("LSQ", create_qparams(scale=0.5)).scale.item()
    0.5
    """
    if not isinstance(qparams, QParams):
        raise AttrError(
            f"{owner}: quantisation parameters are wrong, got {type(qparams).__name__}, expected "
            "QParams, as create_qparams returns them"
        )
    return qparams


def class_of(owner: str, value: Any) -> type:
    """Return what must be a class.

    Raises:
        AttrError: where it is none.

    >>> class_of("register_qat", dict)
    <class 'dict'>
    """
    if not isinstance(value, type):
        raise AttrError(f"{owner}: not a class, got {value!r}, expected one")
    return value

"""Declare frozen dataclasses whose methods are generated when they are first used.

Importing core declares some sixty of them and a run uses a few; generating all would take a third
of the import.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Callable[[T], T]:
        return lambda decorator: decorator


_lock = threading.RLock()


class _Fields:
    """Generates a class whose fields are asked for; what ``dataclass`` then sets hides it."""

    def __get__(self, cls: Any, owner: type) -> Any:
        _generate(cls)
        return cls.__dict__["__dataclass_fields__"]


class _Generated(type):
    """The class of a class whose methods are there: calls of it pay nothing."""


class _Deferred(type):
    """The class of a class that becomes a dataclass when it is instantiated or inspected."""

    __dataclass_fields__ = _Fields()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        _generate(cls)
        return type.__call__(cls, *args, **kwargs)


def _generate(cls: Any) -> None:
    with _lock:
        if type(cls) is _Deferred:
            dataclass(frozen=True, **cls.__dict__["_deferred"])(cls)  # type: ignore[arg-type]
            if cls.__dict__["_deferred"]["eq"]:
                _tell_zeros_apart(cls)
            cls.__class__ = _Generated  # type: ignore[assignment]


def _tell_zeros_apart(cls: Any) -> None:
    """Make 0.0 and -0.0 differ, since what is kept under equal records gives other results."""
    names = [f.name for f in fields(cls) if f.type in ("float", "Floats")]
    plain = cls.__eq__

    def equal(self: Any, other: object) -> Any:
        same = plain(self, other)
        if same is not True:
            return same
        return all(_signs(getattr(self, name)) == _signs(getattr(other, name)) for name in names)

    if names:
        cls.__eq__ = equal


def _signs(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_signs, value))
    return math.copysign(1.0, value) if isinstance(value, float) else None


@dataclass_transform(frozen_default=True)
def record(*, eq: bool = True, repr: bool = True) -> Callable[[type[T]], type[T]]:
    """Return a decorator as ``dataclass(frozen=True, eq=…, repr=…)`` that waits for the first use.

    Without ``eq``, instances are compared and hashed by identity.
    """

    def declare(cls: type[T]) -> type[T]:
        members = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__")}
        members["_deferred"] = {"eq": eq, "repr": repr}
        deferred: Any = _Deferred(cls.__name__, cls.__bases__, members)
        return deferred  # type: ignore[no-any-return]

    return declare

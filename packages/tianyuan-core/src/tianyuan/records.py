"""Declare frozen dataclasses whose methods are generated when they are first used.

Importing core declares some sixty of them and a run uses a few. ``dataclasses`` would compile six
functions for each; here it is asked only for what it alone can tell, a class's fields, and only
when somebody inspects them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .floats import FloatList
from .locks import RLock

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Callable[[T], T]:
        return lambda decorator: decorator


_inspecting = RLock()


class _Inspected:
    """Makes what ``dataclasses`` keeps about a record when it is asked for."""

    def __init__(self, cls: Any, name: str) -> None:
        self.cls, self.name = cls, name

    def __get__(self, instance: Any, owner: Any) -> Any:
        from dataclasses import dataclass

        with _inspecting:  # dataclass walks through what it adds to
            if self.cls.__dict__[self.name] is self:  # until it is hidden by what is made
                dataclass(init=False, repr=False, eq=False, match_args=False)(self.cls)
                # Frozen are dataclasses derived from it, too.
                self.cls.__dataclass_params__.frozen = True
        return self.cls.__dict__[self.name]


class _Generated:
    """Stands in for a method until it is looked up, in a record or in what is derived from it."""

    def __init__(self, cls: Any, name: str) -> None:
        self.cls, self.name = cls, name

    def __get__(self, instance: Any, owner: Any) -> Any:
        _generate(self.cls, self.name)
        return self.cls.__dict__[self.name].__get__(instance, owner)


def _generate(cls: Any, method: str) -> None:
    """Add a method to a class; several threads may, as what they add is the same."""
    space: dict[str, Any] = {"_set": object.__setattr__, "_class": cls, "_signs": _signs}
    exec(_source(cls, method), space)
    if isinstance(cls.__dict__.get(method), _Generated):
        setattr(cls, method, space[method])


def _source(cls: Any, method: str) -> str:
    names, members = cls.__match_args__, cls.__dict__
    values = "(" + "".join(f"{{0}}.{name}, " for name in names) + ")"
    if method == "__init__":
        given = (f"{name}=_class.{name}" if name in members else name for name in names)
        lines = [
            f"def __init__(self, {', '.join(given)}):",
            *(f"    _set(self, {name!r}, {name})" for name in names),
            "    self.__post_init__()" if hasattr(cls, "__post_init__") else "    return",
        ]
    elif method == "__eq__":
        # Equal records stand for each other's results, in which 0.0 and -0.0 differ.
        floats = [name for name in names if cls.__annotations__[name] in ("float", "Floats")]
        signs = "".join(f" and _signs(self.{n}) == _signs(other.{n})" for n in floats)
        lines = [
            "def __eq__(self, other):",
            "    if other.__class__ is not self.__class__:",
            "        return NotImplemented",
            f"    return {values.format('self')} == {values.format('other')}{signs}",
        ]
    else:
        lines = ["def __hash__(self):", f"    return hash({values.format('self')})"]
    return "\n".join(lines)


def _signs(value: Any) -> Any:
    if isinstance(value, (tuple, FloatList)):
        return tuple(map(_signs, value))
    return math.copysign(1.0, value) if isinstance(value, float) else None


def tell_zeros_apart(cls: Any) -> None:
    """Let 0.0 and -0.0 differ in the equality of a dataclass that is not declared here."""
    equal = cls.__dict__.get("__eq__")
    if equal is None or isinstance(equal, _Generated) or hasattr(equal, "tells_zeros"):
        return
    if getattr(equal, "__globals__", {}).get("_signs") is _signs:  # a record, already generated
        return

    def equal_with_signs(self: Any, other: Any) -> Any:
        found = equal(self, other)
        if found is not True or self is other:
            return found
        names = cls.__dataclass_fields__
        return all(_signs(getattr(self, n)) == _signs(getattr(other, n)) for n in names)

    equal_with_signs.tells_zeros = True  # type: ignore[attr-defined]
    cls.__eq__ = equal_with_signs


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({shown})"


def _refuse(self: Any, name: str, value: Any = None) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to or delete field {name!r}")


@dataclass_transform(frozen_default=True)
def record(*, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """Return a decorator as ``dataclass(frozen=True, eq=…)`` that waits for the first instance.

    Without ``eq``, instances are compared and hashed by identity.
    """

    def declare(cls: Any) -> Any:
        members: dict[str, Any] = {
            "__dataclass_fields__": _Inspected(cls, "__dataclass_fields__"),
            "__dataclass_params__": _Inspected(cls, "__dataclass_params__"),
            "__match_args__": tuple(cls.__annotations__),
            "__setattr__": _refuse,
            "__delattr__": _refuse,
            "__repr__": _repr,
        }
        if cls.__annotations__ or hasattr(cls, "__post_init__"):
            members["__init__"] = _Generated(cls, "__init__")
        if eq:
            members |= {name: _Generated(cls, name) for name in ("__eq__", "__hash__")}
        for name, member in members.items():
            if name not in cls.__dict__:
                setattr(cls, name, member)
        return cls

    return declare

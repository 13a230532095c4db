"""Decide whether the attributes that a trace read are still what they were."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..imperative.observe import WALK, Followed, changes
from .pytree import Identity

_ABSENT = Identity(object())  # stands for an attribute that the object itself has not
_DEPTH = 4  # of containers in containers that are compared by what they hold
_ROOM = 256  # items in a container, and elements in an array, beyond which they count by identity

# Types whose values never change.
_FIXED = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, enum.Enum, type)
_CONTAINERS = (list, tuple, dict, set, frozenset, np.ndarray)


def _form(value: Any, depth: int = _DEPTH) -> Any:
    """Return what a value is compared by: numbers, strings, containers by value, else identity."""
    if isinstance(value, float):
        return (type(value), value.hex())  # tells 0.0 from -0.0, and finds NaN again
    if isinstance(value, np.generic):
        return (type(value), value.tobytes())
    if isinstance(value, (*_FIXED, slice, range)):
        return (type(value), value)
    if isinstance(value, np.ndarray) and value.size <= _ROOM and not value.dtype.hasobject:
        return (type(value), value.dtype, value.shape, value.tobytes())
    if depth and isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) <= _ROOM:
        if isinstance(value, (set, frozenset)):
            return (type(value), frozenset(_form(item, 0) for item in value))
        # The keys of a dict are told in its order; they are no level of their own.
        keys = tuple(_form(key, 0) for key in value) if isinstance(value, dict) else ()
        items = value.values() if isinstance(value, dict) else value
        return (type(value), keys, tuple(_form(item, depth - 1) for item in items))
    return Identity(value)


class Fact:
    """An attribute of a followed object as the trace found it.

    Attributes:
        value: what it was.
        loose: whether it may change in place without a word.
    """

    __slots__ = ("_form", "_items", "loose", "name", "owner", "value")

    def __init__(self, owner: Followed, name: str) -> None:
        self.owner, self.name = owner, name
        self.value = value = _held(owner, name)
        self.loose = False
        self._form = self._items = None
        if isinstance(value, _CONTAINERS):  # others are the same object or may be compared later
            self._form = _form(value)
            self._items = _flat(value)
            told = name in owner._told or name == WALK
            self.loose = not told and _may_change(value, self._form)

    @property
    def simple(self) -> bool:
        """Whether the object that it is says all."""
        return self._form is None

    def holds(self) -> bool:
        """Tell whether the attribute is what it was."""
        value = _held(self.owner, self.name)
        if self._form is None:
            return value is self.value or bool(_form(value) == _form(self.value))
        if value is self.value and self._items is not None:
            # Items that are the same objects say so faster than their forms.
            now = (*value, *value.values()) if isinstance(value, dict) else value
            if len(now) == len(self._items) and all(map(operator.is_, now, self._items)):
                return True
        return bool(_form(value) == self._form)


def _flat(value: Any) -> tuple[Any, ...] | None:
    """Return the items of a container of which none is one itself; None for others."""
    if isinstance(value, dict):
        items = (*value, *value.values())
    elif isinstance(value, (list, tuple)):
        items = tuple(value)
    else:
        return None
    return None if any(isinstance(item, _CONTAINERS) for item in items) else items


def _held(owner: Followed, name: str) -> Any:
    if name == WALK:
        return owner._contents()
    return object.__getattribute__(owner, "__dict__").get(name, _ABSENT)


def _may_change(value: Any, form: Any) -> bool:
    """Tell whether a value that counts by what it holds can be changed in place."""
    if isinstance(form, Identity) or isinstance(value, _FIXED):
        return False
    if isinstance(value, tuple):
        return any(_may_change(item, _form(item)) for item in value)
    return not isinstance(value, (frozenset, slice, range))


class Facts:
    """The attributes that one trace depends on.

    An attribute that the traced code itself gave another value, a counter or a cache, is none of
    them: eager code would not find it as it was either.
    """

    def __init__(self) -> None:
        self._noted: dict[tuple[int, str], Fact | Followed] = {}
        self.facts: tuple[Fact, ...] = ()
        self._simple: tuple[tuple[Followed, list[tuple[str, Any, Fact]]], ...] = ()
        self._others: tuple[Fact, ...] = ()
        self._loose: tuple[Fact, ...] = ()
        self._compared = 0, True

    def knows(self, owner: Followed, name: str) -> bool:
        """Tell whether there is nothing more to note about an attribute."""
        return (id(owner), name) in self._noted or name.startswith("__")

    def note(self, owner: Followed, name: str, written: bool) -> None:
        """Note the first thing that the traced code does with an attribute."""
        self._noted[id(owner), name] = owner if written else Fact(owner, name)

    def settle(self) -> None:
        """End the notes: what the traced code has changed counts no more."""
        noted = (fact for fact in self._noted.values() if isinstance(fact, Fact))
        self.facts = tuple(fact for fact in noted if fact.holds())
        self._loose = tuple(fact for fact in self.facts if fact.loose)
        by_owner: dict[int, tuple[Followed, list[tuple[str, Any, Fact]]]] = {}
        for fact in self.facts:
            if fact.simple:
                found = by_owner.setdefault(id(fact.owner), (fact.owner, []))[1]
                found.append((fact.name, fact.value, fact))
        self._simple = tuple(by_owner.values())
        self._others = tuple(fact for fact in self.facts if not (fact.simple or fact.loose))
        self._noted.clear()
        self._compared = -1, False

    def hold(self) -> bool:
        """Tell whether all are as they were; they are compared only when something has changed."""
        now, (then, same) = changes.now, self._compared
        if now != then:
            same = self._hold_all()
            self._compared = now, same
        return same and all(fact.holds() for fact in self._loose)

    def _hold_all(self) -> bool:
        # Most facts are simple; a function per fact would cost as much again as all the rest.
        for owner, found in self._simple:
            held = object.__getattribute__(owner, "__dict__")
            for name, value, fact in found:
                if held.get(name, _ABSENT) is not value and not fact.holds():
                    return False
        return all(fact.holds() for fact in self._others)

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.facts)

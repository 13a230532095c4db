"""Decide how values are named after the modules in which they are made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Names(threading.local):
    def __init__(self) -> None:
        self.scopes: list[str] = []
        self.by_handle: dict[Any, str] = {}
        self.used: dict[str, int] = {}


_names = _Names()


class AutoNaming:
    """Names of values, each after the scopes that are open when it is made; kept per thread.

    >>> AutoNaming.clear()
    >>> with AutoNaming.scope("net"), AutoNaming.scope("fc"):
    ...     AutoNaming.gen_name("y"), AutoNaming.gen_name("y")
    ('net.fc.y', 'net.fc.y_1')
    """

    @classmethod
    def clear(cls) -> None:
        """Forget all scopes and names."""
        _names.__init__()  # type: ignore[misc]

    @classmethod
    def push_scope(cls, scope: str) -> None:
        """Open a scope inside the present one."""
        _names.scopes.append(scope)

    @classmethod
    def pop_scope(cls) -> str:
        """Close the innermost scope and return its name.

        Raises:
            IndexError: where none is open.
        """
        return _names.scopes.pop()

    @classmethod
    @contextmanager
    def scope(cls, name: str) -> Iterator[None]:
        """Open a scope for a ``with`` block."""
        cls.push_scope(name)
        try:
            yield
        finally:
            cls.pop_scope()

    @classmethod
    def get_scope(cls) -> str:
        """Return the open scopes, joined by dots."""
        return ".".join(_names.scopes)

    @classmethod
    def gen_name(cls, x: Any) -> str:
        """Return a name that was not given before for a value, or for a word.

        ``x`` is text, or has a ``name``.
        """
        own = x if isinstance(x, str) else getattr(x, "name", "") or type(x).__name__.lower()
        full = ".".join([*_names.scopes, own])
        count = _names.used.get(full, 0)
        _names.used[full] = count + 1
        return full if count == 0 else cls._numbered(full, count)

    @staticmethod
    def _numbered(name: str, number: int) -> str:
        """Return the name of the ``number``-th further value that would be called ``name``."""
        found = f"{name}_{number}"
        while found in _names.used:
            number += 1
            found = f"{name}_{number}"
        _names.used[found] = 1
        return found

    @classmethod
    def record_var_name(cls, handle: Any, name: str) -> None:
        """Keep the name of a value by any hashable that stands for it."""
        _names.by_handle[handle] = name

    @classmethod
    def get_var_name(cls, handle: Any) -> str | None:
        """Return the name that was kept, or None."""
        return _names.by_handle.get(handle)

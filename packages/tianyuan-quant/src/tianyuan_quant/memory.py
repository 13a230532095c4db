"""Note something about a tensor's value: what takes the value has the note, a new one has none."""

from __future__ import annotations

import weakref
from typing import Any

from tianyuan import Tensor


class Memory:
    """Notes by value, each for as long as the value lives.

    >>> memory, x, y = Memory(), Tensor([1.0]), Tensor([2.0])
    >>> memory.note(x, "one")
    >>> y += x  # another value, which nothing is known of
    >>> memory.of(x), memory.of(y)
    ('one', None)
    >>> x += 1
    >>> memory.of(x) is None
    True
    """

    def __init__(self) -> None:
        self._notes: dict[int, tuple[Any, Any]] = {}

    def note(self, x: Tensor, what: Any) -> None:
        """Note something about a tensor's value."""
        notes, key = self._notes, id(x._data)
        notes[key] = weakref.ref(x._data, lambda _: notes.pop(key, None)), what

    def of(self, x: Tensor) -> Any:
        """Return what was noted, or None."""
        value, what = self._notes.get(id(x._data), (None, None))
        return what if value is not None and value() is x._data else None

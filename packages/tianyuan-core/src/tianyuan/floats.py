"""Hold thousands of floats, as multipliers of channels are, in an eighth of a tuple's memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

FEW = 16  # up to so many, a tuple is as small


class FloatList(Sequence[float]):
    """An immutable sequence of floats that equals, and is hashed as, the tuple of them.

    >>> few = FloatList([0.5, 1.0])
    >>> few == (0.5, 1.0), few[1], few[:1]
    (True, 1.0, (0.5,))
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Iterable[float]) -> None:
        wide = array("d", values)
        narrow = array("f", wide)  # as most are: factors are rounded to float32
        self._values = narrow if narrow.tolist() == wide.tolist() else wide
        self._hash: int | None = None

    @property
    def is_float32(self) -> bool:
        """Tell whether every one of the floats is a float32 number."""
        return self._values.typecode == "f"

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        found = self._values[index]
        return tuple(found) if isinstance(found, array) else found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FloatList):
            return self._values == other._values
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self))
        return self._hash

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[type[FloatList], tuple[array[float]]]:
        return FloatList, (self._values,)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        return np.array(self._values, np.float64 if dtype is None else dtype)

    def tobytes(self) -> bytes:
        """Return the bytes of the floats as float64, in the machine's order."""
        return array("d", self._values).tobytes()


def floats(values: Iterable[float]) -> tuple[float, ...] | FloatList:
    """Return floats as attributes hold them: as a tuple where they are few."""
    made = FloatList(values)
    return made if len(made) > FEW else tuple(made)

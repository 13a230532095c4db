"""Lay the packed constants of a program side by side, where large pages can hold them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .. import shapes
from ..imperative import dispatch
from .graph import Constant

_LARGE = 1 << 22  # bytes from which numpy asks for large pages
_ALIGNMENT = 64


class Slab:
    """Memory for arrays that live as long as each other.

    A network that is run again and again reads its weights from the outer caches, and each small
    page of them once more costs a look-up; arrays of some hundred KiB would lie in small pages.
    """

    def __init__(self, constants: Iterable[Constant]) -> None:
        sizes = [-(-c.spec.nbytes // _ALIGNMENT) * _ALIGNMENT for c in constants]
        self._size = sum(size for size in sizes if size < _LARGE)
        self._block: np.ndarray | None = None
        self._used = 0

    def empty(self, shape: shapes.Shape, dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, 64-byte aligned where it is not tiny."""
        count = shapes.volume(shape) * dtype.itemsize
        if self._size < _LARGE or not 0 < count < _LARGE:
            return dispatch.empty(shape, dtype)
        if self._block is None or self._used + count > len(self._block):
            self._block, self._used = dispatch.empty((self._size,), np.dtype(np.uint8)), 0
        start, end = self._used, self._used + count
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return self._block[start:end].view(dtype).reshape(shape)

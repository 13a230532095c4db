"""Lay the packed constants of a program side by side, where large pages can hold them."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from .. import shapes
from ..imperative import dispatch

_LARGE = 1 << 22  # bytes from which numpy asks for large pages
_ALIGNMENT = 64
_PAGE = 1 << 21  # bytes of a large page


class Slab:
    """Memory for arrays that live as long as each other.

    A network that is run again and again reads its weights from the outer caches, and each small
    page of them once more costs a look-up; arrays of some hundred KiB would lie in small pages.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        """Plan for arrays of so many bytes each; more may be asked for."""
        rounded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes if size < _LARGE]
        self._size = sum(rounded)
        self._block: np.ndarray | None = None
        self._used = 0

    def empty(self, shape: shapes.Shape, dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, 64-byte aligned where it is not tiny."""
        count = shapes.volume(shape) * dtype.itemsize
        if count >= _LARGE:
            return _in_pages(count).view(dtype).reshape(shape)
        if self._size < _LARGE or count == 0:
            return dispatch.empty(shape, dtype)
        if self._block is None or self._used + count > len(self._block):
            self._block, self._used = _in_pages(self._size), 0
        start, end = self._used, self._used + count
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return self._block[start:end].view(dtype).reshape(shape)

    def place(self, array: np.ndarray) -> np.ndarray:
        """Return a copy as ``empty`` would align it; the array itself where that gains nothing.

        Large arrays, and all where there are few, gain no larger pages by a copy.
        """
        apart = self._size < _LARGE or array.nbytes >= _LARGE
        if apart and array.ctypes.data % _ALIGNMENT == 0 and array.flags.c_contiguous:
            return array
        made = self.empty(array.shape, array.dtype)
        made[...] = array
        return made


def _in_pages(count: int) -> np.ndarray:
    """Return bytes in large pages, as many as they fill, and the rest in small ones.

    What lies before the first large page would be in small ones; of a last one that is not filled,
    all would be resident.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return dispatch.empty((count,), np.dtype(np.uint8))
    block = mmap.mmap(-1, count + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(block, np.uint8)
    start = -raw.ctypes.data % _PAGE
    with suppress(OSError):  # of a kernel without large pages: small ones serve
        block.madvise(mmap.MADV_HUGEPAGE, start, count // _PAGE * _PAGE)
    return raw[start : start + count]

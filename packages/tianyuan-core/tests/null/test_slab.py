"""Packed constants side by side: aligned, apart from each other, and only where there are many."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path

import numpy as np
import pytest
from tianyuan.graph.slab import Slab

F32 = np.dtype(np.float32)
MEBI = 1 << 20


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _sizes(count: int, floats: int) -> list[int]:
    return [4 * floats] * count


def test_arrays_lie_side_by_side() -> None:
    slab = Slab(_sizes(5, MEBI // 4))
    arrays = [slab.empty((3, 1000 + i), F32) for i in range(4)]
    for value, array in enumerate(arrays):
        array[:] = value
        assert array.flags.c_contiguous
        assert _address(array) % 64 == 0
    for before, after in zip(arrays, arrays[1:], strict=False):
        assert 0 <= _address(after) - _address(before) - before.nbytes < 64
    for value, array in enumerate(arrays):
        np.testing.assert_array_equal(array, np.full((3, 1000 + value), value, F32))


def test_more_than_was_expected_gets_another_block() -> None:
    slab = Slab(_sizes(4, MEBI // 4))
    arrays = [slab.empty((3 * MEBI // 4,), F32) for _ in range(3)]
    for value, array in enumerate(arrays):
        array[:] = value
    for value, array in enumerate(arrays):
        np.testing.assert_array_equal(array, np.full(3 * MEBI // 4, value, F32))


def test_large_arrays_begin_with_a_page() -> None:
    slab = Slab(_sizes(5, MEBI // 4))
    assert _address(slab.empty((2 * MEBI,), F32)) % (2 * MEBI) == 0
    assert _address(slab.empty((1000,), F32)) % (2 * MEBI) == 0


def test_arrays_that_are_not_aligned_are_copied() -> None:
    slab, few = Slab(_sizes(5, MEBI // 4)), Slab(_sizes(1, MEBI // 4))
    apart = few.empty((4099,), F32)
    apart[:] = np.arange(4099)
    assert few.place(apart) is apart
    assert slab.place(apart).base is slab.empty((1,), F32).base
    for array in (apart[1:4097], apart[: 64 * 64].reshape(64, 64).T, apart[3:6]):
        placed = slab.place(array)
        assert placed.flags.c_contiguous
        assert _address(placed) % 64 == 0
        np.testing.assert_array_equal(placed, array)


def test_few_constants_and_large_ones_have_their_own() -> None:
    few = Slab(_sizes(1, MEBI // 4))
    first, second = few.empty((1000,), F32), few.empty((1000,), F32)
    first[:] = 1
    second[:] = 2
    assert first.sum() == 1000
    many = Slab([*_sizes(5, MEBI // 4), 8 * MEBI])
    inner = many.empty((1000,), F32)
    large = many.empty((2 * MEBI,), F32)
    block = inner.base
    assert block is not None
    assert len(memoryview(block)) < 8 * MEBI  # with what lies before the first large page
    assert not np.shares_memory(block, large)
    assert many.empty((0, 3), F32).shape == (0, 3)


def test_kernels_without_large_pages_serve_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    slab = Slab(_sizes(5, MEBI // 4))
    arrays = [slab.empty((size,), F32) for size in (2 * MEBI, 1000, 1001)]
    for value, array in enumerate(arrays):
        array[:] = value
    for value, array in enumerate(arrays):
        assert _address(array) % 64 == 0
        np.testing.assert_array_equal(array, np.full(array.shape, value, F32))


THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not THP.exists() or "[madvise]" not in THP.read_text(), reason="large pages are not on request"
)
def test_large_pages_are_only_those_that_are_filled() -> None:
    array = Slab([]).empty((5 * MEBI // 4,), F32)  # 5 MiB: two large pages and a half
    array[:] = 1
    start, end = _address(array), _address(array) + array.nbytes
    huge, within = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head:
            low, high = (int(part, 16) for part in head.split("-"))
            within = low < end and high > start
        elif within and head == "AnonHugePages:":
            huge += int(line.split()[1]) << 10
    assert huge <= 4 * MEBI

"""Place buffers of known lifetimes in one arena so that it is as small as can be found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..records import record

ALIGNMENT = 64
FEW = 256  # for so many buffers every order is tried; for more, until it is CLOSE
CLOSE = 1.02


@record()
class Interval:
    """A buffer that is live from step ``start`` to step ``end``, both included."""

    size: int
    start: int
    end: int


def aligned(size: int) -> int:
    """Round a number of bytes up to the alignment of the arena."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def lower_bound(intervals: Sequence[Interval]) -> int:
    """Return the most bytes that are live at one step: no placement needs less."""
    if not intervals:
        return 0
    change = np.zeros(max(item.end for item in intervals) + 2, np.int64)
    for item in intervals:
        change[item.start] += aligned(item.size)
        change[item.end + 1] -= aligned(item.size)
    return int(np.cumsum(change).max())


def place(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Return an offset per buffer, and the size of the arena.

    Several greedy orders are tried, each putting one buffer after another into a gap that is free
    during its life; the first that comes close enough to the lower bound ends the search.
    """
    bound = lower_bound(intervals)
    enough = bound if len(intervals) <= FEW else int(bound * CLOSE)
    best: list[int] = []
    smallest = -1
    for order in _orders(intervals):
        for best_fit in (True, False):
            offsets, size = _greedy(intervals, order, best_fit)
            if smallest < 0 or size < smallest:
                best, smallest = offsets, size
            if smallest <= enough:
                return best, smallest
    return best, max(smallest, 0)


def _orders(intervals: Sequence[Interval]) -> list[list[int]]:
    index = range(len(intervals))
    span = [item.end - item.start for item in intervals]
    size = [item.size for item in intervals]
    start = [item.start for item in intervals]
    return [
        sorted(index, key=lambda i: (-size[i], -span[i], start[i])),
        sorted(index, key=lambda i: (start[i], -size[i])),
        sorted(index, key=lambda i: (-size[i] * (span[i] + 1), start[i])),
        sorted(index, key=lambda i: (-span[i], -size[i], start[i])),
        _by_pressure(intervals),
    ]


def _by_pressure(intervals: Sequence[Interval]) -> list[int]:
    """Order buffers by the fullest step of their life, then by size: the tightest steps first."""
    if not intervals:
        return []
    live = np.zeros(max(item.end for item in intervals) + 2, np.int64)
    for item in intervals:
        live[item.start : item.end + 1] += aligned(item.size)
    peak = [int(live[item.start : item.end + 1].max()) for item in intervals]
    return sorted(range(len(intervals)), key=lambda i: (-peak[i], -intervals[i].size))


def _greedy(
    intervals: Sequence[Interval], order: Sequence[int], best_fit: bool
) -> tuple[list[int], int]:
    starts = np.array([intervals[i].start for i in order], np.int64)
    ends = np.array([intervals[i].end for i in order], np.int64)
    tops = np.zeros(len(order), np.int64)
    bottoms = np.zeros(len(order), np.int64)
    offsets = [0] * len(intervals)
    total = 0
    for count, index in enumerate(order):
        item = intervals[index]
        size = aligned(item.size)
        if size == 0:
            continue
        clash = (starts[:count] <= item.end) & (ends[:count] >= item.start)
        clash &= tops[:count] > bottoms[:count]
        offset = _gap(bottoms[:count][clash], tops[:count][clash], size, best_fit)
        bottoms[count], tops[count] = offset, offset + size
        offsets[index] = offset
        total = max(total, offset + size)
    return offsets, total


def _gap(bottoms: np.ndarray, tops: np.ndarray, size: int, best_fit: bool) -> int:
    """Return where ``size`` bytes fit between occupied ranges: the tightest gap, or the lowest."""
    if len(bottoms) == 0:
        return 0
    order = np.argsort(bottoms, kind="stable")
    reached = np.maximum.accumulate(tops[order])
    gap_start = np.concatenate(([0], reached[:-1]))
    width = bottoms[order] - gap_start
    enough = np.flatnonzero(width >= size)
    if len(enough) == 0:
        return int(reached[-1])
    return int(gap_start[enough[np.argmin(width[enough])] if best_fit else enough[0]])

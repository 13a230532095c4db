"""Place buffers of known lifetimes in one arena so that it is as small as can be found."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import accumulate

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
    return max(_live(intervals), default=0)


def _live(intervals: Sequence[Interval]) -> list[int]:
    """Return the bytes that are live at each step."""
    change = [0] * (max((item.end for item in intervals), default=-1) + 2)
    for item in intervals:
        change[item.start] += aligned(item.size)
        change[item.end + 1] -= aligned(item.size)
    return list(accumulate(change))


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
    live = _live(intervals)
    peak = [max(live[item.start : item.end + 1]) for item in intervals]
    return sorted(range(len(intervals)), key=lambda i: (-peak[i], -intervals[i].size))


def _greedy(
    intervals: Sequence[Interval], order: Sequence[int], best_fit: bool
) -> tuple[list[int], int]:
    placed: list[tuple[int, int, int, int]] = []  # first byte, end, first and last step; sorted
    offsets = [0] * len(intervals)
    total = 0
    for index in order:
        item = intervals[index]
        size, start, end = aligned(item.size), item.start, item.end
        if size == 0:
            continue
        taken = [(low, top) for low, top, s, e in placed if s <= end and e >= start]
        offsets[index] = offset = _gap(taken, size, best_fit)
        insort(placed, (offset, offset + size, start, end))
        total = max(total, offset + size)
    return offsets, total


def _gap(taken: Iterable[tuple[int, int]], size: int, best_fit: bool) -> int:
    """Return where ``size`` bytes fit between occupied ranges: the tightest gap, or the lowest."""
    found, tightest, reached = -1, 0, 0
    for low, top in taken:
        if low - reached >= size and (found < 0 or low - reached < tightest):
            found, tightest = reached, low - reached
            if not best_fit:
                break
        if top > reached:
            reached = top
    return found if found >= 0 else reached

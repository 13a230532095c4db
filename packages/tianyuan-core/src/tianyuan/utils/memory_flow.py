"""Draw the memory of values over their lives: time to the right, bytes upwards."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from html import escape
from time import perf_counter
from typing import Any

_WIDTH, _HEIGHT, _MARGIN = 1200, 600, 40
_COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")


@dataclass
class Life:
    """One value: what it is, its bytes, when it came, and when it went (None while it lives)."""

    title: str
    size: int
    start: float
    stop: float | None = None


class Lives:
    """The lives of values that a profiler met."""

    def __init__(self) -> None:
        self.all: list[Life] = []
        self._open: dict[int, tuple[Any, Life]] = {}

    def begin(self, data: Any, title: str, size: int, now: float) -> None:
        """Note a value from now until nobody holds it, if that can be told."""
        key = id(data)
        if key in self._open:
            return  # written again in place
        try:
            ref = weakref.ref(data, lambda _: self._close(key))
        except TypeError:  # storage of another library that tells nobody when it goes
            return
        life = Life(title, size, now)
        self.all.append(life)
        self._open[key] = (ref, life)

    def _close(self, key: int) -> None:
        self._open.pop(key)[1].stop = perf_counter()

    def end(self, now: float) -> None:
        """Take what still lives as living until now."""
        for _, life in self._open.values():
            life.stop = now
        self._open = {}

    def svg(self) -> str:
        """Return the drawing; each value's rectangle tells what it is."""
        lives = [life for life in self.all if life.size and life.stop is not None]
        begin = min((life.start for life in lives), default=0.0)
        until = max((life.stop or 0.0 for life in lives), default=1.0)
        floors, top = place(lives)
        across = _WIDTH / max(until - begin, 1e-9)
        up = _HEIGHT / max(top, 1)
        shapes = [
            _rectangle(life, floor, (life.start - begin) * across, across, up, number)
            for number, (life, floor) in enumerate(zip(lives, floors, strict=True))
        ]
        width, height = _WIDTH + 2 * _MARGIN, _HEIGHT + 2 * _MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="12">\n'
            f'<text x="{_MARGIN}" y="20">{top} bytes at most, {(until - begin) * 1e3:.3f} ms, '
            f"{len(lives)} values</text>\n" + "\n".join(shapes) + "\n</svg>\n"
        )


def place(lives: list[Life]) -> tuple[list[int], int]:
    """Return a floor in bytes for each value, so that no two overlap, and the top of all.

    Each is put at the lowest place that is free during its life, in the order they came.

    >>> place([Life("a", 4, 0, 2), Life("b", 2, 1, 3), Life("c", 3, 2, 4)])
    ([0, 4, 0], 6)
    """
    floors: list[int] = []
    for index, life in enumerate(lives):
        others = sorted(
            (floors[i], floors[i] + other.size)
            for i, other in enumerate(lives[:index])
            if other.start < (life.stop or 0) and life.start < (other.stop or 0)
        )
        floor = 0
        for low, high in others:
            if floor + life.size <= low:
                break
            floor = max(floor, high)
        floors.append(floor)
    top = max((f + life.size for f, life in zip(floors, lives, strict=True)), default=0)
    return floors, top


def _rectangle(life: Life, floor: int, left: float, across: float, up: float, number: int) -> str:
    width = ((life.stop or 0.0) - life.start) * across
    y = _MARGIN + _HEIGHT - (floor + life.size) * up
    color = _COLORS[number % len(_COLORS)]
    return (
        f'<rect x="{_MARGIN + left:.2f}" y="{y:.2f}" width="{width:.2f}" '
        f'height="{life.size * up:.2f}" fill="{color}" stroke="white" stroke-width="0.2">'
        f"<title>{escape(life.title)}, {life.size} bytes</title></rect>"
    )

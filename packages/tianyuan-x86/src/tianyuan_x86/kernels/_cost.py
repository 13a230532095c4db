"""Estimate what a kernel costs, for all families that are bound by memory or by arithmetic."""

from __future__ import annotations

from collections.abc import Callable

from tianyuan.kernel import Call

START = 3e-7  # seconds to enter a kernel and describe its tensors
_CACHE_BYTES = 1 << 20
_CACHE_RATE, _MEMORY_RATE = 2e10, 1e10  # bytes per second
_GRAIN = 16384  # elements below which a kernel stays on one thread


def memory_cost(call: Call) -> float:
    """Return the seconds that reading every input and writing every output once takes."""
    total = sum(spec.nbytes for spec in (*call.inputs, *call.outputs))
    return START + total / (_CACHE_RATE if total <= _CACHE_BYTES else _MEMORY_RATE)


def element_cost(nanoseconds: float) -> Callable[[Call], float]:
    """Return a cost function: memory traffic plus arithmetic per element of the largest value."""

    def cost(call: Call) -> float:
        size = max(spec.size for spec in (*call.inputs, *call.outputs))
        threads = max(1, min(call.threads, size // _GRAIN))
        return memory_cost(call) + size * nanoseconds * 1e-9 / threads

    return cost

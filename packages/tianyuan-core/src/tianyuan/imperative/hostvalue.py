"""Bring values that live in Python (learning rates, random offsets) into both runtimes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .state import state
from .tensor import Tensor


def host_value(
    read: Callable[[], Any], dtype: Any = "float32", after: Callable[[], None] | None = None
) -> Tensor:
    """Return a tensor of what ``read()`` gives.

    Eagerly it is read at once. Inside a trace it becomes a program input, read anew before every
    run; ``after()`` is called once the value has been used, by each run.

    >>> from tianyuan.jit import trace
    >>> rate = [0.5]
    >>> scale = trace(lambda x: x * host_value(lambda: rate[0]))
    >>> scale(Tensor([2.0])).item()
    1.0
    >>> rate[0] = 3.0
    >>> scale(Tensor([2.0])).item()
    6.0
    """
    if state.recorder is not None:
        return state.recorder.host_value(read, dtype, after)
    tensor = Tensor(read(), dtype=dtype)
    if after is not None:
        after()
    return tensor

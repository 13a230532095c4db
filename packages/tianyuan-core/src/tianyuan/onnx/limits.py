"""How large a value may become: checked before anything is allocated."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from .. import shapes
from ..errors import ModelFormatError

# Most elements of a window that is walked one by one.
MOST_TAPS = 1 << 14


class TooLargeError(ModelFormatError):
    """Raise where a value would be larger than the limit."""


class _Limits(threading.local):
    most_bytes = 4 << 30


limits = _Limits()


def check_size(shape: Sequence[int], dtype: np.dtype | type) -> None:
    """Raise TooLargeError where an array would need more bytes than the limit."""
    size = int(shapes.volume(shape)) * np.dtype(dtype).itemsize
    if size > limits.most_bytes:
        raise TooLargeError(
            f"a value of {np.dtype(dtype).name}{tuple(map(int, shape))} would need {size} bytes, "
            f"expected at most {limits.most_bytes}"
        )


def check_taps(kernel: Sequence[int]) -> None:
    """Raise TooLargeError where a window has too many elements to be walked one by one."""
    count = int(shapes.volume(kernel))
    if count > MOST_TAPS:
        raise TooLargeError(f"a window has {count} elements, expected at most {MOST_TAPS}")

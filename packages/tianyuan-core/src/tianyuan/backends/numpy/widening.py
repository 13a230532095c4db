"""Decide in which dtype numpy computes."""

from __future__ import annotations

import numpy as np


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype to compute in: float32 for the 16-bit floats, which BLAS lacks."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype


def widened(array: np.ndarray) -> np.ndarray:
    """Return an array in the dtype to compute in, without a copy where it has it."""
    return array.astype(compute_dtype(array.dtype), copy=False)

"""Create tensors, and move, join and pick elements, with MegEngine's names and defaults."""

from __future__ import annotations

from .creation import (
    arange,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from .joining import concat, meshgrid, repeat, roll, split, stack, tile
from .movement import (
    broadcast_to,
    copy,
    expand_dims,
    flatten,
    reshape,
    squeeze,
    swapaxes,
    transpose,
)
from .picking import cond_take, cumsum, diag, gather, non_zero, scatter, where

__all__ = [
    "arange", "broadcast_to", "concat", "cond_take", "copy", "cumsum", "diag", "expand_dims",
    "eye", "flatten", "full", "full_like", "gather", "linspace", "meshgrid", "non_zero", "ones",
    "ones_like", "repeat", "reshape", "roll", "scatter", "split", "squeeze", "stack", "swapaxes",
    "tile", "transpose", "where", "zeros", "zeros_like",
]  # fmt: skip

"""Create tensors, and move, join and pick elements, with MegEngine's names and defaults."""

from __future__ import annotations

from .complexes import complex, imag, polar, real
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
from .joining import concat, flip, meshgrid, repeat, roll, split, stack, tile
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
from .picking import cond_take, cumprod, cumsum, diag, gather, non_zero, scatter, where
from .selecting import (
    bincount,
    index_select,
    masked_fill,
    take_along_axis,
    tril,
    triu,
    unique,
)

__all__ = [
    "arange", "bincount", "broadcast_to", "complex", "concat", "cond_take", "copy", "cumprod",
    "cumsum", "diag", "expand_dims", "eye", "flatten", "flip", "full", "full_like", "gather",
    "imag", "index_select", "linspace", "masked_fill", "meshgrid", "non_zero", "ones",
    "ones_like", "polar", "real", "repeat", "reshape", "roll", "scatter", "split", "squeeze",
    "stack", "swapaxes", "take_along_axis", "tile", "transpose", "tril", "triu", "unique",
    "where", "zeros", "zeros_like",
]  # fmt: skip

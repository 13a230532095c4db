"""Reductions, order statistics and linear algebra with MegEngine's names and defaults."""

from __future__ import annotations

from .linalg import cross, dot, matinv, matmul, svd
from .reduction import (
    amax,
    amin,
    argmax,
    argmin,
    argsort,
    isfinite,
    isinf,
    isnan,
    max,
    mean,
    min,
    norm,
    normalize,
    prod,
    sign,
    sort,
    std,
    sum,
    topk,
    var,
)

__all__ = [
    "amax", "amin", "argmax", "argmin", "argsort", "cross", "dot", "isfinite", "isinf", "isnan",
    "matinv", "matmul", "max", "mean", "min", "norm", "normalize", "prod", "sign", "sort",
    "std", "sum", "svd", "topk", "var",
]  # fmt: skip

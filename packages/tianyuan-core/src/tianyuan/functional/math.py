"""Reductions, order statistics and linear algebra with MegEngine's names and defaults."""

from __future__ import annotations

from .linalg import cross, dot, matinv, matmul
from .reduction import (
    argmax,
    argmin,
    argsort,
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
    "argmax", "argmin", "argsort", "cross", "dot", "isinf", "isnan", "matinv", "matmul", "max",
    "mean", "min", "norm", "normalize", "prod", "sign", "sort", "std", "sum", "topk", "var",
]  # fmt: skip

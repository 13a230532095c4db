"""ATen operators that make tensors of sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import functional as F
from ...imperative import generator
from ...imperative.tensor import Tensor
from .table import aten


def _number_dtype(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else "float32"


@aten("arange")
def arange(*limits: Any, step: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    start, stop, by = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]
    by = by if step is None else step
    kinds = {_number_dtype(value) for value in (start, stop, by)}
    want = dtype or ("float32" if "float32" in kinds else "int64")
    return F.arange(start, stop, by, dtype=want)


@aten("full")
def full(size: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return F.full(tuple(size), value, dtype=dtype or _number_dtype(value))


@aten("full_like")
def full_like(x: Tensor, value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    found: Tensor = x.full(x.shape, value, dtype)
    return found


@aten("new_full")
def new_full(x: Tensor, size: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    found: Tensor = x.full(tuple(size), value, dtype)
    return found


@aten("zeros", "empty")
def zeros(size: Sequence[int], *, dtype: Any = None, **_: Any) -> Tensor:
    return F.full(tuple(size), 0, dtype=dtype or "float32")


@aten("ones")
def ones(size: Sequence[int], *, dtype: Any = None, **_: Any) -> Tensor:
    return F.full(tuple(size), 1, dtype=dtype or "float32")


@aten("zeros_like", "empty_like")
def zeros_like(x: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
    return full_like(x, 0, dtype=dtype)


@aten("ones_like")
def ones_like(x: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
    return full_like(x, 1, dtype=dtype)


@aten("new_zeros", "new_empty")
def new_zeros(x: Tensor, size: Sequence[int], *, dtype: Any = None, **_: Any) -> Tensor:
    return new_full(x, size, 0, dtype=dtype)


@aten("new_ones")
def new_ones(x: Tensor, size: Sequence[int], *, dtype: Any = None, **_: Any) -> Tensor:
    return new_full(x, size, 1, dtype=dtype)


@aten("scalar_tensor")
def scalar_tensor(value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return full((), value, dtype=dtype)


@aten("eye")
def eye(n: int, m: int | None = None, *, dtype: Any = None, **_: Any) -> Tensor:
    return F.eye(n, m, dtype=dtype or "float32")


@aten("linspace")
def linspace(start: float, end: float, steps: int, *, dtype: Any = None, **_: Any) -> Tensor:
    return F.linspace(start, end, steps, dtype=dtype or "float32")


@aten("bernoulli.p", modal=True)
def bernoulli(x: Tensor, p: float, *, training: bool) -> Tensor:
    """Draw ones with probability p; outside of training, their mean, so that nothing is random."""
    if not training:
        return full_like(x, p)
    drawn = generator.default.draw("philox_uniform", x.shape, "float32")
    found: Tensor = F.less(drawn, float(p)).cast(x.dtype)
    return found

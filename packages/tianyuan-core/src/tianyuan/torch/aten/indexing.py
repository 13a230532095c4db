"""ATen operators that read and write by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import functional as F
from ... import shapes
from ...functional.arguments import run
from ...imperative.tensor import Tensor
from .shape import axis_of
from .table import UnsupportedError, aten


def _key(indices: Sequence[Tensor | None]) -> tuple[Any, ...]:
    for index in indices:
        if index is not None and index.dtype.kind == "b":
            raise UnsupportedError("a mask as index gives sizes that depend on data")
    return tuple(slice(None) if index is None else index for index in indices)


@aten("index")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x[_key(indices)]


@aten("index_put")
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    if not accumulate:
        changed = F.copy(x)
        changed[_key(indices)] = values
        return changed
    given = [place for place in indices if place is not None]
    if len(given) != len(indices):
        raise UnsupportedError("adding at indices needs one index for every leading axis")
    shape = shapes.broadcast("index_put", *(place.shape for place in given))
    places = [F.broadcast_to(place, shape) for place in given]
    spread = F.broadcast_to(values, (*shape, *x.shape[len(places) :]))
    return run("index_add", x, spread, *places, count=len(places))


@aten("index_select")
def index_select(x: Tensor, dim: int, places: Tensor) -> Tensor:
    return run("take", x, places, axis=axis_of(x, dim))


@aten("gather")
def gather(x: Tensor, dim: int, places: Tensor, *, sparse_grad: bool = False) -> Tensor:
    return run("gather", x, places, axis=axis_of(x, dim))


@aten("scatter")
def scatter(x: Tensor, dim: int, places: Tensor, source: Any) -> Tensor:
    if not isinstance(source, Tensor):
        source = x.full(places.shape, source)
    return run("scatter", x, places, source, axis=axis_of(x, dim))


@aten("scatter_add")
def scatter_add(x: Tensor, dim: int, places: Tensor, source: Tensor) -> Tensor:
    return run("scatter_add", x, places, source, axis=axis_of(x, dim))

"""Pick elements by index or by mask, and put them back."""

from __future__ import annotations

from typing import Any, cast

from .. import dtypes, shapes
from ..errors import DTypeError, ShapeError
from ..imperative.indexing import concrete
from ..imperative.tensor import Tensor
from .arguments import positions, run, same_dtype, same_shape, scalar_kind, tensor, tensors, whole


def gather(inp: Tensor, axis: int, index: Tensor) -> Tensor:
    """Pick one element of each row along an axis per entry of ``index``.

    ``index`` has the rank of ``inp``; its other extents may be smaller. The result has its shape.

    >>> gather(Tensor([[1, 2], [3, 4]]), 1, Tensor([[1], [0]])).tolist()
    [[2], [3]]
    """
    axis = shapes.normalize_axis("gather", axis, tensor("gather", inp).ndim)
    return run("gather", inp, positions("gather", index), axis=axis)


def scatter(inp: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """Return ``inp`` with the elements that ``index`` names along an axis taken from ``source``.

    Where two entries name one element, the later in row-major order stays.

    >>> scatter(Tensor([1, 2, 3]), 0, Tensor([2, 0]), Tensor([7, 8])).tolist()
    [8, 2, 7]
    """
    axis = shapes.normalize_axis("scatter", axis, tensor("scatter", inp).ndim)
    value = tensor("scatter", source, "source").cast(inp.dtype)
    return run("scatter", inp, positions("scatter", index), value, axis=axis)


def where(mask: Tensor, x: Any = None, y: Any = None) -> Any:
    """Choose from ``x`` where the mask holds and from ``y`` elsewhere; all three broadcast.

    Without both, return the indices of the true elements as ``non_zero(mask, as_tuple=True)``.

    Raises:
        DTypeError: where the mask is not bool, or only one of x and y is given.

    >>> where(Tensor([True, False]), Tensor([1, 2]), 0).tolist()
    [1, 0]
    """
    if x is None and y is None:
        return non_zero(tensor("where", mask, "mask"), as_tuple=True)
    if x is None or y is None:
        raise DTypeError("where: only one of x and y was given, expected both or none")
    if not dtypes.is_bool(tensor("where", mask, "mask").dtype):
        raise DTypeError(f"where: mask must be bool, got {mask.dtype.name}, expected bool")
    if isinstance(x, (bool, int, float)) and isinstance(y, (bool, int, float)):
        x = mask.full((), x, dtypes.promote_scalar(dtypes.as_dtype("bool"), scalar_kind(x)))
    left, right = same_dtype("where", *tensors("where", x, y))
    return run("where", mask, left, right)


def non_zero(condition: Tensor, as_tuple: bool = False) -> Any:
    """Return the int32 indices of the elements that are not zero, in row-major order.

    Returns a (count, rank) tensor, or one vector per axis where ``as_tuple``. The count depends
    on the data, so this is refused inside a trace.

    Raises:
        TraceError: inside a trace.

    >>> non_zero(Tensor([0, 5, 6])).tolist()
    [[1], [2]]
    """
    found = concrete("non_zero", tensor("non_zero", condition)).nonzero()
    vectors = [Tensor(row.astype("int32"), device=condition.device) for row in found]
    if as_tuple:
        return tuple(vectors)
    if not vectors:
        return Tensor(concrete("non_zero", condition).reshape(1, -1)[:, :0].astype("int32"))
    columns = [run("reshape", row, shape=(*row.shape, 1)) for row in vectors]
    return columns[0] if len(columns) == 1 else run("concat", *columns, axis=1)


def cond_take(mask: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the elements of ``x`` where the mask holds and their int32 flat indices.

    Raises:
        ShapeError: where the shapes differ.
        TraceError: inside a trace, since the size depends on data.

    >>> [part.tolist() for part in cond_take(Tensor([True, False]), Tensor([7, 8]))]
    [[7], [0]]
    """
    if not same_shape(tensor("cond_take", mask, "mask").shape, tensor("cond_take", x).shape):
        raise ShapeError(
            f"cond_take: shapes must agree, got {shapes.format_shape(mask.shape)} "
            f"and {shapes.format_shape(x.shape)}, "
            "expected equal ones"
        )
    chosen = concrete("cond_take", mask).reshape(-1).nonzero()[0].astype("int32")
    index = Tensor(chosen, device=x.device)
    flat = run("reshape", x, shape=(shapes.volume(x.shape),))
    return run("take", flat, index, axis=0), index


def cumsum(inp: Tensor, axis: int) -> Tensor:
    """Return the running sum along an axis; bool is counted in int32.

    >>> cumsum(Tensor([1, 2, 3]), 0).tolist()
    [1, 3, 6]
    """
    found = tensor("cumsum", inp)
    if dtypes.is_bool(found.dtype):
        found = cast(Tensor, found.cast("int32"))
    return run("cumsum", found, axis=shapes.normalize_axis("cumsum", axis, found.ndim))


def cumprod(inp: Tensor, axis: int) -> Tensor:
    """Return the running product along an axis; bool is counted in int32.

    >>> cumprod(Tensor([1, 2, 3]), 0).tolist()
    [1, 2, 6]
    """
    found = tensor("cumprod", inp)
    if dtypes.is_bool(found.dtype):
        found = cast(Tensor, found.cast("int32"))
    return run("cumprod", found, axis=shapes.normalize_axis("cumprod", axis, found.ndim))


def diag(inp: Tensor, k: int = 0) -> Tensor:
    """Put a vector on the k-th diagonal of a square matrix, or take that of a matrix.

    Raises:
        ShapeError: where the input has another rank than 1 or 2.

    >>> diag(Tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    k = whole("diag", "k", k)
    found = tensor("diag", inp)
    above, below = max(k, 0), max(-k, 0)
    if found.ndim == 1:
        size = found.shape[0] + above + below
        index = _steps(found, below, found.shape[0]), _steps(found, above, found.shape[0])
        return run("index_set", found.full((size, size), 0), found, *index, count=2)
    if found.ndim != 2:
        raise ShapeError(
            f"diag: input must be a vector or a matrix, got {shapes.format_shape(found.shape)}, "
            "expected 1 or 2 dimensions"
        )
    rows, cols = found.shape[0] - below, found.shape[1] - above
    size = rows if int(rows) < int(cols) else cols
    size = size if int(size) > 0 else 0
    return run("index", found, _steps(found, below, size), _steps(found, above, size), count=2)


def _steps(like: Tensor, start: int, count: int) -> Tensor:
    """Return ``count`` int32 indices from ``start`` on, on the device of another tensor."""
    ones = like.full((count,), 1, "int32")
    return cast(Tensor, run("cumsum", ones, axis=0) + (start - 1))

"""Products of vectors and matrices, and the inverse, with MegEngine's names and defaults."""

from __future__ import annotations

from typing import Any

from .. import shapes
from ..errors import ShapeError
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import choice, fixed, floating, run, run_many, same_dtype, tensor, tensors
from .creation import arange, eye
from .movement import broadcast_to, reshape
from .reduction import argmax

__all__ = ["cross", "dot", "matinv", "matmul", "svd"]


def matmul(
    inp1: Tensor,
    inp2: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    compute_mode: str = "default",
) -> Tensor:
    """Multiply matrices (..., n, k) and (..., k, m); leading axes broadcast.

    A vector counts as a row on the left and a column on the right, and its axis is dropped from
    the result. The transpose flags swap the last two axes of a matrix first.

    Raises:
        ShapeError: where an input is a scalar, or the inner extents differ.

    >>> matmul(Tensor([[1, 2]]), Tensor([[3], [4]])).tolist()
    [[11]]
    """
    choice("matmul", "compute_mode", compute_mode, ("default", "float32"))
    left, right = same_dtype("matmul", *tensors("matmul", inp1, inp2))
    if left.ndim == 0 or right.ndim == 0:
        raise ShapeError(
            f"matmul: a scalar cannot be multiplied, got {shapes.format_shape(left.shape)} "
            f"and {shapes.format_shape(right.shape)}, expected 1 dimension or more"
        )
    row, column = left.ndim == 1, right.ndim == 1
    if row:
        left, transpose_a = run("reshape", left, shape=(1, *left.shape)), False
    if column:
        right, transpose_b = run("reshape", right, shape=(*right.shape, 1)), False
    result = run(
        "matmul", left, right, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b)
    )
    if not row and not column:
        return result
    lead, (n, m) = result.shape[:-2], result.shape[-2:]
    kept = (() if row else (n,)) + (() if column else (m,))
    return run("reshape", result, shape=(*lead, *kept))


def dot(inp1: Tensor, inp2: Tensor) -> Tensor:
    """Return the scalar product of two vectors of one length.

    Raises:
        ShapeError: where an input has another rank than 1, or the lengths differ.

    >>> dot(Tensor([1, 2]), Tensor([3, 4])).item()
    11
    """
    left, right = tensors("dot", inp1, inp2)
    if left.ndim != 1 or right.ndim != 1:
        raise ShapeError(
            f"dot: inputs must be vectors, got {shapes.format_shape(left.shape)} "
            f"and {shapes.format_shape(right.shape)}, "
            "expected 1 dimension each"
        )
    return matmul(left, right)


def cross(
    a: Tensor,
    b: Tensor,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Tensor:
    """Return the cross product of 3-vectors that lie along ``axisa`` and ``axisb``.

    The result has its vectors along ``axisc``; ``axis`` stands for all three.

    Raises:
        ShapeError: where the vectors do not have 3 elements.

    >>> cross(Tensor([1, 0, 0]), Tensor([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    left, right = same_dtype("cross", *tensors("cross", a, b))
    axisa = shapes.normalize_axis("cross", axisa, left.ndim)
    axisb = shapes.normalize_axis("cross", axisb, right.ndim)
    place = shapes.normalize_axis("cross", axisc, max(left.ndim, right.ndim))
    x, y = _components(left, axisa), _components(right, axisb)
    parts = [
        elemwise.sub(elemwise.mul(x[i], y[j]), elemwise.mul(x[j], y[i]))
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    shape = (*parts[0].shape[:place], 1, *parts[0].shape[place:])
    return run("concat", *(run("reshape", part, shape=shape) for part in parts), axis=place)


def _components(value: Tensor, axis: int) -> list[Tensor]:
    if value.ndim == 0 or int(value.shape[axis]) != 3:
        raise ShapeError(
            f"cross: vectors must have 3 elements, got shape {shapes.format_shape(value.shape)} "
            f"along axis {axis}, "
            "expected extent 3"
        )
    sizes = (*value.shape[:axis], 1, *value.shape[axis + 1 :])
    rest = (*value.shape[:axis], *value.shape[axis + 1 :])
    steps = (1,) * value.ndim
    starts = [tuple(i if a == axis else 0 for a in range(value.ndim)) for i in range(3)]
    parts = (run("slice", value, starts=s, sizes=sizes, steps=steps) for s in starts)
    return [run("reshape", part, shape=rest) for part in parts]


def matinv(inp: Tensor) -> Tensor:
    """Invert matrices (..., n, n) by Gauss-Jordan elimination with pivoting.

    Meant for small n: it takes a dozen ops per row. A singular matrix gives inf or NaN.

    Raises:
        ShapeError: where the last two extents differ.

    >>> matinv(Tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    found = floating(tensor("matinv", inp))
    if found.ndim < 2 or int(found.shape[-1]) != int(found.shape[-2]):
        raise ShapeError(
            f"matinv: matrices must be square, got shape {shapes.format_shape(found.shape)}, "
            "expected (..., n, n)"
        )
    n, lead = fixed(found.shape[-1]), found.shape[:-2]
    count = shapes.volume(lead)
    unit = broadcast_to(eye(n, dtype=found.dtype, device=found.device), (count, n, n))
    rows = run("concat", reshape(found, (count, n, n)), unit, axis=2)
    numbers = arange(n, dtype="int32", device=found.device)
    batch = broadcast_to(
        arange(count, dtype="int32", device=found.device).reshape(-1, 1), (count, n)
    )
    for k in range(n):
        best = elemwise.add(argmax(elemwise.abs(rows[:, k:, k]), 1, True), k)
        is_k, is_best = elemwise.equal(numbers, k), elemwise.equal(numbers, best)
        order = run("where", is_best, broadcast_to(numbers[k], (1, 1)), numbers)
        order = run("where", is_k, best, order)
        rows = run("index", rows, batch, order, count=2)
        pivot = elemwise.div(rows[:, k : k + 1], rows[:, k : k + 1, k : k + 1])
        cleared = elemwise.sub(rows, elemwise.mul(rows[:, :, k : k + 1], pivot))
        rows = run("where", reshape(is_k, (1, n, 1)), pivot, cleared)
    return reshape(rows[:, :, n:], (*lead, n, n))


def svd(inp: Tensor, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """Take matrices (..., M, N) apart into U @ diag(S) @ Vh.

    With K = min(M, N), U is (..., M, K), S (..., K), largest first, and Vh (..., K, N);
    ``full_matrices`` makes U (..., M, M) and Vh (..., N, N). Without ``compute_uv`` only S is
    returned. Gradients are those of singular values that differ from each other; U and Vh of
    rectangular matrices have none with ``full_matrices``. Integers are computed in float32.

    Raises:
        ShapeError: where the rank is below 2 or a matrix is empty.
        DataError: where a matrix holds NaN or infinity.

    >>> svd(Tensor([[3.0, 0.0], [0.0, 4.0]]), compute_uv=False).tolist()
    [4.0, 3.0]
    """
    x = floating(tensor("svd", inp))
    attrs = {"full_matrices": bool(full_matrices), "compute_uv": bool(compute_uv)}
    return run_many("svd", x, **attrs) if compute_uv else run("svd", x, **attrs)

"""Products of matrices and tensors."""

from __future__ import annotations

from collections.abc import Sequence

from ... import shapes
from ...errors import AttrError, ShapeError
from ...functional.einsum import einsum
from ..node import Node
from ..table import operator
from .common import Tensor, binary, constant, is_float, permuted, reshaped, run


def product(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Multiply as numpy's matmul: vectors gain an axis that the result loses again."""
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError("operands must have at least one axis, got a scalar")
    left = reshaped(a, (1, *a.shape)) if a.ndim == 1 else a
    right = reshaped(b, (*b.shape, 1)) if b.ndim == 1 else b
    y = run("matmul", left, right, transpose_a=transpose_a, transpose_b=transpose_b)
    shape = list(y.shape)
    if b.ndim == 1:
        del shape[-1]
    if a.ndim == 1:
        del shape[-1 if b.ndim == 1 else -2]
    return reshaped(y, shape)


@operator("MatMul")
def matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return product(a, b)


@operator("Gemm", 7)
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Return alpha * a @ b + beta * c with a and b transposed as asked."""
    if a.ndim != 2 or b.ndim != 2:
        raise ShapeError(f"operands must be matrices, got ranks {a.ndim} and {b.ndim}")
    alpha, beta = node.float("alpha", 1.0), node.float("beta", 1.0)
    y = run("matmul", a, b, transpose_a=node.flag("transA"), transpose_b=node.flag("transB"))
    y = y if alpha == 1 else scaled(y, alpha)
    if c is None or beta == 0:
        return y
    return run("add", y, c if beta == 1 else scaled(c, beta))


def scaled(x: Tensor, factor: float) -> Tensor:
    """Multiply by a number; integers are scaled in float64."""
    if is_float(x):
        return binary("mul", x, factor)
    return binary("mul", x.astype("float64"), factor).astype(x.dtype)


@operator("Einsum", 12)
def einsum_node(node: Node, x: Tensor, *more: Tensor) -> Tensor:
    equation = node.text("equation").replace(" ", "")
    return general_einsum(equation, (x, *more))


def general_einsum(equation: str, operands: Sequence[Tensor]) -> Tensor:
    """Sum products over indices, with ``...`` and letters that stand twice in a term."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise AttrError(f"equation does not fit, got {equation!r} for {len(operands)} operands")
    spare = [
        chr(c) for c in range(ord("À"), ord("ɏ")) if chr(c).isalpha() and chr(c) not in equation
    ]
    rest = [
        x.ndim - len(term.replace("...", "")) if "..." in term else 0
        for term, x in zip(terms, operands, strict=True)
    ]
    if any(n < 0 for n in rest) or max(rest, default=0) > len(spare):
        raise AttrError(f"equation does not fit the operands' ranks, got {equation!r}")
    most = spare[: max(rest, default=0)]
    written, found = [], []
    for term, x, count in zip(terms, operands, rest, strict=True):
        term = term.replace("...", "".join(most[len(most) - count :]))
        if len(term) != x.ndim:
            raise AttrError(f"term {term!r} does not fit rank {x.ndim}")
        term, x = _diagonals(term, x)
        written.append(term)
        found.append(x)
    if not arrow:
        letters = "".join(written)
        once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1 and c in letters)
        right = "..." + "".join(once) if most else "".join(once)
    result = right.replace("...", "".join(most))
    found = _broadcast(written, found)
    return einsum(f"{','.join(written)}->{result}", *found)


def _diagonals(term: str, x: Tensor) -> tuple[str, Tensor]:
    """Take the diagonal of axes that share a letter."""
    for letter in set(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            order = [first, second, *(a for a in range(x.ndim) if a not in (first, second))]
            front = permuted(x, order)
            ones = run("broadcast_to", constant(1, "int64"), shape=(x.shape[first],))
            line = binary("sub", run("cumsum", ones, axis=0), 1)
            x = run("index", front, line, line, count=2)
            term = letter + "".join(term[a] for a in order[2:])
    return term, x


def _broadcast(terms: list[str], operands: list[Tensor]) -> list[Tensor]:
    """Widen axes of extent 1 to the extent that their letter has elsewhere."""
    wide: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, extent in zip(term, x.shape, strict=True):
            if int(wide.get(letter, 1)) == 1:
                wide[letter] = extent
    found = []
    for term, x in zip(terms, operands, strict=True):
        shape = tuple(wide[letter] for letter in term)
        same = [shapes.expr_of(n) for n in shape] == [shapes.expr_of(n) for n in x.shape]
        found.append(x if same else run("broadcast_to", x, shape=shape))
    return found


@operator("Det", 11)
def det(node: Node, x: Tensor) -> Tensor:
    """Return determinants by elimination with pivoting."""
    n, lead = int(x.shape[-1]), tuple(x.shape[:-2])
    if n != int(x.shape[-2]):
        raise ShapeError(f"matrices must be square, got {shapes.format_shape(x.shape)}")
    count = shapes.volume(lead)
    rows = reshaped(x, (count, n, n))
    total = run("broadcast_to", constant(1, x.dtype), shape=(count,))
    batch = run("broadcast_to", constant(1, "int64"), shape=(count,))
    batch = binary("sub", run("cumsum", batch, axis=0), 1)
    numbers = constant(list(range(n)), "int64")
    for k in range(n):
        column = run("slice", rows, starts=(0, k, k), sizes=(count, n - k, 1), steps=(1, 1, 1))
        best = run("argmax", run("abs", reshaped(column, (count, n - k))), axis=1, keepdims=False)
        best = reshaped(binary("add", best.astype("int64"), k), (count, 1))
        is_best = run("equal", reshaped(numbers, (1, n)), best)
        order = run("where", is_best, constant(k, "int64"), reshaped(numbers, (1, n)))
        is_k = reshaped(binary("equal", numbers, k), (1, n))
        order = run("where", is_k, best, order)
        spread = run("broadcast_to", reshaped(batch, (count, 1)), shape=(count, n))
        rows = run("index", rows, spread, order, count=2)
        swapped = reshaped(binary("not_equal", best, k), (count,))
        total = run("where", swapped, run("neg", total), total)
        pivot = run("slice", rows, starts=(0, k, k), sizes=(count, 1, 1), steps=(1, 1, 1))
        total = run("mul", total, reshaped(pivot, (count,)))
        if k + 1 < n:
            row = run("slice", rows, starts=(0, k, 0), sizes=(count, 1, n), steps=(1, 1, 1))
            below = run("slice", rows, starts=(0, k + 1, k), sizes=(count, n - k - 1, 1),
                        steps=(1, 1, 1))  # fmt: skip
            safe = run("where", binary("equal", pivot, 0), constant(1, x.dtype), pivot)
            factor = run("div", below, safe)
            rest = run("slice", rows, starts=(0, k + 1, 0), sizes=(count, n - k - 1, n),
                       steps=(1, 1, 1))  # fmt: skip
            cleared = run("sub", rest, run("mul", factor, row))
            head = run("slice", rows, starts=(0, 0, 0), sizes=(count, k + 1, n), steps=(1, 1, 1))
            rows = run("concat", head, cleared, axis=1)
    return reshaped(total, lead)

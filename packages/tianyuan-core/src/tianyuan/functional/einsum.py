"""Einstein summation: read the equation and contract from left to right with matmul."""

from __future__ import annotations

from collections import Counter

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from .arguments import run, same_dtype, tensors
from .creation import arange

_AXES = "αβγδεζηθικλμνξοπ"  # stand for the axes of an ellipsis


def einsum(equation: str, *args: Tensor) -> Tensor:
    """Sum products of elements over the indices that the result lacks, as numpy's einsum.

    ``"ij,jk->ik"`` multiplies matrices. Without ``->`` the result has the letters that stand once,
    in alphabetical order. ``...`` stands for axes that broadcast over the operands that
    have it. A letter twice in one term takes the diagonal.

    Raises:
        AttrError: where the equation cannot be read or does not fit the operands.
        ShapeError: where one letter has two extents.

    >>> einsum("ii->i", Tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    operands = same_dtype("einsum", *tensors("einsum", *args))
    terms, result = _parse(equation, [operand.ndim for operand in operands])
    extents = _extents(terms, operands)
    for number, (term, operand) in enumerate(zip(terms, operands, strict=True)):
        terms[number], operands[number] = _narrowed(term, operand, extents)
    have, value = terms[0], operands[0]
    for number in range(1, len(terms)):
        wanted = set(result).union(*terms[number + 1 :])
        have, value = _contract(have, value, terms[number], operands[number], wanted, extents)
    have, value = _summed(have, value, set(result))
    return _ordered(have, value, result)


def _extents(terms: list[str], operands: list[Tensor]) -> dict[str, int]:
    """Return the extent of each letter; axes of an ellipsis broadcast, others must agree."""
    extents: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        if len(term) != operand.ndim:
            raise AttrError(
                f"einsum: term does not fit, got {term!r} for shape "
                f"{shapes.format_shape(operand.shape)}, "
                "expected one letter per axis"
            )
        for letter, extent in zip(term, operand.shape, strict=True):
            known = extents.setdefault(letter, extent)
            if int(known) == int(extent) or (letter in _AXES and int(extent) == 1):
                continue
            if letter not in _AXES or int(known) != 1:
                raise ShapeError(
                    f"einsum: {letter!r} has two extents, got {int(known)} and {int(extent)}, "
                    "expected one"
                )
            extents[letter] = extent
    return extents


def _narrowed(term: str, value: Tensor, extents: dict[str, int]) -> tuple[str, Tensor]:
    """Drop the axes of extent 1 that broadcast, and take the diagonal of letters that repeat."""
    kept = [i for i, c in enumerate(term) if int(value.shape[i]) == int(extents[c])]
    if len(kept) < len(term):
        value = run("reshape", value, shape=tuple(value.shape[i] for i in kept))
        term = "".join(term[i] for i in kept)
    for letter in [c for c, uses in Counter(term).items() if uses > 1]:
        axes = [i for i, c in enumerate(term) if c == letter]
        rest = [i for i, c in enumerate(term) if c != letter]
        value = run("transpose", value, perm=(*axes, *rest))
        steps = arange(extents[letter], dtype="int32", device=value.device)
        value = run("index", value, *(steps for _ in axes), count=len(axes))
        term = letter + "".join(term[i] for i in rest)
    return term, value


def _parse(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow:
        uses = Counter(left.replace(",", "").replace("...", ""))
        right = "..." * ("..." in left) + "".join(sorted(c for c, n in uses.items() if n == 1))
    hidden = [n - len(term) + 3 for term, n in zip(terms, ranks, strict=False)]
    written = [_spelled(term, count) for term, count in zip(terms, hidden, strict=False)]
    longest = max((n for term, n in zip(terms, hidden, strict=False) if "..." in term), default=0)
    right = _spelled(right, longest)
    every = (*written, right)
    valid = len(terms) == len(ranks) and all(term.isalpha() or not term for term in every)
    twice = len(set(right)) != len(right)
    if not valid or twice or not set(right) <= set("".join(written)):
        raise AttrError(
            f"einsum: equation is not valid, got {equation!r} for {len(ranks)} operands, expected "
            "like 'ij,jk->ik' with no letter twice in the result"
        )
    return written, right


def _spelled(term: str, count: int) -> str:
    """Write ``...`` as letters of its own, of which the last stands for the last axis."""
    return term.replace("...", _AXES[len(_AXES) - max(count, 0) :], 1)


def _summed(have: str, value: Tensor, wanted: set[str]) -> tuple[str, Tensor]:
    axes = tuple(i for i, letter in enumerate(have) if letter not in wanted)
    if not axes:
        return have, value
    kept = "".join(letter for letter in have if letter in wanted)
    return kept, run("sum", value, axes=axes, keepdims=False)


def _ordered(have: str, value: Tensor, want: str) -> Tensor:
    perm = tuple(have.index(letter) for letter in want)
    if perm == tuple(range(len(perm))):
        return value
    return run("transpose", value, perm=perm)


def _contract(
    left: str, a: Tensor, right: str, b: Tensor, wanted: set[str], extents: dict[str, int]
) -> tuple[str, Tensor]:
    """Multiply two operands and sum over what they share and nobody wants further on."""
    left, a = _summed(left, a, wanted | set(right))
    right, b = _summed(right, b, wanted | set(left))
    batch = "".join(c for c in left if c in right and c in wanted)
    inner = "".join(c for c in left if c in right and c not in wanted)
    rows = "".join(c for c in left if c not in right)
    cols = "".join(c for c in right if c not in left)

    def volume(letters: str) -> int:
        return shapes.volume(extents[c] for c in letters)

    lead = tuple(extents[c] for c in batch)
    a = _ordered(left, a, batch + rows + inner)
    b = _ordered(right, b, batch + inner + cols)
    a = run("reshape", a, shape=(*lead, volume(rows), volume(inner)))
    b = run("reshape", b, shape=(*lead, volume(inner), volume(cols)))
    product = run("matmul", a, b, transpose_a=False, transpose_b=False)
    have = batch + rows + cols
    return have, run("reshape", product, shape=tuple(extents[c] for c in have))

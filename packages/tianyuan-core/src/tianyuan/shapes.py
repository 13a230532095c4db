"""Shapes: symbolic extents that behave as ints, and the arithmetic ops' inference needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .errors import AttrError, AttrTypeError, AxisError, ShapeError

Shape = tuple[int, ...]
Expr = Any  # a symbol's name, an int, or (operator, left, right)

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": max,
    "min": min,
}

# Called with a Dim whose value decides a branch; set by a trace around the user's own code only.
on_branch: Callable[[Dim], None] | None = None

# Called with each quotient and remainder, which are one number at many sizes; set likewise.
on_cut: Callable[[Dim], None] | None = None


class Dim(int):
    """An extent that remembers the symbol it came from.

    It is an int with the value of the example at hand; arithmetic keeps the expression, so that a
    graph traced at one size can be specialised to another. A comparison, an operator on bits or a
    conversion to float returns the example's answer and tells the trace, which then fixes the size.
    """

    expr: Expr

    def __new__(cls, value: int, expr: Expr) -> Dim:
        self = super().__new__(cls, value)
        self.expr = expr
        return self

    def __repr__(self) -> str:
        return f"{format_expr(self.expr)}={int(self)}"

    def __add__(self, other: Any) -> Any:
        return _arith("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return _arith("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return _arith("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _arith("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return _arith("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _arith("*", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _arith("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _arith("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return _arith("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _arith("%", other, self)

    def __neg__(self) -> Any:
        return _arith("-", 0, self)

    def __pos__(self) -> Any:
        return self

    def _told(self) -> int:
        if on_branch is not None:
            on_branch(self)
        return int(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim) and other.expr == self.expr:
            return int(self) == int(other)
        return self._told() == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: int) -> bool:
        return self._told() < int(other)

    def __le__(self, other: int) -> bool:
        return self._told() <= int(other)

    def __gt__(self, other: int) -> bool:
        return self._told() > int(other)

    def __ge__(self, other: int) -> bool:
        return self._told() >= int(other)

    def __bool__(self) -> bool:
        return self._told() != 0

    def __float__(self) -> float:
        return float(self._told())

    def __truediv__(self, other: Any) -> Any:
        return self._told() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self._told()

    def __hash__(self) -> int:
        return hash(int(self))

    def __reduce__(self) -> Any:
        return Dim, (int(self), self.expr)


def _arith(operator: str, left: Any, right: Any) -> Any:
    if not isinstance(left, int) or not isinstance(right, int):
        return NotImplemented
    value = _OPERATORS[operator](int(left), int(right))
    found = Dim(value, _simplify(operator, expr_of(left), expr_of(right)))
    if operator in ("//", "%") and on_cut is not None:
        on_cut(found)
    return found


def _telling(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def method(self: Dim, *others: Any) -> Any:
        return plain(self._told(), *others)

    method.__name__ = name
    return method


for _name in ("and", "rand", "or", "ror", "xor", "rxor", "lshift", "rlshift", "rshift", "rrshift",
              "invert", "abs", "pow", "rpow", "divmod", "rdivmod", "round"):  # fmt: skip
    setattr(Dim, f"__{_name}__", _telling(f"__{_name}__"))


def _simplify(operator: str, left: Expr, right: Expr) -> Expr:
    if isinstance(left, int) and isinstance(right, int):
        return _OPERATORS[operator](left, right)
    if operator in ("+", "-"):
        return _sum([*_terms(left, 1), *_terms(right, 1 if operator == "+" else -1)])
    if operator == "*" and left == 1:
        return right
    if operator in ("*", "//") and right == 1:
        return left
    if operator == "*":
        return _product(_factors(left) + _factors(right))
    if operator == "//":
        return _quotient(left, right)
    return (operator, left, right)


def _terms(expr: Expr, sign: int) -> list[tuple[Expr, int]]:
    """Return what a sum adds up: expressions that are no sums, 1 for numbers, and how often."""
    if isinstance(expr, int):
        return [(1, sign * expr)]
    if isinstance(expr, tuple):
        operator, left, right = expr
        if operator in ("+", "-"):
            return _terms(left, sign) + _terms(right, sign if operator == "+" else -sign)
        if operator == "*" and isinstance(right, int):
            return [(left, sign * right)]
    return [(expr, sign)]


def _sum(terms: Iterable[tuple[Expr, int]]) -> Expr:
    """Write a sum in one form: what is added, then what is taken away, and the number last."""
    counts: dict[Expr, int] = {}
    for term, count in terms:
        counts[term] = counts.get(term, 0) + count
    number = counts.pop(1, 0)
    parts = sorted(((t, c) for t, c in counts.items() if c), key=lambda p: (p[1] < 0, repr(p[0])))
    if not parts:
        return number
    result: Expr | None = None
    if parts[0][1] < 0:
        result, number = number, 0
    for term, count in parts:
        part = _product([term, abs(count)])
        result = part if result is None else ("+" if count > 0 else "-", result, part)
    assert result is not None
    if number:
        return ("+" if number > 0 else "-", result, abs(number))
    return result


def _factors(expr: Expr) -> list[Expr]:
    if isinstance(expr, tuple) and expr[0] == "*":
        return _factors(expr[1]) + _factors(expr[2])
    return [expr]


def _product(factors: Iterable[Expr]) -> Expr:
    """Write a product in one form: symbols in a fixed order, then one number."""
    factors = list(factors)
    number = math.prod(f for f in factors if isinstance(f, int))
    rest = sorted((f for f in factors if not isinstance(f, int)), key=repr)
    if number == 0 or not rest:
        return number
    result = rest[0]
    for factor in rest[1:]:
        result = ("*", result, factor)
    return result if number == 1 else ("*", result, number)


def _quotient(left: Expr, right: Expr) -> Expr:
    """Divide exactly where factors cancel, so that no symbol of size zero is divided by."""
    above, below = _factors(left), _factors(right)
    for factor in list(below):
        if not isinstance(factor, int) and factor in above:
            above.remove(factor)
            below.remove(factor)
    number_above = math.prod(f for f in above if isinstance(f, int))
    number_below = math.prod(f for f in below if isinstance(f, int))
    if number_below and number_above % number_below == 0:
        above = [f for f in above if not isinstance(f, int)] + [number_above // number_below]
        below = [f for f in below if not isinstance(f, int)]
    top, bottom = _product(above), _product(below)
    return top if bottom == 1 else ("//", top, bottom)


def expr_of(value: int) -> Expr:
    """Return the symbolic expression of an extent: its own, or the plain int."""
    return value.expr if isinstance(value, Dim) else int(value)


def format_expr(expr: Expr) -> str:
    """Write an expression for people."""
    if isinstance(expr, tuple):
        operator, left, right = expr
        if operator in ("max", "min"):
            return f"{operator}({format_expr(left)}, {format_expr(right)})"
        return f"({format_expr(left)} {operator} {format_expr(right)})"
    return str(expr)


def range_of(expr: Expr) -> tuple[float, float]:
    """Return numbers between which an expression stays, for all sizes of its symbols from 1 on.

    >>> range_of(("-", "t", 1)), range_of(("min", "t", 4)), range_of(("-", "t", "n"))
    ((0, inf), (1, 4), (-inf, inf))
    """
    if not isinstance(expr, tuple):
        return (expr, expr) if isinstance(expr, int) else (1, math.inf)
    operator, (low, high), (least, most) = expr[0], range_of(expr[1]), range_of(expr[2])
    if operator == "+":
        return low + least, high + most
    if operator == "-":
        return low - most, high - least
    if operator in ("max", "min"):
        extreme = _OPERATORS[operator]
        return extreme(low, least), extreme(high, most)  # type: ignore[arg-type]
    if low >= 0 and least > 0:
        if operator == "*":
            return low * least, high * most
        return 0, high if operator == "//" else min(high, most - 1)
    return -math.inf, math.inf


def evaluate_expr(expr: Expr, sizes: Mapping[str, int]) -> int:
    """Compute an expression for concrete sizes of its symbols.

    Raises:
        ShapeError: where a symbol has no size or the expression is malformed.
    """
    if isinstance(expr, bool):
        raise ShapeError(f"shape: malformed expression, got {expr!r}")
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        if expr not in sizes:
            raise ShapeError(f"shape: no size for the dynamic dimension {expr!r}")
        return sizes[expr]
    if isinstance(expr, (tuple, list)) and len(expr) == 3 and expr[0] in _OPERATORS:
        left, right = evaluate_expr(expr[1], sizes), evaluate_expr(expr[2], sizes)
        if expr[0] in ("//", "%") and right == 0:
            raise ShapeError(f"shape: division by zero in {format_expr(tuple(expr))}")
        return _OPERATORS[expr[0]](left, right)
    raise ShapeError(f"shape: malformed expression, got {expr!r}")


def specialise(value: Any, sizes: Mapping[str, int]) -> Any:
    """Replace every Dim inside an extent or a (nested) tuple by its int for concrete sizes."""
    if isinstance(value, Dim):
        return evaluate_expr(value.expr, sizes)
    if isinstance(value, tuple):
        return tuple(specialise(item, sizes) for item in value)
    return value


def symbols_of(value: Any) -> set[str]:
    """Return the names of the symbols inside an extent, an expression or a (nested) tuple."""
    if isinstance(value, Dim):
        value = value.expr
    if isinstance(value, str):
        return {value}
    if isinstance(value, tuple):
        items = value[1:] if value and value[0] in _OPERATORS else value
        return set().union(*(symbols_of(item) for item in items)) if items else set()
    return set()


def volume(shape: Iterable[int]) -> int:
    """Return the number of elements of a shape (1 for a scalar)."""
    return math.prod(shape)


def broadcast(op: str, *shapes: Shape) -> Shape:
    """Return the shape that numpy's broadcasting gives.

    Raises:
        ShapeError: where two extents differ and neither is 1.
    """
    rank = max(map(len, shapes))
    result: list[int] = []
    for position in range(rank):
        extent: int = 1
        for shape in shapes:
            index = position - (rank - len(shape))
            if index < 0:
                continue
            if int(shape[index]) == 1:
                # A symbol that happens to be 1 here may be larger in another specialisation.
                if int(extent) == 1 and isinstance(shape[index], Dim):
                    extent = _wider(extent, shape[index])
                continue
            if int(extent) == 1:
                extent = shape[index]
            elif int(extent) != int(shape[index]):
                raise ShapeError(
                    f"{op}: shapes do not broadcast, got "
                    f"{' and '.join(map(format_shape, shapes))}, "
                    "expected extents that are equal or 1 from the last axis on"
                )
        result.append(extent)
    return tuple(result)


def _wider(one: int, other: int) -> int:
    """Return what two extents of 1 broadcast to, of which at least one is a symbol."""
    if not isinstance(one, Dim) or expr_of(one) == expr_of(other):
        return other
    return Dim(1, ("max", one.expr, expr_of(other)))


def format_shape(shape: Sequence[int]) -> str:
    """Write a shape for an error message."""
    inner = ", ".join(format_expr(expr_of(n)) for n in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def normalize_axis(op: str, axis: int, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        AxisError: where it lies outside the rank.
        AttrTypeError: where it is no int.
    """
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise AttrTypeError(f"{op}: axis must be an int, got {axis!r}, expected an int")
    axis = axis.__index__()
    if not -rank <= axis < max(rank, 1) or (rank == 0 and axis not in (0, -1)):
        raise AxisError(f"{op}: axis is out of range, got {axis}, expected -{rank} to {rank - 1}")
    return axis + rank if axis < 0 else axis


def normalize_axes(op: str, axis: int | Sequence[int] | None, rank: int) -> Shape:
    """Return sorted axes counted from the front; None means all of them.

    Raises:
        AttrError: where one lies outside the rank or stands twice.
    """
    if axis is None:
        return tuple(range(rank))
    axis = axis.tolist() if hasattr(axis, "tolist") else axis
    given = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    axes = sorted(normalize_axis(op, a, rank) for a in given)
    if len(set(axes)) != len(axes):
        raise AttrError(f"{op}: an axis stands twice, got {given}, expected each axis once")
    return tuple(axes)

"""Read what a file calls its dimensions: symbols, or sums and products of other symbols."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence

from ..shapes import Expr

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}
_LONGEST = 200


def plain_symbols(shapes: Iterable[Sequence[int | str | None] | None]) -> set[str]:
    """Return the names that are symbols of their own in some shapes."""
    return {n for shape in shapes for n in shape or () if isinstance(n, str) and n.isidentifier()}


def read_extent(text: str, symbols: Collection[str]) -> Expr:
    """Return the expression that a dimension's name is, such as ``past + sequence``.

    A name that is no expression of the given symbols is a symbol itself.
    """
    if text.isidentifier() or len(text) > _LONGEST:
        return text
    try:
        found = _expression(ast.parse(text.strip(), mode="eval").body, symbols)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text
    return text if found is None else found


def _expression(node: ast.expr, symbols: Collection[str]) -> Expr | None:
    if isinstance(node, ast.Name):
        return node.id if node.id in symbols else None
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _expression(node.left, symbols), _expression(node.right, symbols)
    if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
        return None
    return (_OPERATORS[type(node.op)], left, right)


__all__ = ["plain_symbols", "read_extent"]

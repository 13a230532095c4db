"""Collect ONNX nodes and constants under unique names, with extents that follow the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import shapes
from ..errors import TianyuanError
from ..graph.graph import Node
from .messages import require
from .reader import code_of

_Function = TypeVar("_Function", bound=Callable[..., Any])

# By name of our op: a function of (writer, node, names of the inputs) that adds ONNX nodes and
# returns the name of the output, or a tuple of names.
EXPORTERS: dict[str, Callable[..., Any]] = {}


class UnsupportedError(TianyuanError):
    """Raise where an op has no ONNX form as it is used."""


class DecompositionNeededError(Exception):
    """Unwind an exporter that wants its op written in terms of others instead."""


def exporter(*names: str) -> Callable[[_Function], _Function]:
    """Enter a function into the table of what writes ops as ONNX nodes."""

    def enter(function: _Function) -> _Function:
        EXPORTERS.update(dict.fromkeys(names, function))
        return function

    return enter


class Writer:
    """Nodes, constants and names of one ONNX graph that is being written.

    Args:
        opset: version of the operator set that nodes are written for.
        symbols: where the size of each symbol can be read: (name of an input, axis).

    Attributes:
        nodes: NodeProtos in order.
        arrays: constants by name.
    """

    def __init__(self, opset: int, symbols: Mapping[str, tuple[str, int]]) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.arrays: dict[str, np.ndarray] = {}
        self._symbols = dict(symbols)
        self._extents: dict[Any, str] = {}
        self._small: dict[Any, str] = {}
        self._taken: set[str] = {name for name, _ in symbols.values()}

    def reserve(self, name: str) -> str:
        """Take a name, or one made of it that is still free."""
        candidate, count = name, 1
        while not candidate or candidate in self._taken:
            candidate, count = f"{name}_{count}", count + 1
        self._taken.add(candidate)
        return candidate

    def op(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """Append a node of one output and return its name.

        An attribute that is None is left out; an empty name stands for an input left out.
        """
        return self.ops(1, op_type, *inputs, **attrs)[0]

    def ops(self, count: int, op_type: str, *inputs: str, **attrs: Any) -> tuple[str, ...]:
        """Append a node and return the names of its outputs."""
        helper = require().helper
        outputs = [self.reserve(f"{op_type}_{len(self.nodes)}") for _ in range(count)]
        given = {name: value for name, value in attrs.items() if value is not None}
        self.nodes.append(
            helper.make_node(op_type, list(inputs), outputs, name=outputs[0], **given)
        )
        return tuple(outputs)

    def constant(self, array: Any, dtype: Any = None, name: str = "constant") -> str:
        """Return the name of a constant; small ones that are equal share one."""
        value = np.asarray(array, dtype=dtype, order="C")
        key = (value.dtype.name, value.shape, value.tobytes()) if value.nbytes <= 256 else None
        if key is not None and key in self._small and name == "constant":
            return self._small[key]
        made = self.reserve(name)
        self.arrays[made] = value
        if key is not None:
            self._small.setdefault(key, made)
        return made

    def scalar(self, value: float, dtype: np.dtype) -> str:
        """Return the name of a constant without axes."""
        return self.constant(value, dtype)

    def cast(self, name: str, dtype: Any) -> str:
        """Return the name of a value in another dtype."""
        return self.op("Cast", name, to=code_of(np.dtype(dtype)))

    # Extents.

    def extents(self, values: Sequence[int]) -> str:
        """Return the name of an int64 vector of extents, computed where they are symbolic."""
        if not any(shapes.symbols_of(value) for value in values):
            return self.constant([int(value) for value in values], np.int64)
        parts = [self._vector(shapes.expr_of(value)) for value in values]
        if len(parts) == 1:
            return parts[0]
        return self.op("Concat", *parts, axis=0)

    def _vector(self, expr: Any) -> str:
        """Return the name of an int64 vector of one element that holds an expression's value."""
        if expr not in self._extents:
            self._extents[expr] = self._computed(expr)
        return self._extents[expr]

    def _computed(self, expr: Any) -> str:
        if isinstance(expr, int):
            return self.constant([expr], np.int64)
        if isinstance(expr, str):
            source, axis = self._symbols[expr]
            index = self.constant([axis], np.int64)
            return self.op("Gather", self.op("Shape", source), index, axis=0)
        operator, *sides = expr
        left, right = (self._vector(side) for side in sides)
        if operator == "//" and not shapes.range_of(sides[0])[0] >= 0:  # Div rounds towards 0
            left = self.op("Sub", left, self.op("Mod", left, right))
        return self.op(_ARITHMETIC[operator], left, right)

    def reshape(self, name: str, before: Sequence[int], after: Sequence[int]) -> str:
        """Reshape a value, by a constant where at most one extent has to be worked out."""
        target = [0 if _is_kept(before, axis, n) else n for axis, n in enumerate(after)]
        open_axes = [axis for axis, n in enumerate(target) if shapes.symbols_of(n)]
        has_zero = any(not shapes.symbols_of(n) and int(n) == 0 for n in after)
        if len(open_axes) > 1 or has_zero:
            return self.op(
                "Reshape", name, self.extents(after), allowzero=1 if self.opset >= 14 else None
            )
        for axis in open_axes:
            target[axis] = -1
        return self.op("Reshape", name, self.constant([int(n) for n in target], np.int64))

    def fixed(self, values: Sequence[int], what: str) -> list[int]:
        """Return extents as numbers.

        Raises:
            UnsupportedError: where one is symbolic.
        """
        if any(shapes.symbols_of(value) for value in values):
            raise UnsupportedError(
                f"{what} must not depend on a dynamic dimension, got "
                f"{shapes.format_shape(tuple(values))}"
            )
        return [int(value) for value in values]

    def needs(self, opset: int, what: str) -> None:
        """Raise UnsupportedError where the operator set is too old."""
        if self.opset < opset:
            raise UnsupportedError(f"{what} needs operator set {opset}, got {self.opset}")


def _is_kept(before: Sequence[int], axis: int, extent: int) -> bool:
    """Tell whether a symbolic extent stands at the same axis already, which Reshape writes as 0."""
    same = axis < len(before) and shapes.expr_of(before[axis]) == shapes.expr_of(extent)
    return same and bool(shapes.symbols_of(extent))


_ARITHMETIC = {
    "+": "Add",
    "-": "Sub",
    "*": "Mul",
    "//": "Div",
    "%": "Mod",
    "max": "Max",
    "min": "Min",
}


def spec_of(node: Node, index: int = 0) -> Any:
    """Return the spec of a node's input."""
    return node.inputs[index].spec


def result_of(node: Node, index: int = 0) -> Any:
    """Return the spec of a node's output."""
    return node.outputs[index].spec

"""Turn a rounding of what one 8-bit value alone decides into a table of 256 results."""

from __future__ import annotations

import numpy as np

from ...ops import quantized_rules as rules
from ...ops.quantized import LookupQuantized
from ..graph import Node, Rebuilder, Value
from . import fold
from .match import add_array, emit, is_concrete, produced_by, same_shape
from .quantized_values import Form, Quantised, array_of, dequantised

_MOST_NODES = 64  # of elementwise ops between the two integers


def looked_up(to: Rebuilder, node: Node, form: Form) -> Value | None:
    """Return the integers of a quantize as a lookup, or None where they depend on more.

    The table is what the ops of the graph give for each integer, by their references.
    """
    value, moves = node.inputs[0], []
    while (move := produced_by(value, "reshape", "transpose")) is not None:
        moves.append(move)
        value = move.inputs[0]
    found = _Tabulation(to)
    numbers, source = found.of(value), found.source
    if numbers is None or source is None:
        return None
    if not same_shape(value.spec.shape, source.value.spec.shape):
        return None
    (table,) = fold.evaluate(node.op, [numbers], node.attrs)
    entries = add_array(to, np.asarray(table))
    attrs = LookupQuantized(form.scale, form.zero_point)
    integers = emit(to, "lookup_quantized", [source.value, entries], attrs, node.origin)
    for move in reversed(moves):
        integers = emit(to, move.op.name, [integers], move.attrs, move.origin)
    return integers


class _Tabulation:
    """Evaluates a graph backwards on the 256 numbers that its only dequantised value may be."""

    def __init__(self, to: Rebuilder) -> None:
        self.source: Quantised | None = None
        self._to = to
        self._known: dict[Value, np.ndarray | None] = {}

    def of(self, value: Value) -> np.ndarray | None:
        """Return a value of one element, or its 256 values; None where it depends on more."""
        if value not in self._known:
            self._known[value] = self._found(value) if len(self._known) < _MOST_NODES else None
        return self._known[value]

    def _found(self, value: Value) -> np.ndarray | None:
        source = dequantised(self._to, value)
        if source is not None:
            return self._dequantised(value, source)
        if is_concrete(value.spec.shape) and value.spec.size == 1:
            constant = array_of(self._to.source, value)
            if constant is not None:
                return constant.reshape(1)
        node = value.node
        if node is None or node.op.family != "elementwise" or len(node.outputs) != 1:
            return None
        arrays = [self.of(given) for given in node.inputs]
        known = [array for array in arrays if array is not None]
        if len(known) != len(arrays):
            return None
        (found,) = fold.evaluate(node.op, known, node.attrs)
        return np.asarray(found)

    def _dequantised(self, value: Value, source: Quantised) -> np.ndarray | None:
        if self.source is not None and self.source != source:
            return None
        self.source, stored = source, source.value.spec.dtype
        least, largest = rules.quant_range(stored.name)
        assert value.node is not None  # a dequantize made it
        integers = np.arange(least, largest + 1).astype(stored)
        return np.asarray(fold.evaluate(value.node.op, [integers], value.node.attrs)[0])

"""See values of a graph as quantised: what they store, and what numbers that stands for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dtypes import name_of
from ...op import QuantParams
from ...ops import quantized_rules as rules
from ...records import record
from ..graph import Graph, Rebuilder, Value
from . import fold
from .match import has_symbols, is_concrete, produced_by

# Constant expressions larger than this stay for the pass that folds constants.
_DEEP = 6


@record()
class Form:
    """What a quantised result looks like: scale, zero point, storage and bounds."""

    scale: float
    zero_point: int
    dtype: str
    lower: int
    upper: int

    @property
    def quant(self) -> QuantParams:
        return QuantParams((self.scale,), (self.zero_point,))

    def attrs(self) -> dict[str, Any]:
        """Return the attributes that every quantised op ends with."""
        return vars(self).copy()

    def stored(self, number: float) -> int:
        """Return the integer that a number is quantised to."""
        found = np.rint(np.float64(np.float32(number) / np.float32(self.scale))) + self.zero_point
        least, largest = rules.quant_range(self.dtype)
        return int(np.clip(found, least, largest))


@record()
class Quantised:
    """A stored value of the new graph, quantised per tensor."""

    value: Value
    scale: float
    zero_point: int


def dequantised(to: Rebuilder, value: Value) -> Quantised | None:
    """Return what an old value is dequantised from, per tensor and of 8 bits, or None."""
    node = produced_by(value, "dequantize")
    if node is None or node.attrs.axis >= 0:
        return None
    stored = to.map[node.inputs[0]]
    if name_of(stored.spec.dtype) not in rules.EIGHT_BITS:
        return None
    zero, quant = node.attrs.zero_points[0], stored.spec.quant
    if quant is not None and (quant.axis >= 0 or quant.zero_points[0] != zero):
        return None
    return Quantised(stored, node.attrs.scales[0], zero)


def factor(numerator: float, denominator: float) -> float | None:
    """Return a multiplier, or None where it leaves the range of float32."""
    found = rules.ratio(numerator, denominator)
    return found if rules.is_factor(found) else None


def array_of(graph: Graph, value: Value, depth: int = _DEEP) -> np.ndarray | None:
    """Return the data of a value that depends on constants only, or None."""
    constant = graph.constants.get(value)
    if constant is not None:
        return constant.array
    node = value.node
    if node is None or not depth or not node.op.pure or len(node.outputs) != 1:
        return None
    if node.op.family == "random" or not is_concrete(value.spec.shape) or has_symbols(node.attrs):
        return None
    arrays = [array_of(graph, source, depth - 1) for source in node.inputs]
    known = [array for array in arrays if array is not None]
    if len(known) != len(arrays):
        return None
    return np.asarray(fold.evaluate(node.op, known, node.attrs)[0])

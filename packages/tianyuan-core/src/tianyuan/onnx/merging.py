"""Decide which nodes of a file are one op of core: products of floats with stored integers.

``MatMulInteger`` of what ``DynamicQuantizeLinear`` makes, with the multiplications and the bias
behind it, is ``linear_dynamic``; ``MatMul`` by weights of four bits that are dequantised in blocks
is ``linear_int4``. Both give what the nodes give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..ops import quantized_rules as rules
from ..ops.quantized_linear import packed_int4
from .known import Known
from .node import Body, Node
from .operators.common import Tensor, run
from .table import TENSORS, Operator

_FLOAT = 1  # TensorProto.FLOAT


def _dynamic(node: Node, x: Tensor, weight: Tensor, scales: Tensor, *bias: Tensor) -> Tensor:
    return run("linear_dynamic", x, weight, scales, *bias, has_bias=bool(bias))


def _int4(node: Node, x: Tensor, weight: Tensor, scales: Tensor, *bias: Tensor) -> Tensor:
    group = node.int("group")
    return run("linear_int4", x, weight, scales, *bias, group=group, has_bias=bool(bias))


_FUNCTIONS = {"LinearDynamic": _dynamic, "LinearInt4": _int4}
_OPERATORS = {
    name: Operator(name, "tianyuan", 1, None, function, TENSORS, (), (1, 2), True, 3, 4)
    for name, function in _FUNCTIONS.items()
}


def merge(body: Body, initialisers: dict[str, np.ndarray]) -> None:
    """Replace the nodes of each such product by one, and drop weights that nothing reads then."""
    _Merger(body, initialisers).run()


class _Merger:
    """Finds products in a body and rewrites it."""

    def __init__(self, body: Body, initialisers: dict[str, np.ndarray]) -> None:
        self._body, self._initialisers = body, initialisers
        self._makers = {name: node for node in body.nodes for name in node.outputs if name}
        self._uses = Counter(name for node in body.nodes for name in node.reads())
        self._uses.update(body.outputs)
        self._readers: dict[str, list[Node]] = {}
        for node in body.nodes:
            for name in node.reads():
                self._readers.setdefault(name, []).append(node)
        self._replaced: dict[int, Node] = {}  # by the identity of the last node of a chain
        self._dropped: set[int] = set()

    def run(self) -> None:
        """Rewrite the body."""
        for node in self._body.nodes:
            if (node.domain, node.op_type) == ("", "MatMulInteger"):
                self._try_dynamic(node)
            elif (node.domain, node.op_type) == ("", "MatMul"):
                self._try_int4(node)
        if not self._replaced:
            return
        rest = [node for node in self._body.nodes if id(node) not in self._dropped]
        nodes = [self._replaced.get(id(node), node) for node in rest]
        self._body.nodes = _without_unread(nodes, self._body.outputs)
        read = set(self._body.outputs).union(*(node.reads() for node in self._body.nodes))
        for name in [name for name in self._initialisers if name not in read]:
            del self._initialisers[name]

    def _try_dynamic(self, product: Node) -> None:
        source = self._maker(product.inputs[0], "DynamicQuantizeLinear")
        if source is None or len(product.inputs) < 3 or product.inputs[2] != source.outputs[2]:
            return
        weight = self._rows(product)
        cast = self._only_reader(product, "Cast")
        scaled = None if cast is None else self._only_reader(cast, "Mul")
        if weight is None or cast is None or scaled is None or cast.attrs.get("to") != _FLOAT:
            return
        factor = self._maker(_other(scaled, cast.outputs[0]), "Mul")
        if factor is None or self._uses[factor.outputs[0]] != 1:
            return
        scales = self._array(_other(factor, source.outputs[1]))
        if source.outputs[1] not in factor.inputs or scales is None:
            return
        if scales.dtype != np.float32 or scales.shape not in ((), (1,), (weight.shape[0],)):
            return
        scales = np.broadcast_to(scales, (weight.shape[0],)).copy()
        self._replace(
            "LinearDynamic", source.inputs[0], weight, scales, [product, cast, scaled], {}
        )

    def _rows(self, product: Node) -> np.ndarray | None:
        """Return the weight of an integer product as int8 (out, in), or None."""
        weight = self._array(product.inputs[1])
        named = product.inputs[3] if len(product.inputs) > 3 else ""
        zeros = self._array(named) if named else np.zeros((), np.int8)
        if weight is None or zeros is None or weight.ndim != 2 or weight.dtype != zeros.dtype:
            return None
        middle = {"int8": 0, "uint8": 128}.get(weight.dtype.name)
        if middle is None or not (zeros == middle).all():
            return None
        stored = weight if middle == 0 else (weight ^ np.uint8(128)).view(np.int8)
        forms = (np.dtype("uint8"), (0,)), (np.dtype("int8"), (0,))
        fits = stored.shape[0] <= rules.longest_reduction(*forms)
        return np.ascontiguousarray(stored.T) if fits else None

    def _try_int4(self, product: Node) -> None:
        source = self._maker(product.inputs[1], "DequantizeLinear")
        block = 0 if source is None else source.attrs.get("block_size", 0)
        if source is None or not block or source.attrs.get("axis", 1) not in (0, -2):
            return
        given = [self._array(name) if name else None for name in source.inputs]
        weight, scales, zeros = (*given, None)[:3]
        if weight is None or scales is None or (len(source.inputs) > 2 and zeros is None):
            return
        middle = {"int4": 0, "uint4": 8}.get(weight.dtype.name)
        code = source.attrs.get("output_dtype", 0)
        if middle is None or weight.ndim != 2 or scales.dtype != np.float32 or code > _FLOAT:
            return
        if scales.shape != (-(-weight.shape[0] // block), weight.shape[1]):
            return
        if middle if zeros is None else (zeros.astype(np.int8) != middle).any():
            return
        stored = packed_int4((weight.astype(np.int8) - np.int8(middle)).T)
        scales = np.ascontiguousarray(scales.T)
        attrs = {"group": int(block)}
        self._replace("LinearInt4", product.inputs[0], stored, scales, [product], attrs)

    def _replace(
        self,
        name: str,
        x: str,
        weight: np.ndarray,
        scales: np.ndarray,
        chain: list[Node],
        attrs: dict[str, Any],
    ) -> None:
        """Put one node in the place of a chain, with the bias that is added behind it."""
        inputs = [x, self._constant(chain[0], "rows", weight)]
        inputs.append(self._constant(chain[0], "scales", scales))
        added = self._only_reader(chain[-1], "Add")
        bias = None if added is None else _other(added, chain[-1].outputs[0])
        found = None if bias is None else self._array(bias)
        fits = found is not None and found.dtype == np.float32 and found.shape == scales.shape[:1]
        if added is not None and bias is not None and fits:
            chain, inputs = [*chain, added], [*inputs, bias]
        last = chain[-1]
        self._replaced[id(last)] = Node(
            name, "tianyuan", last.name, inputs, last.outputs, attrs, 1, _OPERATORS[name]
        )
        self._dropped.update(id(node) for node in chain[:-1])

    def _constant(self, node: Node, what: str, array: np.ndarray) -> str:
        name = f"{node.inputs[1]}.{what}"
        while name in self._uses or name in self._makers or name in self._body.constants:
            name += "_"
        self._body.constants[name] = Known(array)
        return name

    def _array(self, name: str) -> np.ndarray | None:
        """Return the data of a constant, or None."""
        if name in self._initialisers:
            return self._initialisers[name]
        known = self._body.constants.get(name)
        return None if known is None or known.is_symbolic else known.array

    def _maker(self, name: str, op_type: str) -> Node | None:
        node = self._makers.get(name)
        return node if node is not None and (node.domain, node.op_type) == ("", op_type) else None

    def _only_reader(self, node: Node, op_type: str) -> Node | None:
        """Return the node that alone reads what a node makes, where it is of a type."""
        name = node.outputs[0]
        if self._uses[name] != 1 or name not in self._readers:
            return None
        reader = self._readers[name][0]
        plain = (reader.domain, reader.op_type) == ("", op_type)
        return reader if plain and reader.inputs.count(name) == 1 else None


def _other(node: Node, name: str) -> str:
    """Return the input of a node of two that is not the one of a name."""
    return node.inputs[1 if node.inputs[0] == name else 0]


def _without_unread(nodes: Iterable[Node], outputs: Iterable[str]) -> list[Node]:
    """Return the nodes that an output depends on, in their order."""
    needed, kept = set(outputs), []
    for node in reversed(list(nodes)):
        if needed.intersection(node.outputs):
            needed |= node.reads()
            kept.append(node)
    return kept[::-1]

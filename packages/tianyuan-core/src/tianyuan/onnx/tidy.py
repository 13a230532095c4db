"""Decide how a written ONNX graph is tidied: biases join the products that they are added to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from .writer import Writer

_CONVOLUTIONS = ("Conv", "ConvTranspose")


def merge_biases(w: Writer, outputs: set[str]) -> None:
    """Let Conv, ConvTranspose and Gemm take a bias that an Add behind them adds.

    The bias is a constant, or integers that are dequantised.
    """
    merger = _Merger(w)
    dropped: set[int] = set()
    for node in w.nodes:
        if node.op_type != "Add":
            continue
        for value, bias in (node.input, reversed(node.input)):
            maker = merger.makers.get(value)
            fits = maker is not None and len(maker.input) == 2 and merger.uses[value] == 1
            if fits and value not in outputs and merger.give(maker, bias):
                assert maker is not None
                maker.output[0] = node.output[0]
                merger.makers[node.output[0]] = maker
                dropped.add(id(node))
                break
    hoisted = {id(node) for node in merger.hoisted}
    rest = [node for node in w.nodes if id(node) not in dropped and id(node) not in hoisted]
    w.nodes = _living([*merger.hoisted, *rest], outputs)
    used = {name for node in w.nodes for name in node.input} | outputs
    w.arrays = {name: array for name, array in w.arrays.items() if name in used}


def _living(nodes: list[Any], outputs: set[str]) -> list[Any]:
    """Return the nodes that an output depends on."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1]


class _Merger:
    """Finds the bias of a product in the shape that the product takes."""

    def __init__(self, w: Writer) -> None:
        self._w = w
        self.uses = Counter(name for node in w.nodes for name in node.input)
        self.makers = {name: node for node in w.nodes for name in node.output}
        self.hoisted: list[Any] = []  # what must now stand before the product

    def give(self, product: Any, bias: str) -> bool:
        """Give a product its bias; False where it has not the form of one."""
        count = self._channels(product)
        if count is None:
            return False
        if bias in self._w.arrays:
            name = self._constant(product, bias, count)
        else:
            name = self._dequantised(product, bias, count)
        if name is not None:
            product.input.append(name)
        return name is not None

    def _channels(self, product: Any) -> int | None:
        """Return how many channels a product has, where its weight tells."""
        if product.op_type not in ("Gemm", *_CONVOLUTIONS):
            return None
        name = product.input[1]
        while name in self.makers:  # a weight that is dequantised
            if self.makers[name].op_type != "DequantizeLinear":
                return None
            name = self.makers[name].input[0]
        weight = self._w.arrays.get(name)
        if weight is None:
            return None
        attributes = {item.name: item.i for item in product.attribute}
        if product.op_type == "ConvTranspose":
            return int(weight.shape[1] * attributes["group"])
        if product.op_type == "Gemm":
            return int(weight.shape[0 if attributes.get("transB") else 1])
        return int(weight.shape[0])

    def _constant(self, product: Any, bias: str, count: int) -> str | None:
        array = self._w.arrays[bias]
        if product.op_type == "Gemm":
            return bias if array.shape == (count,) else None
        if array.ndim < 3 or array.shape[-3:] != (count, 1, 1) or array.size != count:
            return None
        flat = np.ascontiguousarray(array.reshape(count))
        if self.uses[bias] == 1:
            self._w.arrays[bias] = flat
            return bias
        return self._w.constant(flat, name=f"{bias}_flat")

    def _dequantised(self, product: Any, bias: str, count: int) -> str | None:
        maker = self.makers.get(bias)
        if maker is not None and maker.op_type == "Reshape" and product.op_type != "Gemm":
            shape = self._w.arrays.get(maker.input[1])
            if shape is None or shape.tolist()[-3:] != [count, 1, 1]:
                return None
            maker = self.makers.get(maker.input[0])
        if maker is None or maker.op_type != "DequantizeLinear":
            return None
        stored = self._w.arrays.get(maker.input[0])
        if stored is None or stored.shape != (count,):
            return None
        if not any(node is maker for node in self.hoisted):
            self.hoisted.append(maker)
        found: str = maker.output[0]
        return found

"""Decide how a written ONNX graph is tidied: biases join the products that they are added to."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .writer import Writer

_CONVOLUTIONS = ("Conv", "ConvTranspose")


def merge_biases(w: Writer, outputs: set[str]) -> None:
    """Let Conv, ConvTranspose and Gemm take a constant bias that an Add behind them adds."""
    uses = Counter(name for node in w.nodes for name in node.input)
    makers = {name: node for node in w.nodes for name in node.output}
    dropped = set()
    for node in w.nodes:
        if node.op_type != "Add":
            continue
        for value, bias in (node.input, reversed(node.input)):
            maker = makers.get(value)
            fits = (
                maker is not None
                and len(maker.input) == 2
                and uses[value] == 1
                and value not in outputs
                and bias in w.arrays
            )
            name = _as_bias(w, maker, bias, uses[bias]) if fits else None
            if name is not None:
                assert maker is not None
                maker.input.append(name)
                maker.output[0] = node.output[0]
                makers[node.output[0]] = maker
                dropped.add(id(node))
                break
    w.nodes = [node for node in w.nodes if id(node) not in dropped]
    used = {name for node in w.nodes for name in node.input} | outputs
    w.arrays = {name: array for name, array in w.arrays.items() if name in used}


def _as_bias(w: Writer, maker: object, bias: str, uses: int) -> str | None:
    """Return the name of a bias in the shape that a node takes; None where it has none."""
    array, op_type = w.arrays[bias], maker.op_type  # type: ignore[attr-defined]
    weight = w.arrays.get(maker.input[1])  # type: ignore[attr-defined]
    if op_type == "Gemm":
        return bias if array.ndim <= 1 else None
    if op_type not in _CONVOLUTIONS or array.ndim < 3 or weight is None:
        return None
    channels = weight.shape[0]
    if op_type == "ConvTranspose":
        groups = next(a.i for a in maker.attribute if a.name == "group")  # type: ignore[attr-defined]
        channels = weight.shape[1] * groups
    wide = array.shape[-3:]
    if array.size != channels or wide != (channels, 1, 1):
        return None
    flat = np.ascontiguousarray(array.reshape(channels))
    if uses == 1:
        w.arrays[bias] = flat
        return bias
    return w.constant(flat, name=f"{bias}_flat")

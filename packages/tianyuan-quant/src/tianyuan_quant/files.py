"""Quantise a model file by looking at data, and write it as a model file of integers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from tianyuan import Tensor, registry
from tianyuan.errors import AttrError
from tianyuan.graph.graph import Graph, Node, Value
from tianyuan.imperative import dispatch
from tianyuan.jit.model import as_input, read_model, write_model

from .calibrate import Ranges, evaluate
from .config import QConfig, static_qconfig
from .graphs import Quantiser, label, prepared
from .report import LayerReport, Noise, Report


def quantize_file(
    source: str | os.PathLike[str],
    calibration_data: Iterable[Any],
    target: str | os.PathLike[str],
    qconfig: QConfig = static_qconfig,
    keep: Sequence[str] = (),
    bias_correction: bool = True,
) -> Report:
    """Quantise a ``.tym`` or ``.onnx`` file after looking at data; return what that loses.

    Convolutions and products with constant weights become integers, as do sums, joins, average
    pools and bounds between them; everything else stays in floats.

    Args:
        source: the file of floats.
        calibration_data: batches; each an input, or a tuple of the inputs in the file's order.
        target: the ``.tym`` file to write; an old one stays whole until the new one is complete.
        qconfig: how activations are watched, and the dtype of weights.
        keep: patterns of weights' names whose products stay in floats.
        bias_correction: takes the mean error that rounded weights make out of the biases.

    Raises:
        AttrError: where there is no data, numbers are not finite, a pattern fits no product, or
            nothing can be quantised.
    """
    graph, names = read_floats(source)
    inputs = [value.name for value in graph.inputs]
    graph = prepared(graph)
    batches = _batches(graph, calibration_data)
    ranges = Ranges(qconfig)
    quantiser = Quantiser(graph, ranges, qconfig, keep)
    every = Quantiser(graph, ranges, qconfig)
    named = [label(node) for node in graph.nodes if every.is_product(node)]
    check_kept("quantize", keep, named, "product with a constant weight")
    products = [node for node in graph.nodes if quantiser.is_product(node)]
    errors: dict[Node, list[np.ndarray]] = {node: [] for node in products}
    for batch in batches:
        values = evaluate(graph, batch)
        ranges.watch(values)
        for node in products if bias_correction else ():
            errors[node].append(_weight_error(quantiser, node, values))
    if bias_correction:
        quantiser.corrections = {node: np.mean(found, axis=0) for node, found in errors.items()}
    new = quantiser.run()
    write_model(target, new, inputs, names)
    return _report(graph, new, quantiser, batches)


def read_floats(source: str | os.PathLike[str]) -> tuple[Graph, list[str]]:
    """Return the graph of a ``.tym`` or ``.onnx`` file, and the names of its outputs."""
    if not os.fspath(source).endswith(".onnx"):
        return read_model(source)
    from tianyuan import onnx
    from tianyuan.onnx.model import symbolic_graph

    module = onnx.load(source)
    graph = symbolic_graph(module)
    if graph is None:
        raise AttrError(
            f"quantize: the graph of {os.fspath(source)} depends on the sizes of its inputs, "
            "expected one with fixed sizes"
        )
    return graph, [info.name for info in module.outputs]


def _batches(graph: Graph, data: Iterable[Any]) -> list[list[np.ndarray]]:
    found = []
    for index, item in enumerate(data):
        given = list(item) if isinstance(item, (tuple, list)) else [item]
        if len(given) != len(graph.inputs):
            raise AttrError(
                f"quantize: batch {index} has the wrong number of inputs, got {len(given)}, "
                f"expected {len(graph.inputs)}"
            )
        arrays = [as_input(v.name, x, v.spec) for v, x in zip(graph.inputs, given, strict=True)]
        if not all(np.isfinite(x).all() for x in arrays if x.dtype.kind == "f"):
            raise AttrError(f"quantize: batch {index} has numbers that are not finite")
        found.append(arrays)
    if not any(x.size for batch in found for x in batch):
        raise AttrError("quantize: there is no calibration data, expected a batch")
    return found


def check_kept(op: str, keep: Sequence[str], names: Sequence[str], what: str) -> None:
    """Raise AttrError where there is nothing to quantise, or a pattern matches none of it."""
    if not names:
        raise AttrError(f"{op}: the model has no {what} to quantise")
    lost = [p for p in keep if not any(fnmatchcase(name, p) for name in names)]
    if lost:
        raise AttrError(
            f"{op}: nothing has a name of {', '.join(map(repr, lost))}, expected a pattern of one "
            f"of {', '.join(sorted(set(names))[:12])}"
        )


def _weight_error(quantiser: Quantiser, node: Node, values: dict[Value, np.ndarray]) -> np.ndarray:
    """Return the mean by channel of what rounded weights add to a product."""
    stored, params = quantiser.weight(node)
    weight = values[node.inputs[1]]
    shape = [1] * weight.ndim
    if params.axis >= 0:
        shape[params.axis] = -1
    scale = np.array(params.scales, np.float32).reshape(shape)
    wrong = stored.astype(np.float32) * scale - weight
    attrs = {name: getattr(node.attrs, name) for name in vars(node.attrs)}
    attrs.update(has_bias=False, has_residual=False, activation="identity", lower=0.0, upper=0.0)
    operands = [Tensor(values[node.inputs[0]]), Tensor(wrong)]
    error = dispatch.apply(registry.get_op(node.op.name), operands, node.op.attrs(**attrs)).numpy()
    channel = 1 if node.op.name == "conv2d_fused" else error.ndim - 1
    axes = tuple(axis for axis in range(error.ndim) if axis != channel)
    return np.asarray(error.mean(axis=axes, dtype=np.float64))


def _report(
    graph: Graph, new: Graph, quantiser: Quantiser, batches: Sequence[Sequence[np.ndarray]]
) -> Report:
    total = Noise()
    noise = {
        value: Noise()
        for node in graph.nodes
        for value in node.outputs
        if value in quantiser.places and value.spec.dtype == np.float32
    }
    for batch in batches:
        want, got = evaluate(graph, batch), evaluate(new, batch)
        for value, found in noise.items():
            stored, params = quantiser.places[value]
            numbers = got[stored].astype(np.float32) - np.float32(params.zero_points[0])
            found.add(want[value], numbers * np.float32(params.scales[0]))
        for old, value in zip(graph.outputs, new.outputs, strict=True):
            total.add(want[old], got[value])
    layers = tuple(
        LayerReport(label(value.node), value.node.op.name, found.decibel)
        for value, found in noise.items()
        if value.node is not None
    )
    return Report(layers, total.decibel)

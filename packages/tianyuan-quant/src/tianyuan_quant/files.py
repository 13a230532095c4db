"""Quantise a model file by looking at data, and write it as a model file of integers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tianyuan import Tensor, registry, shapes
from tianyuan.errors import AttrError, ShapeError
from tianyuan.functional.arguments import whole
from tianyuan.graph.graph import Graph, Node, Value
from tianyuan.imperative import dispatch
from tianyuan.jit.compiled import sizes_of
from tianyuan.jit.model import as_input, read_model, write_model

from .calibrate import Ranges, evaluate
from .checks import (
    LABELS,
    batch_of,
    batches_of,
    check_finite,
    check_kept,
    check_source,
    check_target,
    patterns_of,
    warn_of_no_pairs,
)
from .config import QConfig, static_qconfig
from .graph_equalise import equalize_graph
from .graph_measure import measured
from .graphs import Quantiser, label, prepared
from .report import Report
from .rounding import learn_rounding


def quantize_file(
    source: str | os.PathLike[str],
    calibration_data: Iterable[Any],
    target: str | os.PathLike[str],
    qconfig: QConfig = static_qconfig,
    keep: Sequence[str] = (),
    bias_correction: bool = True,
    equalize: bool = False,
    rounding_steps: int = 0,
    sensitivity: bool = False,
) -> Report:
    """Quantise a ``.tym`` or ``.onnx`` file after looking at data; return what that loses.

    Convolutions and products with constant weights become integers, as do sums, joins, average
    pools and bounds between them; everything else stays in floats.

    Args:
        source: the file of floats.
        calibration_data: batches; each an input, a tuple of the inputs in the file's order, or a
            dict of them by name. Where the file fixes how many samples it takes, batches may hold
            a multiple of that.
        target: the ``.tym`` file to write; an old one stays whole until the new one is complete.
        qconfig: how activations are watched, and the dtype of weights; without a channel axis
            weights have one scale per tensor.
        keep: patterns of weights' names whose products stay in floats.
        bias_correction, equalize, rounding_steps, sensitivity: as for ``quantize_static``.

    Raises:
        AttrError: where there is no data, numbers are not finite, a pattern fits no product, or
            nothing can be quantised.

    >>> import tianyuan.module as M
    >>> from tianyuan.jit import trace
    >>> net = M.Linear(4, 2)
    >>> run = trace(lambda x: net(x), capture_as_const=True)
    >>> data = np.ones((8, 4), np.float32)
    >>> _ = run(Tensor(data))
    >>> _ = run.dump("net.tym")
    >>> report = quantize_file("net.tym", [data], "int8.tym")
    >>> report.output_snr > 20
    True
    """
    check_source("quantize", source)
    check_target("quantize", target)
    rounding_steps = whole("quantize", "rounding_steps", rounding_steps, 0)
    keep = patterns_of("quantize", keep)
    data = batches_of("quantize", calibration_data)
    graph, names = read_floats(source)
    inputs = [value.name for value in graph.inputs]
    graph = prepared(graph)
    batches = _batches(graph, data)
    quantiser = Quantiser(graph, Ranges(qconfig), qconfig, keep)
    every = Quantiser(graph, quantiser.ranges, qconfig)
    found = [node for node in graph.nodes if every.is_product(node)]
    check_kept("quantize", keep, list(map(label, found)), "product with a constant weight", graph)
    if not any(map(quantiser.is_product, found)):
        raise AttrError(
            f"quantize: nothing is left to quantise, got keep={list(keep)}, expected less"
        )
    for node in found:
        constants = [graph.constants[v].array for v in node.inputs[1:] if v in graph.constants]
        check_finite("quantize", label(node), *(c for c in constants if c.dtype.kind == "f"))
    if equalize and not equalize_graph(graph):
        warn_of_no_pairs("quantize")
    for batch in batches:
        quantiser.ranges.watch(evaluate(graph, batch))
    products = [node for node in graph.nodes if quantiser.is_product(node)]
    if rounding_steps:
        _learn_roundings(quantiser, products, batches, rounding_steps)
    if bias_correction:
        _correct_biases(quantiser, products, batches)
    new = quantiser.run()
    write_model(target, new, inputs, names)
    return measured(quantiser, new, products, batches, sensitivity)


def _correct_biases(
    quantiser: Quantiser, products: Sequence[Node], batches: Sequence[Sequence[np.ndarray]]
) -> None:
    errors: dict[Node, list[np.ndarray]] = {node: [] for node in products}
    for batch in batches:
        values = evaluate(quantiser.graph, batch)
        for node in products:
            errors[node].append(_weight_error(quantiser, node, values))
    quantiser.corrections = {node: np.mean(found, axis=0) for node, found in errors.items()}


def _learn_roundings(
    quantiser: Quantiser,
    products: Sequence[Node],
    batches: Sequence[Sequence[np.ndarray]],
    steps: int,
) -> None:
    """Round each weight by what its product gives on inputs as integers have them."""
    for node in products:
        inputs = [evaluate(quantiser.graph, batch)[node.inputs[0]] for batch in batches]
        form = quantiser.ranges.params(node.inputs[0], label(node))
        _, params = quantiser.weight(node)
        weight = quantiser.graph.constants[node.inputs[1]].array
        run = partial(_product, node)
        pairs = [
            (Tensor(form.real(form.stored(x))), run(Tensor(x), Tensor(weight))) for x in inputs
        ]
        quantiser.roundings[node] = learn_rounding(weight, params, run, pairs, steps)


def _product(node: Node, x: Tensor, weight: Tensor) -> Tensor:
    """Compute a node's product alone, without bias, residual and bound."""
    attrs = {name: getattr(node.attrs, name) for name in vars(node.attrs)}
    attrs.update(has_bias=False, has_residual=False, activation="identity", lower=0.0, upper=0.0)
    op = registry.get_op(node.op.name)
    result: Tensor = dispatch.apply(op, [x, weight], op.attrs(**attrs))
    return result


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
            f"quantize: the sizes of its inputs decide the ops, got {os.fspath(source)}, "
            "expected one with fixed sizes, as `tianyuan convert MODEL.onnx OUT.tym --size NAME=N` "
            "makes"
        )
    return graph, [info.name for info in module.outputs]


def whole_batch(graph: Graph) -> int | None:
    """Return how many samples the inputs of a graph hold where that is fixed, else None."""
    extents = {shapes.expr_of(v.spec.shape[0]) if v.spec.ndim else 0 for v in graph.inputs}
    found = extents.pop() if len(extents) == 1 else 0
    return found if isinstance(found, int) and found > 0 else None


def _batches(graph: Graph, data: Iterable[Any]) -> list[list[np.ndarray]]:
    found = []
    names = [value.name for value in graph.inputs]
    for index, item in enumerate(data):
        given = batch_of("quantize", index, item, names)
        if len(given) != len(graph.inputs):
            raise AttrError(
                f"quantize: batch {index} has the wrong number of inputs, got {len(given)}, "
                f"expected {', '.join(names)}{LABELS}"
            )
        arrays = [as_input(v.name, x, v.spec) for v, x in zip(graph.inputs, given, strict=True)]
        if not all(x.size for x in arrays):
            continue
        pieces = _pieces(whole_batch(graph), arrays)
        try:
            for piece in pieces:
                sizes_of(graph, [x.shape for x in piece])
        except ShapeError as error:
            text = str(error).removeprefix("model: ")
            raise ShapeError(f"quantize: batch {index}: {text}") from None
        if not all(np.isfinite(x).all() for x in arrays if x.dtype.kind == "f"):
            raise AttrError(
                f"quantize: batch {index} has numbers that are not finite, got infinities or NaN, "
                "expected none"
            )
        found += pieces
    if not found:
        raise AttrError("quantize: there is no calibration data, got no numbers, expected a batch")
    return found


def _pieces(size: int | None, arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Cut a batch into as many samples as a file takes at a time, where it holds a multiple."""
    counts = {len(x) if x.ndim else 0 for x in arrays}
    count = counts.pop()
    if size is None or counts or count % size:
        return [arrays]
    return [[x[at : at + size] for x in arrays] for at in range(0, count, size)]


def _weight_error(quantiser: Quantiser, node: Node, values: dict[Value, np.ndarray]) -> np.ndarray:
    """Return the mean by channel of what rounded weights add to a product."""
    stored, params = quantiser.weight(node)
    wrong = params.real(stored) - values[node.inputs[1]]
    error = _product(node, Tensor(values[node.inputs[0]]), Tensor(wrong)).numpy()
    channel = 1 if node.op.name == "conv2d_fused" else error.ndim - 1
    axes = tuple(axis for axis in range(error.ndim) if axis != channel)
    return np.asarray(error.mean(axis=axes, dtype=np.float64))

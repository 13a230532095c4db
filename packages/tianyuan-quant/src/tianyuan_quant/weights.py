"""Quantise the weights of linear maps alone: int8 with activations at run time, or int4 groups."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tianyuan.module as M
from tianyuan import registry
from tianyuan.errors import AttrError
from tianyuan.graph.graph import Graph, Node, Rebuilder, Value
from tianyuan.jit import load
from tianyuan.jit.model import write_model
from tianyuan.module import Module
from tianyuan.ops.quantized_linear import packed_int4, unpacked_int4

from .arguments import matches
from .checks import (
    check_finite,
    check_kept,
    check_no_target,
    check_source,
    check_target,
    inputs_of,
    patterns_of,
)
from .convert import replace_parts
from .files import read_floats
from .graphs import label, prepared
from .quantized.module import QuantizedModule
from .quantized.weights import (
    LinearDynamic,
    LinearInt4,
    check_int4,
    rounded_groups,
    rounded_rows,
)
from .report import LayerReport, Report, StaticResult, ratio
from .watch import tensors_of

Source = Module | str | os.PathLike[str]


def quantize_dynamic(
    model: Source,
    keep: Sequence[str] = (),
    example: Any = None,
    target: str | os.PathLike[str] | None = None,
) -> StaticResult:
    """Store the weights of linear maps as int8, and quantise what they are given at run time.

    For transformers: no data is looked at, every other op stays in floats.

    Args:
        model: a network, which stays as it is, or a ``.tym`` or ``.onnx`` file.
        keep: patterns of names of layers (in a file: of weights) that stay in floats.
        example: an input, or a tuple of them, to measure the loss at the output on; for networks.
        target: the ``.tym`` file to write, where the model is a file.

    Returns:
        the network, or the model loaded from ``target``, and the report: the signal-to-noise
        ratio of each weight.

    Raises:
        AttrError: where there is no linear map, a pattern fits none, or a target is missing.

    >>> net = M.Sequential(M.Linear(64, 8), M.GELU(), M.Linear(8, 2))
    >>> result = quantize_dynamic(net, keep=["2"])
    >>> type(result.module[0]).__name__, type(result.module[2]).__name__
    ('LinearDynamic', 'Linear')
    """
    return _quantised("quantize_dynamic", model, keep, example, target, LinearDynamic, _dynamic)


def quantize_weights(
    model: Source,
    bits: int = 4,
    group: int = 32,
    keep: Sequence[str] = (),
    example: Any = None,
    target: str | os.PathLike[str] | None = None,
) -> StaticResult:
    """Store the weights of linear maps in four bits, with a scale for each group of neighbours.

    They are computed with as the floats that they stand for; two of them share a byte.

    Args:
        bits: 2 to 4.
        group: how many neighbours along the input share a scale.
        others: as for ``quantize_dynamic``.

    Raises:
        AttrError: as for ``quantize_dynamic``, and for other bits or groups.

    >>> result = quantize_weights(M.Sequential(M.Linear(64, 8)), bits=4, group=16)
    >>> result.module[0].weight.shape, result.report.layers[0].snr > 18
    ((8, 32), True)
    """
    check_int4("quantize_weights", bits, group)

    def module(layer: Any, owner: str) -> LinearInt4:
        return LinearInt4(layer, bits, group, owner)

    def arrays(weight: np.ndarray) -> _Rewritten:
        q, scales = rounded_groups(weight, bits, group)
        stored = packed_int4(q)
        wide = np.repeat(scales, group, axis=1)[:, : weight.shape[1]]
        meant = unpacked_int4(stored, weight.shape[1]).astype(np.float32) * wide
        return "linear_int4", stored, scales, meant, {"group": group}

    return _quantised("quantize_weights", model, keep, example, target, module, arrays)


# Op, stored weight, scales, what they stand for, and attributes of the op.
_Rewritten = tuple[str, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


def _dynamic(weight: np.ndarray) -> _Rewritten:
    q, scales = rounded_rows(weight)
    return "linear_dynamic", q, scales, q.astype(np.float32) * scales[:, None], {}


def _quantised(
    op: str,
    model: Source,
    keep: Sequence[str],
    example: Any,
    target: str | os.PathLike[str] | None,
    module: Callable[[Any, str], Any],
    arrays: Callable[[np.ndarray], _Rewritten],
) -> StaticResult:
    check_source(op, model)
    keep = patterns_of(op, keep)
    if isinstance(model, Module):
        check_no_target(op, target)
        return _network(op, model, keep, example, module)
    if target is None:
        raise AttrError(f"{op}: target is missing, got None, expected the file to write")
    check_target(op, target)
    if example is not None:
        raise AttrError(
            f"{op}: example is for networks, got one and the file {model}, expected None"
        )
    return _file(op, model, keep, target, arrays)


def _network(
    op: str, model: Module, keep: Sequence[str], example: Any, make: Callable[[Any, str], Any]
) -> StaticResult:
    for name, part in model.named_modules():
        if isinstance(part, QuantizedModule):
            raise AttrError(
                f"{op}: a module is quantised already, got {name or 'the network itself'} "
                f"({type(part).__name__}), expected a float network"
            )
    net = copy.deepcopy(model).eval()
    names = [name for name, part in net.named_modules() if type(part) is M.Linear]
    check_kept(op, keep, names, "linear map")
    layers: list[LayerReport] = []

    def convert(part: Module, name: str) -> Module | None:
        kept = any(matches(name, pattern) for pattern in keep)
        if type(part) is not M.Linear or kept or part.quantize_disabled:
            return None
        check_finite(op, name, part.weight.numpy())
        made: Any = make(part, name)
        layers.append(_row(name, part.weight.numpy(), made.float_weight(), type(made).__name__))
        return made  # type: ignore[no-any-return]

    new = replace_parts(net, convert)
    return StaticResult(new, Report(tuple(layers), _output_snr(op, model, new, example)))


def _row(name: str, weight: np.ndarray, meant: np.ndarray, kind: str) -> LayerReport:
    return LayerReport(name, kind, ratio([(weight, meant)]))


def _output_snr(op: str, model: Module, new: Module, example: Any) -> float | None:
    if example is None:
        return None
    inputs = inputs_of(op, model, example)
    float_net = copy.deepcopy(model).eval()
    pairs = zip(tensors_of(float_net(*inputs)), tensors_of(new(*inputs)), strict=True)
    return ratio((want.numpy(), got.numpy()) for want, got in pairs)


def _file(
    op: str,
    source: str | os.PathLike[str],
    keep: Sequence[str],
    target: str | os.PathLike[str],
    arrays: Callable[[np.ndarray], _Rewritten],
) -> StaticResult:
    graph, names = read_floats(source)
    inputs = [value.name for value in graph.inputs]
    graph = prepared(graph)
    found = [label(node) for node in graph.nodes if _is_linear(graph, node)]
    check_kept(op, keep, found, "product with a constant weight", graph)
    layers: list[LayerReport] = []

    def visit(to: Rebuilder, node: Node) -> Sequence[Value] | None:
        name = label(node)
        kept = any(matches(name, pattern) for pattern in keep)
        if kept or not _is_linear(graph, node):
            return None
        weight = graph.constants[node.inputs[1]].array
        rows = np.ascontiguousarray(weight if node.attrs.transpose_b else weight.T)
        check_finite(op, name, rows)
        kind, stored, scales, meant, attrs = arrays(rows)
        layers.append(_row(name, rows, meant, kind))
        return _rewritten(to, node, kind, stored, scales, attrs)

    new = graph.rebuild(visit)
    read = {v for node in new.nodes for v in node.inputs} | set(new.outputs)
    new.constants = {v: c for v, c in new.constants.items() if v in read}
    write_model(target, new, inputs, names)
    return StaticResult(load(target), Report(tuple(layers), None))


def _is_linear(graph: Graph, node: Node) -> bool:
    if node.op.name != "matmul_fused" or node.attrs.transpose_a:
        return False
    weight = graph.constants.get(node.inputs[1])
    if weight is None or weight.array.ndim != 2 or weight.array.dtype != np.float32:
        return False
    # A bias that is broadcast along rows is what the op adds.
    return not node.attrs.has_bias or node.inputs[2].spec.ndim == 1


def _rewritten(
    to: Rebuilder, node: Node, kind: str, stored: np.ndarray, scales: np.ndarray, attrs: Any
) -> Sequence[Value]:
    """Write a product as a stored linear map, what is added to it, and its activation."""
    own, rest = node.attrs, list(to.mapped(node.inputs[2:]))
    bias = [rest.pop(0)] if own.has_bias else []
    name = node.inputs[1].name
    operands = [
        to.mapped(node.inputs[:1])[0],
        to.graph.add_constant(stored, name),
        to.graph.add_constant(scales, f"{name}.scales" if name else ""),
        *bias,
    ]
    op = registry.get_op(kind)
    y = to.graph.add_node(op, operands, op.attrs(has_bias=own.has_bias, **attrs), node.origin)[0]
    if own.has_residual:
        add = registry.get_op("add")
        y = to.graph.add_node(add, [y, rest.pop(0)], add.attrs(), node.origin)[0]
    if own.activation == "identity":
        return [y]
    if own.activation == "clip":
        return _clipped(to, y, own)
    act = registry.get_op(own.activation)
    return to.graph.add_node(act, [y], act.attrs(), node.origin)


def _clipped(to: Rebuilder, y: Value, own: Any) -> Sequence[Value]:
    for name, bound in (("maximum", own.lower), ("minimum", own.upper)):
        limit = to.graph.add_constant(np.float32(bound), "")
        op = registry.get_op(name)
        y = to.graph.add_node(op, [y, limit], op.attrs())[0]
    return [y]

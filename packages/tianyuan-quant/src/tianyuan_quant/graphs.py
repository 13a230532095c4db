"""Quantise a graph from a file: products, sums, joins and pools become ops on integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tianyuan import registry
from tianyuan.errors import AttrError
from tianyuan.graph import passes
from tianyuan.graph.graph import Graph, Node, Rebuilder, Value
from tianyuan.graph.options import Options
from tianyuan.ops import quantized_rules as rules

from .arguments import matches
from .calibrate import Ranges
from .config import QConfig
from .params import HostParams

MOVES = ("reshape", "transpose", "slice", "copy", "take")  # the same integers in another place
_PRODUCTS = {"conv2d_fused": "conv2d_quantized", "matmul_fused": "matmul_quantized"}
_BOUNDED = ("identity", "relu", "relu6", "clip")
_LIMITS = {"identity": (-np.inf, np.inf), "relu": (0.0, np.inf), "relu6": (0.0, 6.0)}


def prepared(graph: Graph) -> Graph:
    """Return a graph with folded constants and fused products, sums and activations apart."""
    options = Options()
    passes.verify(graph, "canonical")
    for item in passes.own_passes():
        if item.stage in ("canonical", "fuse") and item.name != "fuse_elementwise":
            graph = item.run(graph, options)
    return _split_activations(graph.rebuild(_fused_form))


def _fused_form(to: Rebuilder, node: Node) -> Sequence[Value] | None:
    """Write plain products in their fused form, so that there is one form to handle."""
    name = f"{node.op.name}_fused"
    if name not in _PRODUCTS:
        return None
    op = registry.get_op(name)
    attrs = op.attrs(**{key: getattr(node.attrs, key) for key in vars(node.attrs)})
    return to.graph.add_node(op, to.mapped(node.inputs), attrs, node.origin)


def _split_activations(graph: Graph) -> Graph:
    """Take activations that have no integer form out of fused products."""

    def visit(to: Rebuilder, node: Node) -> Sequence[Value] | None:
        if node.op.name not in _PRODUCTS or node.attrs.activation in _BOUNDED:
            return None
        attrs = replace(node.attrs, activation="identity")
        y = to.graph.add_node(node.op, to.mapped(node.inputs), attrs, node.origin)[0]
        kind = registry.get_op(node.attrs.activation)
        return to.graph.add_node(kind, [y], kind.attrs(), node.origin)

    return graph.rebuild(visit)


def label(node: Node) -> str:
    """Return what reports and patterns call a node: its weight's name, or its op's."""
    if node.op.name in _PRODUCTS and node.inputs[1].name:
        return node.inputs[1].name.removesuffix(".weight")
    return node.op.name


@dataclass
class Quantiser:
    """Rewrites one graph; values have a float form, a stored form, or both, made when asked for.

    Attributes:
        corrections: what is taken out of each product's bias.
        roundings: integers of weights, where they are not the nearest ones.
        places: for each old value, the stored value of the new graph and its parameters.
    """

    graph: Graph
    ranges: Ranges
    config: QConfig
    kept: Sequence[str] = ()
    corrections: dict[Node, np.ndarray] = field(default_factory=dict)
    roundings: dict[Node, np.ndarray] = field(default_factory=dict)
    places: dict[Value, tuple[Value, HostParams]] = field(default_factory=dict)

    def run(self) -> Graph:
        """Return the graph in integers."""
        self._readers = self.graph.users()
        to = Rebuilder(self.graph)
        for node in self.graph.nodes:
            self._visit(to, node)
        new = to.graph
        new.outputs = [self._floats(to, value) for value in self.graph.outputs]
        read = {v for node in new.nodes for v in node.inputs} | set(new.outputs)
        new.constants = {v: c for v, c in new.constants.items() if v in read}
        return new

    # Both forms of a value.

    def _floats(self, to: Rebuilder, value: Value) -> Value:
        if value not in to.map:
            stored, params = self.places[value]
            attrs = registry.get_op("dequantize").attrs(params.scales, params.zero_points, -1)
            to.map[value] = self._emit(to, "dequantize", [stored], attrs)
        return to.map[value]

    def _stored(self, to: Rebuilder, value: Value, owner: str) -> tuple[Value, HostParams]:
        if value not in self.places:
            params = self.ranges.params(value, owner)
            attrs = registry.get_op("quantize").attrs(
                params.scales, params.zero_points, -1, params.dtype.storage
            )
            self.places[value] = self._emit(to, "quantize", [to.map[value]], attrs), params
        return self.places[value]

    @staticmethod
    def _emit(to: Rebuilder, name: str, inputs: Sequence[Value], attrs: Any) -> Value:
        return to.graph.add_node(registry.get_op(name), inputs, attrs)[0]

    # Nodes.

    def _visit(self, to: Rebuilder, node: Node) -> None:
        if self.is_product(node):
            self._product(to, node)
        elif node.op.name in (*MOVES, "max_pool2d") and node.inputs[0] in self.places:
            stored, params = self.places[node.inputs[0]]
            rest = [self._floats(to, value) for value in node.inputs[1:]]
            moved = self._emit(to, node.op.name, [stored, *rest], node.attrs)
            self.places[node.outputs[0]] = moved, params
        elif node.op.name in ("relu", "relu6") and node.inputs[0] in self.places:
            self._bounded(to, node)
        elif node.op.name in _RULES and all(map(self._is_at_hand, node.inputs)):
            for value in node.inputs:
                self._stored(to, value, label(node))
            _RULES[node.op.name](self, to, node)
        else:
            inputs = [self._floats(to, value) for value in node.inputs]
            made = to.graph.add_node(node.op, inputs, node.attrs, node.origin)
            to.map.update(zip(node.outputs, made, strict=True))

    def _is_at_hand(self, value: Value) -> bool:
        """Tell whether a value is stored, or a function of one stored value and read only here.

        Such a function between integers becomes a table when the graph is compiled.
        """
        if value in self.places:
            return True
        maker, readers = value.node, self._readers.get(value, [])
        if maker is None or maker.op.family != "elementwise" or value in self.graph.outputs:
            return False
        return len(readers) == 1 and len(maker.inputs) == 1 and maker.inputs[0] in self.places

    def _result(self, node: Node) -> tuple[Value, HostParams]:
        """Return the value whose range a result gets: that of the bound which alone reads it."""
        value, owner = node.outputs[0], label(node)
        after = self._readers.get(value, [])
        alone = len(after) == 1 and value not in self.graph.outputs
        if alone and after[0].op.name in ("relu", "relu6"):
            value = after[0].outputs[0]
        return value, self.ranges.params(value, owner)

    def _bounded(self, to: Rebuilder, node: Node) -> None:
        stored, params = self.places[node.inputs[0]]
        attrs = registry.get_op("requantize").attrs(
            x_zero_point=params.zero_points[0],
            multiplier=1.0,
            **params.form(*_LIMITS[node.op.name]),
        )
        self.places[node.outputs[0]] = self._emit(to, "requantize", [stored], attrs), params

    def is_product(self, node: Node) -> bool:
        """Tell whether a node is a product that is computed in integers."""
        if node.op.name not in _PRODUCTS:
            return False
        weight, name = self.graph.constants.get(node.inputs[1]), label(node)
        if weight is None or any(matches(name, pattern) for pattern in self.kept):
            return False
        if node.op.name == "matmul_fused":
            ranks = weight.array.ndim == 2 and not node.attrs.transpose_a
            return ranks and weight.array.dtype == np.float32
        return bool(weight.array.dtype == np.float32)

    def weight(self, node: Node) -> tuple[np.ndarray, HostParams]:
        """Return a product's weight as integers, and its parameters by output channel."""
        array = self.graph.constants[node.inputs[1]].array
        axis = 0
        if node.op.name == "matmul_fused":
            axis = 0 if node.attrs.transpose_b else 1
        assert self.config.weight_observer is not None
        observer = self.config.weight_observer()
        dtype, rest = observer.dtype, tuple(a for a in range(array.ndim) if a != axis)
        if getattr(observer, "channel_axis", None) is None:
            rest = tuple(range(array.ndim))
        reach = np.abs(array).max(axis=rest, initial=0).reshape(-1)
        scales = np.maximum(reach / np.float32(dtype.qmax), np.float32(1e-8)).astype(np.float32)
        zeros = (0,) * len(scales)
        params = HostParams(
            tuple(map(float, scales)), zeros, axis if len(scales) > 1 else -1, dtype
        )
        known = self.roundings.get(node)
        return params.stored(array) if known is None else known, params

    def _product(self, to: Rebuilder, node: Node) -> None:
        owner, rest = label(node), list(node.inputs[2:])
        bias = rest.pop(0) if node.attrs.has_bias else None
        residual = rest.pop(0) if node.attrs.has_residual else None
        known = None if bias is None else self.graph.constants.get(bias)
        if bias is not None and known is None:
            raise AttrError(
                f"{owner}: its bias depends on data, got the result of an op, expected a constant"
            )
        x, x_params = self._stored(to, node.inputs[0], owner)
        integers, w_params = self.weight(node)
        _, result = self._result(node)
        scales = np.asarray(w_params.scales, np.float64) * x_params.scales[0]
        inputs = [x, to.graph.add_constant(integers, node.inputs[1].name)]
        numbers = self._bias(node, known, scales)
        if numbers is not None:
            inputs.append(to.graph.add_constant(numbers, bias.name if bias else f"{owner}.bias"))
        other = None if residual is None else self._stored(to, residual, owner)
        inputs += [] if other is None else [other[0]]
        attrs = self._product_attrs(node, x_params, scales, result, numbers is not None, other)
        made = self._emit(to, _PRODUCTS[node.op.name], inputs, attrs)
        self.places[node.outputs[0]] = made, result

    def _bias(self, node: Node, known: Any, scales: np.ndarray) -> np.ndarray | None:
        shift = self.corrections.get(node)
        if known is None and shift is None:
            return None
        real = np.zeros(1) if known is None else known.array.astype(np.float64).reshape(-1)
        real = real if shift is None else real - shift
        limit = rules.ACCUMULATOR_LIMIT
        return np.asarray(np.clip(np.rint(real / scales), -limit, limit).astype(np.int32))

    def _product_attrs(
        self,
        node: Node,
        x: HostParams,
        scales: np.ndarray,
        result: HostParams,
        has_bias: bool,
        other: tuple[Value, HostParams] | None,
    ) -> Any:
        own = node.attrs
        names = ("stride", "padding", "dilation", "groups", "transpose_a", "transpose_b")
        geometry = {name: getattr(own, name) for name in names if hasattr(own, name)}
        limits = (own.lower, own.upper) if own.activation == "clip" else _LIMITS.get(own.activation)
        scale = result.scales[0]
        return registry.get_op(_PRODUCTS[node.op.name]).attrs(
            **geometry,
            has_bias=has_bias,
            has_residual=other is not None,
            x_zero_point=x.zero_points[0],
            w_zero_points=(0,),
            multipliers=tuple(rules.multiplier(float(s), scale) for s in scales),
            residual_zero_point=0 if other is None else other[1].zero_points[0],
            residual_multiplier=1.0
            if other is None
            else rules.multiplier(other[1].scales[0], scale),
            **result.form(*(limits or _LIMITS["identity"])),
        )

    def _add(self, to: Rebuilder, node: Node) -> None:
        (a, a_params), (b, b_params) = (self.places[value] for value in node.inputs)
        _, result = self._result(node)
        attrs = registry.get_op("add_quantized").attrs(
            a_zero_point=a_params.zero_points[0],
            b_zero_point=b_params.zero_points[0],
            a_multiplier=rules.multiplier(a_params.scales[0], result.scales[0]),
            b_multiplier=rules.multiplier(b_params.scales[0], result.scales[0]),
            **result.form(),
        )
        self.places[node.outputs[0]] = self._emit(to, "add_quantized", [a, b], attrs), result

    def _concat(self, to: Rebuilder, node: Node) -> None:
        parts = [self.places[value] for value in node.inputs]
        _, result = self._result(node)
        attrs = registry.get_op("concat_quantized").attrs(
            axis=node.attrs.axis,
            x_zero_points=tuple(p.zero_points[0] for _, p in parts),
            multipliers=tuple(rules.multiplier(p.scales[0], result.scales[0]) for _, p in parts),
            **result.form(),
        )
        made = self._emit(to, "concat_quantized", [value for value, _ in parts], attrs)
        self.places[node.outputs[0]] = made, result

    def _average(self, to: Rebuilder, node: Node) -> None:
        own, spec = node.attrs, node.inputs[0].spec
        x, params = self.places[node.inputs[0]]
        _, result = self._result(node)
        name, places = "adaptive_avg_pool2d_quantized", {"size": (1, 1)}
        if node.op.name == "avg_pool2d":
            keys = ("kernel", "stride", "padding", "count_include_pad")
            name, places = "avg_pool2d_quantized", {key: getattr(own, key) for key in keys}
        elif node.op.name == "adaptive_avg_pool2d":
            places = {"size": own.size}
        elif spec.ndim != 4 or own.axes != (2, 3):
            self._stay(to, node)
            return
        attrs = registry.get_op(name).attrs(
            **places,
            x_zero_point=params.zero_points[0],
            multiplier=rules.multiplier(params.scales[0], result.scales[0]),
            **result.form(),
        )
        made = self._emit(to, name, [x], attrs)
        shape = node.outputs[0].spec.shape
        if len(shape) != 4:
            made = self._emit(to, "reshape", [made], registry.get_op("reshape").attrs(shape))
        self.places[node.outputs[0]] = made, result

    def _stay(self, to: Rebuilder, node: Node) -> None:
        inputs = [self._floats(to, value) for value in node.inputs]
        to.map[node.outputs[0]] = self._emit(to, node.op.name, inputs, node.attrs)


_RULES: dict[str, Callable[[Quantiser, Rebuilder, Node], None]] = {
    "add": Quantiser._add,
    "concat": Quantiser._concat,
    "avg_pool2d": Quantiser._average,
    "adaptive_avg_pool2d": Quantiser._average,
    "mean": Quantiser._average,
}

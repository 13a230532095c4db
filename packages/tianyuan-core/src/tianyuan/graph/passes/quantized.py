"""Turn dequantize -> op -> quantize into ops on integers, each by its exact definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ... import registry
from ...ops import quantized_rules as rules
from ...ops.quantized import Dequantize
from ...records import record
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from . import fold, quantized_products, quantized_tables
from .match import Users, emit, produced_by, rewrite, same_shape
from .quantized_values import Form, Quantised, array_of, dequantised, factor

# What moves stored integers just as it moves the numbers that they stand for.
_MOVES = ("reshape", "transpose", "slice", "copy", "take", "max_pool2d")


def sink(graph: Graph, options: Options) -> Graph:
    """Move values before they are dequantised, and quantise constants now."""

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        if node.op.name == "quantize":
            return _stored_constant(to, node)
        if node.op.name in _MOVES:
            return _moved(to, node)
        return _joined(to, node) if node.op.name == "concat" else None

    return rewrite(graph, visit)


def _stored_constant(to: Rebuilder, node: Node) -> list[Value] | None:
    constant = to.graph.constants.get(to.map[node.inputs[0]])
    if constant is None:
        return None
    (array,) = fold.evaluate(node.op, [constant.array], node.attrs)
    value = to.graph.add_constant(np.asarray(array), constant.name)
    value.spec = node.outputs[0].spec
    return [value]


def _moved(to: Rebuilder, node: Node) -> list[Value] | None:
    maker = produced_by(to.map[node.inputs[0]], "dequantize")
    if maker is None:
        return None
    attrs: Dequantize = maker.attrs
    if attrs.axis >= 0:
        if node.op.name != "transpose":
            return None
        attrs = replace(attrs, axis=node.attrs.perm.index(attrs.axis))
    rest = to.mapped(node.inputs[1:])
    moved = emit(to, node.op.name, [maker.inputs[0], *rest], node.attrs, node.origin)
    return [emit(to, "dequantize", [moved], attrs, node.origin)]


def _joined(to: Rebuilder, node: Node) -> list[Value] | None:
    """Join values of one quantisation as integers."""
    makers = [produced_by(to.map[value], "dequantize") for value in node.inputs]
    known = [maker for maker in makers if maker is not None]
    if len(known) != len(makers) or any(maker.attrs.axis >= 0 for maker in known):
        return None
    stored = [maker.inputs[0] for maker in known]
    forms = {(maker.attrs, value.spec.dtype.name, value.spec.quant)
             for maker, value in zip(known, stored, strict=True)}  # fmt: skip
    if len(forms) > 1:
        return None
    joined = emit(to, "concat", stored, node.attrs, node.origin)
    return [emit(to, "dequantize", [joined], known[0].attrs, node.origin)]


def run(graph: Graph, options: Options) -> Graph:
    """Replace each quantize whose argument is computed from dequantised values only."""
    users = Users(graph)

    def visit(to: Rebuilder, node: Node) -> list[Value] | None:
        if node.op.name == "requantize":
            return _clamped(to, node, users)
        form = _form(node)
        if form is None:
            return None
        value, bounds = _bounded(to, node.inputs[0], form, users)
        found = _Chain(to, users, bounds, node.origin).integers(value)
        if found is None:
            found = quantized_tables.looked_up(to, node, form)
        return None if found is None else [found]

    return rewrite(graph, visit)


def _clamped(to: Rebuilder, node: Node, users: Users) -> list[Value] | None:
    """Let what makes integers bound them too, where a node does nothing else to them."""
    source, attrs = to.map[node.inputs[0]], node.attrs
    form = Form(attrs.scale, attrs.zero_point, attrs.dtype, attrs.lower, attrs.upper)
    kept = source.spec.quant == form.quant and source.spec.dtype.name == form.dtype
    if not kept or attrs.multiplier != 1.0:
        return None
    if _within(source, form):
        return [source]
    maker = source.node
    if maker is None or not hasattr(maker.attrs, "lower") or not users.single(node.inputs[0]):
        return None
    if maker.op.family != "quantized":
        return None
    low, high = maker.attrs.lower, maker.attrs.upper
    bounds = {
        "lower": min(max(low, form.lower), form.upper),
        "upper": min(max(high, form.lower), form.upper),
    }
    changed = replace(maker.attrs, **bounds)
    return [emit(to, maker.op.name, maker.inputs, changed, maker.origin)]


def _form(node: Node) -> Form | None:
    attrs = node.attrs
    if node.op.name != "quantize" or attrs.axis >= 0 or attrs.dtype not in rules.EIGHT_BITS:
        return None
    lower, upper = rules.quant_range(attrs.dtype)
    return Form(attrs.scales[0], attrs.zero_points[0], attrs.dtype, lower, upper)


def _bounded(to: Rebuilder, value: Value, form: Form, users: Users) -> tuple[Value, Form]:
    """Take activations that only bound a value into the bounds of its integers.

    Quantising keeps order, so bounding before it equals bounding the integers after it.
    """
    steps: list[tuple[float, float]] = []
    found = _bound(to, value)
    while found is not None and users.single(value):
        value, low, high = found
        steps.append((low, high))
        found = _bound(to, value)
    for low, high in reversed(steps):
        lower, upper = form.stored(low), form.stored(high)
        form = replace(
            form,
            lower=min(max(form.lower, lower), upper),
            upper=min(max(form.upper, lower), upper),
        )
    return value, form


def _bound(to: Rebuilder, value: Value) -> tuple[Value, float, float] | None:
    """Return what a node bounds, and the bounds."""
    node = value.node
    if node is None:
        return None
    if node.op.name in ("relu", "relu6"):
        return node.inputs[0], 0.0, 6.0 if node.op.name == "relu6" else np.inf
    if node.op.name not in ("maximum", "minimum"):
        return None
    for index in (0, 1):
        limit = array_of(to.source, node.inputs[1 - index])
        if limit is None or limit.size != 1 or np.isnan(limit).any():
            continue
        if same_shape(node.inputs[index].spec.shape, value.spec.shape):
            bound = float(limit.reshape(-1)[0])
            low, high = (bound, np.inf) if node.op.name == "maximum" else (-np.inf, bound)
            return node.inputs[index], low, high
    return None


@record()
class _Chain:
    """One quantize, seen from its end: the form of its integers, and who reads what."""

    to: Rebuilder
    users: Users
    form: Form
    origin: str

    def integers(self, value: Value) -> Value | None:
        """Return the integers that quantising a value gives, or None where it is not matched."""
        source = dequantised(self.to, value)
        if source is not None:
            return self._rescaled(source)
        node = value.node
        if node is None or not self.users.single(value):
            return None
        found = quantized_products.integers(self.to, self.users, self.form, value)
        if found is not None:
            return found
        if node.op.name in ("reshape", "transpose"):
            # Numbers are quantised wherever they lie.
            found = self.integers(node.inputs[0])
            return None if found is None else emit(self.to, node.op.name, [found], node.attrs)
        if node.op.name == "add":
            return self._added(node)
        if node.op.name == "concat":
            return self._joined(node)
        return self._averaged(node)

    def _emit(self, name: str, inputs: list[Value], **attrs: Any) -> Value:
        made = registry.get_op(name).attrs(**attrs, **self.form.attrs())
        return emit(self.to, name, inputs, made, self.origin)

    def _rescaled(self, source: Quantised) -> Value | None:
        form, value = self.form, source.value
        full = _within(value, form)
        same = (source.scale, source.zero_point) == (form.scale, form.zero_point)
        kept = value.spec.quant == form.quant
        if full and same and kept and value.spec.dtype.name == form.dtype:
            return value
        scale = factor(source.scale, form.scale)
        if scale is None:
            return None
        return self._emit("requantize", [value], x_zero_point=source.zero_point, multiplier=scale)

    def _added(self, node: Node) -> Value | None:
        sides = [dequantised(self.to, value) for value in node.inputs]
        left, right = sides
        if left is None or right is None:
            return None
        factors = [factor(side.scale, self.form.scale) for side in (left, right)]
        if None in factors:
            return None
        return self._emit(
            "add_quantized",
            [left.value, right.value],
            a_zero_point=left.zero_point,
            b_zero_point=right.zero_point,
            a_multiplier=factors[0],
            b_multiplier=factors[1],
        )

    def _joined(self, node: Node) -> Value | None:
        parts = [dequantised(self.to, value) for value in node.inputs]
        known = [part for part in parts if part is not None]
        factors = [factor(part.scale, self.form.scale) for part in known]
        if len(known) != len(parts) or None in factors:
            return None
        return self._emit(
            "concat_quantized",
            [part.value for part in known],
            axis=node.attrs.axis,
            x_zero_points=tuple(part.zero_point for part in known),
            multipliers=tuple(factors),
        )

    def _averaged(self, node: Node) -> Value | None:
        places = _average(node)
        source = dequantised(self.to, node.inputs[0]) if places is not None else None
        scale = None if source is None else factor(source.scale, self.form.scale)
        if places is None or source is None or scale is None:
            return None
        name, attrs = places
        found = self._emit(
            name, [source.value], x_zero_point=source.zero_point, multiplier=scale, **attrs
        )
        shape = node.outputs[0].spec.shape
        if len(shape) == 4:
            return found
        return emit(self.to, "reshape", [found], registry.get_op("reshape").attrs(shape))


def _within(value: Value, form: Form) -> bool:
    """Tell whether a stored value keeps the bounds of a form without being bounded again."""
    lower, upper = rules.quant_range(form.dtype)
    if value.node is not None and value.node.op.family == "quantized":
        lower = max(lower, getattr(value.node.attrs, "lower", lower))
        upper = min(upper, getattr(value.node.attrs, "upper", upper))
    return form.lower <= lower and upper <= form.upper


def _average(node: Node) -> tuple[str, dict[str, Any]] | None:
    """Return the quantised op that averages as a node does, with its geometry."""
    attrs = node.attrs
    if node.op.name == "avg_pool2d":
        names = ("kernel", "stride", "padding", "count_include_pad")
        places = {name: getattr(attrs, name) for name in names}
        window = attrs.kernel[0] * attrs.kernel[1]
        return ("avg_pool2d_quantized", places) if _sums_fit(window) else None
    pixels = 0
    if node.inputs and node.inputs[0].spec.ndim == 4:
        pixels = int(node.inputs[0].spec.shape[2]) * int(node.inputs[0].spec.shape[3])
    if not pixels or not _sums_fit(pixels):
        return None
    if node.op.name == "adaptive_avg_pool2d":
        return "adaptive_avg_pool2d_quantized", {"size": attrs.size}
    if node.op.name == "mean" and attrs.axes == (2, 3):
        return "adaptive_avg_pool2d_quantized", {"size": (1, 1)}
    return None


def _sums_fit(count: int) -> bool:
    return count * 255 <= rules.ACCUMULATOR_LIMIT

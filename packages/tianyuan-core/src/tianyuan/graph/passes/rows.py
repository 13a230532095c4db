"""Compute only the rows that are read, where a slice follows ops that treat rows apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import shapes
from ...ops.attrs import Shape, Slice
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from .match import emit, exact, rewrite

# Ops that are worth it: without one of them on the way, a slice stays where it is.
PRODUCTS = ("matmul", "matmul_fused", "matmul_quantized", "attention")


@dataclass(frozen=True)
class Cut:
    """Some indices of one axis of a value, and all of the others."""

    axis: int
    start: int
    size: int
    step: int

    def at(self, axis: int) -> Cut:
        """Return the same indices of another axis."""
        return replace(self, axis=axis)


Needs = list["Cut | None"]  # of each input of a node; None is all of it


def run(graph: Graph, options: Options) -> Graph:
    """Turn slice(op(x)) into op(slice(x)) as far up as all readers of a value read the same rows.

    A classifier that reads one row of an encoder's result needs one row of its last layer but for
    keys and values; whoever reads the last row of scores needs one row of a language model's head.
    """
    plan = _Plan(graph)
    if not any(node.op.name in PRODUCTS for node in plan.through):
        return graph
    return rewrite(graph, plan.visit)


class _Plan:
    """Which values everybody reads the same cut of, and which nodes compute no more than that."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.cuts: dict[Value, Cut] = {}
        self.through: dict[Node, Needs] = {}
        self.made: dict[tuple[Value, Any], Value] = {}
        whole = set(graph.roots())
        for node in reversed(graph.nodes):
            for value, cut in zip(node.inputs, self._needs(node, whole), strict=True):
                known = self.cuts.setdefault(value, cut) if cut is not None else None
                if cut is None or value in whole or exact(known) != exact(cut):
                    whole.add(value)
                    self.cuts.pop(value, None)

    def _needs(self, node: Node, whole: set[Value]) -> Needs:
        nothing: Needs = [None] * len(node.inputs)
        if not node.op.pure or len(node.outputs) != 1:
            return nothing
        cut = self.cuts.get(node.outputs[0])
        if cut is None:
            own = _cut_of(self.graph, node)
            return [own, *nothing[1:]] if own is not None else nothing
        found = _needed(node, cut)
        if found is None:
            return nothing
        self.through[node] = found
        return found

    def visit(self, to: Rebuilder, node: Node) -> list[Value] | None:
        """Compute a node's cut alone, and leave out slices that got nothing else."""
        needs = self.through.get(node)
        if needs is not None:
            pairs = zip(node.inputs, needs, strict=True)
            inputs = [self._read(to, value, cut) if cut else to.map[value] for value, cut in pairs]
            attrs = _attrs_of(node, self.cuts[node.outputs[0]])
            return [emit(to, node.op.name, inputs, attrs, node.origin)]
        source = node.inputs[0] if node.inputs else None
        if source not in self.cuts or source.node not in self.through:
            return None
        cut = to.map[source]
        if node.op.name == "slice":
            return [cut]
        return [emit(to, "reshape", [cut], Shape(node.outputs[0].spec.shape), node.origin)]

    def _read(self, to: Rebuilder, value: Value, cut: Cut) -> Value:
        """Return a cut of an old value in the new graph."""
        new = to.map[value]
        if value in self.cuts and value.node in self.through:
            return new
        key = (value, exact(cut))
        if key not in self.made:
            self.made[key] = emit(to, "slice", [new], _slice_of(new.spec.shape, cut))
        return self.made[key]


def _same(left: int, right: int) -> bool:
    return bool(shapes.expr_of(left) == shapes.expr_of(right))


def _slice_of(shape: Sequence[int], cut: Cut) -> Slice:
    starts, sizes, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[cut.axis], sizes[cut.axis], steps[cut.axis] = cut.start, cut.size, cut.step
    return Slice(tuple(starts), tuple(sizes), tuple(steps))


def _cut_of(graph: Graph, node: Node) -> Cut | None:
    """Return what a node reads of its input if it reads fewer indices of one axis, else None."""
    if node.op.name == "take":
        return _taken(graph, node)
    if node.op.name != "slice":
        return None
    shape, at = node.inputs[0].spec.shape, node.attrs
    plain = exact((0, 1))
    found = [
        Cut(axis, at.starts[axis], at.sizes[axis], at.steps[axis])
        for axis, extent in enumerate(shape)
        if exact((at.starts[axis], at.steps[axis])) != plain or not _same(at.sizes[axis], extent)
    ]
    if len(found) != 1 or _same(found[0].size, shape[found[0].axis]):
        return None
    return found[0]


def _taken(graph: Graph, node: Node) -> Cut | None:
    """Return the cut that a constant index picks, where it is certain to lie in the axis."""
    constant = graph.constants.get(node.inputs[1])
    if constant is None or constant.spec.ndim != 0:
        return None
    axis, index = node.attrs.axis, int(constant.array)
    extent = node.inputs[0].spec.shape[axis]
    if isinstance(extent, shapes.Dim):
        return Cut(axis, 0, 1, 1) if index == 0 else None
    if extent < 2 or not -extent <= index < extent:
        return None
    return Cut(axis, index % extent, 1, 1)


def _needed(node: Node, cut: Cut) -> Needs | None:
    """Return what a cut of a node's output needs of its inputs, or None where that is unclear."""
    name = node.op.name
    if name in _RULES:
        return _RULES[name](node, cut)
    return _elementwise(node, cut) if node.op.family == "elementwise" else None


def _rest(node: Node, first: Cut) -> Needs:
    return [first, *[None] * (len(node.inputs) - 1)]


def _elementwise(node: Node, cut: Cut) -> Needs | None:
    shape = node.outputs[0].spec.shape
    found: Needs = []
    for value in node.inputs:
        axis = cut.axis - len(shape) + value.spec.ndim
        if axis < 0 or _same(value.spec.shape[axis], 1):
            found.append(None)
        elif _same(value.spec.shape[axis], shape[cut.axis]):
            found.append(cut.at(axis))
        else:
            return None
    return found if any(found) else None


def _product(node: Node, cut: Cut) -> Needs | None:
    left, right, out = node.inputs[0].spec, node.inputs[1].spec, node.outputs[0].spec
    rows = out.ndim - 2
    if node.attrs.transpose_a or left.ndim != out.ndim or cut.axis > rows:
        return None
    if right.ndim != 2 and cut.axis != rows:
        return None
    found = _rest(node, cut)
    if getattr(node.attrs, "has_residual", False):
        found[-1] = cut
    return found


def _attention(node: Node, cut: Cut) -> Needs | None:
    query, out = node.inputs[0].spec, node.outputs[0].spec
    rows = out.ndim - 2
    if node.attrs.causal or query.ndim != out.ndim or cut.axis != rows:
        return None
    found = _rest(node, cut)
    for index, mask in enumerate(node.inputs[3:], 3):
        axis = mask.spec.ndim - 2
        if not _same(mask.spec.shape[axis], 1):
            found[index] = cut.at(axis)
    return found


def _layer_norm(node: Node, cut: Cut) -> Needs | None:
    return _rest(node, cut) if cut.axis < node.inputs[0].spec.ndim - node.attrs.ndim else None


def _along(node: Node, cut: Cut) -> Needs | None:
    """Serve ops along an axis, or with numbers for each index of one; -1 is none."""
    return _rest(node, cut) if node.attrs.axis != cut.axis else None


def _each(node: Node, cut: Cut) -> Needs | None:
    """Serve ops that do the same to each element of their first input."""
    return _rest(node, cut)


def _transpose(node: Node, cut: Cut) -> Needs | None:
    return [cut.at(node.attrs.perm[cut.axis])]


def _reshape(node: Node, cut: Cut) -> Needs | None:
    """Find the axis of the input with the same extent and as many elements before it."""
    shape, source = node.outputs[0].spec.shape, node.inputs[0].spec.shape
    before = shapes.volume(shape[: cut.axis])
    for axis, extent in enumerate(source):
        if _same(extent, shape[cut.axis]) and _same(shapes.volume(source[:axis]), before):
            return [cut.at(axis)]
    return None


def _slice(node: Node, cut: Cut) -> Needs | None:
    at, extent = node.attrs, node.inputs[0].spec.shape[cut.axis]
    whole = exact((at.starts[cut.axis], at.steps[cut.axis])) == exact((0, 1))
    return [cut] if whole and _same(at.sizes[cut.axis], extent) else None


_RULES = {
    "matmul": _product,
    "matmul_fused": _product,
    "matmul_quantized": _product,
    "attention": _attention,
    "layer_norm": _layer_norm,
    "softmax": _along,
    "quantize": _along,
    "dequantize": _along,
    "requantize": _each,
    "lookup_quantized": _each,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice,
}


def _attrs_of(node: Node, cut: Cut) -> Any:
    """Return the attributes with which a node computes a cut."""
    if node.op.name == "reshape":
        shape = node.attrs.shape
        return Shape((*shape[: cut.axis], cut.size, *shape[cut.axis + 1 :]))
    if node.op.name == "slice":
        sizes = node.attrs.sizes
        return replace(node.attrs, sizes=(*sizes[: cut.axis], cut.size, *sizes[cut.axis + 1 :]))
    return node.attrs

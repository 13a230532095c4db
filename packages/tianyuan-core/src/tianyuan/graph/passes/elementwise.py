"""Fuse neighbouring elementwise ops into one op that walks memory once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ... import registry, shapes
from ...ops.attrs import FusedElementwise
from ...ops.codes import ELEMENTWISE_CODES
from ..graph import Graph, Node, Rebuilder, Value
from ..options import Options
from .match import same_shape, scalar

MOST_INSTRUCTIONS = 32
MOST_INPUTS = 8
WIDTH = 4  # ints per instruction: opcode and three registers


@dataclass(eq=False)
class Region:
    """Nodes that will run as one, in their order; the last one's place is where they run."""

    nodes: list[Node] = field(default_factory=list)

    def __contains__(self, node: Node | None) -> bool:
        return node in self.nodes


def run(graph: Graph, options: Options) -> Graph:
    """Replace every region of two or more elementwise float32 ops by one fused op."""
    regions = _Grower(graph).grow()
    if not regions:
        return graph
    home = {node: region for region in regions for node in region.nodes}
    roots = set(graph.roots())
    users = graph.users()

    def visit(to: Rebuilder, node: Node) -> Sequence[Value] | None:
        region = home.get(node)
        if region is None:
            return None
        if node is region.nodes[-1]:
            _emit(to, region, _escaping(region, users, roots))
            return [to.map.get(value, value) for value in node.outputs]
        # Nobody outside looks at these before the region runs: see _Grower.
        return node.outputs

    return Rebuilder(graph).run(visit)


def _escaping(region: Region, users: dict[Value, list[Node]], roots: set[Value]) -> list[Value]:
    """Return the values of a region that something outside needs."""
    return [
        value
        for node in region.nodes
        for value in node.outputs
        if value in roots or any(user not in region for user in users.get(value, ()))
    ]


class _Grower:
    """Grows regions in the order of the nodes.

    A node joins the regions of its inputs only where every other reader of those regions stands
    behind it. A region can then run at its last node's place: all it reads is made before, and
    all who read it come after, so no cycle can arise.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.roots = set(graph.roots())
        self.users = graph.users()
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.home: dict[Node, Region] = {}

    def grow(self) -> list[Region]:
        """Return all regions of two nodes or more."""
        for node in self.graph.nodes:
            if self._fits(node):
                self._join(node)
        regions = {id(region): region for region in self.home.values()}
        trimmed = [self._without_masks(region) for region in regions.values()]
        return [region for region in trimmed if self._is_valid(region)]

    def _fits(self, node: Node) -> bool:
        """Tell whether a node may be part of a region at all."""
        if node.op.name not in ELEMENTWISE_CODES or not node.op.pure:
            return False
        out = node.outputs[0]
        if out.spec.quant is not None or out.spec.dtype.name not in ("float32", "bool"):
            return False
        if _is_mask(out) and not self._stays_inside(out):
            return False
        return all(value.spec.dtype.name in ("float32", "bool") for value in node.inputs)

    def _stays_inside(self, mask: Value) -> bool:
        """Tell whether all who read a mask could be in its region."""
        return mask not in self.roots and all(
            user.op.name in ELEMENTWISE_CODES
            and same_shape(user.outputs[0].spec.shape, mask.spec.shape)
            for user in self.users.get(mask, ())
        )

    def _join(self, node: Node) -> None:
        joined = Region([node])
        for value in node.inputs:
            region = self.home.get(value.node) if value.node else None
            if region is None or node in region or set(region.nodes) <= set(joined.nodes):
                continue
            merged = Region(sorted({*joined.nodes, *region.nodes}, key=self.position.__getitem__))
            if self._may_merge(merged, node):
                joined = merged
        masks = [value for value in node.inputs if value.spec.dtype.name == "bool"]
        if any(mask.node not in joined for mask in masks):
            return  # a mask may be made inside a region but not come from outside
        for member in joined.nodes:
            self.home[member] = joined

    def _may_merge(self, region: Region, last: Node) -> bool:
        shape = last.outputs[0].spec.shape
        if len(region.nodes) > MOST_INSTRUCTIONS or len(self._inputs(region)) > MOST_INPUTS:
            return False
        members = set(region.nodes)
        for member in region.nodes:
            if not same_shape(member.outputs[0].spec.shape, shape):
                return False
            for user in self.users.get(member.outputs[0], ()):
                if user not in members and self.position[user] < self.position[last]:
                    return False
        return True

    def _inputs(self, region: Region) -> list[Value]:
        return [v for v in inputs_of(region) if scalar(self.graph, v) is None]

    def _without_masks(self, region: Region) -> Region:
        """Leave out the nodes by which masks would cross the region's border."""
        while True:
            escaping = {v.node for v in _escaping(region, self.users, self.roots) if _is_mask(v)}
            reading = {
                node
                for node in region.nodes
                for value in node.inputs
                if _is_mask(value) and value.node not in region
            }
            kept = [node for node in region.nodes if node not in escaping | reading]
            if len(kept) == len(region.nodes):
                return region
            region = Region(kept)

    def _is_valid(self, region: Region) -> bool:
        """Tell whether a region is worth an op, and reads and returns float32 only."""
        inputs = self._inputs(region)
        edges = inputs + _escaping(region, self.users, self.roots)
        return (
            len(region.nodes) > 1
            and self._may_merge(region, region.nodes[-1])
            and len(inputs) > 0
            and all(value.spec.dtype.name == "float32" for value in edges)
            and all(v.spec.dtype.name == "float32" for v in inputs_of(region))
            and all(self._keeps_shape(node) for node in region.nodes)
        )

    def _keeps_shape(self, node: Node) -> bool:
        """Tell whether a node's shape stays the same when its scalar constants have no axes."""
        operands = [v.spec.shape for v in node.inputs if scalar(self.graph, v) is None]
        if not operands:
            return False
        return same_shape(shapes.broadcast("", *operands), node.outputs[0].spec.shape)


def _is_mask(value: Value) -> bool:
    return bool(value.spec.dtype.kind == "b")


def inputs_of(region: Region) -> list[Value]:
    """Return what a region reads from outside, each once, in order of first use."""
    return list(
        dict.fromkeys(
            value for node in region.nodes for value in node.inputs if value.node not in region
        )
    )


def _emit(to: Rebuilder, region: Region, outputs: list[Value]) -> None:
    """Append the fused op and map the region's outputs to its."""
    read = inputs_of(region)
    known = {value: scalar(to.source, value) for value in read}
    inputs = [value for value in read if known[value] is None]
    constants = [number for number in known.values() if number is not None]
    scalars = [value for value in read if known[value] is not None]
    register = {value: index for index, value in enumerate([*inputs, *scalars])}
    code: list[int] = []
    for node in region.nodes:
        operands = [register[value] for value in node.inputs]
        code += [ELEMENTWISE_CODES[node.op.name], *operands, *[0] * (WIDTH - 1 - len(operands))]
        register[node.outputs[0]] = len(register)
    attrs = FusedElementwise(
        tuple(code), tuple(constants), tuple(register[value] for value in outputs)
    )
    op = registry.get_op("fused_elementwise")
    origin = region.nodes[-1].origin
    results = to.graph.add_node(op, to.mapped(inputs), attrs, origin)
    to.map.update(zip(outputs, results, strict=True))

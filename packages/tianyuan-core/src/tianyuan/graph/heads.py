"""Let attention read its heads where they lie, and write them where they go, where that gains."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .. import registry
from ..ops.attention_heads import OP, AttentionHeads
from ..ops.attrs import Shape
from ..records import record
from .graph import Graph, Node, Rebuilder, Value
from .joining import gains, least
from .options import Options
from .passes import algebra, dead
from .passes.match import emit, produced_by, rewrite
from .selection import is_alias

_VIEWS = ("reshape", "transpose", "slice")


@record()
class _View:
    """Where the elements of a value lie among those of another, whose axes have no gaps."""

    base: Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    nodes: tuple[Node, ...]  # what moves them, from ``base`` on


@record()
class _Rows:
    """Heads of a value as columns of ``base`` in the shape (..., rows, columns)."""

    base: Value
    shape: tuple[int, ...]
    start: int
    step: int
    nodes: tuple[Node, ...]


class _Joining:
    """What is known of the graph before: who reads a value, and what its steps cost."""

    def __init__(self, graph: Graph, device: str, options: Options) -> None:
        self.readers = graph.users()
        self.roots = set(graph.roots())
        self.order = {node: index for index, node in enumerate(graph.nodes)}
        self.device, self.options = device, options

    def visit(self, to: Rebuilder, node: Node) -> list[Value] | None:
        """Replace a transposition that merges the heads of an attention, where that gains."""
        attention = produced_by(node.inputs[0], "attention") if node.inputs else None
        if attention is None or not _merges(node) or not self._dies(node.inputs[0], {node}):
            return None
        operands = [found for x in attention.inputs[:3] if (found := _rows_of(x)) is not None]
        if len(operands) < 3:
            return None
        attrs = _attrs(attention, operands)
        if not self._gains(node, attention, operands, attrs):
            return None
        inputs = [
            emit(to, "reshape", [to.map[x.base]], Shape(x.shape), node.origin) for x in operands
        ]
        inputs += to.mapped(attention.inputs[3:])
        made = emit(to, OP, inputs, attrs, attention.origin)
        return [emit(to, "reshape", [made], Shape(node.outputs[0].spec.shape), node.origin)]

    def _dies(self, value: Value, with_: set[Node]) -> bool:
        """Tell whether nobody but the given nodes reads a value."""
        return value not in self.roots and with_.issuperset(self.readers.get(value, ()))

    def _gains(
        self, last: Node, attention: Node, operands: Sequence[_Rows], attrs: AttentionHeads
    ) -> bool:
        """Tell whether a native kernel takes less than the steps that it would replace."""
        gone = {last}
        nodes = {attention}.union(*(x.nodes for x in operands))
        for node in sorted(nodes, key=self.order.__getitem__, reverse=True):
            if self._dies(node.outputs[0], gone):
                gone.add(node)
        inputs = [Value(x.base.spec.moved(x.shape)) for x in operands]
        inputs += attention.inputs[3:]
        op = registry.get_op(OP)
        specs = op.infer(tuple(value.spec for value in inputs), attrs)
        joined = Node(op, attrs, inputs, [Value(spec) for spec in specs])
        return gains(joined, (node for node in gone if not is_alias(node)), self._cost)

    def _cost(self, node: Node) -> float | None:
        return least(node, self.device, self.options)


def join(graph: Graph, device: str, options: Options) -> Graph:
    """Replace attention and what moves its heads in a graph of concrete sizes, where it gains."""
    if not any(node.op.name == "attention" for node in graph.nodes):
        return graph
    joined = rewrite(graph, _Joining(graph, device, options).visit)
    if joined is graph:
        return graph
    # Reshapes that do nothing would keep values in plain layouts.
    return dead.run(algebra.run(joined, options), options)


def _attrs(attention: Node, operands: Sequence[_Rows]) -> AttentionHeads:
    out, query = attention.outputs[0].spec.shape, attention.inputs[0].spec.shape
    return AttentionHeads(
        attention.attrs.scale,
        attention.attrs.causal,
        heads=int(out[-3]),
        depth=int(query[-1]),
        width=int(out[-1]),
        starts=tuple(x.start for x in operands),
        steps=tuple(x.step for x in operands),
    )


def _merges(node: Node) -> bool:
    """Tell whether a node turns (..., heads, rows, width) into (..., rows, heads, width)."""
    shape = node.inputs[0].spec.shape
    if (
        node.op.name != "transpose"
        or len(shape) < 3
        or shape[-3] < 2
        or not node.outputs[0].spec.size
    ):
        return False
    *lead, heads, rows, width = range(len(shape))
    wide = [axis for axis in (*lead, rows, heads, width) if shape[axis] != 1]
    return wide == [axis for axis in node.attrs.perm if shape[axis] != 1]


def _rows_of(value: Value) -> _Rows | None:
    """Find the heads of a value of the shape (..., heads, rows, size) as columns, or None."""
    shape = value.spec.shape
    if len(shape) < 3:
        return None
    view = _view_of(value)
    *lead, heads, rows, size = shape
    count = prod(lead) * rows
    if not count or view.base.spec.size % count:
        return None
    columns = view.base.spec.size // count
    wanted = _contiguous((*lead, rows, columns))
    found = (*view.strides[:-3], view.strides[-2], view.strides[-1])
    for extent, stride, want in zip((*lead, rows, size), found, wanted, strict=True):
        if extent != 1 and stride != want:
            return None
    step = view.strides[-3] if heads != 1 else 0
    if step < 0 or view.offset + (heads - 1) * step + size > columns:
        return None
    return _Rows(view.base, (*lead, rows, columns), view.offset, step, view.nodes)


def _view_of(value: Value) -> _View:
    """Follow what only moves elements up to where a value comes from."""
    node = produced_by(value, *_VIEWS)
    if node is not None:
        moved = _moved(_view_of(node.inputs[0]), node)
        if moved is not None:
            return moved
    shape = tuple(map(int, value.spec.shape))
    return _View(value, shape, _contiguous(shape), 0, ())


def _moved(view: _View, node: Node) -> _View | None:
    """Return the view that a node makes of one, or None where elements lie too irregularly."""
    shape, strides, offset = tuple(map(int, node.outputs[0].spec.shape)), view.strides, view.offset
    if node.op.name == "transpose":
        strides = tuple(strides[axis] for axis in node.attrs.perm)
    elif node.op.name == "slice":
        offset += sum(a * b for a, b in zip(node.attrs.starts, strides, strict=True))
        strides = tuple(a * b for a, b in zip(node.attrs.steps, strides, strict=True))
    else:
        found = _reshaped(view, shape)
        if found is None:
            return None
        strides = found
    return _View(view.base, shape, strides, offset, (*view.nodes, node))


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _reshaped(view: _View, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of a view in another shape, or None where no strides give it."""
    # Runs of axes without gaps, from the last on: the elements of each, and the distance of them.
    runs: list[list[int]] = []
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if extent == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= extent
        else:
            runs.append([extent, stride])
    strides: list[int] = []
    left, distance = 1, 1
    for extent in reversed(shape):
        if extent != 1 and left == 1:
            if not runs:
                return None
            left, distance = runs.pop(0)
        if extent == 0 or left % extent:
            return None
        strides.append(distance)
        left, distance = left // extent, distance * extent
    return tuple(reversed(strides))

"""The Graph: ops over values with symbolic extents, states and their updates, in one flat order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from .. import shapes
from ..errors import GraphError
from ..kernel import PLAIN, Kernel
from ..op import Op, TensorSpec


class Constant:
    """An array that never changes, with every packed form of it that a program has asked for.

    Programs of one model share constants, so each form is made once.
    """

    __slots__ = ("name", "spec", "_array", "_read", "_spare", "packed")

    def __init__(self, array: np.ndarray, name: str = "") -> None:
        self.name = name
        self.spec = TensorSpec(array.shape, array.dtype)
        self._array: np.ndarray | None = array
        self._read: Callable[[], np.ndarray] | None = None
        self._spare: Callable[[], None] | None = None
        self.packed: dict[Any, Constant] = {}

    @classmethod
    def lazy(
        cls,
        spec: TensorSpec,
        name: str,
        read: Callable[[], np.ndarray],
        spare: Callable[[], None] | None = None,
    ) -> Constant:
        """Return a constant whose data ``read()`` gives when it is first needed.

        ``spare()`` lets go of memory that can be read again: of any constant's of the same file.
        """
        constant = cls.__new__(cls)
        constant.name, constant.spec = name, spec
        constant._array, constant._read, constant._spare = None, read, spare
        constant.packed = {}
        return constant

    def spare(self) -> None:
        """Say that the data was packed, and is not likely to be read again."""
        if self._spare is not None:
            self._spare()

    @property
    def is_lazy(self) -> bool:
        """Tell whether the data lies, or would lie once read, in memory that can be spared."""
        return self._spare is not None

    def settle(self, array: np.ndarray) -> None:
        """Hold a copy of the data from now on, which need not be read again."""
        self._array, self._read, self._spare = array, None, None

    @property
    def array(self) -> np.ndarray:
        """The data, read from the model file on first use."""
        if self._array is None:
            assert self._read is not None
            self._array = self._read()
        return self._array


class Value:
    """One edge of a graph: what it holds, who makes it, and in which layout it lies."""

    __slots__ = ("spec", "node", "index", "name", "layout", "__weakref__")

    def __init__(self, spec: TensorSpec, name: str = "", layout: str = PLAIN) -> None:
        self.spec = spec
        self.node: Node | None = None  # None for inputs, states and constants
        self.index = 0
        self.name = name
        self.layout = layout

    def __repr__(self) -> str:
        return f"Value({self.name or '?'}: {self.spec})"


class Node:
    """One application of an op; the layout stage adds the kernel that will run it."""

    __slots__ = ("op", "attrs", "inputs", "outputs", "origin", "kernel", "refusals")

    def __init__(
        self,
        op: Op,
        attrs: Any,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        origin: str = "",
    ) -> None:
        self.op = op
        self.attrs = attrs
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.origin = origin
        self.kernel: Kernel | None = None
        self.refusals: tuple[tuple[str, str], ...] = ()
        for index, value in enumerate(self.outputs):
            value.node, value.index = self, index

    def __repr__(self) -> str:
        return f"Node({self.op.name})"


class Graph:
    """A function of inputs and states.

    Attributes:
        inputs: values bound at each call, in order; each has a name.
        states: values of the state cells when a run starts, in order.
        updates: new value of a state at the end of a run, by index into ``states``.
        constants: data of constant values.
        nodes: in topological order; effects keep their relative order.
        outputs: values returned.
    """

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.states: list[Value] = []
        self.updates: dict[int, Value] = {}
        self.constants: dict[Value, Constant] = {}
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []

    def dissolve(self) -> None:
        """Let go of the nodes of a graph that nobody reads any more.

        Nodes and values know each other, so that they would otherwise stay until Python looks for
        cycles, which may be after weights are packed.
        """
        for node in self.nodes:
            for value in node.outputs:
                value.node = None
        self.nodes.clear()

    def add_input(self, spec: TensorSpec, name: str) -> Value:
        """Declare the next input."""
        value = Value(spec, name)
        self.inputs.append(value)
        return value

    def add_state(self, spec: TensorSpec, name: str) -> Value:
        """Declare the next state cell."""
        value = Value(spec, name)
        self.states.append(value)
        return value

    def add_constant(self, constant: Constant | np.ndarray, name: str = "") -> Value:
        """Add a constant; a ``Constant`` given twice is shared."""
        if not isinstance(constant, Constant):
            constant = Constant(np.ascontiguousarray(constant).reshape(constant.shape), name)
        value = Value(constant.spec, constant.name or name)
        self.constants[value] = constant
        return value

    def add_node(
        self, op: Op, inputs: Sequence[Value], attrs: Any, origin: str = ""
    ) -> tuple[Value, ...]:
        """Append an op; its inference makes the outputs."""
        specs = op.infer(tuple(value.spec for value in inputs), attrs)
        node = Node(op, attrs, inputs, [Value(spec) for spec in specs], origin)
        self.nodes.append(node)
        return node.outputs

    def roots(self) -> list[Value]:
        """Return every value that must survive: outputs and state updates."""
        return [*self.outputs, *self.updates.values()]

    def users(self) -> dict[Value, list[Node]]:
        """Map each value to the nodes that read it (a node stands once per reading input)."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                found.setdefault(value, []).append(node)
        return found

    def symbols(self) -> set[str]:
        """Return the names of all dynamic dimensions."""
        found: set[str] = set()
        for value in (*self.inputs, *self.states):
            found |= shapes.symbols_of(value.spec.shape)
        return found

    def rebuild(self, visit: Callable[[Rebuilder, Node], Sequence[Value] | None]) -> Graph:
        """Return a new graph made by visiting every node in order.

        ``visit(rebuilder, node)`` returns the values that take the place of the node's outputs, or
        None to keep the node as it is. Inputs, states and constants carry over; constants that
        nothing reads are left out.
        """
        return Rebuilder(self).run(visit)

    def specialise(self, sizes: Mapping[str, int]) -> Graph:
        """Return this graph with concrete sizes, inferred anew."""
        rebuilder = Rebuilder(self, lambda spec: spec.specialise(dict(sizes)))
        return rebuilder.run(
            lambda to, node: to.graph.add_node(
                node.op,
                to.mapped(node.inputs),
                specialise_attrs(node.attrs, sizes),
                node.origin,
            )
        )

    def __str__(self) -> str:
        return "\n".join(_lines(self))


class Rebuilder:
    """Copies a graph node by node, with a map from old values to new ones."""

    def __init__(
        self, source: Graph, respec: Callable[[TensorSpec], TensorSpec] | None = None
    ) -> None:
        self.source = source
        self.graph = Graph()
        self.map: dict[Value, Value] = {}
        change = respec or (lambda spec: spec)
        for value in source.inputs:
            self.map[value] = self.graph.add_input(change(value.spec), value.name)
        for value in source.states:
            self.map[value] = self.graph.add_state(change(value.spec), value.name)
        for value, constant in source.constants.items():
            new = Value(value.spec, value.name, value.layout)
            self.map[value] = new
            self.graph.constants[new] = constant

    def mapped(self, values: Iterable[Value]) -> list[Value]:
        """Return what stands for old values in the new graph."""
        return [self.map[value] for value in values]

    def keep(self, node: Node) -> tuple[Value, ...]:
        """Copy a node unchanged, with its layouts and kernel."""
        outputs = [Value(v.spec, v.name, v.layout) for v in node.outputs]
        copy = Node(node.op, node.attrs, self.mapped(node.inputs), outputs, node.origin)
        copy.kernel, copy.refusals = node.kernel, node.refusals
        self.graph.nodes.append(copy)
        return copy.outputs

    def run(self, visit: Callable[[Rebuilder, Node], Sequence[Value] | None]) -> Graph:
        """Visit every node and finish the new graph."""
        for node in self.source.nodes:
            replaced = visit(self, node)
            if replaced is None:
                replaced = self.keep(node)
            if len(replaced) != len(node.outputs):
                raise GraphError(
                    f"{node.op.name}: wrong count of values in its place, got {len(replaced)}, "
                    f"expected {len(node.outputs)}"
                )
            self.map.update(zip(node.outputs, replaced, strict=True))
        graph = self.graph
        graph.outputs = self.mapped(self.source.outputs)
        graph.updates = {i: self.map[v] for i, v in self.source.updates.items()}
        read = {v for node in graph.nodes for v in node.inputs} | set(graph.roots())
        graph.constants = {v: c for v, c in graph.constants.items() if v in read}
        return graph


def specialise_attrs(attrs: Any, sizes: Mapping[str, int]) -> Any:
    """Replace symbolic extents inside an attrs object by concrete sizes."""
    changed = {}
    for field in fields(attrs):
        value = getattr(attrs, field.name)
        if isinstance(value, (tuple, shapes.Dim)) and shapes.symbols_of(value):
            changed[field.name] = shapes.specialise(value, sizes)
    return replace(attrs, **changed) if changed else attrs


def _lines(graph: Graph) -> Iterator[str]:
    names: dict[Value, str] = {}

    def name(value: Value) -> str:
        return names.setdefault(value, f"%{len(names)}")

    for kind, values in (("input", graph.inputs), ("state", graph.states)):
        for value in values:
            yield f"{name(value)} = {kind} {value.name!r} {value.spec}"
    for value in graph.constants:
        yield f"{name(value)} = constant {value.name!r} {value.spec}"
    for node in graph.nodes:
        left = ", ".join(map(name, node.outputs))
        right = ", ".join(map(name, node.inputs))
        attrs = ", ".join(f"{f.name}={getattr(node.attrs, f.name)!r}" for f in fields(node.attrs))
        specs = ", ".join(str(v.spec) for v in node.outputs)
        yield f"{left} = {node.op.name}({right}{', ' if right and attrs else ''}{attrs}) : {specs}"
    for index, value in graph.updates.items():
        yield f"state {graph.states[index].name!r} <- {name(value)}"
    yield f"return {', '.join(map(name, graph.outputs))}"

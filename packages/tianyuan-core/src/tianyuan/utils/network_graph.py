"""Turn a graph into operators and variables that can be changed, and those into a graph again."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import shapes
from ..errors import GraphError, TianyuanError
from ..graph.graph import Constant, Graph, Value
from ..op import TensorSpec
from .network_node import (
    ConstOpBase,
    Host2DeviceCopy,
    OpNode,
    SharedDeviceTensor,
    VarNode,
    class_of,
    oprs_of,
)

if TYPE_CHECKING:
    from .network_change import NetworkChanges


def from_graph(
    network: NetworkChanges, graph: Graph, known: Mapping[Value, VarNode] | None = None
) -> tuple[list[OpNode], list[VarNode]]:
    """Make operators of a graph's nodes; ``known`` stands for some of its inputs and constants.

    Returns the operators in the order of the nodes, and what the graph returns.
    """
    if graph.states:
        raise GraphError("network: a graph with states cannot be changed, expected constants")
    made: dict[Value, VarNode] = dict(known or {})
    for value in graph.inputs:
        if value not in made:
            source = Host2DeviceCopy(network, value.name, specs=(value.spec,))
            made[value] = source.outputs[0]
    for value, constant in graph.constants.items():
        if value not in made:
            name = network.fresh(constant.name or "param", exact=True)
            made[value] = SharedDeviceTensor(network, name, constant).outputs[0]
    oprs = []
    for node in graph.nodes:
        opr = class_of(node.op)(
            network,
            network.fresh(node.op.name),
            node.op,
            node.attrs,
            [made[value] for value in node.inputs],
            tuple(value.spec for value in node.outputs),
        )
        made.update(zip(node.outputs, opr.outputs, strict=True))
        oprs.append(opr)
    return oprs, [made[value] for value in graph.outputs]


def to_graph(
    outputs: Sequence[VarNode], inputs: Sequence[OpNode], param_names: bool = True
) -> tuple[Graph, dict[VarNode, Value], list[OpNode]]:
    """Build the graph that computes variables.

    Args:
        outputs: what it returns.
        inputs: operators of inputs in the order in which a caller shall give them; those that
            nothing depends on are left out.
        param_names: whether constants keep their names.

    Returns the graph, its value of every variable, and the operators in the order of its nodes.
    """
    graph = Graph()
    values: dict[VarNode, Value] = {}
    order = by_priority(oprs_of(outputs))
    needed = set(order)
    for opr in inputs:
        if opr in needed:
            values[opr.outputs[0]] = graph.add_input(opr.outputs[0]._spec, opr.outputs[0].name)
    shared: dict[Any, Constant] = {}
    nodes = []
    for opr in order:
        if isinstance(opr, ConstOpBase):
            var, held = opr.outputs[0], opr.constant
            name = var.name if param_names else f"param_{len(shared)}"
            # Under its name of now, and once for all that share the data.
            if held not in shared:
                shared[held] = Constant.lazy(held.spec, name, _reader(held))
            values[var] = graph.add_constant(shared[held])
        elif opr.op is not None:
            given = [values[var] for var in opr.inputs]
            values.update(zip(opr.outputs, graph.add_node(opr.op, given, opr.params), strict=True))
            nodes.append(opr)
    graph.outputs = [values[var] for var in outputs]
    return graph, values, nodes


def _reader(constant: Constant) -> Callable[[], np.ndarray]:
    return lambda: constant.array


def by_priority(order: Sequence[OpNode]) -> list[OpNode]:
    """Return operators so that among those that can run the one of least priority comes first."""
    if not any(opr.priority for opr in order):
        return list(order)
    place = {opr: index for index, opr in enumerate(order)}
    waits = {opr: {var.owner for var in opr.inputs} for opr in order}
    readers: dict[OpNode, list[OpNode]] = {}
    for opr, below in waits.items():
        for other in below:
            readers.setdefault(other, []).append(opr)
    ready = [(opr.priority, place[opr], opr) for opr in order if not waits[opr]]
    heapq.heapify(ready)
    found = []
    while ready:
        opr = heapq.heappop(ready)[2]
        found.append(opr)
        for reader in readers.get(opr, ()):
            waits[reader].discard(opr)
            if not waits[reader]:
                heapq.heappush(ready, (reader.priority, place[reader], reader))
    return found


Adjust = Callable[[OpNode, Sequence[TensorSpec]], Any]


def rewire(
    what: str,
    roots: Sequence[VarNode],
    inputs_of: dict[OpNode, list[VarNode]],
    specs: Mapping[VarNode, TensorSpec] | None = None,
    adjust: Adjust | None = None,
) -> None:
    """Give operators other inputs, and infer anew what follows from them; all of it or nothing.

    Args:
        what: who asks, for messages.
        roots: variables from which the whole network can be reached.
        inputs_of: inputs of the operators that change.
        specs: what inputs of the network become.
        adjust: gives an operator's attributes for its inputs' new specs.

    Raises:
        GraphError: where operators would depend on each other in a circle, or one refuses what it
            would be given.
    """
    known: dict[VarNode, TensorSpec] = dict(specs or {})
    attrs: dict[OpNode, Any] = {}
    for opr in oprs_of(roots, inputs_of):
        if opr.op is None:
            continue
        given = [known.get(var, var._spec) for var in inputs_of.get(opr, opr.inputs)]
        try:
            attrs[opr] = adjust(opr, given) if adjust else opr.params
            opr.op.check_count(len(given))
            made = opr.op.infer(tuple(given), attrs[opr])
        except TianyuanError as error:
            raise GraphError(f"{what}: {opr.name!r} refuses: {error}") from error
        known.update(zip(opr.outputs, made, strict=True))
    for var, spec in known.items():
        var._spec = spec
    for opr, params in attrs.items():
        opr.params = params
    for opr, given_vars in inputs_of.items():
        opr.inputs = given_vars


def redirected(
    existing: Iterable[OpNode], table: Mapping[VarNode, VarNode]
) -> dict[OpNode, list[VarNode]]:
    """Return the new inputs of operators that read a variable which another one replaces.

    Operators that a replacement is computed by keep reading what it replaces.
    """
    above = {old: set(oprs_of([new])) for old, new in table.items()}
    found: dict[OpNode, list[VarNode]] = {}
    for opr in existing:
        given = [
            table[var] if var in table and opr not in above[var] else var for var in opr.inputs
        ]
        if given != opr.inputs:
            found[opr] = given
    return found


def copies(
    network: NetworkChanges, outputs: Sequence[VarNode], table: Mapping[VarNode, VarNode]
) -> list[VarNode]:
    """Return variables as they would be with some replaced; what does not change is shared."""
    inputs_of = redirected(oprs_of(outputs), table)
    tops = [table.get(var, var) for var in outputs]
    made: dict[VarNode, VarNode] = {}
    for opr in oprs_of(tops, inputs_of):
        given = [made.get(var, var) for var in inputs_of.get(opr, opr.inputs)]
        if opr.op is not None and given != opr.inputs:
            made.update(zip(opr.outputs, network.apply(opr.op, given, opr.params), strict=True))
    return [made.get(var, var) for var in tops]


def rebatch(
    opr: OpNode, given: Sequence[TensorSpec], old: int, new: int, symbol: str | None
) -> Any:
    """Return an operator's attributes for another size of the batch, its first axis.

    Where the size was a symbol, the symbol is replaced; where it was a number, what reshapes,
    slices and broadcasts along the first axis follows it.
    """
    attrs = opr.params
    if symbol is not None:
        changed = {f.name: substitute(getattr(attrs, f.name), symbol, new) for f in fields(attrs)}
        return replace(attrs, **changed)
    assert opr.op is not None
    was = [var._spec for var in opr.inputs]
    moved = any(tuple(a.shape) != tuple(b.shape) for a, b in zip(was, given, strict=True))
    name = opr.op.name
    if name in ("reshape", "broadcast_to", "sum_to") and attrs.shape and attrs.shape[0] % old == 0:
        if moved or (name == "broadcast_to" and old > 1 and attrs.shape[0] == old):
            return replace(attrs, shape=(attrs.shape[0] // old * new, *attrs.shape[1:]))
    elif moved and name == "slice" and attrs.sizes[0] == was[0].shape[0] == old:
        return replace(attrs, sizes=(new, *attrs.sizes[1:]))
    return attrs


def substitute(value: Any, symbol: str, size: int) -> Any:
    """Replace one symbol inside an extent or a (nested) tuple by a number."""
    if isinstance(value, tuple):
        return tuple(substitute(item, symbol, size) for item in value)
    if not isinstance(value, shapes.Dim) or symbol not in shapes.symbols_of(value):
        return value
    expr = _replace(value.expr, symbol, size)
    if not shapes.symbols_of(expr):
        return shapes.evaluate_expr(expr, {})
    raise GraphError(
        f"reset_batch_size: an extent depends on other dynamic dimensions too, got "
        f"{shapes.format_expr(value.expr)}"
    )


def _replace(expr: Any, symbol: str, size: int) -> Any:
    if isinstance(expr, tuple):
        return (expr[0], *(_replace(part, symbol, size) for part in expr[1:]))
    return size if expr == symbol else expr

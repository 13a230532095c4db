"""Say which graphs are valid: every rule that passes may rely on and must keep."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import GraphError, TianyuanError
from ..kernel import PLAIN, SAME
from ..op import TensorSpec
from . import layouts
from .graph import Graph, Node, Value
from .selection import is_alias

LATE = "late"  # the stage from which kernels and layouts are set


def check(graph: Graph, stage: str, before: Graph | None = None) -> None:
    """Raise GraphError unless a graph keeps every rule of a stage.

    The message names the rule and the node. What inference says of nodes that ``before``, a valid
    graph, holds as they are is not asked again.
    """
    known = {_inferred(node) for node in before.nodes} if before not in (None, graph) else set()
    defined = _check_sources(graph)
    for node in graph.nodes:
        _check_order(node, defined)
        if before is not graph and _inferred(node) not in known:
            _check_node(node)
        if stage == LATE:
            _check_kernel(node)
        elif node.kernel is not None:
            raise _broken("kernels are chosen by the layout stage", node, node.kernel.name)
    _check_layouts(graph, stage)
    _check_roots(graph, defined)


def check_effects(before: Graph, after: Graph) -> None:
    """Raise GraphError unless a pass kept every effect, in order."""
    kept, had = list(_effects(after)), list(_effects(before))
    if kept != had:
        raise GraphError(
            f"graph: rule 'effects keep their order' is broken, got {kept}, expected {had}"
        )


def _effects(graph: Graph) -> Iterator[tuple[str, str]]:
    return ((n.op.name, n.origin) for n in graph.nodes if not n.op.pure)


def _broken(rule: str, node: Node | None, detail: str) -> GraphError:
    where = f" at {node.op.name}" if node is not None else ""
    origin = f" ({node.origin})" if node is not None and node.origin else ""
    return GraphError(f"graph: rule '{rule}' is broken{where}{origin}: {detail}")


def _check_sources(graph: Graph) -> set[Value]:
    defined: set[Value] = set()
    for value in (*graph.inputs, *graph.states, *graph.constants):
        if value in defined:
            raise _broken("every value is defined once", None, f"{value} is declared twice")
        if value.node is not None:
            raise _broken("every value is defined once", value.node, f"{value} is also a source")
        defined.add(value)
    for value, constant in graph.constants.items():
        want = layouts.extents(value.spec.shape, value.layout)
        held = constant.spec
        if tuple(held.shape) != want or held.dtype != value.spec.dtype:
            detail = f"{constant.name or 'a constant'} holds {held}, not {value.spec}"
            raise _broken("a constant's array fits its spec", None, detail)
    return defined


def _check_order(node: Node, defined: set[Value]) -> None:
    for value in node.inputs:
        if value not in defined:
            raise _broken("nodes stand in topological order", node, f"{value} is not made yet")
    for index, value in enumerate(node.outputs):
        if value in defined:
            raise _broken("every value is defined once", node, f"{value} is made twice")
        if value.node is not node or value.index != index:
            raise _broken("a value names the node that makes it", node, str(value))
        defined.add(value)


def _inferred(node: Node) -> tuple[int, ...]:
    """Return the identity of all that inference takes and gives; the graphs keep it alive."""
    values = (*node.inputs, *node.outputs)
    return (id(node.op), id(node.attrs), len(node.inputs), *(id(value.spec) for value in values))


def _check_node(node: Node) -> None:
    if type(node.attrs) is not node.op.attrs:
        detail = f"{type(node.attrs).__name__}, not {node.op.attrs.__name__}"
        raise _broken("attributes are the op's", node, detail)
    try:
        node.op.check_count(len(node.inputs))
        specs = node.op.infer(tuple(value.spec for value in node.inputs), node.attrs)
    except TianyuanError as error:
        raise _broken("inference accepts the inputs", node, str(error)) from error
    if len(specs) != len(node.outputs):
        detail = f"{len(node.outputs)} outputs, inferred {len(specs)}"
        raise _broken("inference agrees with the recorded specs", node, detail)
    for value, spec in zip(node.outputs, specs, strict=True):
        if not _agree(value.spec, spec):
            detail = f"recorded {value.spec}, inferred {spec}"
            raise _broken("inference agrees with the recorded specs", node, detail)


def _agree(recorded: TensorSpec, inferred: TensorSpec) -> bool:
    return (
        recorded.dtype == inferred.dtype
        and recorded.quant == inferred.quant
        and tuple(map(int, recorded.shape)) == tuple(map(int, inferred.shape))
    )


def _check_layouts(graph: Graph, stage: str) -> None:
    for value in (*graph.inputs, *graph.states, *graph.roots()):
        if value.layout != PLAIN:
            detail = f"{value} lies in {value.layout}"
            raise _broken("inputs, states and outputs are plain", value.node, detail)
    made = [value for node in graph.nodes for value in node.outputs]
    for value in (*graph.constants, *made):
        if value.layout == PLAIN:
            continue
        if stage != LATE:
            raise _broken("values are plain before the layout stage", value.node, value.layout)
        try:
            fits = layouts.fits(value.spec, value.layout)
        except KeyError:
            raise _broken("layouts are known", value.node, value.layout) from None
        if not fits:
            detail = f"{value.layout} does not apply to {value.spec}"
            raise _broken("a layout fits the rank", value.node, detail)


def _check_kernel(node: Node) -> None:
    if is_alias(node):
        return
    kernel = node.kernel
    if kernel is None:
        raise _broken("every node has a kernel after the layout stage", node, "it has none")
    if kernel.op != node.op.name:
        raise _broken("a kernel serves its node's op", node, f"{kernel.name} is for {kernel.op}")
    if node.op.name == "relayout":
        got = (node.inputs[0].layout, node.outputs[0].layout)
        if got != (node.attrs.source, node.attrs.target):
            raise _broken("a relayout's attributes name its layouts", node, f"{got}")
        return
    flat = set()
    pairs = [(v, kernel.layouts.of_input(i)) for i, v in enumerate(node.inputs)]
    pairs += [(v, kernel.layouts.of_output(i)) for i, v in enumerate(node.outputs)]
    for value, declared in pairs:
        if declared == SAME:
            flat.add(value.layout)
        elif value.layout != declared:
            detail = f"{kernel.name} wants {declared}, got {value.layout}"
            raise _broken("only relayout changes a layout", node, detail)
    if len(flat - {PLAIN}) > 1:
        raise _broken("only relayout changes a layout", node, f"{kernel.name} got {sorted(flat)}")
    for layout in flat - {PLAIN}:
        _check_padding(node, layout)


def _check_padding(node: Node, layout: str) -> None:
    """Hold a kernel that walks memory flat to what makes that right: no padding lanes.

    It would neither count them nor keep them zero; kernels that name a layout answer for it.
    """
    for value in (*node.inputs, *node.outputs):
        if value.layout == layout and layouts.is_padded(value.spec, layout):
            detail = f"{value.spec} has padding in {layout}"
            raise _broken("flat kernels meet no padding lanes", node, detail)


def _check_roots(graph: Graph, defined: set[Value]) -> None:
    for value in graph.roots():
        if value not in defined:
            raise _broken("outputs and updates are made in the graph", None, str(value))
    for index, value in graph.updates.items():
        if not 0 <= index < len(graph.states):
            raise _broken("an update belongs to a state", None, f"index {index}")
        if not _agree(graph.states[index].spec, value.spec):
            detail = f"{graph.states[index].spec} <- {value.spec}"
            raise _broken("an update has its state's spec", value.node, detail)

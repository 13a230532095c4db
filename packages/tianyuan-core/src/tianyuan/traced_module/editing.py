"""Decide how a traced module's graph is changed, so that it stays one that runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..dtypes import as_dtype
from ..errors import GraphError
from ..imperative.tensor import Tensor
from .expr import CallMethod, Expr, Input
from .node import ModuleNode, Node, TensorNode
from .pytree import TreeDef, tree_flatten

if TYPE_CHECKING:
    from .graph import InternalGraph


def check_member(graph: InternalGraph, node: Any, what: str) -> None:
    """Raise GraphError unless a node belongs to a graph."""
    if not isinstance(node, Node) or node.top_graph is not graph:
        raise GraphError(
            f"{what}: not a node of graph {graph.name!r}, got {node!r}, expected one of its own"
        )


def _check_top(graph: InternalGraph, what: str) -> None:
    if graph.top_graph is not None:
        raise GraphError(
            f"{what}: graph {graph.name!r} is called by {graph.top_graph.name!r}, expected the "
            "graph of the whole module; see TracedModule.flatten"
        )


@contextmanager
def insertion(graph: InternalGraph, expr: Expr | None) -> Iterator[None]:
    """Record a block into a graph, after an expression."""
    from .patching import patched
    from .recording import Scope, apply_op, undisturbed
    from .scope import entered

    if expr is not None and expr not in graph._exprs and expr not in _input_exprs(graph):
        raise GraphError(f"insert_exprs: not in graph {graph.name!r}, got {expr!r}")
    if graph._module is None:
        raise GraphError(f"insert_exprs: graph {graph.name!r} belongs to no module")
    found = Scope(graph, graph._module, editing=True)
    try:
        with patched(graph._module), undisturbed(graph._module), entered(found, apply_op):
            yield
        _place(graph, found.pending, expr)
    except BaseException:
        for made in found.pending:
            made._take_users([])
            for node in made.outputs:
                graph._namespace.unassociate_name_with_obj(node)
        raise
    graph._number()


def _input_exprs(graph: InternalGraph) -> list[Expr]:
    return [node.expr for node in graph._inputs]


def _place(graph: InternalGraph, made: list[Expr], after: Expr | None) -> None:
    place = {id(expr): index for index, expr in enumerate(graph._exprs)}
    read = [node for expr in made for node in expr.inputs if node.expr not in made]
    least = max((place.get(id(node.expr), -1) for node in read), default=-1)
    at = least if after is None else place.get(id(after), -1)
    if at < least:
        raise GraphError(
            f"insert_exprs: {graph._exprs[least]!r} is read, expected to insert after it"
        )
    graph._exprs[at + 1 : at + 1] = made
    graph._touch()


def replace_node(graph: InternalGraph, repl_dict: Mapping[Node, Node]) -> None:
    """Let readers of some nodes read others."""
    for old, new in repl_dict.items():
        check_member(graph, old, "replace_node")
        check_member(graph, new, "replace_node")
        if isinstance(old, ModuleNode) is not isinstance(new, ModuleNode):
            raise GraphError(
                f"replace_node: a replacement is of another kind, got {type(new).__name__}, "
                f"expected {type(old).__name__}"
            )
    graph._touch()
    place = {id(expr): index for index, expr in enumerate(graph._exprs)}
    for old, new in repl_dict.items():
        needed = {id(expr) for expr in graph.get_dep_exprs(new)}
        made = place.get(id(new.expr), -1)
        graph._outputs[:] = [new if node is old else node for node in graph._outputs]
        for user in list(old.users):
            if id(user) not in needed and place.get(id(user), -1) > made:
                user._replace_input(old, new)


def drop_dead(graph: InternalGraph) -> None:
    """Drop what nothing reads."""
    for expr in reversed(list(graph._exprs)):
        if expr._disable_remove or any(n.users or n in graph._outputs for n in expr.outputs):
            continue
        graph._remove(expr)
    for expr in graph._exprs:
        inner = expr.graph if isinstance(expr, CallMethod) else None
        if inner is not None:
            drop_dead(inner)


def _owner(graph: InternalGraph, what: str) -> Any:
    _check_top(graph, what)
    if graph._module is None:
        raise GraphError(f"{what}: graph {graph.name!r} belongs to no module")
    return graph._module


def argdef_of(graph: InternalGraph) -> TreeDef:
    """Return the structure of the arguments that a graph is for."""
    module: Any = graph._module
    found: TreeDef = next(d for d, held in module.argdef_graph_map.items() if held is graph)
    return found


def _set_argdef(graph: InternalGraph, treedef: TreeDef) -> None:
    module: Any = graph._module
    old = argdef_of(graph)
    outdef = module.argdef_outdef_map.pop(old)
    del module.argdef_graph_map[old]
    module.argdef_graph_map[treedef] = graph
    graph._touch()
    module.argdef_outdef_map[treedef] = outdef


def _arguments(graph: InternalGraph) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments without the module, as nodes and fixed values."""
    treedef = argdef_of(graph)
    nodes = iter(graph._inputs)
    leaves = [d.const_val if d.is_const else next(nodes) for d in treedef.leaf_defs()]
    args, kwargs = treedef.unflatten(leaves)
    return list(args[1:]), kwargs


def add_input(graph: InternalGraph, shape: tuple[int, ...], dtype: str, name: str) -> TensorNode:
    """Add a last positional input."""
    module = _owner(graph, "add_input_node")
    args, kwargs = _arguments(graph)
    expr = Input(TensorNode, name)
    node = expr.outputs[0]
    assert isinstance(node, TensorNode)
    node.shape, node.dtype, node.device = shape, as_dtype(dtype), "cpu"
    # Keyword arguments follow the positional ones among the leaves.
    leaves, treedef = tree_flatten(((graph._inputs[0], *args, node), kwargs))
    graph._adopt_input(expr, [leaf for leaf in leaves if isinstance(leaf, Node)].index(node))
    _set_argdef(graph, treedef)
    if len(module.arg_names) == len(args):
        module.arg_names.append(node._name)
    graph._number()
    return node


def add_output(graph: InternalGraph, node: TensorNode) -> None:
    """Return a node beside what was returned."""
    module = _owner(graph, "add_output_node")
    check_member(graph, node, "add_output_node")
    outdef = module.argdef_outdef_map[argdef_of(graph)]
    found = iter(graph._outputs)
    leaves = [d.const_val if d.is_const else next(found) for d in outdef.leaf_defs()]
    reset_outputs(graph, (outdef.unflatten(leaves), node))


def reset_inputs(
    graph: InternalGraph, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Node]:
    """Replace all inputs but the module."""
    module = _owner(graph, "reset_inputs")
    leaves, treedef = tree_flatten(((graph._inputs[0], *args), dict(kwargs)))
    names = module.leaf_names(tuple(args), dict(kwargs))
    made = []
    for leaf, name in zip(leaves[1:], names, strict=True):
        if not isinstance(leaf, Tensor):
            continue
        expr = Input(TensorNode, name)
        node = expr.outputs[0]
        assert isinstance(node, TensorNode)
        node.shape, node.dtype, node.device = tuple(leaf.shape), leaf.dtype, leaf.device
        made.append(expr)
    for old in graph._inputs[1:]:
        graph._namespace.unassociate_name_with_obj(old)
    del graph._inputs[1:]
    for expr in made:
        graph._adopt_input(expr)
    _set_argdef(graph, treedef)
    graph._number()
    return graph._inputs[1:]


def reset_outputs(graph: InternalGraph, outputs: Any) -> None:
    """Return other nodes."""
    module = _owner(graph, "reset_outputs")
    leaves, outdef = tree_flatten(outputs)
    nodes = [leaf for leaf, d in zip(leaves, outdef.leaf_defs(), strict=True) if not d.is_const]
    for node in nodes:
        check_member(graph, node, "reset_outputs")
    graph._outputs[:] = nodes
    graph._touch()
    module.argdef_outdef_map[argdef_of(graph)] = outdef

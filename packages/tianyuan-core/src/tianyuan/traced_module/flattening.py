"""Decide how a graph that calls graphs becomes one that does not."""

from __future__ import annotations

import copy

from .cloning import clone_expr
from .expr import CallMethod, Expr, GetAttr
from .graph import InternalGraph, drop_unused_reads
from .module import TracedModule
from .node import NEW, ModuleNode, Node
from .pytree import tree_flatten


def flattened(module: TracedModule) -> TracedModule:
    """Return a copy of a traced module with one flat graph."""
    made = copy.deepcopy(module)
    graph = made.graph
    flat = InternalGraph(graph.name, graph.qualname)
    flat._module = made
    nodes: dict[Node, Node] = {}
    for node in graph._inputs:
        nodes[node] = node
        node.users = []
        node.expr._top_graph = flat
        flat._inputs.append(node)
        flat._namespace.associate_name_with_obj(node._name, node)
    _Flattener(flat).inline(graph, nodes, "")
    flat._outputs = [nodes[node] for node in graph._outputs]
    made.argdef_graph_map = dict.fromkeys(made.argdef_graph_map, flat)
    for part in made.modules():
        if isinstance(part, TracedModule) and part is not made:
            part.argdef_graph_map, part.argdef_outdef_map = {}, {}
    drop_unused_reads(flat)
    flat._number()
    return made


class _Flattener:
    def __init__(self, flat: InternalGraph) -> None:
        self._flat = flat
        self._read: dict[str, Node] = {}

    def inline(self, graph: InternalGraph, nodes: dict[Node, Node], prefix: str) -> None:
        """Append a graph's expressions; ``nodes`` says what stands for its inputs."""
        for expr in graph._exprs:
            if isinstance(expr, GetAttr):
                self._path(expr, nodes, prefix)
                continue
            inner = expr.graph if isinstance(expr, CallMethod) else None
            if inner is None:
                self._append(clone_expr(expr, nodes))
                continue
            assert isinstance(expr, CallMethod)
            self._call(expr, inner, nodes)

    def _append(self, expr: Expr) -> None:
        expr._id = NEW
        for node in expr.outputs:
            base, node._name, node._id, node._qualname = node._name, "", NEW, node.qualname
            node._name = self._flat._namespace.create_unique_name(base, node)
        expr._top_graph = self._flat
        self._flat._exprs.append(expr)

    def _path(self, expr: GetAttr, nodes: dict[Node, Node], prefix: str) -> None:
        """Read an attribute from the top module, once."""
        source = expr.inputs[0]
        assert isinstance(source, ModuleNode)
        path = f"{self._prefix_of(source, prefix)}{expr.attr_name}"
        if path not in self._read:
            top: dict[Node, Node] = {source: self._flat._inputs[0]}
            made = clone_expr(expr, {**nodes, **top})
            assert isinstance(made, GetAttr)
            made.attr_name = path
            made.outputs[0]._name = path.replace(".", "_")
            self._append(made)
            self._read[path] = made.outputs[0]
        nodes[expr.outputs[0]] = self._read[path]

    def _prefix_of(self, node: ModuleNode, prefix: str) -> str:
        if isinstance(node.expr, GetAttr):
            inner = node.expr.inputs[0]
            assert isinstance(inner, ModuleNode)
            return f"{self._prefix_of(inner, prefix)}{node.expr.attr_name}."
        return prefix

    def _call(self, expr: CallMethod, inner: InternalGraph, nodes: dict[Node, Node]) -> None:
        target = expr.inputs[0]
        assert isinstance(target, ModuleNode)
        module = inner._module
        assert isinstance(module, TracedModule)
        args, kwargs = module.normalised(expr.args[1:], expr.kwargs)
        leaves, _ = tree_flatten(((target, *args), kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Node)]
        mapping = {
            node: nodes.get(value, value) for node, value in zip(inner._inputs, given, strict=True)
        }
        # A read attribute of its own names the place from the top.
        prefix = self._path_of(nodes[target])
        mapping[inner._inputs[0]] = nodes[target]
        self.inline(inner, mapping, f"{prefix}.")
        for outer, made in zip(expr.outputs, inner._outputs, strict=True):
            nodes[outer] = mapping[made]

    def _path_of(self, node: Node) -> str:
        return next(path for path, read in self._read.items() if read is node)

"""TracedModule: a module whose forward is a graph that can be looked at and changed."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import Any

from ..errors import GraphError, TraceError
from ..module import Module
from ..serialization import load, save
from . import watching
from .cloning import clone_graph, link
from .graph import InternalGraph
from .node import Node
from .pytree import TreeDef, tree_flatten

_OWN = (
    "argdef_graph_map", "argdef_outdef_map", "arg_names", "is_qat", "_is_top", "_watching",
    "watch_points", "end_points",
)  # fmt: skip


class _Watching:
    """What a traced module watches; an object of its own, so that no value counts as its state."""

    def __init__(self) -> None:
        self.values: dict[Node, Any] = {}


class TracedModule(Module):
    """A module made by ``trace_module``.

    It holds the parameters, buffers and modules of the original under the same names.

    Args:
        is_top: whether it is the whole network, rather than a part of one.
        argdef_graph_map: graphs by the structure of the arguments that they are for.
        argdef_outdef_map: the structures of their results.
        is_qat: whether it holds modules in quantisation's training form.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> traced(ty.Tensor([-1.0, 2.0])).numpy()
    array([0., 2.], dtype=float32)
    """

    def __init__(
        self,
        is_top: bool,
        argdef_graph_map: dict[TreeDef, InternalGraph],
        argdef_outdef_map: dict[TreeDef, TreeDef],
        is_qat: bool = False,
    ) -> None:
        super().__init__()
        self._is_top = is_top
        self.argdef_graph_map = argdef_graph_map
        self.argdef_outdef_map = argdef_outdef_map
        self.is_qat = is_qat
        self.arg_names: list[str] = []
        self.watch_points: list[Node] = []
        self.end_points: list[Node] = []
        self._watching = _Watching()
        for graph in argdef_graph_map.values():
            graph._module = self

    @property
    def graph(self) -> InternalGraph:
        """The only graph.

        Raises:
            GraphError: where the module was called with arguments of several structures, or none.
        """
        if len(self.argdef_graph_map) != 1:
            raise GraphError(
                f"TracedModule.graph: not one graph, got {len(self.argdef_graph_map)}; see "
                "argdef_graph_map"
            )
        return next(iter(self.argdef_graph_map.values()))

    def normalised(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments with those at the end given by position where they can be."""
        return normalised(self.arg_names, args, kwargs)

    def leaf_names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Return a name for each leaf of the arguments."""
        return leaf_names(self.arg_names, args, kwargs)

    def _graph_for(self, treedef: TreeDef) -> tuple[TreeDef, InternalGraph]:
        graph = self.argdef_graph_map.get(treedef)
        if graph is not None:
            return treedef, graph
        for known, graph in self.argdef_graph_map.items():
            if known.accepts(treedef):
                return known, graph
        expected = " or ".join(map(repr, self.argdef_graph_map)) or "no call"
        raise TraceError(
            f"TracedModule: arguments have another structure than when it was traced, got "
            f"{treedef!r}, expected {expected}"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph for these arguments.

        Returns:
            What the original returns; with end points, the list of their values.

        Raises:
            TraceError: where there is none for them.
        """
        args, kwargs = self.normalised(args, kwargs)
        leaves, found = tree_flatten(((self, *args), kwargs))
        treedef, graph = self._graph_for(found)
        defs = treedef.leaf_defs()
        inputs = [leaf for leaf, d in zip(leaves, defs, strict=True) if not d.is_const]
        if not self.watch_points and not self.end_points:
            outputs = graph.interpret(*inputs)
        else:
            watch = watching.Watch(self.watch_points, self.end_points)
            try:
                with watching.watched(watch):
                    outputs = graph.interpret(*inputs)
            except watching.Stop:
                outputs = []
            self._watching.values = {
                n: v for n, v in watch.values.items() if n in self.watch_points
            }
            if self.end_points:
                return [watch.values[node] for node in self.end_points]
        outdef = self.argdef_outdef_map[treedef]
        made = iter(outputs)
        return outdef.unflatten(
            [d.const_val if d.is_const else next(made) for d in outdef.leaf_defs()]
        )

    # Looking inside.

    def _points(self, nodes: Any, what: str) -> list[Node]:
        found = [nodes] if isinstance(nodes, Node) else list(nodes)
        known = {id(n) for g in self.argdef_graph_map.values() for n in g.nodes()}
        for node in found:
            if id(node) not in known:
                raise GraphError(f"{what}: not a node of this module, got {node!r}")
        return found

    def set_watch_points(self, nodes: Node | Sequence[Node]) -> None:
        """Keep the values of some nodes in each later call, see ``watch_node_value``.

        Raises:
            GraphError: where a node is not of this module.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
        >>> traced.set_watch_points(traced.graph.outputs)
        >>> _ = traced(ty.Tensor([5.0]))
        >>> [value.item() for value in traced.watch_node_value.values()]
        [5.0]
        """
        self.watch_points = self._points(nodes, "set_watch_points")

    def clear_watch_points(self) -> None:
        """Keep no values any more.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
        >>> traced.clear_watch_points()
        >>> traced.watch_node_value
        {}
        """
        self.watch_points = []
        self._watching.values = {}

    @property
    def watch_node_value(self) -> dict[Node, Any]:
        """Values of the watched nodes in the last call."""
        return self._watching.values

    def set_end_points(self, nodes: Node | Sequence[Node]) -> None:
        """End each later call once the values of some nodes are there, and return these.

        Raises:
            GraphError: where a node is not of this module.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
        >>> traced.set_end_points(traced.graph.inputs[1])
        >>> [value.item() for value in traced(ty.Tensor([-5.0]))]
        [-5.0]
        """
        self.end_points = self._points(nodes, "set_end_points")
        self._touch()

    def clear_end_points(self) -> None:
        """Run to the end again.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
        >>> traced.set_end_points(traced.graph.inputs[1])
        >>> traced.clear_end_points()
        >>> traced(ty.Tensor([-5.0])).item()
        0.0
        """
        self.end_points = []
        self._touch()

    def flatten(self) -> TracedModule:
        """Return a copy whose graph calls no graphs: those of its parts stand in the place.

        Modules keep their names; they are read by paths such as ``block.conv``.

        Raises:
            GraphError: where the module has not one graph.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
        >>> traced.flatten()(ty.Tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
        """
        from .flattening import flattened

        return flattened(self)

    # Copies.

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedModule:
        found: TracedModule = type(self).__new__(type(self))
        memo[id(self)] = found
        for key, value in vars(self).items():
            if key not in _OWN and not key.startswith("_traced_"):
                vars(found)[key] = copy.deepcopy(value, memo)
        graphs = {
            treedef: clone_graph(graph, memo, deep=True)
            for treedef, graph in self.argdef_graph_map.items()
        }
        self._fill(found, graphs)
        return found

    def __copy__(self) -> TracedModule:
        found: TracedModule = type(self).__new__(type(self))
        memo: dict[int, Any] = {id(self): found}
        vars(found).update(
            (key, value)
            for key, value in vars(self).items()
            if key not in _OWN and not key.startswith("_traced_")
        )
        graphs = {
            treedef: clone_graph(graph, memo, deep=False)
            for treedef, graph in self.argdef_graph_map.items()
        }
        self._fill(found, graphs)
        return found

    def _fill(self, found: TracedModule, graphs: dict[TreeDef, InternalGraph]) -> None:
        state = vars(found)
        state.update(
            argdef_graph_map=graphs,
            argdef_outdef_map=dict(self.argdef_outdef_map),
            arg_names=list(self.arg_names),
            is_qat=self.is_qat,
            _is_top=self._is_top,
            watch_points=[],
            end_points=[],
            _watching=_Watching(),
        )
        for graph in graphs.values():
            graph._module = found
            link(graph)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What pickle carries is a file's content, which is believed no more than a file is.
        content = io.BytesIO()
        save(self, content)
        return _unpacked, (content.getvalue(),)


def _unpacked(content: bytes) -> Any:
    return load(io.BytesIO(content))


def normalised(
    names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by position as far as their names allow, the others sorted by name."""
    found, rest = list(args), dict(kwargs)
    while len(found) < len(names) and names[len(found)] in rest:
        found.append(rest.pop(names[len(found)]))
    return tuple(found), dict(sorted(rest.items()))


def leaf_names(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """Return a name for each leaf of some arguments."""
    result = []
    for index, value in enumerate(args):
        name = names[index] if index < len(names) else f"args_{index}"
        result += _spread(name, value)
    for name, value in kwargs.items():
        result += _spread(name, value)
    return result


def _spread(name: str, value: Any) -> list[str]:
    leaves, treedef = tree_flatten(value)
    if not treedef.children_defs:
        return [name] * len(leaves)
    return [f"{name}_{index}" for index in range(len(leaves))]

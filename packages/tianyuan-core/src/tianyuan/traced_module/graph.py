"""Decide what a traced module's graph is, and run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ..errors import GraphError
from ..imperative.tensor import Tensor
from . import editing, names, watching
from .expr import CallFunction, CallMethod, Expr, GetAttr, Input
from .filters import (
    ExprFilter,
    ExprFilterCallFunction,
    ExprFilterCallMethod,
    ExprFilterExprId,
    NodeFilter,
    NodeFilterName,
    NodeFilterNodeId,
    NodeFilterType,
)
from .namespace import NameSpace
from .node import NEW, Node, TensorNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..module import Module


class InternalGraph:
    """What one call of a module does: expressions in order, from inputs to outputs.

    The first input is the node of the module itself.

    Args:
        name: name of the graph.
        qualname: its name from the top of the network.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> graph = traced.graph
    >>> with graph.insert_exprs():
    ...     doubled = graph.outputs[0] * 2
    >>> graph.reset_outputs(doubled)
    >>> traced(ty.Tensor([3.0, -1.0])).numpy()
    array([6., 0.], dtype=float32)
    """

    def __init__(self, name: str, qualname: str) -> None:
        self._exprs: list[Expr] = []
        self._inputs: list[Node] = []
        self._outputs: list[Node] = []
        self._name = name
        self._qualname = qualname
        self._namespace = NameSpace(name, qualname)
        self._module: Module | None = None
        self._top_graph: InternalGraph | None = None

    # What it is.

    @property
    def name(self) -> str:
        """Name of the graph; may be set."""
        return self._name

    @name.setter
    def name(self, new_name: str) -> None:
        self._name = new_name
        self._namespace.name = new_name

    @property
    def qualname(self) -> str:
        """Name from the top of the network."""
        return self._qualname

    @property
    def inputs(self) -> list[Node]:
        """Input nodes; the first is the module itself."""
        return self._inputs

    @property
    def outputs(self) -> list[Node]:
        """Output nodes, in the order of the result's leaves."""
        return self._outputs

    @property
    def top_graph(self) -> InternalGraph | None:
        """The graph that calls this one, or None."""
        return self._top_graph

    # What it holds.

    def _walk(self, recursive: bool) -> Iterator[Expr]:
        seen = {id(self)}

        def walk(graph: InternalGraph) -> Iterator[Expr]:
            for expr in list(graph._exprs):
                inner = expr.graph if recursive and isinstance(expr, CallMethod) else None
                if inner is not None and id(inner) not in seen:
                    seen.add(id(inner))
                    yield from walk(inner)
                yield expr

        return walk(self)

    def _walk_nodes(self, recursive: bool) -> Iterator[Node]:
        seen: set[int] = set()
        graphs = [self]
        graphs += [e.graph for e in self._walk(recursive) if isinstance(e, CallMethod) and e.graph]
        for graph in graphs if recursive else [self]:
            for node in (*graph._inputs, *(n for e in graph._exprs for n in e.outputs)):
                if id(node) not in seen:
                    seen.add(id(node))
                    yield node

    def exprs(self, recursive: bool = True) -> ExprFilter:
        """Select the expressions, with those of called graphs if ``recursive``.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.exprs().as_list()[1].outputs
        [_0_out]
        """
        return ExprFilter(list(self._walk(recursive)))

    def nodes(self, recursive: bool = True) -> NodeFilter:
        """Select the nodes, with those of called graphs if ``recursive``.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.nodes().as_list()
        [self, inputs, _0, _0_out]
        """
        return NodeFilter(list(self._walk_nodes(recursive)))

    def get_function_by_type(
        self, func: Callable[..., Any] | None = None, recursive: bool = True
    ) -> ExprFilterCallFunction:
        """Select calls of a function, or of any.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.get_function_by_type().as_count()
        0
        """
        return self.exprs(recursive).call_function(func)

    def get_method_by_type(
        self, method: str | None = None, recursive: bool = True
    ) -> ExprFilterCallMethod:
        """Select calls of a method, or of any; modules are called by ``__call__``.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.get_method_by_type("__call__").as_unique().outputs
        [_0_out]
        """
        return self.exprs(recursive).call_method(method)

    def get_expr_by_id(
        self, expr_id: int | Sequence[int] | None = None, recursive: bool = True
    ) -> ExprFilterExprId:
        """Select expressions of given numbers.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.get_expr_by_id(3).as_unique().outputs
        [_0_out]
        """
        return self.exprs(recursive).expr_id(() if expr_id is None else expr_id)

    def get_module_by_type(self, module_cls: Any, recursive: bool = True) -> NodeFilterType:
        """Select nodes of modules of a class.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.get_module_by_type(M.ReLU).as_list()
        [_0]
        """
        return self.nodes(recursive).type(module_cls)

    def get_node_by_id(
        self, node_id: int | Sequence[int] | None = None, recursive: bool = True
    ) -> NodeFilterNodeId:
        """Select nodes of given numbers.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.get_node_by_id([0, 3]).as_list()
        [self, _0_out]
        """
        return self.nodes(recursive).node_id(() if node_id is None else node_id)

    def get_node_by_name(
        self, name: str | None = None, ignorecase: bool = True, recursive: bool = True
    ) -> NodeFilterName:
        """Select nodes whose name or qualified name fits a pattern with ``*`` and ``?``.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.get_node_by_name("*_OUT").as_list()
        [_0_out]
        """
        return self.nodes(recursive).name("*" if name is None else name, ignorecase)

    def get_dep_exprs(self, nodes: Node | Sequence[Node]) -> list[Expr]:
        """Return the expressions of this graph that nodes depend on, in order.

        Raises:
            GraphError: where a node belongs to another graph.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> len(graph.get_dep_exprs(graph.outputs))
        2
        """
        pending = [nodes] if isinstance(nodes, Node) else list(nodes)
        for node in pending:
            editing.check_member(self, node, "get_dep_exprs")
        needed: set[int] = set()
        while pending:
            expr = pending.pop().expr
            if id(expr) not in needed:
                needed.add(id(expr))
                pending.extend(expr.inputs)
        return [expr for expr in self._exprs if id(expr) in needed]

    # Running.

    def interpret(self, *inputs: Any) -> list[Any]:
        """Run the graph on values of all its inputs, the module first; return the outputs.

        Raises:
            GraphError: where the count of values is wrong, or a node is read that nothing makes.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.interpret(M.Sequential(M.Sigmoid()), ty.Tensor([0.0]))[0].tolist()
        [0.5]
        """
        if len(inputs) != len(self._inputs):
            raise GraphError(
                f"interpret: wrong number of inputs, got {len(inputs)}, expected "
                f"{len(self._inputs)} ({', '.join(map(repr, self._inputs))})"
            )
        values: dict[Node, Any] = dict(zip(self._inputs, inputs, strict=True))
        watch = watching.current()
        if watch is not None:
            watch.note(values)
        last = {node: index for index, expr in enumerate(self._exprs) for node in expr.inputs}
        last.update((node, len(self._exprs)) for node in self._outputs)
        for index, expr in enumerate(self._exprs):
            try:
                given = [values[node] for node in expr.inputs]
            except KeyError as error:
                raise GraphError(
                    f"interpret: {error.args[0]!r} is read by {expr!r} before anything makes it"
                ) from None
            made = dict(zip(expr.outputs, expr.interpret(*given), strict=True))
            if watch is not None:
                watch.note(made)
            values.update((node, value) for node, value in made.items() if node in last)
            for node in expr.inputs:
                if last[node] == index:
                    values.pop(node, None)
        return [values[node] for node in self._outputs]

    def eval(self, *inputs: Tensor) -> list[Any]:
        """Run the graph on values of its inputs without the module; return the outputs.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.eval(ty.Tensor([-1.0, 2.0]))[0].tolist()
        [0.0, 2.0]
        """
        return self.interpret(self._module, *inputs)

    def _touch(self) -> None:
        """Let compiled forms of the module notice that the graph was changed."""
        if self._module is not None:
            self._module._touch()

    # Building; used while a graph is recorded, read or copied.

    def _adopt_input(self, expr: Input, at: int | None = None) -> None:
        expr._top_graph = self
        self._inputs.insert(len(self._inputs) if at is None else at, expr.outputs[0])
        self._namespace.auto_naming_for_outputs(expr)

    def _append(self, expr: Expr) -> None:
        expr._top_graph = self
        self._exprs.append(expr)
        self._namespace.auto_naming_for_outputs(expr)

    def _is_before(self, node: Node, expr: Expr) -> bool:
        if node.top_graph is not self:
            return False
        if isinstance(node.expr, Input) or expr not in self._exprs:
            return True
        return self._exprs.index(node.expr) < self._exprs.index(expr)

    def _remove(self, expr: Expr) -> None:
        self._exprs.remove(expr)
        expr._take_users([])
        for node in expr.outputs:
            self._namespace.unassociate_name_with_obj(node)

    def _root(self) -> InternalGraph:
        graph = self
        while graph._top_graph is not None:
            graph = graph._top_graph
        return graph

    def _number(self) -> None:
        """Number what has no number yet, upwards from the largest in the whole network."""
        root = self._root()
        nodes = list(root._walk_nodes(True))
        exprs = [*(n.expr for n in nodes if isinstance(n.expr, Input)), *root._walk(True)]
        for items in (nodes, exprs):
            free = max((item._id for item in items), default=NEW) + 1
            for item in items:
                if item._id == NEW:
                    item._id, free = free, free + 1

    # Editing.

    def insert_exprs(self, expr: Expr | None = None) -> AbstractContextManager[None]:
        """Record what is computed with nodes in a ``with`` block, and insert it when it ends.

        Args:
            expr: the expression to insert after; None for the earliest place where all that the
                new expressions read is there.

        Raises:
            GraphError: where ``expr`` is not in the graph, or stands before something that is
                read; the graph is then unchanged.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> with graph.insert_exprs():
        ...     tripled = graph.outputs[0] * 3
        >>> graph.reset_outputs(tripled)
        >>> graph.eval(ty.Tensor([-1.0, 2.0]))[0].tolist()
        [0.0, 6.0]
        """
        return editing.insertion(self, expr)

    def replace_node(self, repl_dict: Mapping[Node, Node]) -> None:
        """Let what reads some nodes read others, and the graph return them.

        What the new node itself depends on, and what stands before it, keeps reading the old one.

        Raises:
            GraphError: where a node belongs to another graph or is of another kind.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.replace_node({graph.outputs[0]: graph.inputs[1]})
        >>> graph.eval(ty.Tensor([-1.0, 2.0]))[0].tolist()
        [-1.0, 2.0]
        """
        editing.replace_node(self, repl_dict)

    def compile(self) -> None:
        """Drop every expression whose outputs nothing reads, in called graphs too.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.reset_outputs(graph.inputs[1])
        >>> graph.compile()
        >>> graph.exprs().as_count()
        0
        """
        editing.drop_dead(self)

    def add_input_node(
        self, shape: Sequence[int], dtype: str = "float32", name: str = "args"
    ) -> TensorNode:
        """Add a last positional input and return its node.

        Raises:
            GraphError: where the graph is called by another.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.add_input_node((1,), name="bias"), graph.inputs
        (bias, [self, inputs, bias])
        """
        return editing.add_input(self, tuple(shape), dtype, name)

    def add_output_node(self, node: TensorNode) -> None:
        """Return a node too: the result becomes the tuple of what it was and the node.

        Raises:
            GraphError: where the node belongs to another graph, or the graph is called by another.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.add_output_node(graph.inputs[1])
        >>> [value.item() for value in graph.eval(ty.Tensor([-1.0]))]
        [0.0, -1.0]
        """
        editing.add_output(self, node)

    def reset_inputs(self, *args: Any, **kwargs: Any) -> list[Node]:
        """Replace all inputs but the module by ones for example values; return their nodes.

        What read the old inputs must be given something else, see ``replace_node``.

        Raises:
            GraphError: where the graph is called by another.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> [old] = graph.inputs[1:]
        >>> [new] = graph.reset_inputs(ty.Tensor([1.0, 2.0]))
        >>> graph.replace_node({old: new})
        >>> graph.inputs[1].shape
        (2,)
        """
        return editing.reset_inputs(self, args, kwargs)

    def reset_outputs(self, outputs: Any) -> None:
        """Return nodes, in a nested structure, in the place of what was returned.

        Raises:
            GraphError: where a node belongs to another graph, or the graph is called by another.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.reset_outputs({"y": graph.outputs[0]})
        >>> graph.outputs
        [_0_out]
        """
        editing.reset_outputs(self, outputs)

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self._inputs))
        lines = [f"\t{expr!r}" for expr in self._exprs]
        outputs = ", ".join(map(repr, self._outputs))
        return "\n".join([f"{self._name}.Graph ({inputs}) {{", *lines, f"\treturn {outputs}", "}"])


def drop_unused_reads(graph: InternalGraph) -> None:
    """Drop reads of attributes and extents that were not needed after all."""
    for expr in reversed(list(graph._exprs)):
        reads = (
            isinstance(expr, GetAttr)
            or (isinstance(expr, CallMethod) and expr.method in names.PROPERTIES)
            or (isinstance(expr, CallFunction) and expr.func in names.SIZE_FUNCTIONS)
        )
        if reads and not any(n.users or n in graph._outputs for n in expr.outputs):
            graph._remove(expr)

"""Decide what all steps of a traced module's graph share: arguments, results and where they stand.

Arguments are kept as leaves and a structure; a leaf is a fixed value, or an ``ArgsIndex`` into the
expression's inputs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._version import __version__
from ..errors import GraphError, TraceError
from ..imperative.tensor import Tensor
from ..module import Module
from . import names, scope
from .node import NEW, ModuleNode, Node, NodeMixin, Size
from .pytree import ArgsIndex, LeafDef, TreeDef, tree_flatten, tree_map

if TYPE_CHECKING:
    from .graph import InternalGraph
    from .recording import Scope


def get_suffix_name(prefix: str, name: str) -> str | None:
    """Return what follows a prefix and a dot in a name; "" where they are equal, None otherwise.

    >>> get_suffix_name("net", "net.block.conv")
    'block.conv'
    """
    if name == prefix:
        return ""
    return name[len(prefix) + 1 :] if name.startswith(f"{prefix}.") else None


def rstrip(s: str, __chars: str) -> str:
    """Return a text without repetitions of a whole ending.

    >>> rstrip("conv_out_out", "_out")
    'conv'
    """
    return re.sub(f"(?:{re.escape(__chars)})+$", "", s)


def recording_scope(what: str) -> Scope:
    """Return the scope that records.

    Raises:
        TraceError: where none does.
    """
    found = scope.current()
    if found is None:
        raise TraceError(
            f"{what}: no graph is being recorded, expected a call inside trace_module or "
            "InternalGraph.insert_exprs"
        )
    return found


class Expr:
    """One step of a graph.

    Attributes:
        inputs: the nodes that it reads, each once.
        outputs: the nodes that it makes.
        version: the version of Tianyuan that recorded it.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> expr = traced.graph.exprs().as_list()[0]
    >>> expr.args, expr.inputs, expr.outputs
    ((x, 1), [x], [add_out])
    """

    _kind: ClassVar[str] = ""

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []
        self.version = __version__
        self._id = NEW
        self._disable_remove = False
        self._top_graph: InternalGraph | None = None
        self._leaves: list[Any] = []
        self._is_flat = True  # no argument is a container
        self.arg_def: TreeDef = tree_flatten(((), {}))[1]
        self.out_def: TreeDef = tree_flatten(None)[1]

    # What is called may be exchanged by assignment; compiled forms of the module must notice.
    _CALLED = frozenset({"func", "method", "opdef", "value", "attr_name"})

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._CALLED:
            self._touch()

    def _touch(self) -> None:
        graph = self.__dict__.get("_top_graph")
        if graph is not None:
            graph._touch()

    @property
    def id(self) -> int:
        """Number, unique within the top graph."""
        return self._id

    @property
    def top_graph(self) -> InternalGraph | None:
        """The graph that the expression belongs to."""
        return self._top_graph

    def disable_remove(self) -> None:
        """Keep the expression in ``compile`` even where nothing reads its outputs.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> class Net(M.Module):
        ...     def forward(self, x):
        ...         return (x + 1).sum()
        >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
        >>> add, total = traced.graph.exprs()
        >>> traced.graph.reset_outputs(add.outputs[0])
        >>> total.disable_remove(); traced.graph.compile()
        >>> traced.graph.exprs().as_count()
        2
        """
        self._disable_remove = True

    def enable_remove(self) -> None:
        """Let ``compile`` drop the expression where nothing reads its outputs.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> class Net(M.Module):
        ...     def forward(self, x):
        ...         return (x + 1).sum()
        >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
        >>> add, total = traced.graph.exprs()
        >>> traced.graph.reset_outputs(add.outputs[0])
        >>> total.enable_remove(); traced.graph.compile()
        >>> traced.graph.exprs().as_count()
        1
        """
        self._disable_remove = False

    # Arguments.

    def add_inputs(self, vals: Any) -> None:
        """Append values or nodes to the positional arguments.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> class Net(M.Module):
        ...     def forward(self, x):
        ...         return (x + 1).sum()
        >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
        >>> add, total = traced.graph.exprs()
        >>> total.add_inputs(0)
        >>> total.args[1:]
        (0,)
        """
        added = tuple(vals) if isinstance(vals, (list, tuple)) else (vals,)
        self.set_args_kwargs(*self.args, *added, **self.kwargs)

    def set_args_kwargs(self, *args: Any, **kwargs: Any) -> None:
        """Replace all arguments by values and nodes.

        Raises:
            GraphError: where a node belongs to another graph.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> class Net(M.Module):
        ...     def forward(self, x):
        ...         return (x + 1).sum()
        >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
        >>> add, total = traced.graph.exprs()
        >>> total.set_args_kwargs(add.outputs[0], axis=0, keepdims=True)
        >>> traced(ty.Tensor([1.0, 2.0])).tolist()
        [5.0]
        """
        leaves, treedef = tree_flatten(tree_map(names.unreported, (args, kwargs)))
        inputs: list[Node] = []
        kept = []
        for leaf in leaves:
            node = self._node_of(leaf)
            if node is not None:
                if node not in inputs:
                    inputs.append(node)
                leaf = ArgsIndex(inputs.index(node), node._name)
            kept.append(leaf)
        for node in inputs:
            if self._top_graph is not None and node.top_graph not in (None, self._top_graph):
                raise GraphError(
                    f"Expr.set_args_kwargs: a node belongs to another graph, got {node!r}, "
                    f"expected nodes of {self._top_graph.name!r}"
                )
        self._take_users(inputs)
        self._touch()
        self._leaves, self.arg_def = kept, treedef
        self._is_flat = all(
            isinstance(leaf, LeafDef)
            for part in treedef.children_defs
            for leaf in part.children_defs
        )

    def _node_of(self, leaf: Any) -> Node | None:
        if isinstance(leaf, Node):
            return leaf
        if isinstance(leaf, (Tensor, Module)) or (
            isinstance(leaf, Size) and NodeMixin.get(leaf, None) is not None
        ):
            return recording_scope(type(self).__name__).node_of(leaf)
        return None

    def _take_users(self, inputs: list[Node]) -> None:
        for node in self.inputs:
            if self in node.users:
                node.users.remove(self)
        self.inputs = inputs
        for node in inputs:
            if self not in node.users:
                node.users.append(self)

    def set_arg(self, name: str | int, val: Any) -> None:
        """Replace one argument, by its name or its position.

        Raises:
            GraphError: where there is no such argument.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> class Net(M.Module):
        ...     def forward(self, x):
        ...         return (x + 1).sum()
        >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
        >>> add, total = traced.graph.exprs()
        >>> add.set_arg(1, 10)
        >>> traced(ty.Tensor([1.0, 2.0])).item()
        23.0
        """
        args, kwargs = list(self.args), dict(self.kwargs)
        if isinstance(name, int):
            if name >= len(args):
                raise GraphError(f"Expr.set_arg: no argument {name}, got {len(args)} positional")
            args[name] = val
        elif name in kwargs:
            kwargs[name] = val
        else:
            known = self._parameters()
            if name not in known:
                raise GraphError(
                    f"Expr.set_arg: no argument of the name, got {name!r}, expected one of "
                    f"{', '.join(known)}"
                )
            at = known.index(name)
            if at < len(args):
                args[at] = val
            else:
                kwargs[name] = val
        self.set_args_kwargs(*args, **kwargs)

    def _filled(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = [values[v.index] if isinstance(v, ArgsIndex) else v for v in self._leaves]
        if self._is_flat:
            positional, named = self.arg_def.children_defs
            count = positional.num_leaves
            return tuple(leaves[:count]), dict(zip(named.aux_data, leaves[count:], strict=True))
        filled: tuple[tuple[Any, ...], dict[str, Any]] = self.arg_def.unflatten(leaves)
        return filled

    def unflatten_args(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments, given a value for each input.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> class Net(M.Module):
        ...     def forward(self, x):
        ...         return (x + 1).sum()
        >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
        >>> add, total = traced.graph.exprs()
        >>> add.unflatten_args([5])
        ((5, 1), {})
        """
        return self._filled(list(inputs))

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments: nodes and fixed values."""
        return self._filled(self.inputs)[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments: nodes and fixed values."""
        return self._filled(self.inputs)[1]

    def _parameters(self) -> list[str]:
        """Return the names of what is called's parameters, as far as they are known."""
        target = self._target()
        if target is None:
            return []
        try:
            return list(inspect.signature(target).parameters)
        except ValueError:
            return []

    def _target(self) -> Callable[..., Any] | None:
        return None

    @property
    def named_args(self) -> dict[str, Any]:
        """Arguments by the names of the parameters that take them."""
        target, args = self._target(), self.args
        if target is None:
            return {str(index): value for index, value in enumerate(args)}
        bound = inspect.signature(target).bind(*args, **self.kwargs)
        return dict(bound.arguments)

    def replace_inputs(self, repl_dict: Mapping[Node, Node]) -> None:
        """Read other nodes in the place of some.

        Raises:
            GraphError: where a node is not read, or its replacement is of another kind, of
                another graph or made later.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> class Net(M.Module):
        ...     def forward(self, x):
        ...         return (x + 1).sum()
        >>> traced = trace_module(Net(), ty.Tensor([1.0, 2.0]))
        >>> add, total = traced.graph.exprs()
        >>> total.replace_inputs({add.outputs[0]: traced.graph.inputs[1]})
        >>> traced(ty.Tensor([1.0, 2.0])).item()
        3.0
        """
        for old, new in repl_dict.items():
            if old not in self.inputs:
                raise GraphError(f"Expr.replace_inputs: {old!r} is no input of {self!r}")
            if isinstance(old, ModuleNode) is not isinstance(new, ModuleNode):
                raise GraphError(
                    f"Expr.replace_inputs: a replacement is of another kind, got "
                    f"{type(new).__name__}, expected {type(old).__name__}"
                )
            graph = self._top_graph
            if graph is not None and not graph._is_before(new, self):
                raise GraphError(
                    f"Expr.replace_inputs: a replacement must be made before it is read, got "
                    f"{new!r} for {self!r}"
                )
        for old, new in repl_dict.items():
            self._replace_input(old, new)

    def _replace_input(self, old: Node, new: Node) -> None:
        inputs = [new if node is old else node for node in self.inputs]
        kept: list[Node] = []
        for node in inputs:
            if node not in kept:
                kept.append(node)
        self._leaves = [
            ArgsIndex(kept.index(inputs[v.index]), inputs[v.index]._name)
            if isinstance(v, ArgsIndex)
            else v
            for v in self._leaves
        ]
        self._take_users(kept)
        self._touch()

    # Results.

    def add_outputs(self, outputs: Any) -> None:
        """Make a node for each value of a result, and tie the values to them."""
        self.return_val = outputs

    @property
    def return_val(self) -> Any:
        """The result: output nodes in the structure in which the call returns them."""
        found = iter(self.outputs)
        leaves = [d.const_val if d.is_const else next(found) for d in self.out_def.leaf_defs()]
        return self.out_def.unflatten(leaves)

    @return_val.setter
    def return_val(self, new_outputs: Any) -> None:
        leaves, self.out_def = tree_flatten(new_outputs)
        self.outputs = []
        for leaf in leaves:
            if isinstance(leaf, Node):
                leaf.expr = self
                self.outputs.append(leaf)
            elif isinstance(leaf, (Tensor, Size, Module)):
                node = NodeMixin.get_wrapped_type(leaf)(self, None)  # type: ignore[call-arg]
                recording_scope(type(self).__name__).tie(leaf, node)
                self.outputs.append(node)

    def _results(self, outputs: Any) -> list[Any]:
        """Return the values of the output nodes of a call's result.

        Raises:
            TraceError: where the structure is not what was recorded.
        """
        if isinstance(outputs, Tensor) and self.outputs and isinstance(self.out_def, LeafDef):
            return [outputs]
        defs = self.out_def.leaf_defs()
        leaves, found = tree_flatten(outputs)
        if len(leaves) != len(defs) or not self.out_def.accepts(_freed(found, self.out_def)):
            raise TraceError(
                f"{self!r}: the result has another structure, got {found}, expected {self.out_def}"
            )
        return [leaf for leaf, d in zip(leaves, defs, strict=True) if not d.is_const]

    def interpret(self, *inputs: Any) -> list[Any]:
        """Compute the values of the outputs from those of the inputs."""
        raise NotImplementedError(f"{type(self).__name__}.interpret")

    def module_of(self, node: ModuleNode) -> Module:
        """Return the module that an output stands for."""
        raise GraphError(f"{type(self).__name__}: {node!r} stands for no module")

    @classmethod
    def _insert(cls, expr: Expr) -> None:
        recording_scope(f"{cls.__name__}.make").insert(expr)

    def _shown_args(self) -> str:
        args, kwargs = self.args, self.kwargs
        parts = [shown(arg) for arg in args]
        parts += [f"{key}={shown(value)}" for key, value in kwargs.items()]
        return ", ".join(parts)

    def _shown_outputs(self) -> str:
        found = [node._name or f"%{node._id}" for node in self.outputs]
        return ", ".join(found)

    def __repr__(self) -> str:
        return f"%{self._id}:\t{self._shown_outputs()} = {self._body()}"

    def _body(self) -> str:
        return f"{type(self).__name__}({self._shown_args()})"

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__}: an expression is copied with its graph only")


def _freed(found: TreeDef, expected: TreeDef) -> TreeDef:
    """Return a result's structure with its fixed leaves free where any value is expected."""
    for have, want in zip(found.leaf_defs(), expected.leaf_defs(), strict=True):
        if want.is_const and have.is_const and type(have.const_val) is type(want.const_val):
            have.const_val = want.const_val
    return found


def shown(value: Any) -> str:
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        inner = ", ".join(map(shown, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shown(item)}" for key, item in value.items()) + "}"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"array({value.dtype}{value.shape})"
    return repr(value)

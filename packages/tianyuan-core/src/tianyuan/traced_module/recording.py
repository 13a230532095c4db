"""Decide how what runs while a graph is recorded becomes expressions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import random
from ..errors import TraceError
from ..imperative import dispatch
from ..imperative.state import state
from ..imperative.tensor import Tensor
from ..module import Module
from ..module.structure import walk
from ..op import Op
from . import checker, names
from .expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr, Input, OpDef
from .node import ModuleNode, Node, NodeMixin, Size, TensorNode
from .pytree import tree_flatten, tree_map
from .scope import current, paused

if TYPE_CHECKING:
    from .builder import Family
    from .graph import InternalGraph

_run_module = Module.__call__


class Scope:
    """Records what one call of a module does into a graph.

    Args:
        graph: where expressions go.
        module: whose call it is; its tensors and modules are read by ``GetAttr``.
        family: builders of the modules that it calls; None for ``insert_exprs``.
        editing: nodes are used in the place of values, and expressions wait to be placed.
    """

    def __init__(
        self,
        graph: InternalGraph,
        module: Module,
        family: Family | None = None,
        editing: bool = False,
    ) -> None:
        self.graph, self.module, self.family, self.editing = graph, module, family, editing
        self.pending: list[Expr] = []
        self._saved: list[tuple[Any, Any]] = []
        self._values: dict[Node, Any] = {}
        self._paths: dict[int, tuple[Any, str]] = {
            id(leaf): (leaf, name) for name, leaf, _ in walk(module)
        }

    def tie(self, value: Any, node: Node) -> None:
        """Let a value stand for a node until the scope is left."""
        self._saved.append((value, NodeMixin.get(value, None)))
        NodeMixin.wrap(value, node)
        if isinstance(value, Size):
            node.value = value  # type: ignore[attr-defined]
        self._values[node] = value

    def leave(self) -> None:
        """Let values stand for what they stood for before."""
        for value, node in reversed(self._saved):
            if node is None:
                NodeMixin.clear_node(value)
            else:
                vars(value)["_NodeMixin__node"] = node
        self._saved.clear()

    def value_of(self, node: Node) -> Any:
        """Return the value that was tied to a node, or None."""
        return self._values.get(node)

    def path_of(self, value: Any) -> str | None:
        """Return the path of a tensor or module below this scope's module, or None."""
        found = self._paths.get(id(value))
        if found is not None and found[0] is value:
            return found[1]
        if not self.editing:
            return None
        # A module may have been hung into the traced module inside the very block.
        return next((name for name, leaf, _ in walk(self.module) if leaf is value), None)

    def known(self, value: Any) -> Node | None:
        """Return the node of a value in this very graph, or None."""
        node: Node | None = NodeMixin.get(value, None)
        return node if node is not None and node.top_graph is self.graph else None

    def node_of(self, value: Any) -> Node:
        """Return the node of a value; one of the module's own is read, another is a constant.

        Raises:
            TraceError: where the value was computed by another module's call.
        """
        node = self.known(value)
        if node is not None:
            return node
        if value is self.module:
            return self.graph._inputs[0]
        path = self.path_of(value)
        if path is not None:
            found = GetAttr.make(self.graph._inputs[0], NodeMixin.get_wrapped_type(value), path)
            self.tie(value, found)
            return found
        foreign = NodeMixin.get(value, None)
        if foreign is not None:
            raise TraceError(
                f"trace_module: {self.graph.qualname} uses a value that was computed outside of "
                f"it, got {foreign!r} at {dispatch.user_line()}; expected its inputs only"
            )
        if isinstance(value, Module) and self.editing:
            raise TraceError(
                f"insert_exprs: a module is called that the traced module does not hold, got "
                f"{type(value).__name__}; assign it to an attribute of the traced module first"
            )
        made: Node = Constant.make(value)
        return made

    def insert(self, expr: Expr) -> None:
        """Add an expression."""
        if not self.editing:
            self.graph._append(expr)
            return
        expr._top_graph = self.graph
        self.graph._namespace.auto_naming_for_outputs(expr)
        self.pending.append(expr)

    # Nodes in the place of values, while a graph is edited.

    def ignores(self, given: Any) -> bool:
        """Tell whether a call is not the graph's: it is edited, and no node is used."""
        return self.editing and not any(map(self._concerns, tree_flatten(given)[0]))

    def _concerns(self, leaf: Any) -> bool:
        if isinstance(leaf, Node):
            return True
        if not isinstance(leaf, (Tensor, Module, Size)):
            return False
        return self.known(leaf) is not None or self.path_of(leaf) is not None

    def stand_in(self, given: Any) -> Any:
        """Return arguments with values in the place of nodes."""
        return tree_map(self._stand_in, given) if self.editing else given

    def _stand_in(self, node: Any) -> Any:
        if isinstance(node, ModuleNode):
            return node.owner
        if not isinstance(node, TensorNode):
            return node
        if node not in self._values:
            if node.top_graph is not self.graph:
                raise TraceError(
                    f"insert_exprs: a node of another graph is used, got {node!r}, expected nodes "
                    f"of {self.graph.name!r}"
                )
            if isinstance(node.value, Size):
                self.tie(Size(node.value), node)
            elif node.shape is None:
                raise TraceError(f"insert_exprs: the shape of {node!r} is not known, set its shape")
            else:
                dtype = node.dtype or "float32"
                self.tie(Tensor(np.zeros(node.shape, dtype), dtype, node.device), node)
        return self._values[node]

    def handed(self, outputs: Any) -> Any:
        """Return a result with nodes in the place of values."""
        if not self.editing:
            return outputs
        return tree_map(
            lambda leaf: self.node_of(leaf) if isinstance(leaf, (Tensor, Size)) else leaf, outputs
        )


def _plain(given: Any) -> Any:
    """Return arguments with extents as ints of no special class."""
    return tree_map(lambda leaf: int(leaf) if isinstance(leaf, Size) else leaf, given)


def _finish(found: Scope, expr: Expr, outputs: Any) -> Any:
    expr.return_val = outputs
    found.insert(expr)
    return found.handed(outputs)


def call_function(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function, as one expression where a graph is recorded."""
    found = current()
    if found is None:
        return func(*args, **kwargs)
    args = tuple(list(arg) if isinstance(arg, (Iterator, range)) else arg for arg in args)
    if found.ignores((args, kwargs)):
        with paused():
            return func(*args, **kwargs)
    args, kwargs = found.stand_in((tuple(args), kwargs))
    expr = CallFunction(func)
    expr.set_args_kwargs(*args, **kwargs)
    args, kwargs = _plain((args, kwargs))
    with paused(), checker.watching(found, expr) as check:
        outputs = func(*args, **kwargs)
        if func in names.SIZE_FUNCTIONS:
            outputs = Size(outputs)
        check(outputs)
    return _finish(found, expr, outputs)


def call_method(
    name: str, original: Callable[..., Any], target: Tensor, args: Any, kwargs: Any
) -> Any:
    """Call a tensor's method, as one expression where a graph is recorded."""
    found = current()
    if found is None:
        return original(target, *args, **kwargs)
    if found.ignores((target, args, kwargs)):
        with paused():
            return original(target, *args, **kwargs)
    args, kwargs = found.stand_in((tuple(args), kwargs))
    expr = CallMethod(target, name)
    expr.set_args_kwargs(target, *args, **kwargs)
    args, kwargs = _plain((args, kwargs))
    with paused(), checker.watching(found, expr) as check:
        outputs = original(target, *args, **kwargs)
        if outputs is NotImplemented:
            expr._take_users([])
            return NotImplemented
        check(outputs)
    if name in names.IN_PLACE:
        maker = expr.inputs[0].expr
        if isinstance(maker, (Input, GetAttr, Constant)) or maker._disable_remove:
            expr.disable_remove()
        _finish(found, expr, target)
        return found.handed(target) if outputs is not None else None
    return _finish(found, expr, outputs)


def read_property(name: str, original: Any, target: Tensor) -> Any:
    """Read a tensor's property, as one expression where a graph is recorded."""
    found = current()
    node = None if found is None else found.known(target)
    if found is None or node is None or (name != "T" and isinstance(node.expr, GetAttr)):
        return original(target)
    expr = CallMethod(target, name)
    with paused():
        outputs = original(target)
    if name == "shape":
        outputs = tuple(Size(extent) for extent in outputs)
    elif name == "size":
        outputs = Size(outputs)
    return _finish(found, expr, outputs)


def read_value(name: str, original: Callable[..., Any], target: Tensor, args: Any, kw: Any) -> Any:
    """Take a value out of the graph, and say so: what follows from it is fixed."""
    found = current()
    if found is not None and not found.editing and found.known(target) is not None:
        warnings.warn(
            f"trace_module: the value of a tensor is read by {name} at {dispatch.user_line()}; "
            "what follows from it is fixed in the traced module",
            stacklevel=3,
        )
    with paused():
        return original(target, *args, **kw)


def make_tensor(original: Callable[..., Any], made: Tensor, args: Any, kwargs: Any) -> None:
    """Run a tensor's constructor, as one expression where it copies a recorded tensor."""
    found = current()
    data = args[0] if args else kwargs.get("data")
    if found is None or not isinstance(data, Tensor) or found.ignores(data):
        original(made, *args, **kwargs)
        return
    expr = CallFunction(Tensor)
    expr.set_args_kwargs(*args, **kwargs)
    with paused():
        original(made, *args, **kwargs)
    _finish(found, expr, made)


def apply_op(op: Op, operands: Sequence[Any], attrs: Any) -> Any:
    """Apply an op, as one expression where a graph is recorded."""
    found = current()
    if found is None:
        saved, state.interceptor = state.interceptor, None
        try:
            return dispatch.apply(op, operands, attrs)
        finally:
            state.interceptor = saved
    if found.ignores(list(operands)):
        with paused():
            return dispatch.apply(op, operands, attrs)
    expr = Apply(OpDef(op, attrs))
    expr.set_args_kwargs(*operands)
    with paused(), checker.watching(found, expr) as check:
        outputs = dispatch.apply(op, operands, attrs)
        check(outputs)
    return _finish(found, expr, outputs)


def call_module(module: Module, args: Any, kwargs: Any, node: ModuleNode | None = None) -> Any:
    """Call a module, as one expression where a graph is recorded."""
    found = current()
    if found is None or module is found.module:
        return _run_module(module, *args, **kwargs)
    if node is None and not found.editing and found.path_of(module) is None:
        return _run_module(module, *args, **kwargs)
    args, kwargs = found.stand_in((tuple(args), kwargs))
    expr = CallMethod(node or found.node_of(module))
    expr.set_args_kwargs(expr.inputs[0], *args, **kwargs)
    if found.editing or names.is_builtin(module):
        args, kwargs = _plain((args, kwargs))
        with paused(), checker.watching(found, expr) as check:
            outputs = _run_module(module, *args, **kwargs)
            check(outputs)
    else:
        assert found.family is not None
        outputs = found.family.builder(module).record(
            args, kwargs, expr.inputs[0]._name, found.graph
        )
    return _finish(found, expr, outputs)


def call_node_method(node: TensorNode, name: str, args: Any, kwargs: Any) -> Any:
    """Call a method of the tensor that a node stands for, in a graph that is edited."""
    found = current()
    if found is None or not found.editing:
        raise TraceError(
            f"{node!r}.{name}: a node is computed with outside of a graph, expected to be inside "
            "InternalGraph.insert_exprs"
        )
    return found.handed(_on_value(name, found.stand_in(node), args, kwargs))


def _on_value(name: str, value: Any, args: Any, kwargs: Any) -> Any:
    # The class is patched: what is found there records.
    found = getattr(value, name)
    return found if name in names.PROPERTIES else found(*args, **kwargs)


def node_attribute(node: ModuleNode, name: str) -> Any:
    """Return a member of the module that a node stands for, in a graph that is edited."""
    found = current()
    assert found is not None
    value = getattr(node.owner, name)
    if not isinstance(value, (Tensor, Module)):
        return value
    made = found.known(value)
    if made is None:
        made = GetAttr.make(node, NodeMixin.get_wrapped_type(value), name)
        found.tie(value, made)
    return made


@contextmanager
def undisturbed(module: Module, others: Sequence[Any] = ()) -> Iterator[None]:
    """Put tensors, random numbers and open tapes back when a block ends."""
    tensors = [*module.tensors(), *(value for value in others if isinstance(value, Tensor))]
    saved = [(tensor, tensor._data, tensor._spec) for tensor in tensors]
    numbers = random.get_state()
    tapes, state.tapes = state.tapes, []
    try:
        yield
    finally:
        state.tapes = tapes
        random.set_state(numbers)
        for tensor, data, spec in saved:
            tensor._data, tensor._spec = data, spec


def note_assignment(found: Scope, module: Module, name: str, value: Any) -> None:
    """Warn where ``forward`` keeps a recorded value in a module: a graph cannot do that."""
    if found.editing or not isinstance(value, Tensor) or vars(module).get(name) is value:
        return
    if found.known(value) is not None:
        warnings.warn(
            f"trace_module: {type(module).__name__}.{name} is given a computed value at "
            f"{dispatch.user_line()}; the traced module does not keep it",
            stacklevel=4,
        )

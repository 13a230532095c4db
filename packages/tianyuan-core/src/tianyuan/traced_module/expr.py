"""Decide what one step of a graph is: where a value comes from, or what is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import GraphError, TraceError
from ..imperative import dispatch
from ..imperative.tensor import Tensor
from ..module import Module
from ..op import Op
from . import names
from .members import lookup
from .node import ModuleNode, Node, NodeMixin
from .pytree import tree_flatten
from .steps import Expr, get_suffix_name, recording_scope, rstrip, shown

if TYPE_CHECKING:
    from .graph import InternalGraph

__all__ = [
    "Apply", "CallFunction", "CallMethod", "Constant", "Expr", "GetAttr", "Input", "OpDef",
    "get_suffix_name", "is_apply_def", "is_call_function", "is_call_module",
    "is_call_tensor_method", "is_constant", "is_getattr", "is_input", "rstrip",
]  # fmt: skip


@dataclass(frozen=True)
class OpDef:
    """An op with its attributes: what ``Apply`` applies.

    >>> from tianyuan.op import NO_ATTRS
    >>> from tianyuan.registry import get_op
    >>> OpDef(get_op("exp"), NO_ATTRS)
    exp
    """

    op: Op
    attrs: Any

    def __repr__(self) -> str:
        return self.op.name


class Input(Expr):
    """Introduce an input of a graph.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
    >>> [is_input(node.expr) for node in traced.graph.inputs]
    [True, True]
    """

    _kind = "input"

    def __init__(self, type: type[Node], name: str = "args", qualname: str = "") -> None:
        super().__init__()
        node: Any = type
        self.outputs = [node(self, None, qualname)]
        self.name = name
        self.out_def = tree_flatten(self.outputs[0])[1]

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Node:
        """Add an input to the graph that is being recorded, and return its node."""
        expr = cls(*args, **kwargs)
        found = recording_scope("Input.make")
        found.graph._adopt_input(expr)
        return expr.outputs[0]

    def module_of(self, node: ModuleNode) -> Module:
        graph = self._top_graph
        if graph is None or graph._module is None:
            raise GraphError(f"Input: {node!r} stands for the module of a graph that has none")
        return graph._module

    def _body(self) -> str:
        return f"Input({self.name})"


class GetAttr(Expr):
    """Read a module or tensor from a module, by attribute name or dotted path.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
    >>> next(iter(traced.graph.exprs())).attr_name
    '0'
    """

    _kind = "getattr"

    def __init__(
        self, module: ModuleNode, type: type[Node], attr_name: str, name: str = ""
    ) -> None:
        super().__init__()
        node: Any = type
        self.attr_name = attr_name
        self.name = name or attr_name.replace(".", "_")
        self.outputs = [node(self, None)]
        self.out_def = tree_flatten(self.outputs[0])[1]
        self.set_args_kwargs(module)

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Node:
        """Insert such an expression and return its node."""
        expr = cls(*args, **kwargs)
        cls._insert(expr)
        return expr.outputs[0]

    def interpret(self, *inputs: Any) -> list[Any]:
        """Return what the attribute holds now."""
        return [lookup(inputs[0], self.attr_name)]

    def module_of(self, node: ModuleNode) -> Module:
        source = self.inputs[0]
        assert isinstance(source, ModuleNode)
        found = lookup(source.owner, self.attr_name)
        if not isinstance(found, Module):
            raise GraphError(f"GetAttr: {self.attr_name!r} is no module")
        return found

    def _body(self) -> str:
        node = self.outputs[0]
        kind = node.module_type.__name__ if isinstance(node, ModuleNode) else "Tensor"
        return f'getattr({self.inputs[0]!r}, "{self.attr_name}") -> ({kind})'


class CallMethod(Expr):
    """Call a module, or a method of a tensor.

    Args:
        node: the module's or tensor's node; or a value of its kind while a graph is recorded.
        method: ``__call__`` for a module.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> [expr.method for expr in traced.graph.exprs()]
    ['__add__', 'sum']
    """

    _kind = "method"

    def __init__(self, node: Any, method: str = "__call__") -> None:
        super().__init__()
        if isinstance(node, type):
            raise TraceError(f"CallMethod: not a node, got class {node.__name__}")
        if method != "__call__":
            names.check_method(method)
        self.method = method
        self.set_args_kwargs(node)

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> CallMethod:
        """Insert such an expression and return it."""
        expr = cls(*args, **kwargs)
        cls._insert(expr)
        return expr

    @property
    def graph(self) -> InternalGraph | None:
        """The graph of the traced module that is called, or None."""
        target = self.inputs[0]
        if not isinstance(target, ModuleNode):
            return None
        owner: Any = target.owner
        graphs: dict[Any, InternalGraph] = getattr(owner, "argdef_graph_map", {})
        if len(graphs) <= 1:
            return next(iter(graphs.values()), None)
        args, kwargs = owner.normalised(self.args[1:], self.kwargs)
        _, treedef = tree_flatten(((target, *args), kwargs))
        return next((g for d, g in graphs.items() if d.accepts(treedef)), None)

    def interpret(self, *inputs: Any) -> list[Any]:
        """Call, and return the values of the outputs."""
        args, kwargs = self.unflatten_args(inputs)
        if self.method == "__call__":
            return self._results(args[0](*args[1:], **kwargs))
        if self.method in names.PROPERTIES:
            return self._results(getattr(args[0], self.method))
        found = getattr(args[0], self.method)(*args[1:], **kwargs)
        if self.method in names.IN_PLACE:
            found = args[0] if found is None else found
        return self._results(found)

    def _target(self) -> Callable[..., Any] | None:
        target = self.inputs[0]
        if isinstance(target, ModuleNode):
            return type(target.owner).forward
        found: Any = getattr(Tensor, self.method)
        return found if callable(found) else None

    def _parameters(self) -> list[str]:
        target = self.inputs[0]
        if isinstance(target, ModuleNode) and hasattr(target.owner, "arg_names"):
            return ["self", *target.owner.arg_names]
        return super()._parameters()

    @property
    def named_args(self) -> dict[str, Any]:
        """Arguments by the names of the parameters that take them."""
        target = self.inputs[0]
        if isinstance(target, ModuleNode) and hasattr(target.owner, "arg_names"):
            return {**dict(zip(self._parameters(), self.args, strict=False)), **self.kwargs}
        return super().named_args

    def _body(self) -> str:
        target, *rest = self.args
        kwargs = [f"{key}={shown(value)}" for key, value in self.kwargs.items()]
        given = ", ".join([*map(shown, rest), *kwargs])
        if self.method == "__call__":
            return f"{target!r}({given})"
        called = "" if self.method in names.PROPERTIES else f"({given})"
        return f"{target!r}.{self.method}{called}"


class CallFunction(Expr):
    """Call a function of ``tianyuan.functional``, or one that was given to ``wrap``.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> traced.graph.exprs().as_unique().func is F.relu
    True
    """

    _kind = "function"

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(func):
            raise TraceError(f"CallFunction: not a function, got {type(func).__name__}")
        self.func = names.unreported(func)

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> CallFunction:
        """Insert such an expression and return it."""
        expr = cls(*args, **kwargs)
        cls._insert(expr)
        return expr

    def interpret(self, *inputs: Any) -> list[Any]:
        """Call, and return the values of the outputs."""
        from .recording import call_function

        args, kwargs = self.unflatten_args(inputs)
        return self._results(call_function(self.func, args, kwargs))

    def _target(self) -> Callable[..., Any] | None:
        found: Callable[..., Any] = self.func
        return found

    def _body(self) -> str:
        name = names.function_name(self.func) or getattr(self.func, "__qualname__", "?")
        short = str(name).removeprefix("tianyuan.functional.").removeprefix("tianyuan.")
        return f"{short}({self._shown_args()})"


class Apply(Expr):
    """Apply an op, where no function or method of a higher level was seen.

    Args:
        opdef: an ``OpDef``, or an op without attributes.

    >>> from tianyuan.registry import get_op
    >>> Apply(get_op("exp")).opdef
    exp
    """

    _kind = "apply"

    def __init__(self, opdef: OpDef | Op) -> None:
        super().__init__()
        self.opdef = OpDef(opdef, opdef.attrs()) if isinstance(opdef, Op) else opdef

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Apply:
        """Insert such an expression and return it."""
        expr = cls(*args, **kwargs)
        cls._insert(expr)
        return expr

    @classmethod
    def apply_module_trace_hook(cls, opdef: OpDef, *inputs: Any) -> Any:
        """Apply an op to tensors and note it in the graph that is being recorded."""
        from .recording import apply_op

        return apply_op(opdef.op, inputs, opdef.attrs)

    def interpret(self, *inputs: Any) -> list[Any]:
        """Apply the op, and return the values of the outputs."""
        args, _ = self.unflatten_args(inputs)
        return self._results(dispatch.apply(self.opdef.op, args, self.opdef.attrs))

    def _body(self) -> str:
        attrs = [f"{key}={value!r}" for key, value in vars(self.opdef.attrs).items()]
        return f"{self.opdef.op.name}({', '.join([self._shown_args(), *attrs])})"


class Constant(Expr):
    """Hold a tensor or module that is part of the graph itself.

    >>> import tianyuan as ty
    >>> Constant(ty.Tensor([2.0])).interpret()[0].item()
    2.0
    """

    _kind = "constant"

    def __init__(self, c: Any, name: str = "", qualname: str = "") -> None:
        super().__init__()
        if not isinstance(c, (Tensor, Module)):
            raise TraceError(
                f"Constant: wrong value, got {type(c).__name__}, expected Tensor or Module"
            )
        self.value = c
        self.name = name
        node: Any = NodeMixin.get_wrapped_type(c)
        self.outputs = [node(self, None, qualname)]
        self.out_def = tree_flatten(self.outputs[0])[1]

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Node:
        """Insert such an expression and return its node."""
        expr = cls(*args, **kwargs)
        cls._insert(expr)
        node = expr.outputs[0]
        recording_scope("Constant.make").tie(expr.value, node)
        return node

    def interpret(self, *inputs: Any) -> list[Any]:
        """Return the value."""
        return [self.value]

    def module_of(self, node: ModuleNode) -> Module:
        if not isinstance(self.value, Module):
            raise GraphError("Constant: the value is no module")
        return self.value

    def _body(self) -> str:
        if isinstance(self.value, Tensor):
            return f"Constant({self.value._spec})"
        return f"Constant({type(self.value).__name__})"


def is_input(expr: Any) -> bool:
    """Tell whether an expression introduces an input.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
    >>> is_input(traced.graph.inputs[0].expr)
    True
    """
    return isinstance(expr, Input)


def is_getattr(expr: Any) -> bool:
    """Tell whether an expression reads an attribute.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
    >>> [is_getattr(expr) for expr in traced.graph.exprs()]
    [True, False]
    """
    return isinstance(expr, GetAttr)


def is_constant(expr: Any) -> bool:
    """Tell whether an expression holds a constant.

    >>> import tianyuan as ty
    >>> is_constant(Constant(ty.Tensor([2.0])))
    True
    """
    return isinstance(expr, Constant)


def _group(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)


def is_call_module(expr: Any, module_cls: Any = None) -> bool:
    """Tell whether an expression calls a module, of one of some classes if they are given.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
    >>> [is_call_module(expr, M.ReLU) for expr in traced.graph.exprs()]
    [False, True]
    """
    if not isinstance(expr, CallMethod) or not isinstance(expr.inputs[0], ModuleNode):
        return False
    return module_cls is None or isinstance(expr.inputs[0].owner, _group(module_cls))


def is_call_tensor_method(expr: Any, method: str | Iterable[str] | None = None) -> bool:
    """Tell whether an expression calls a tensor's method, one of some if they are given.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> [is_call_tensor_method(expr, "sum") for expr in traced.graph.exprs()]
    [False, True]
    """
    if not isinstance(expr, CallMethod) or isinstance(expr.inputs[0], ModuleNode):
        return False
    return method is None or expr.method in _group(method)


def is_call_function(expr: Any, func: Any = None) -> bool:
    """Tell whether an expression calls a function, one of some if they are given.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> [is_call_function(expr, F.relu) for expr in traced.graph.exprs()]
    [True]
    """
    if not isinstance(expr, CallFunction):
        return False
    return func is None or any(expr.func is one for one in _group(func))


def is_apply_def(expr: Any, opdef: Any = None) -> bool:
    """Tell whether an expression applies an op, one of some if they are given (op or name).

    >>> from tianyuan.registry import get_op
    >>> is_apply_def(Apply(get_op("exp")), "exp")
    True
    """
    if not isinstance(expr, Apply):
        return False
    op = expr.opdef.op
    return opdef is None or any(
        one is op or one == op.name or getattr(one, "op", None) is op for one in _group(opdef)
    )

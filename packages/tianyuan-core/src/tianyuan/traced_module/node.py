"""Decide what stands for a value in a traced module's graph: tensors, extents and modules."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GraphError, TraceError
from ..module import Module
from . import scope

if TYPE_CHECKING:
    from .expr import Expr
    from .graph import InternalGraph

_KEY = "_NodeMixin__node"
NEW = -1  # the number of a node or expression that its graph has not numbered yet


class Node:
    """A value of a graph: the result of one expression.

    Attributes:
        expr: the expression that makes it.
        users: the expressions that read it.
        id: its number, unique within the top graph.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> node = traced.graph.outputs[0]
    >>> node.name, node.qualname
    ('relu_out', 'Net.[relu_out]')
    """

    def __init__(self, expr: Expr | None, name: str | None, qualname: str | None) -> None:
        self.expr: Expr = expr  # type: ignore[assignment]
        self.users: list[Expr] = []
        self._id = NEW
        self._name = name or ""
        self._qualname = qualname or ""

    @property
    def id(self) -> int:
        """Number, unique within the top graph."""
        return self._id

    @property
    def name(self) -> str:
        """Name, unique within its graph; may be set to a name that is not taken."""
        return self._name

    @name.setter
    def name(self, new_name: str) -> None:
        graph = self.top_graph
        if graph is not None and new_name != self._name:
            if new_name in graph._namespace.used_names:
                raise GraphError(
                    f"Node.name: the name is taken, got {new_name!r}, expected one that graph "
                    f"{graph.name!r} does not use"
                )
            graph._namespace.unassociate_name_with_obj(self)
            graph._namespace.associate_name_with_obj(new_name, self)
        self._name = new_name

    @property
    def qualname(self) -> str:
        """Name that says where in the network the value is made."""
        if self._qualname:
            return self._qualname
        graph = self.top_graph
        return f"{graph.qualname}.[{self._name}]" if graph is not None else self._name

    @property
    def top_graph(self) -> InternalGraph | None:
        """The graph that the node belongs to."""
        return None if self.expr is None else self.expr.top_graph

    def __repr__(self) -> str:
        return self._name or f"%{self._id}"

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__}: a node is copied with its graph only")


class ModuleNode(Node):
    """A module in a graph: the graph's own (``self``) or one that it calls.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
    >>> traced.graph.get_module_by_type(M.ReLU).as_unique().owner
    ReLU()
    """

    def __init__(self, expr: Expr | None, name: str | None = None, qualname: str | None = None):
        super().__init__(expr, name, qualname)
        self.module_type: Any = Module

    @property
    def owner(self) -> Module:
        """The module that the node stands for.

        Raises:
            GraphError: where the graph belongs to no module.
        """
        return self.expr.module_of(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or scope.current() is None:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}; a module's members are reached "
                "inside InternalGraph.insert_exprs"
            )
        from .recording import node_attribute

        return node_attribute(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Insert a call of the module; inside ``InternalGraph.insert_exprs`` only."""
        from .recording import call_module

        if scope.current() is None:
            raise TraceError(
                f"{self._name}: a node is called outside of a graph, expected a call inside "
                "InternalGraph.insert_exprs"
            )
        return call_module(self.owner, args, kwargs, self)


class TensorNode(Node):
    """A tensor in a graph, or an extent of one.

    Attributes:
        shape, dtype, device, qparams: of the example value; None where they are not known.
        value: the example or watched value, where one was kept.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> node = traced.graph.inputs[1]
    >>> node.shape, node.dtype, node.device
    ((1,), dtype('float32'), 'cpu')
    """

    def __init__(
        self,
        expr: Expr | None,
        name: str | None = None,
        qualname: str | None = None,
        shape: tuple[int, ...] | None = None,
        dtype: np.dtype | None = None,
        qparams: Any = None,
    ) -> None:
        super().__init__(expr, name, qualname)
        self._shape = shape
        self._dtype = dtype
        self._qparams = qparams
        self._device: str | None = None
        self._value: Any = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the example value."""
        return self._shape

    @shape.setter
    def shape(self, shape: tuple[int, ...] | None) -> None:
        self._shape = shape

    @property
    def dtype(self) -> Any:
        """dtype of the example value."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self._dtype = dtype

    @property
    def device(self) -> str | None:
        """Device of the example value."""
        return self._device

    @device.setter
    def device(self, device: str | None) -> None:
        self._device = device

    @property
    def qparams(self) -> Any:
        """Quantisation parameters, or None."""
        return self._qparams

    @qparams.setter
    def qparams(self, qparams: Any) -> None:
        self._qparams = qparams

    @property
    def value(self) -> Any:
        """The value that was kept for this node, or None."""
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        from .names import PROPERTIES, TENSOR_METHODS

        if name not in TENSOR_METHODS:
            raise AttributeError(f"TensorNode has no attribute {name!r}")
        method = _node_method(name).__get__(self)
        return method() if name in PROPERTIES else method


def _node_method(name: str) -> Callable[..., Any]:
    def method(self: TensorNode, *args: Any, **kwargs: Any) -> Any:
        from .recording import call_node_method

        return call_node_method(self, name, args, kwargs)

    return method


# Equality of nodes stays identity: ``functional.equal`` compares what they stand for.
for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift",
):  # fmt: skip
    for _prefix in ("", "r"):
        setattr(TensorNode, f"__{_prefix}{_name}__", _node_method(f"__{_prefix}{_name}__"))
for _name in ("neg", "pos", "abs", "invert", "getitem", "lt", "le", "gt", "ge"):
    setattr(TensorNode, f"__{_name}__", _node_method(f"__{_name}__"))


class Size(int):
    """An extent of a traced tensor: an int that remembers the node that it comes from."""

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _size_method(name: str, swapped: bool) -> Callable[[Size, Any], Any]:
    function = getattr(operator, name)

    def method(self: Size, *other: Any) -> Any:
        if any(not isinstance(item, int) for item in other):
            return NotImplemented
        from .recording import call_function

        operands = (*other, self) if swapped else (self, *other)
        if scope.current() is None:
            return function(*map(int, operands))
        return call_function(function, operands, {})

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Size, f"__{_name}__", _size_method(_name, False))
    setattr(Size, f"__r{_name}__", _size_method(_name, True))
setattr(Size, "__neg__", _size_method("neg", False))  # noqa: B010


class NodeMixin:
    """Tie values to the nodes that stand for them while a graph is recorded.

    >>> import tianyuan as ty
    >>> NodeMixin.get(ty.Tensor([1.0]), None) is None
    True
    """

    @classmethod
    def wrap(cls, value: Any, node: Any) -> None:
        """Tie a value to a node; ``node`` may be a function that makes one.

        >>> import tianyuan as ty
        >>> x = ty.Tensor([1.0])
        >>> NodeMixin.wrap(x, TensorNode(None, "x"))
        >>> NodeMixin.get(x)
        x
        """
        if not hasattr(value, "__dict__"):
            raise TypeError(
                f"NodeMixin.wrap: no node can be tied to it, got {type(value).__name__}, expected "
                "a Tensor or Module"
            )
        made = node() if callable(node) and not isinstance(node, Node) else node
        vars(value)[_KEY] = made
        if isinstance(made, TensorNode) and hasattr(value, "qparams"):
            made.shape = tuple(map(int, value._spec.shape))
            made.dtype, made.device = value.dtype, value.device
            made.qparams = value.qparams
        elif isinstance(made, ModuleNode):
            made.module_type = type(value)

    @classmethod
    def wrap_safe(cls, value: Any, node: Any) -> None:
        """Tie a value that has no node yet.

        Raises:
            TraceError: where it has one.
        """
        if cls.get(value, None) is not None:
            raise TraceError(
                f"NodeMixin.wrap_safe: the value has a node, got {cls.get(value)!r}, expected none"
            )
        cls.wrap(value, node)

    @classmethod
    def clear_node(cls, value: Any) -> None:
        """Untie a value."""
        if hasattr(value, "__dict__"):
            vars(value).pop(_KEY, None)

    @classmethod
    def get(cls, value: Any, *default: Any) -> Any:
        """Return the node of a value, or the default.

        Raises:
            AttributeError: where there is neither.
        """
        found = getattr(value, "__dict__", {}).get(_KEY)
        if found is not None:
            return found
        if default:
            return default[0]
        raise AttributeError(f"NodeMixin.get: {type(value).__name__} has no node")

    @classmethod
    def get_wrapped_type(cls, value: Any) -> type[Node]:
        """Return the class of the nodes that stand for such a value.

        >>> import tianyuan as ty
        >>> NodeMixin.get_wrapped_type(ty.Tensor([1.0]))
        <class 'tianyuan.traced_module.node.TensorNode'>
        """
        return ModuleNode if isinstance(value, Module) else TensorNode

"""Find expressions and nodes of a graph by what they are."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..errors import GraphError
from .expr import Expr, is_call_function, is_call_module, is_call_tensor_method
from .node import ModuleNode, Node, TensorNode


class BaseFilter:
    """A lazy selection of what an iterable gives.

    >>> BaseFilter([4]).as_unique(), BaseFilter([4, 5]).as_count()
    (4, 2)
    """

    def __init__(self, iter: Iterable[Any]) -> None:
        self._items = iter

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def as_list(self) -> list[Any]:
        """Return all that was found.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.nodes().type(M.ReLU).as_list()
        [_0]
        """
        return list(self)

    def as_dict(self) -> dict[int, Any]:
        """Return all that was found by its number.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.nodes().type(M.ReLU).as_dict()
        {2: _0}
        """
        return {item._id: item for item in self}

    def as_unique(self) -> Any:
        """Return the only one that was found.

        Raises:
            GraphError: where there is none or several.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.nodes().type(M.ReLU).as_unique()
        _0
        """
        found = self.as_list()
        if len(found) != 1:
            raise GraphError(f"as_unique: wrong number found, got {len(found)}, expected 1")
        return found[0]

    def as_count(self) -> int:
        """Return how many were found.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.nodes().as_count()
        4
        """
        return sum(1 for _ in self)


class ExprFilter(BaseFilter):
    """A selection of expressions.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> traced.graph.exprs().call_method("sum").as_count()
    1
    """

    def call_function(self, func: Callable[..., Any] | None) -> ExprFilterCallFunction:
        """Keep calls of a function, or of any.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.exprs().call_function(None).as_count()
        0
        """
        return ExprFilterCallFunction(self, func)

    def call_method(self, method: str | None) -> ExprFilterCallMethod:
        """Keep calls of a tensor's method, or of modules (``__call__``), or of any.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.exprs().call_method("__call__").as_count()
        1
        """
        return ExprFilterCallMethod(self, method)

    def expr_id(self, expr_id: int | Sequence[int]) -> ExprFilterExprId:
        """Keep expressions of given numbers.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.exprs().expr_id([2, 3]).as_count()
        2
        """
        return ExprFilterExprId(self, expr_id)


class NodeFilter(BaseFilter):
    """A selection of nodes.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> traced.graph.nodes().name("*_out").as_list()
    [add_out, sum_out]
    """

    def type(self, owner_type: Any) -> NodeFilterType:
        """Keep nodes of a class, or of modules of a class.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.nodes().type(M.ReLU).as_list()
        [_0]
        """
        return NodeFilterType(self, owner_type)

    def node_id(self, node_id: int | Sequence[int]) -> NodeFilterNodeId:
        """Keep nodes of given numbers.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.nodes().node_id(1).as_list()
        [inputs]
        """
        return NodeFilterNodeId(self, node_id)

    def name(self, name: str, ignorecase: bool = True) -> NodeFilterName:
        """Keep nodes whose name or qualified name fits a pattern with ``*`` and ``?``.

        >>> import tianyuan as ty, tianyuan.module as M
        >>> from tianyuan.traced_module import trace_module
        >>> graph = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0])).graph
        >>> graph.nodes().name("in*").as_list()
        [inputs]
        """
        return NodeFilterName(self, name, ignorecase)


class NodeFilterType(NodeFilter):
    """Nodes of a class of nodes, or of modules of a class.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> traced = trace_module(M.Sequential(M.ReLU()), ty.Tensor([1.0]))
    >>> NodeFilterType(traced.graph.nodes(), M.ReLU).as_unique().owner
    ReLU()
    """

    def __init__(self, expr_iter: Iterable[Node], owner_type: Any) -> None:
        super().__init__(expr_iter)
        self.owner_type = owner_type

    def __iter__(self) -> Iterator[Node]:
        wanted = self.owner_type
        if isinstance(wanted, type) and issubclass(wanted, Node):
            return (node for node in self._items if isinstance(node, wanted))
        return (
            node
            for node in self._items
            if (isinstance(node, ModuleNode) and isinstance(node.owner, wanted))
            or (isinstance(node, TensorNode) and isinstance(node.value, wanted))
        )


def _numbers(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


class NodeFilterNodeId(NodeFilter):
    """Nodes of given numbers.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> NodeFilterNodeId(traced.graph.nodes(), [1]).as_list()
    [x]
    """

    def __init__(self, expr_iter: Iterable[Node], node_id: int | Sequence[int]) -> None:
        super().__init__(expr_iter)
        self.node_id_set = frozenset(_numbers(node_id))

    def __iter__(self) -> Iterator[Node]:
        return (node for node in self._items if node._id in self.node_id_set)


class NodeFilterName(NodeFilter):
    """Nodes whose name or qualified name fits a pattern.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> NodeFilterName(traced.graph.nodes(), "ADD*", ignorecase=True).as_list()
    [add_out]
    """

    def __init__(self, node_iter: Iterable[Node], pattern: str, ignorecase: bool) -> None:
        super().__init__(node_iter)
        self._re = self.make_re(pattern, ignorecase)

    @classmethod
    def make_re(cls, pattern: Any, ignorecase: bool = True) -> re.Pattern[str]:
        """Return the regular expression of a pattern with ``*`` and ``?``, or one that is given.

        >>> bool(NodeFilterName.make_re("conv*").match("CONV1_out"))
        True
        """
        if isinstance(pattern, re.Pattern):
            return pattern
        if not isinstance(pattern, str):
            raise TypeError(f"make_re: not a pattern, got {type(pattern).__name__}")
        return re.compile(fnmatch.translate(pattern), re.IGNORECASE if ignorecase else 0)

    def __iter__(self) -> Iterator[Node]:
        return (
            node
            for node in self._items
            if self._re.match(node._name) or self._re.match(node.qualname)
        )


class ExprFilterCallFunction(ExprFilter):
    """Calls of a function, or of any.

    >>> import tianyuan as ty
    >>> import tianyuan.functional as F
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return F.relu(x)
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> ExprFilterCallFunction(traced.graph.exprs(), F.relu).as_count()
    1
    """

    def __init__(self, expr_iter: Iterable[Expr], func: Callable[..., Any] | None = None) -> None:
        super().__init__(expr_iter)
        self.func = func

    def __iter__(self) -> Iterator[Expr]:
        return (expr for expr in self._items if is_call_function(expr, self.func))


class ExprFilterCallMethod(ExprFilter):
    """Calls of a method, or of any; modules are called by ``__call__``.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> ExprFilterCallMethod(traced.graph.exprs(), "sum").as_count()
    1
    """

    def __init__(self, expr_iter: Iterable[Expr], method: str | None = None) -> None:
        super().__init__(expr_iter)
        self.method = method

    def __iter__(self) -> Iterator[Expr]:
        return (
            expr
            for expr in self._items
            if is_call_tensor_method(expr, self.method)
            or (self.method in (None, "__call__") and is_call_module(expr))
        )


class ExprFilterExprId(ExprFilter):
    """Expressions of given numbers.

    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import trace_module
    >>> class Net(M.Module):
    ...     def forward(self, x):
    ...         return (x + 1).sum()
    >>> traced = trace_module(Net(), ty.Tensor([1.0]))
    >>> first = traced.graph.exprs().as_list()[0]
    >>> ExprFilterExprId(traced.graph.exprs(), [first.id]).as_unique() is first
    True
    """

    def __init__(self, expr_iter: Iterable[Expr], expr_id: int | Sequence[int]) -> None:
        super().__init__(expr_iter)
        self.expr_id_set = frozenset(_numbers(expr_id))

    def __iter__(self) -> Iterator[Expr]:
        return (expr for expr in self._items if expr._id in self.expr_id_set)

"""Choose among the operators or variables of a network, by chained conditions."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import GraphError
from ..imperative.tensor import Tensor
from .network_node import (
    ConstOpBase,
    Host2DeviceCopy,
    NetworkNode,
    OpNode,
    VarNode,
    is_kind,
    kind_of,
    oprs_of,
)


class NodeFilter:
    """The nodes of an iterable, which further conditions narrow.

    Conditions return filters, so they chain; nothing is looked at before the nodes are asked for.

    >>> from tianyuan.utils.network import Network
    >>> net = Network()
    >>> x = net.make_input_node((2,), "float32", name="x")
    >>> net.add_output(x * 2 + 1)
    >>> net.opr_filter.type("mul").as_count()
    1
    """

    def __init__(self, node_iter: Iterable[Any]) -> None:
        self._node_iter = node_iter

    @classmethod
    def make_all_deps(cls, *dest_vars: VarNode) -> NodeFilter:
        """Return a filter of every operator that variables depend on.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> NodeFilter.make_all_deps(*net.dest_vars).as_count()
        2
        """
        return cls(oprs_of(dest_vars))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._node_iter)

    def type(self, node_type: Any) -> NodeFilterType:
        """Keep nodes of a kind: a class of ``network_node``, an op or the name of either.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> [opr.name for opr in net.opr_filter.type("neg")]
        ['neg_0']

        Raises:
            GraphError: where a name is unknown.
        """
        return NodeFilterType(self, node_type)

    def check_type(self, node_type: Any) -> NodeFilterCheckType:
        """Keep all nodes, and raise GraphError at one that is not of a kind.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.opr_filter.name("n*").check_type("neg").as_count()
        1
        """
        return NodeFilterCheckType(self, node_type)

    def not_type(self, node_type: Any) -> NodeFilterNotType:
        """Keep nodes that are not of a kind.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> [opr.name for opr in net.opr_filter.not_type("neg")]
        ['x']
        """
        return NodeFilterNotType(self, node_type)

    def param_provider(self) -> NodeFilterType:
        """Keep the operators that hold weights and other constants.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.opr_filter.param_provider().as_count()
        0
        """
        return self.type(ConstOpBase)

    def data_provider(self) -> NodeFilterType:
        """Keep the operators that stand for inputs.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.opr_filter.data_provider().as_unique().name
        'x'
        """
        return self.type(Host2DeviceCopy)

    def name(self, pattern: Any, ignorecase: bool = True) -> NodeFilterName:
        """Keep nodes whose whole name matches a pattern with ``*`` and ``?``.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.opr_filter.name("NEG?0").as_count()
        1
        """
        return NodeFilterName(self, pattern, ignorecase)

    def has_input(self, var: VarNode) -> NodeFilterHasInput:
        """Keep operators that read a variable.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.opr_filter.has_input(net.get_var_by_name("x")).as_unique().type
        'neg'
        """
        return NodeFilterHasInput(self, var)

    def as_list(self) -> list[Any]:
        """Return the nodes.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.var_filter.as_list()
        [VarNode('x': float32(2,)), VarNode('neg_0': float32(2,))]
        """
        return list(self)

    def as_unique(self) -> Any:
        """Return the only node.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.data_providers_filter.as_unique().name
        'x'

        Raises:
            GraphError: where there is none or more than one; the message names them.
        """
        nodes = self.as_list()
        if len(nodes) != 1:
            names = ", ".join(node.name for node in nodes[:8]) or "none"
            raise GraphError(f"as_unique: expected one node, got {len(nodes)}: {names}")
        return nodes[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the nodes by name, in order.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> list(net.opr_filter.as_dict())
        ['x', 'neg_0']

        Raises:
            GraphError: where two have one name.
        """
        found: dict[str, Any] = {}
        for node in self:
            if node.name in found:
                raise GraphError(f"as_dict: two nodes have one name, got {node.name!r}")
            found[node.name] = node
        return found

    def as_count(self) -> int:
        """Return how many nodes there are.

        >>> from tianyuan.utils.network import Network
        >>> net = Network()
        >>> net.add_output(-net.make_input_node((2,), "float32", name="x"))
        >>> net.opr_filter.as_count()
        2
        """
        return sum(1 for _ in self)


class NodeFilterType(NodeFilter):
    """Nodes of one kind; see ``NodeFilter.type``.

    >>> NodeFilterType([], "conv2d").as_list()
    []
    """

    def __init__(self, node_iter: Iterable[Any], node_type: Any) -> None:
        super().__init__(node_iter)
        self._kind = kind_of(node_type)

    def __iter__(self) -> Iterator[Any]:
        return (node for node in self._node_iter if is_kind(node, self._kind))


class NodeFilterNotType(NodeFilterType):
    """Nodes of any other kind; see ``NodeFilter.not_type``.

    >>> NodeFilterNotType([], "conv2d").as_count()
    0
    """

    def __iter__(self) -> Iterator[Any]:
        return (node for node in self._node_iter if not is_kind(node, self._kind))


class NodeFilterCheckType(NodeFilterType):
    """Nodes that must be of one kind; see ``NodeFilter.check_type``.

    >>> NodeFilterCheckType([], "conv2d").as_count()
    0
    """

    def __iter__(self) -> Iterator[Any]:
        for node in self._node_iter:
            if not is_kind(node, self._kind):
                raise GraphError(f"check_type: a node is of another kind, got {node!r}")
            yield node


class NodeFilterHasInput(NodeFilter):
    """Operators that read a variable; see ``NodeFilter.has_input``.

    >>> from tianyuan.utils.network import Network
    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> NodeFilterHasInput([(x + 1).owner], x).as_count()
    1
    """

    def __init__(self, node_iter: Iterable[Any], var: VarNode) -> None:
        super().__init__(node_iter)
        self._var = as_varnode(var)

    def __iter__(self) -> Iterator[Any]:
        for node in self._node_iter:
            if not isinstance(node, OpNode):
                raise GraphError(f"has_input: only operators have inputs, got {node!r}")
            if any(self._var is var for var in node.inputs):
                yield node


class NodeFilterName(NodeFilter):
    """Nodes whose name matches a pattern; see ``NodeFilter.name``.

    >>> NodeFilterName([], "conv*", True).as_list()
    []
    """

    def __init__(self, node_iter: Iterable[Any], pattern: Any, ignorecase: bool) -> None:
        super().__init__(node_iter)
        self._re = self.make_re(pattern, ignorecase)

    @classmethod
    def make_re(cls, pattern: Any, ignorecase: bool = True) -> re.Pattern[str]:
        """Return the regular expression of a pattern; a compiled one stays as it is.

        >>> bool(NodeFilterName.make_re("conv*").match("Conv2d_1"))
        True
        """
        if isinstance(pattern, re.Pattern):
            return pattern
        if not isinstance(pattern, str):
            raise GraphError(f"name: pattern must be a string, got {pattern!r}")
        return re.compile(fnmatch.translate(pattern), re.IGNORECASE if ignorecase else 0)

    def __iter__(self) -> Iterator[Any]:
        return (node for node in self._node_iter if self._re.match(node.name))


def as_varnode(obj: Any) -> VarNode:
    """Return a variable as it is, and the only output of an operator or of a list.

    >>> from tianyuan.utils.network import Network
    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> as_varnode(x.owner) is x
    True

    Raises:
        GraphError: where it is something else, or there are several.
    """
    if isinstance(obj, Tensor) and isinstance(obj._data, VarNode):
        return obj._data  # itself, or what a tensor made of it holds
    items = obj.outputs if isinstance(obj, OpNode) else obj
    if isinstance(items, Iterable) and not isinstance(items, (str, bytes)):
        found = list(items)
        if len(found) == 1:
            return as_varnode(found[0])
    raise GraphError(f"as_varnode: expected one variable, got {obj!r}")


def as_oprnode(obj: Any) -> OpNode:
    """Return an operator as it is, and the one that makes a variable.

    >>> from tianyuan.utils.network import Network
    >>> x = Network().make_input_node((2,), "float32", name="x")
    >>> as_oprnode(x).name
    'x'

    Raises:
        GraphError: where it is neither.
    """
    if isinstance(obj, OpNode):
        return obj
    return as_varnode(obj).owner


def known_names(nodes: Iterable[NetworkNode], most: int = 40) -> str:
    """List names for an error message."""
    names = [node.name for node in nodes]
    shown = ", ".join(names[:most]) or "none"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown

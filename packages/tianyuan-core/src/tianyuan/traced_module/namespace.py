"""Decide what the values of a graph are called, each by a name of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..errors import GraphError
from .expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from .node import ModuleNode, Node

if TYPE_CHECKING:
    from collections.abc import Mapping


class NameSpace:
    """The names that a graph uses.

    Args:
        name: name of the graph.
        qualname: its name from the top of the network.

    >>> space = NameSpace("net", "net")
    >>> space.create_unique_name("out"), space.create_unique_name("out")
    ('out', 'out_1')
    """

    def __init__(self, name: str, qualname: str) -> None:
        self.name = name
        self.qualname = qualname
        self._objects: dict[str, Any] = {}

    @property
    def used_names(self) -> Mapping[str, Any]:
        """What the names stand for."""
        return dict(self._objects)

    def create_unique_name(self, name: str, node: Any = None) -> str:
        """Return a name that is not taken yet, made from another, and take it.

        Args:
            name: what it is made from; what cannot stand in an identifier becomes ``_``.
            node: what the name stands for.

        >>> names = NameSpace("net", "net")
        >>> names.create_unique_name("conv"), names.create_unique_name("conv")
        ('conv', 'conv_1')
        """
        base = re.sub(r"\W|^(?=\d)", "_", name) or "value"
        candidate, count = base, 1
        while candidate in self._objects:
            candidate, count = f"{base}_{count}", count + 1
        self._objects[candidate] = node
        return candidate

    def associate_name_with_obj(self, name: str, node: Node) -> None:
        """Let a name stand for a node.

        Raises:
            GraphError: where it stands for another.
        """
        if self._objects.get(name, node) not in (node, None):
            raise GraphError(f"NameSpace: the name is taken, got {name!r}")
        self._objects[name] = node

    def unassociate_name_with_obj(self, node: Node) -> None:
        """Free the names of a node."""
        for name in [name for name, held in self._objects.items() if held is node]:
            del self._objects[name]

    def merge(self, other: NameSpace) -> None:
        """Take all names of another name space that are not taken yet.

        >>> first, second = NameSpace("a", "a"), NameSpace("b", "b")
        >>> _ = second.create_unique_name("conv")
        >>> first.merge(second)
        >>> list(first.used_names)
        ['conv']
        """
        for name, held in other._objects.items():
            self._objects.setdefault(name, held)

    def auto_naming_for_outputs(self, expr: Expr) -> None:
        """Give each output of an expression that has no name a name that says what made it."""
        base = _base_name(expr)
        for node in expr.outputs:
            if not node._name:
                node._name = self.create_unique_name(base, node)


def _base_name(expr: Expr) -> str:
    if isinstance(expr, (Input, GetAttr)):
        return expr.name
    if isinstance(expr, Constant):
        return expr.name or (
            "const_module" if isinstance(expr.outputs[0], ModuleNode) else "const_tensor"
        )
    if isinstance(expr, CallMethod):
        if isinstance(expr.inputs[0], ModuleNode):
            return f"{expr.inputs[0]._name}_out"
        return f"{expr.method.strip('_')}_out"
    if isinstance(expr, CallFunction):
        return f"{getattr(expr.func, '__name__', 'function')}_out"
    return f"{expr.opdef.op.name}_out" if isinstance(expr, Apply) else "out"

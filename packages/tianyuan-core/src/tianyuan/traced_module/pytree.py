"""Decide how nested arguments and results are taken apart into leaves, and how they are rebuilt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from ..errors import TraceError
from ..imperative.tensor import Parameter, Tensor
from ..module import Module
from ..op import QuantParams
from .node import ModuleNode, NodeMixin, Size, TensorNode

Flatten = Callable[[Any], tuple[list[Any], Any]]
Unflatten = Callable[[list[Any], Any], Any]


@dataclass(frozen=True)
class _Container:
    flatten: Flatten
    unflatten: Unflatten


@dataclass
class ArgsIndex:
    """Stand for the input of a given number in the arguments of an expression.

    >>> ArgsIndex(1, "x")
    x
    """

    index: int = 0
    name: str = ""

    def __repr__(self) -> str:
        return self.name or f"%{self.index}"


_CONTAINERS: dict[type, _Container] = {}
_OURS: set[type] = set()
_LEAVES: set[type] = {
    Tensor, Parameter, TensorNode, ModuleNode, Size, ArgsIndex, NodeMixin,
    type(None), bool, int, float, complex, str, bytes, np.ndarray, type(Ellipsis), type,
    FunctionType, BuiltinFunctionType,
}  # fmt: skip


def register_supported_type(
    type: type, flatten_fn: Flatten | None = None, unflatten_fn: Unflatten | None = None
) -> None:
    """Let a type occur in the arguments and results of traced modules.

    Args:
        type: the type, exactly.
        flatten_fn: takes a value apart into a list of children and whatever else rebuilds it,
            which must be comparable; None makes the type a leaf.
        unflatten_fn: rebuilds a value from children and that rest.

    Raises:
        TypeError: where one of the two functions is missing.

    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> register_supported_type(Pair, lambda p: ([p.a, p.b], None), lambda c, _: Pair(*c))
    >>> leaves, treedef = tree_flatten(Pair(1, 2))
    >>> leaves, treedef.unflatten(leaves).b
    ([1, 2], 2)
    """
    if flatten_fn is not None and unflatten_fn is not None:
        _CONTAINERS[type] = _Container(flatten_fn, unflatten_fn)
    elif flatten_fn is None and unflatten_fn is None:
        _LEAVES.add(type)
    else:
        raise TypeError(
            f"register_supported_type: {type.__name__} needs both functions or none, got one"
        )


def _flatten_named(value: Any) -> tuple[list[Any], Any]:
    return list(value), None


def _flatten_dict(value: dict[Any, Any]) -> tuple[list[Any], Any]:
    return list(value.values()), tuple(value)


def qparams_flatten(inp: QuantParams) -> tuple[list[Any], Any]:
    """Take quantisation parameters apart: scales and zero points are kept beside, not as leaves.

    >>> from tianyuan.op import QuantParams
    >>> qparams_flatten(QuantParams((0.5,), (3,)))
    ([], ((0.5,), (3,), -1))
    """
    return [], (inp.scales, inp.zero_points, inp.axis)


def qparams_unflatten(qparam_type: type, inp: Sequence[Any], aux_data: Any) -> Any:
    """Rebuild quantisation parameters of a type from what ``qparams_flatten`` gave.

    >>> from tianyuan.op import QuantParams
    >>> qparams_unflatten(QuantParams, [], ((0.5,), (3,), -1)).zero_points
    (3,)
    """
    return qparam_type(*aux_data)


register_supported_type(list, lambda v: (list(v), None), lambda c, _: list(c))
register_supported_type(tuple, lambda v: (list(v), None), lambda c, _: tuple(c))
register_supported_type(dict, _flatten_dict, lambda c, keys: dict(zip(keys, c, strict=True)))
register_supported_type(
    OrderedDict, _flatten_dict, lambda c, keys: OrderedDict(zip(keys, c, strict=True))
)
register_supported_type(slice, lambda v: ([v.start, v.stop, v.step], None), lambda c, _: slice(*c))
register_supported_type(
    QuantParams, qparams_flatten, lambda c, aux: qparams_unflatten(QuantParams, c, aux)
)


_OURS.update(_CONTAINERS)


def registered_container(kind: type | str) -> tuple[str, type] | None:
    """Return name and type of a container that a user registered, by its type or name."""
    for found in _CONTAINERS:
        name = f"{found.__module__}.{found.__qualname__}"
        if found not in _OURS and kind in (found, name):
            return name, found
    return None


def taken_apart(value: Any) -> tuple[list[Any], Any]:
    """Return children and rest of a value of a registered type."""
    return _CONTAINERS[type(value)].flatten(value)


def put_together(kind: type, children: list[Any], rest: Any) -> Any:
    """Return a value of a registered type from children and rest."""
    return _CONTAINERS[kind].unflatten(children, rest)


def _container_of(kind: type) -> _Container | None:
    found = _CONTAINERS.get(kind)
    if found is None and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Container(_flatten_named, lambda c, _: kind(*c))
    return found


def _is_leaf(value: Any) -> bool:
    kind = type(value)
    return kind in _LEAVES or isinstance(value, (Tensor, Module, np.generic, np.dtype, int, type))


def _leaf_type(value: Any) -> tuple[type, ...]:
    if isinstance(value, Size) or (isinstance(value, TensorNode) and isinstance(value.value, Size)):
        return (int, TensorNode, ArgsIndex)
    if isinstance(value, (Tensor, TensorNode)):
        return (Tensor, TensorNode, ArgsIndex)
    if isinstance(value, (Module, ModuleNode)):
        return (Module, ModuleNode, ArgsIndex)
    return (type(value),)


def _is_const_leaf(value: Any) -> bool:
    return not isinstance(value, (Tensor, Module, TensorNode, ModuleNode, ArgsIndex, Size))


class TreeDef:
    """The structure of a nested value without its leaves.

    Args:
        type: what the value is.
        aux_data: what rebuilds it besides its children.
        children_defs: structures of the children.

    >>> leaves, treedef = tree_flatten({"a": 1, "b": (2, 3)})
    >>> leaves, treedef.num_leaves, treedef.unflatten([4, 5, 6])
    ([1, 2, 3], 3, {'a': 4, 'b': (5, 6)})
    """

    def __init__(self, type: Any, aux_data: Any, children_defs: Sequence[TreeDef]) -> None:
        self.type = type
        self.aux_data = aux_data
        self.children_defs = list(children_defs)
        self.num_leaves: int = sum(child.num_leaves for child in self.children_defs)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Rebuild the value from its leaves."""
        if len(leaves) != self.num_leaves:
            raise TraceError(
                f"unflatten: wrong number of leaves, got {len(leaves)}, expected {self.num_leaves}"
            )
        children, start = [], 0
        for child in self.children_defs:
            children.append(child.unflatten(leaves[start : start + child.num_leaves]))
            start += child.num_leaves
        container = _container_of(self.type)
        assert container is not None
        return container.unflatten(children, self.aux_data)

    def leaf_defs(self) -> list[LeafDef]:
        """Return the leaves' structures in order."""
        return [leaf for child in self.children_defs for leaf in child.leaf_defs()]

    def accepts(self, other: TreeDef) -> bool:
        """Tell whether a value of another structure may be given where this one is expected."""
        return (
            self.type is other.type
            and self.aux_data == other.aux_data
            and len(self.children_defs) == len(other.children_defs)
            and all(
                a.accepts(b) for a, b in zip(self.children_defs, other.children_defs, strict=True)
            )
        )

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and self.type is other.type
            and self.aux_data == other.aux_data
            and self.children_defs == other.children_defs
        )

    def __hash__(self) -> int:
        return hash((self.type, len(self.children_defs), self.num_leaves))

    def __repr__(self) -> str:
        if self.type in (dict, OrderedDict):
            items = zip(self.aux_data, self.children_defs, strict=True)
            return "{" + ", ".join(f"{key!r}: {child!r}" for key, child in items) + "}"
        inner = ", ".join(map(repr, self.children_defs))
        if self.type is list:
            return f"[{inner}]"
        return f"({inner})" if self.type is tuple else f"{self.type.__name__}({inner})"


class LeafDef(TreeDef):
    """One leaf of a structure: the types that it may have, and its value where that is fixed.

    >>> LeafDef((int,)).unflatten([3])
    3
    """

    _FREE = object()

    def __init__(self, type: Any) -> None:
        super().__init__(tuple(type) if isinstance(type, (tuple, list)) else (type,), None, ())
        self.num_leaves = 1
        self.const_val: Any = self._FREE

    @property
    def is_const(self) -> bool:
        """Whether the leaf's value belongs to the structure."""
        return self.const_val is not self._FREE

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Return the only leaf.

        Raises:
            TraceError: where it has none of the types.
        """
        if len(leaves) != 1 or not isinstance(leaves[0], self.type):
            raise TraceError(
                f"unflatten: a leaf is wrong, got {', '.join(type(v).__name__ for v in leaves)}, "
                f"expected one of {', '.join(t.__name__ for t in self.type)}"
            )
        return leaves[0]

    def leaf_defs(self) -> list[LeafDef]:
        """Return this leaf."""
        return [self]

    def accepts(self, other: TreeDef) -> bool:
        """Tell whether another leaf may stand here: an extent may be any int."""
        if isinstance(other, LeafDef) and not self.is_const and int in self.type:
            return not other.is_const or isinstance(other.const_val, int)
        return self == other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LeafDef) or self.type != other.type:
            return False
        return self.is_const == other.is_const and _same(self.const_val, other.const_val)

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return repr(self.const_val) if self.is_const else self.type[0].__name__


def _same(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, (np.ndarray, np.generic)):
        shaped = left.dtype == right.dtype and left.shape == right.shape
        return bool(shaped and left.tobytes() == right.tobytes())
    if isinstance(left, float):
        return bool(left.hex() == right.hex())
    return bool(left == right)


def tree_flatten(
    values: Any,
    leaf_type: Callable[[Any], Any] = _leaf_type,
    is_leaf: Callable[[Any], bool] = _is_leaf,
    is_const_leaf: Callable[[Any], bool] = _is_const_leaf,
) -> tuple[list[Any], TreeDef]:
    """Take a nested value apart into its leaves and its structure.

    Args:
        values: nested lists, tuples, dicts, slices and registered types.
        leaf_type: gives the types that may stand where a leaf stood.
        is_leaf: tells what is a leaf.
        is_const_leaf: tells whose value belongs to the structure.

    Raises:
        TypeError: where a type is not supported.

    >>> tree_flatten([1, {"x": "a"}])
    ([1, 'a'], [1, {'x': 'a'}])
    """
    container = _container_of(type(values))
    if container is None:
        if not is_leaf(values):
            raise TypeError(
                f"tree_flatten: a type is not supported, got {type(values).__qualname__}, expected "
                "tensors, numbers, text or their containers; see register_supported_type"
            )
        leaf = LeafDef(leaf_type(values))
        if is_const_leaf(values):
            leaf.const_val = values
        return [values], leaf
    children, aux_data = container.flatten(values)
    leaves: list[Any] = []
    defs = []
    for child in children:
        found, treedef = tree_flatten(child, leaf_type, is_leaf, is_const_leaf)
        leaves.extend(found)
        defs.append(treedef)
    return leaves, TreeDef(type(values), aux_data, defs)


def tree_map(function: Callable[[Any], Any], values: Any) -> Any:
    """Return a nested value with a function applied to every leaf.

    >>> tree_map(lambda v: v + 1, [1, (2, 3)])
    [2, (3, 4)]
    """
    container = _container_of(type(values))
    if container is None:
        return function(values)
    children, aux_data = container.flatten(values)
    return container.unflatten([tree_map(function, child) for child in children], aux_data)

"""Nodes of an ONNX graph as Python data, with attributes read by the type they must have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import AttrError, ModelFormatError
from .table import Operator

if TYPE_CHECKING:
    from .known import Known

_REQUIRED: Any = object()


@dataclass(eq=False)
class Body:
    """One graph or subgraph, ready to be interpreted.

    Attributes:
        inputs, outputs: names of values.
        nodes: in an order in which every value is made before it is read.
        constants: values that are known at once, by name.
        last_uses: for each node, the names that nothing reads after it.
        captured: names that it reads from the graph around it.
        output_types: dtype and shape that the file declares for each output, where it does.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    constants: dict[str, Known] = field(default_factory=dict)
    last_uses: list[list[str]] = field(default_factory=list)
    captured: set[str] = field(default_factory=set)
    output_types: list[tuple[np.dtype, tuple[Any, ...] | None] | None] = field(default_factory=list)


@dataclass(eq=False)
class Node:
    """One node; ``version`` is that of the operator set it belongs to."""

    op_type: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    version: int
    operator: Operator

    @property
    def title(self) -> str:
        """What messages call the node."""
        known_as = self.name or next(filter(None, self.outputs), "?")
        domain = f"{self.domain}." if self.domain else ""
        return f"node {known_as!r} ({domain}{self.op_type})"

    def reads(self) -> set[str]:
        """Return the names that the node and its subgraphs read."""
        names = {name for name in self.inputs if name}
        for value in self.attrs.values():
            if isinstance(value, Body):
                names |= value.captured
        return names

    def has(self, name: str) -> bool:
        """Tell whether an attribute is given."""
        return name in self.attrs

    def _get(self, name: str, default: Any, kind: str, check: Any) -> Any:
        if name not in self.attrs:
            if default is _REQUIRED:
                raise AttrError(f"attribute {name!r} is missing")
            return default
        value = self.attrs[name]
        if not check(value):
            raise AttrError(f"attribute {name!r} is wrong, got {_short(value)}, expected {kind}")
        return value

    def int(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute that is an int."""
        return self._get(name, default, "an int", lambda v: type(v) is int)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is 0 or 1."""
        return bool(self.int(name, int(default)))

    def float(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute that is a float."""
        return self._get(name, default, "a float", lambda v: type(v) in (int, float))

    def text(self, name: str, default: Any = _REQUIRED, allowed: Sequence[str] = ()) -> Any:
        """Return an attribute that is a string, one of those allowed."""
        value = self._get(name, default, "a string", lambda v: isinstance(v, str))
        if allowed and value not in allowed:
            raise AttrError(
                f"attribute {name!r} is unknown, got {_short(value)}, "
                f"expected {' or '.join(allowed)}"
            )
        return value

    def ints(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute that is a tuple of ints."""
        return self._get(name, default, "ints", lambda v: _all(v, int))

    def floats(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute that is a tuple of floats."""
        return self._get(name, default, "floats", lambda v: _all(v, (int, float)))

    def texts(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute that is a tuple of strings."""
        return self._get(name, default, "strings", lambda v: _all(v, str))

    def array(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute that is a tensor."""
        return self._get(name, default, "a tensor", lambda v: isinstance(v, np.ndarray))

    def graph(self, name: str) -> Body:
        """Return an attribute that is a graph."""
        found = self._get(name, _REQUIRED, "a graph", lambda v: isinstance(v, Body))
        assert isinstance(found, Body)
        return found

    def fail(self, what: str) -> ModelFormatError:
        """Return an error about this node, to be raised."""
        return ModelFormatError(f"onnx: {self.title}: {what}")


def _all(value: Any, kind: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Decide how a traced module is told as JSON data; tensors lie beside it in the container."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph.serial import attrs_to_json
from ..imperative.tensor import Tensor
from ..module import Module
from ..op import QuantParams
from . import names
from .editing import argdef_of
from .expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from .graph import InternalGraph
from .module import _OWN, TracedModule
from .node import ModuleNode, Node, Size, TensorNode
from .pytree import registered_container, taken_apart

FORMAT = 1
HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def encode(module: TracedModule, put: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a traced module as JSON data; ``put`` keeps a tensor, array or number.

    Raises:
        TypeError: where it holds what a file cannot name, before anything is written.
    """
    writer = _Writer(put)
    root = writer.module(module)
    return {"format": FORMAT, "modules": writer.modules, "root": root}


def _refuse(what: str, where: str, help: str) -> TypeError:
    return TypeError(f"save: a traced module cannot be saved, got {what} in {where}; {help}")


class _Writer:
    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self.modules: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._nodes: dict[Node, int] = {}

    def module(self, module: Module) -> int:
        """Return the number of a module, which is told once."""
        number = self._numbers.get(id(module))
        if number is not None:
            return number
        number = self._numbers[id(module)] = len(self.modules)
        data: dict[str, Any] = {}
        self.modules.append(data)
        where = type(module).__name__
        if any(vars(module).get(key) for key in HOOKS):
            raise _refuse("a module with hooks", where, "remove them first")
        if "forward" in vars(module):
            raise _refuse(
                "a forward that was replaced, as quantisation does",
                where,
                "keep its state_dict(), or dump it by jit.trace",
            )
        if isinstance(module, TracedModule):
            data["class"] = None
        else:
            name = names.module_name(type(module))
            if name is None:
                kind = f"{type(module).__module__}.{type(module).__qualname__}"
                raise _refuse(f"a module of class {kind}", where, "see register_as_builtin")
            data["class"] = name
        data["attributes"] = [
            [key, self.value(value, f"{where}.{key}")]
            for key, value in vars(module).items()
            if not (
                key in HOOKS
                or key.startswith(("_traced_", "_NodeMixin"))
                or (isinstance(module, TracedModule) and key in _OWN)
            )
        ]
        if isinstance(module, TracedModule):
            data["is_qat"], data["is_top"] = module.is_qat, module._is_top
            data["arg_names"] = list(module.arg_names)
            data["graphs"] = [self.graph(g) for g in module.argdef_graph_map.values()]
        return number

    def graph(self, graph: InternalGraph) -> dict[str, Any]:
        """Return a graph."""
        module = graph._module
        assert isinstance(module, TracedModule)
        outer, self._nodes = self._nodes, {}
        inputs = []
        for node in graph._inputs:
            expr = node.expr
            assert isinstance(expr, Input)
            inputs.append({"name": expr.name, "id": expr._id, **self.node(node)})
        exprs = [self.expr(expr) for expr in graph._exprs]
        argdef = argdef_of(graph)
        given = iter(graph._inputs)
        arguments = argdef.unflatten(
            [d.const_val if d.is_const else next(given) for d in argdef.leaf_defs()]
        )
        outdef = module.argdef_outdef_map[argdef]
        made = iter(graph._outputs)
        results = outdef.unflatten(
            [d.const_val if d.is_const else next(made) for d in outdef.leaf_defs()]
        )
        data = {
            "name": graph.name,
            "qualname": graph.qualname,
            "inputs": inputs,
            "exprs": exprs,
            "arguments": self.value(arguments, graph.qualname),
            "results": self.value(results, graph.qualname),
        }
        self._nodes = outer
        return data

    def node(self, node: Node) -> dict[str, Any]:
        """Return a node, numbering it within its graph."""
        self._nodes[node] = len(self._nodes)
        data: dict[str, Any] = {"node": node._id, "label": node._name, "path": node._qualname}
        if isinstance(node, ModuleNode):
            return {"kind": "module", **data}
        assert isinstance(node, TensorNode)
        if isinstance(node.value, Size):
            return {"kind": "extent", "example": int(node.value), **data}
        return {
            "kind": "tensor",
            **data,
            "shape": None if node.shape is None else list(node.shape),
            "dtype": None if node.dtype is None else np.dtype(node.dtype).name,
            "device": node.device,
        }

    def expr(self, expr: Expr) -> dict[str, Any]:
        """Return an expression."""
        where = expr._body()
        data: dict[str, Any] = {
            "kind": expr._kind,
            "id": expr._id,
            "version": expr.version,
            "keep": expr._disable_remove,
            "arguments": self.value((expr.args, expr.kwargs), where),
        }
        if isinstance(expr, GetAttr):
            data["attribute"], data["name"] = expr.attr_name, expr.name
        elif isinstance(expr, CallMethod):
            data["method"] = expr.method
        elif isinstance(expr, CallFunction):
            data["function"] = self.function(expr.func, where)
        elif isinstance(expr, Apply):
            op = expr.opdef.op
            data.update(op=op.name, op_version=op.version, attrs=attrs_to_json(expr.opdef.attrs))
        elif isinstance(expr, Constant):
            data["value"], data["name"] = self.value(expr.value, where), expr.name
        data["outputs"] = [self.node(node) for node in expr.outputs]
        data["results"] = self.value(expr.return_val, where)
        return data

    def function(self, function: Any, where: str) -> str:
        """Return the name of a function."""
        name = names.function_name(function)
        if name is None:
            raise _refuse(
                f"function {getattr(function, '__qualname__', function)!r}", where, "see wrap"
            )
        return name

    def value(self, value: Any, where: str) -> Any:
        """Return a value that may hold nodes, modules, functions and tensors."""
        if isinstance(value, Node):
            return {"node": self._nodes[value]}
        if isinstance(value, Module):
            return {"module": self.module(value)}
        kind = type(value)
        if isinstance(value, (Tensor, np.ndarray, np.generic)) or value is None:
            return self._put(value)
        if kind in (bool, str, int, float):
            return self._put(value)
        if kind is list:
            return [self.value(item, where) for item in value]
        if kind is tuple:
            return {"tuple": [self.value(item, where) for item in value]}
        if kind in (dict, OrderedDict):
            pairs = [[self.value(k, where), self.value(v, where)] for k, v in value.items()]
            return {"dict" if kind is dict else "ordered_dict": pairs}
        return self._rare(value, where)

    def _rare(self, value: Any, where: str) -> Any:
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return {"slice": [self.value(part, where) for part in parts]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            return {"dtype": np.dtype(value).name}
        if isinstance(value, QuantParams):
            return {"quant": [list(value.scales), list(value.zero_points), value.axis]}
        known = registered_container(type(value))
        if known is not None:
            children, rest = taken_apart(value)
            inner = [self.value(child, where) for child in children]
            return {"tree": [known[0], inner, self.value(rest, where)]}
        if callable(value):
            return {"function": self.function(value, where)}
        raise _refuse(
            f"a value of type {type(value).__qualname__}", where, "see register_supported_type"
        )

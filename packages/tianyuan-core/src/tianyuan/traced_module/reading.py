"""Build a traced module from JSON data, believing nothing that the file says.

Functions, ops, methods and classes of modules are looked up in the tables of ``names``; nothing is
imported and no attribute is followed on the file's behalf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import dtypes, registry
from ..errors import ModelFormatError, TianyuanError
from ..graph.serial import attrs_from_json
from ..imperative.tensor import Tensor
from ..module import Module
from ..op import QuantParams
from . import names, serialization
from .cloning import link
from .expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr, Input, OpDef
from .graph import InternalGraph
from .members import lookup
from .module import _OWN, TracedModule
from .node import ModuleNode, Node, Size, TensorNode
from .pytree import put_together, registered_container, tree_flatten
from .writing import FORMAT, HOOKS

_MAX_DEPTH = 100


def decode(file: str, data: Any, get: Callable[[Any], Any]) -> TracedModule:
    """Build a traced module from what ``encode`` returned; ``get`` reads what ``put`` kept.

    Raises:
        ModelFormatError: where the data breaks a rule, or names what is not known.
    """
    reader = _Reader(file, get)
    try:
        return reader.root(data)
    except ModelFormatError:
        raise
    except (
        TianyuanError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
        ValueError,
    ) as error:  # fmt: skip
        raise ModelFormatError(f"{file}: traced module is not valid: {error}") from error


class _Reader:
    def __init__(self, file: str, get: Callable[[Any], Any]) -> None:
        self._file = file
        self._get = get
        self._modules: list[Module] = []
        self._nodes: list[Node] = []

    def fail(self, what: str) -> ModelFormatError:
        """Return the error to raise."""
        return ModelFormatError(f"{self._file}: traced module is wrong, {what}")

    def want(self, item: Any, key: str, *kinds: type) -> Any:
        """Return a member of a JSON object that must be of a kind."""
        if not isinstance(item, dict) or key not in item:
            raise self.fail(f"got {str(item)[:60]}, expected an object with {key!r}")
        if type(item[key]) not in kinds:
            raise self.fail(f"got {key!r} = {str(item[key])[:60]}, expected {kinds[0].__name__}")
        return item[key]

    def root(self, data: Any) -> TracedModule:
        """Build all modules, then what they hold, then the graphs."""
        if self.want(data, "format", int) != FORMAT:
            raise self.fail(f"got format {data['format']}, expected {FORMAT}")
        table = self.want(data, "modules", list)
        self._modules = [self._empty(item) for item in table]
        for module, item in zip(self._modules, table, strict=True):
            self._fill(module, item)
        for module in self._modules:
            if not isinstance(module, TracedModule) and any(
                held is module for part in module.modules() for held in part.children()
            ):
                raise self.fail(f"got a {type(module).__name__} that holds itself")
        for module, item in zip(self._modules, table, strict=True):
            if isinstance(module, TracedModule):
                for graph in self.want(item, "graphs", list):
                    self._graph(module, graph)
        graphs = [
            graph
            for module in self._modules
            if isinstance(module, TracedModule)
            for graph in module.argdef_graph_map.values()
        ]
        for graph in graphs:
            self._update(graph)
        self._check_calls(graphs)
        for graph in graphs:
            link(graph)
        root = self._module(data.get("root"))
        if not isinstance(root, TracedModule):
            raise self.fail(f"got a root of class {type(root).__name__}, expected TracedModule")
        return root

    # Modules.

    def _empty(self, item: Any) -> Module:
        if self.want(item, "class", str, type(None)) is None:
            made = TracedModule(bool(item.get("is_top")), {}, {}, bool(item.get("is_qat")))
            made.arg_names = [str(name) for name in self.want(item, "arg_names", list)]
            return made
        kind = names.module_named(item["class"])
        if kind is None:
            raise self.fail(
                f"got module class {item['class']!r}, expected one of tianyuan.module or one that "
                "was given to register_as_builtin"
            )
        found: Module = object.__new__(kind)
        vars(found).update({key: OrderedDict() for key in HOOKS})
        return found

    def _fill(self, module: Module, item: Any) -> None:
        for pair in self.want(item, "attributes", list):
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise self.fail(f"got attribute {str(pair)[:60]}, expected a name and a value")
            key, value = pair
            taken = key in HOOKS or (isinstance(module, TracedModule) and key in _OWN)
            if taken or key.startswith("__") or callable(getattr(type(module), key, None)):
                raise self.fail(f"got attribute {key!r} of {type(module).__name__}")
            vars(module)[key] = self.value(value, 0)

    def _module(self, number: Any) -> Module:
        if type(number) is not int or not 0 <= number < len(self._modules):
            raise self.fail(f"got module {number!r}, expected one of {len(self._modules)}")
        return self._modules[number]

    # Graphs.

    def _graph(self, module: TracedModule, item: Any) -> None:
        graph = InternalGraph(self.want(item, "name", str), self.want(item, "qualname", str))
        graph._module = module
        self._nodes = []
        for entry in self.want(item, "inputs", list):
            expr = Input(TensorNode, self.want(entry, "name", str))
            expr.outputs = [self._node(entry, expr)]
            expr._id = self.want(entry, "id", int)
            graph._adopt_input(expr)
            self._name(graph, expr)
        for entry in self.want(item, "exprs", list):
            made = self._expr(entry, graph)
            graph._append(made)
            self._name(graph, made)
        leaves, argdef = tree_flatten(self.value(item.get("arguments"), 0))
        given = [leaf for leaf in leaves if isinstance(leaf, Node)]
        if given != graph._inputs or not given or not isinstance(given[0], ModuleNode):
            raise self.fail(f"got arguments {argdef} for other inputs of {graph.name!r}")
        results, outdef = tree_flatten(self.value(item.get("results"), 0))
        graph._outputs = [leaf for leaf in results if isinstance(leaf, Node)]
        module.argdef_graph_map[argdef], module.argdef_outdef_map[argdef] = graph, outdef

    def _name(self, graph: InternalGraph, expr: Expr) -> None:
        for node in expr.outputs:
            graph._namespace.associate_name_with_obj(node._name, node)

    def _node(self, item: Any, expr: Expr) -> Node:
        kind = self.want(item, "kind", str)
        name, path = self.want(item, "label", str), self.want(item, "path", str)
        made: Node
        if kind == "module":
            made = ModuleNode(expr, name, path)
        elif kind in ("tensor", "extent"):
            made = TensorNode(expr, name, path)
            if kind == "extent":
                made.value = Size(self.want(item, "example", int))
            else:
                self._describe(made, item)
        else:
            raise self.fail(f"got a node of kind {kind!r}")
        made._id = self.want(item, "node", int)
        self._nodes.append(made)
        return made

    def _describe(self, node: TensorNode, item: Any) -> None:
        shape = self.want(item, "shape", list, type(None))
        dtype = self.want(item, "dtype", str, type(None))
        if shape is not None and not all(type(n) is int and n >= 0 for n in shape):
            raise self.fail(f"got shape {str(shape)[:60]}")
        if dtype is not None and dtype not in dtypes.CODES:
            raise self.fail(f"got dtype {dtype!r}")
        node.shape = None if shape is None else tuple(shape)
        node.dtype = None if dtype is None else dtypes.as_dtype(dtype)
        node.device = self.want(item, "device", str, type(None))

    def _expr(self, item: Any, graph: InternalGraph) -> Expr:
        arguments = self.value(item.get("arguments"), 0)
        if not (
            isinstance(arguments, tuple)
            and tuple(map(type, arguments)) == (tuple, dict)
            and all(isinstance(key, str) for key in arguments[1])
        ):
            raise self.fail("got arguments of another form, expected positional and by keyword")
        args, kwargs = arguments
        made = self._called(item, args)
        made._top_graph = graph
        made.set_args_kwargs(*args, **kwargs)
        made._id = self.want(item, "id", int)
        made.version = self.want(item, "version", str)
        made._disable_remove = self.want(item, "keep", bool)
        nodes = [self._node(entry, made) for entry in self.want(item, "outputs", list)]
        made.return_val = self.value(item.get("results"), 0)
        if made.outputs != nodes:
            raise self.fail(f"got results of {made._body()} that are not its outputs")
        return made

    def _called(self, item: Any, args: tuple[Any, ...]) -> Expr:
        """Return the expression without arguments and outputs."""
        kind = self.want(item, "kind", str)
        if kind in ("getattr", "method") and not (args and isinstance(args[0], Node)):
            raise self.fail(f"got a {kind} of no node")
        if kind == "getattr":
            if not isinstance(args[0], ModuleNode):
                raise self.fail("got a getattr of no module")
            outputs = self.want(item, "outputs", list)
            node = ModuleNode if outputs and outputs[0].get("kind") == "module" else TensorNode
            return GetAttr(
                args[0], node, self.want(item, "attribute", str), self.want(item, "name", str)
            )
        if kind == "method":
            made = CallMethod(args[0])
            made.method = self.want(item, "method", str)
            if isinstance(args[0], ModuleNode) is not (made.method == "__call__"):
                raise self.fail(f"got method {made.method!r} of a {type(args[0]).__name__}")
            return made
        if kind == "function":
            name = self.want(item, "function", str)
            return CallFunction(names.function_named(name) or serialization.Unknown(name))
        if kind == "apply":
            return self._apply(item)
        if kind == "constant":
            return Constant(self.value(item.get("value"), 0), self.want(item, "name", str))
        raise self.fail(f"got an expression of kind {kind!r}")

    def _apply(self, item: Any) -> Apply:
        name, version = self.want(item, "op", str), self.want(item, "op_version", int)
        try:
            op = registry.get_op(name)
        except KeyError:
            raise self.fail(f"got an unknown op {name!r}") from None
        if version > op.version:
            raise self.fail(f"got {name} of version {version}, expected at most {op.version}")
        attrs = attrs_from_json(self._file, op, self.want(item, "attrs", dict))
        return Apply(OpDef(op, attrs))

    def _update(self, graph: InternalGraph) -> None:
        """Bring expressions up to date, and check what they call."""
        for expr in list(graph._exprs):
            serialization.load_functional(expr)
            serialization.load_apply_expr(expr)
            serialization.load_call_module_expr(expr)
            serialization.load_call_tensor_method_expr(expr)
            if isinstance(expr, CallFunction) and isinstance(expr.func, serialization.Unknown):
                raise self.fail(
                    f"got function {expr.func.name!r}, expected one of tianyuan.functional or one "
                    "that was given to wrap"
                )
            if isinstance(expr, CallMethod) and expr.method != "__call__":
                names.check_method(expr.method)
            if isinstance(expr, GetAttr):
                source = expr.inputs[0]
                assert isinstance(source, ModuleNode)
                found = lookup(source.owner, expr.attr_name)
                node = expr.outputs[0]
                if isinstance(found, Module) is not isinstance(node, ModuleNode):
                    raise self.fail(f"got {expr!r} of another kind")
                if isinstance(node, ModuleNode):
                    node.module_type = type(found)

    def _check_calls(self, graphs: list[InternalGraph]) -> None:
        """Refuse graphs that call each other in a circle."""
        calls = {
            id(graph): {
                id(expr.graph)
                for expr in graph._exprs
                if isinstance(expr, CallMethod) and expr.graph is not None
            }
            for graph in graphs
        }
        while calls:
            ends = {number for number, inner in calls.items() if not inner & calls.keys()}
            if not ends:
                raise self.fail("got graphs that call each other in a circle")
            calls = {number: inner for number, inner in calls.items() if number not in ends}

    # Values.

    def value(self, item: Any, depth: int) -> Any:
        """Return the value that JSON data stands for."""
        if depth > _MAX_DEPTH:
            raise self.fail(f"got values nested more than {_MAX_DEPTH} deep")
        if isinstance(item, list):
            return [self.value(part, depth + 1) for part in item]
        if not isinstance(item, dict):
            return item
        if len(item) != 1:
            return self._get(item)
        ((tag, given),) = item.items()
        if tag == "node":
            if type(given) is not int or not 0 <= given < len(self._nodes):
                raise self.fail(f"got node {given!r} before it is made")
            return self._nodes[given]
        if tag == "module":
            return self._module(given)
        if tag == "tuple" and isinstance(given, list):
            return tuple(self.value(part, depth + 1) for part in given)
        if tag in ("dict", "ordered_dict") and isinstance(given, list):
            pairs = [(self.value(k, depth + 1), self.value(v, depth + 1)) for k, v in given]
            return dict(pairs) if tag == "dict" else OrderedDict(pairs)
        return self._rare(tag, given, item, depth + 1)

    def _rare(self, tag: str, given: Any, item: Any, depth: int) -> Any:
        if tag == "slice" and isinstance(given, list) and len(given) == 3:
            return slice(*(self.value(part, depth) for part in given))
        if tag == "ellipsis":
            return Ellipsis
        if tag == "dtype" and given in dtypes.CODES:
            return np.dtype(dtypes.as_dtype(given))
        if tag == "quant" and isinstance(given, list) and len(given) == 3:
            scales, zeros, axis = given
            return QuantParams(tuple(map(float, scales)), tuple(map(int, zeros)), int(axis))
        if tag == "function" and isinstance(given, str):
            function = names.function_named(given)
            if function is None:
                raise self.fail(f"got function {given!r}, which is not known; see wrap")
            return function
        if tag == "tree" and isinstance(given, list) and len(given) == 3:
            known = registered_container(given[0]) if isinstance(given[0], str) else None
            if known is None:
                raise self.fail(f"got type {given[0]!r}, see register_supported_type")
            children = [self.value(child, depth) for child in given[1]]
            return put_together(known[1], children, self.value(given[2], depth))
        found = self._get(item)
        if not isinstance(found, (Tensor, np.ndarray, np.generic, float)):
            raise self.fail(f"got {str(item)[:60]}, expected a value that save writes")
        return found

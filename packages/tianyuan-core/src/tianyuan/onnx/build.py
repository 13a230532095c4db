"""Turn a ModelProto into bodies, after refusing at once everything that cannot be imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ModelFormatError
from . import operators
from .known import Known
from .merging import merge
from .messages import require
from .node import Body, Node
from .reader import TensorReader, dtype_of
from .table import VALUES, find

# Operator sets that the table serves without asking the installed package for the newest it knows.
_OLDEST, _KNOWN = 1, 28
_MOST_NODES = 1_000_000
_FOREIGN = ("", "ai.onnx")

operators.load()


@dataclass(frozen=True)
class ValueInfo:
    """What a model says of an input or output.

    Attributes:
        dtype: element type; None for sequences, maps and optional values.
        shape: an int, a symbol's name or None per axis; None where the rank is not known.
    """

    name: str
    dtype: np.dtype | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Imported:
    """A model as read: its body, what it takes and gives, and its initialisers."""

    body: Body
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    initialisers: Mapping[str, np.ndarray]


def build(model: Any, tensors: TensorReader) -> Imported:
    """Check a model and turn it into bodies.

    Raises:
        ModelFormatError: where it is damaged, or uses what cannot be imported; operators that are
            not known are listed all together, with the nodes that use them.
    """
    _expect_text(model)
    versions = _versions(model)
    _expect_no_sparse(model.graph)
    model = _without_functions(model)
    model, unknown = _resolved(model, versions)
    if unknown:
        raise ModelFormatError(
            f"onnx: {len(unknown)} nodes use operators that cannot be imported: "
            + "; ".join(unknown[:50])
        )
    builder = _Builder(versions, tensors)
    graph = model.graph
    initialisers = builder.initialisers(graph, tensors.read_weight)
    body = builder.body(graph, initialisers, frozenset())
    merge(body, initialisers)
    body.last_uses = _last_uses(body)
    inputs = tuple(_info(v) for v in graph.input if v.name not in initialisers)
    return Imported(body, inputs, tuple(_info(v) for v in graph.output), initialisers)


def _expect_text(model: Any) -> None:
    """Raise ModelFormatError where a name is not UTF-8, which protobuf gives as bytes."""
    for entry in model.opset_import:
        _expect_names(entry.domain)
    for function in model.functions:
        _expect_names(function.domain, function.name, *function.input, *function.output)
        for entry in function.opset_import:
            _expect_names(entry.domain)
    bodies = [model.graph, *model.functions]
    while bodies:
        body = bodies.pop()
        _expect_names(body.name)
        for node in body.node:
            _expect_names(node.name, node.op_type, node.domain, *node.input, *node.output)
            for attribute in node.attribute:
                _expect_names(attribute.name, attribute.ref_attr_name)
            bodies += _graphs_of(node)
        if hasattr(body, "initializer"):
            for value in (*body.input, *body.output, *body.initializer):
                _expect_names(value.name)
            for value in (*body.input, *body.output):
                _expect_names(*(dim.dim_param for dim in value.type.tensor_type.shape.dim))


def _expect_names(*names: Any) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ModelFormatError(f"onnx: a name is not UTF-8, got {name!r:.60}")


def _versions(model: Any) -> dict[str, int]:
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain in _FOREIGN else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ModelFormatError(
                f"onnx: domain {domain or 'ai.onnx'!r} is imported twice, got versions "
                f"{versions[domain]} and {entry.version}, expected one"
            )
    version = versions.get("", _KNOWN)
    newest = _KNOWN if version <= _KNOWN else max(_KNOWN, require().defs.onnx_opset_version())
    if not _OLDEST <= version <= newest:
        raise ModelFormatError(
            f"onnx: operator set is not supported, got version {version}, "
            f"expected {_OLDEST} to {newest}"
        )
    return versions


def _graphs_of(node: Any) -> list[Any]:
    found = []
    for attribute in node.attribute:
        if attribute.type == 5:
            found.append(attribute.g)
        found += list(attribute.graphs)
    return found


def _nodes_below(nodes: Iterable[Any]) -> Iterable[Any]:
    """Walk nodes and those of their subgraphs."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for graph in _graphs_of(node):
            waiting += list(graph.node)


def _expect_no_sparse(graph: Any) -> None:
    graphs = [graph]
    while graphs:
        found = graphs.pop()
        if found.sparse_initializer:
            name = found.sparse_initializer[0].values.name
            raise ModelFormatError(
                f"onnx: sparse initialisers are not supported, got {name!r}, expected dense tensors"
            )
        for node in found.node:
            graphs += _graphs_of(node)


def _without_functions(model: Any) -> Any:
    """Return a model whose own functions are written out where they are called.

    Raises:
        ModelFormatError: where functions call each other in a circle, or the result is absurd.
    """
    if not model.functions:
        return model
    bodies = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(key: tuple[str, str], above: tuple[tuple[str, str], ...]) -> int:
        if key in above or len(above) > 100:
            raise ModelFormatError(f"onnx: function {key[1]!r} calls itself")
        if key not in sizes:
            total = 0
            for node in _nodes_below(bodies[key].node):
                callee = (node.domain, node.op_type)
                total += size(callee, (*above, key)) if callee in bodies else 1
            sizes[key] = total
        return sizes[key]

    total = 0
    for node in _nodes_below(model.graph.node):
        called = (node.domain, node.op_type)
        total += size(called, ()) if called in bodies else 1
    if total > _MOST_NODES:
        raise ModelFormatError(f"onnx: functions expand to {total} nodes, expected a sane number")
    return _inlined(model, None)


def _inlined(model: Any, schemas: list[tuple[str, str]] | None) -> Any:
    require()
    from onnx import inliner

    try:
        if schemas is None:
            return inliner.inline_local_functions(model)
        return inliner.inline_selected_functions(model, schemas, inline_schema_functions=True)
    except Exception as error:  # the extension module raises plain RuntimeError and others
        raise ModelFormatError(f"onnx: functions cannot be inlined: {error}") from None


def _resolved(model: Any, versions: Mapping[str, int]) -> tuple[Any, list[str]]:
    """Write out operators that ONNX itself defines by others, and name what is unknown then."""
    for _ in range(8):
        unknown = _unknown(model.graph, versions)
        by_schema = sorted({key for key, _ in unknown if _has_body(key, versions)})
        if not by_schema:
            return model, [text for _, text in unknown]
        before = len(model.graph.node)
        model = _inlined(model, by_schema)
        if len(model.graph.node) == before:
            break
    return model, [text for _, text in _unknown(model.graph, versions)]


def _unknown(graph: Any, versions: Mapping[str, int]) -> list[tuple[tuple[str, str], str]]:
    found = []
    for node in _nodes_below(graph.node):
        domain = "" if node.domain in _FOREIGN else node.domain
        version = versions.get(domain, 1)
        if (domain, node.op_type) == ("", "Constant") or find(domain, node.op_type, version):
            continue
        title = node.name or next(filter(None, node.output), "?")
        where = f"{domain or 'ai.onnx'} version {version}"
        found.append(((domain, node.op_type), f"{node.op_type} of {where} (node {title!r})"))
    return found[::-1]


def _has_body(key: tuple[str, str], versions: Mapping[str, int]) -> bool:
    defs = require().defs
    domain, name = key
    try:
        schema = defs.get_schema(name, versions.get(domain, 1), domain)
    except defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _info(value: Any) -> ValueInfo:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return ValueInfo(value.name, None, None)
    tensor = value.type.tensor_type
    dtype = dtype_of(tensor.elem_type)
    if not tensor.HasField("shape"):
        return ValueInfo(value.name, dtype, None)
    shape: list[int | str | None] = []
    for dim in tensor.shape.dim:
        which = dim.WhichOneof("value")
        shape.append(getattr(dim, which) or None if which == "dim_param" else
                     dim.dim_value if which else None)  # fmt: skip
    if any(isinstance(extent, int) and extent < 0 for extent in shape):
        raise ModelFormatError(f"onnx: {value.name!r} has a negative extent, got {shape}")
    return ValueInfo(value.name, dtype, tuple(shape))


def _declared(value: Any) -> tuple[np.dtype, tuple[Any, ...] | None] | None:
    """Return dtype and shape of a subgraph's output, or None where nothing is said."""
    if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.elem_type:
        return None
    info = _info(value)
    assert info.dtype is not None
    return info.dtype, info.shape


class _Builder:
    """Makes bodies of graphs and their subgraphs."""

    def __init__(self, versions: Mapping[str, int], tensors: TensorReader) -> None:
        self._versions = versions
        self._tensors = tensors

    def initialisers(self, graph: Any, read: Callable[[Any], np.ndarray]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for proto in graph.initializer:
            if proto.name in found:
                raise ModelFormatError(f"onnx: initialiser {proto.name!r} stands twice")
            found[proto.name] = read(proto)
        return found

    def body(self, graph: Any, initialisers: Mapping[str, Any], outer: frozenset[str]) -> Body:
        """Make the body of a graph; ``outer`` holds the names it may read from around it."""
        inputs = [value.name for value in graph.input if value.name not in initialisers]
        body = Body(graph.name, inputs, [value.name for value in graph.output], [])
        defined = {*inputs, *initialisers}
        if len(defined) != len(inputs) + len(initialisers):
            raise ModelFormatError(f"onnx: graph {graph.name!r} has two inputs of one name")
        waiting: list[tuple[str, Any]] = []
        for node in graph.node:
            domain = "" if node.domain in _FOREIGN else node.domain
            for name in filter(None, node.output):
                if name in defined:
                    raise ModelFormatError(f"onnx: value {name!r} is made twice")
                defined.add(name)
            if (domain, node.op_type) == ("", "Constant"):
                body.constants[node.output[0]] = self._constant(node)
            else:
                waiting.append((domain, node))
        visible = frozenset(defined) | outer
        made = [self._node(domain, node, visible) for domain, node in waiting]
        ready = {*inputs, *initialisers, *body.constants} | outer
        body.nodes = _ordered(made, ready)
        if "" in body.outputs:
            raise ModelFormatError(f"onnx: an output of graph {graph.name!r} has no name")
        reads = set().union(*(node.reads() for node in body.nodes)) | set(body.outputs)
        missing = reads - visible
        if missing:
            raise ModelFormatError(f"onnx: values are never made: {', '.join(sorted(missing)[:9])}")
        body.captured = reads - defined
        body.last_uses = _last_uses(body)
        body.output_types = [_declared(value) for value in graph.output]
        return body

    def _subgraph(self, graph: Any, visible: frozenset[str]) -> Body:
        initialisers = self.initialisers(graph, self._tensors.read)
        body = self.body(graph, initialisers, visible)
        body.constants.update((name, Known(array)) for name, array in initialisers.items())
        return body

    def _node(self, domain: str, proto: Any, visible: frozenset[str]) -> Node:
        version = self._versions.get(domain, 1)
        operator = find(domain, proto.op_type, version)
        assert operator is not None
        attrs = {a.name: self._attribute(proto, a, visible) for a in proto.attribute}
        node = Node(
            proto.op_type, domain, proto.name, list(proto.input), list(proto.output), attrs,
            version, operator,
        )  # fmt: skip
        count = len(node.inputs)
        while count and not node.inputs[count - 1]:
            count -= 1
        least, most = operator.least, operator.most
        if count < least or (most is not None and count > most):
            bound = "" if most == least else f" to {'any number' if most is None else most}"
            raise node.fail(f"wrong number of inputs, got {count}, expected {least}{bound}")
        if most is not None:
            del node.inputs[max(most, count) :]
        needed = count if most is None and operator.form != VALUES else least
        if any(not name for name in node.inputs[:needed]):
            raise node.fail("an input that is needed is left out")
        return node

    def _constant(self, proto: Any) -> Known:
        title = proto.name or next(filter(None, proto.output), "?")
        if len(proto.attribute) != 1 or len(proto.output) != 1:
            raise ModelFormatError(f"onnx: constant {title!r} must have one attribute and output")
        attribute = proto.attribute[0]
        name = attribute.name
        value = self._attribute(proto, attribute, frozenset())
        if name == "value" and isinstance(value, np.ndarray):
            return Known(value)
        kinds = {
            "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64,
            "value_ints": np.int64, "value_string": object, "value_strings": object,
        }  # fmt: skip
        if name not in kinds or isinstance(value, (np.ndarray, Body)):
            raise ModelFormatError(f"onnx: constant {title!r} has an unsupported form, got {name}")
        return Known(np.array(value, kinds[name]))

    def _attribute(self, node: Any, proto: Any, visible: frozenset[str]) -> Any:
        kind = proto.type
        if proto.ref_attr_name:
            raise ModelFormatError(
                f"onnx: node {node.name!r} refers to an attribute of a function it is not in"
            )
        readers: dict[int, Any] = {
            1: lambda: float(proto.f),
            2: lambda: int(proto.i),
            3: lambda: _text(proto.s),
            4: lambda: self._tensors.read(proto.t),
            5: lambda: self._subgraph(proto.g, visible),
            6: lambda: tuple(proto.floats),
            7: lambda: tuple(proto.ints),
            8: lambda: tuple(_text(item) for item in proto.strings),
            9: lambda: tuple(self._tensors.read(item) for item in proto.tensors),
        }
        if kind in readers:
            return readers[kind]()
        return None  # types and the like, which no function of the table reads


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ModelFormatError("onnx: an attribute holds text that is not UTF-8") from None


def _ordered(nodes: list[Node], ready: set[str]) -> list[Node]:
    """Return nodes so that each reads only what stands before it.

    Raises:
        ModelFormatError: where that cannot be, because the graph is cyclic.
    """
    found: list[Node] = []
    parked: dict[str, list[Node]] = {}
    for first in nodes:
        waiting = [first]
        while waiting:
            node = waiting.pop()
            missing = next((name for name in node.reads() if name not in ready), None)
            if missing is not None:
                parked.setdefault(missing, []).append(node)
                continue
            found.append(node)
            for name in filter(None, node.outputs):
                ready.add(name)
                waiting += parked.pop(name, [])
    if parked:
        made = {name for node in nodes for name in node.outputs}
        missing_names = sorted(name for name in parked if name not in made)
        if missing_names:
            names = ", ".join(missing_names[:9])
            raise ModelFormatError(f"onnx: values are never made: {names}")
        titles = ", ".join(sorted(node.title for group in parked.values() for node in group)[:9])
        raise ModelFormatError(f"onnx: the graph is cyclic at {titles}")
    return found


def _last_uses(body: Body) -> list[list[str]]:
    seen = set(body.outputs)
    found: list[list[str]] = []
    for node in reversed(body.nodes):
        names = {*node.reads(), *filter(None, node.outputs)}
        found.append(sorted(names - seen))
        seen |= names
    return found[::-1]

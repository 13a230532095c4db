"""Write a graph as an ONNX model, after naming at once every op that has no ONNX form."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import shapes
from .._version import __version__
from ..errors import AttrError, GraphError, TraceError
from ..graph import passes
from ..graph.container import replace_file
from ..graph.graph import Graph, Node, Value
from ..graph.options import Options
from ..graph.passes import algebra, dead, duplicates, fold
from ..jit.model import read_model
from ..jit.naming import DynamicShapes
from ..jit.trace import trace
from ..jit.tracer import Tracer
from ..module.module import Module
from . import exporters
from .messages import require
from .model import symbolic_graph, trace_graph
from .module import OnnxModule
from .reader import code_of
from .tidy import merge_biases
from .writer import EXPORTERS, DecompositionNeededError, UnsupportedError, Writer

OLDEST = 13
OPSET = 17  # unless another is asked for
_SPLIT = 1 << 30  # bytes of constants beyond which they lie in a file of their own

exporters.load()


def export(
    source: Callable[..., Any] | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *inputs: Any,
    opset: int = OPSET,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
) -> None:
    """Write a module, a function or a model file as an ONNX model.

    The model is checked by ``onnx.checker`` before the file is written. Weights keep their names.
    What a function changes besides its outputs, such as running statistics, is left out. Where
    constants are larger than a gigabyte, they lie beside the file in ``<name>.data``.

    Args:
        source: a module (written as it computes in evaluation), a function of tensors, or the path
            of a ``.tym`` file.
        path: the ``.onnx`` file to write; an old one stays whole until the new one is complete.
        inputs: example arrays or tensors to trace with; none for a model file, nor needed for an
            imported ONNX model.
        opset: version of ONNX's operator set, 13 or later.
        input_names: names of the inputs, those of the function's parameters by default.
        output_names: names of the outputs, ``output_0`` … by default, or those of the model file.
        dynamic_shapes: dimensions that may vary, by input name: ``{"x": {0: "batch"}}``.

    Raises:
        ImportError: where the package ``onnx`` is not installed.
        AttrError: for an opset that cannot be written, names that do not fit, or the name of a
            ``.tym`` file.
        GraphError: names every op that has no ONNX form, with the line that it comes from.
        TraceError: where the function cannot be traced.
        OSError: where the file cannot be written.

    >>> import onnx, tianyuan as ty
    >>> export(lambda x: x * 2, "double.onnx", ty.Tensor([1.0]))
    >>> [node.op_type for node in onnx.load("double.onnx").graph.node]
    ['Mul']
    """
    _check_opset(opset)
    if os.fspath(path).endswith(".tym"):
        raise AttrError(
            f"onnx.export: what is written is an ONNX model, got the name {os.fspath(path)}, "
            "expected one in .onnx; trace.dump writes .tym files"
        )
    if isinstance(source, (str, os.PathLike)):
        if inputs or dynamic_shapes:
            raise AttrError(
                "onnx.export: a model file has its own inputs, got example inputs or dynamic_shapes"
            )
        graph, names = read_model(source)
        given = list(input_names or (value.name for value in graph.inputs))
        results = list(output_names or names)
    else:
        graph, given = _traced(source, inputs, input_names, dynamic_shapes)
        results = list(output_names or _default_outputs(source, len(graph.outputs)))
    _check_names(given, results, graph)
    title = getattr(source, "__name__", None) or type(source).__name__
    model = to_model(graph, given, results, opset, title if callable(source) else "graph")
    _write(model, path)


def _default_outputs(source: Any, count: int) -> list[str]:
    if isinstance(source, OnnxModule):
        return [info.name for info in source.outputs]
    return [f"output_{i}" for i in range(count)]


def _check_opset(opset: int) -> None:
    newest = require().defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise AttrError(
            f"onnx.export: operator set cannot be written, got {opset}, "
            f"expected {OLDEST} to {newest}"
        )


def _check_names(inputs: Sequence[str], outputs: Sequence[str], graph: Graph) -> None:
    counts = len(inputs) == len(graph.inputs) and len(outputs) == len(graph.outputs)
    if not counts or len({*inputs, *outputs}) != len(inputs) + len(outputs):
        raise AttrError(
            f"onnx.export: names do not fit, got {list(inputs)} and {list(outputs)}, expected "
            f"{len(graph.inputs)} inputs and {len(graph.outputs)} outputs of different names"
        )


def _traced(
    source: Callable[..., Any],
    inputs: Sequence[Any],
    names: Sequence[str] | None,
    dynamic_shapes: DynamicShapes | None,
) -> tuple[Graph, list[str]]:
    if isinstance(source, trace) and not inputs:
        return source.deployable(arg_names=names, dynamic_shapes=dynamic_shapes)
    if isinstance(source, OnnxModule) and not inputs and not dynamic_shapes:
        return _imported(source)
    if isinstance(source, OnnxModule):
        names = names or [info.name for info in source.inputs]
        dynamic_shapes = dynamic_shapes or _declared(source)
    if isinstance(source, Module):
        source._name_tensors()
        modes = [(module, module.training) for module in source.modules()]
        source.eval()
        try:
            return _trace_call(source.forward, inputs, names, dynamic_shapes)
        finally:
            for module, training in modes:
                module.training = training
    function = source._function if isinstance(source, trace) else source
    return _trace_call(function, inputs, names, dynamic_shapes)


def _imported(source: OnnxModule) -> tuple[Graph, list[str]]:
    """Return the graph of an imported model for the sizes that its file tells or leaves open."""
    fixed = all(isinstance(n, int) for info in source.inputs for n in info.shape or (None,))
    graph = trace_graph(source, {}) if fixed else symbolic_graph(source)
    if graph is None:
        raise TraceError(
            "onnx.export: the imported model's graph differs by size, got no example inputs, "
            "expected some"
        )
    return graph, [info.name for info in source.inputs]


def _declared(source: OnnxModule) -> dict[str, dict[int, str]]:
    """Return the dimensions that an imported file leaves open."""
    return {
        info.name: {axis: n for axis, n in enumerate(info.shape or ()) if isinstance(n, str)}
        for info in source.inputs
    }


def _trace_call(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    names: Sequence[str] | None,
    dynamic_shapes: DynamicShapes | None,
) -> tuple[Graph, list[str]]:
    traced = trace(function, capture_as_const=True)
    found: tuple[Graph, list[str]] = traced.deployable(
        arg_names=names,
        dynamic_shapes=dynamic_shapes,
        call=(tuple(inputs), {}),
    )
    return found


def to_model(
    graph: Graph, inputs: Sequence[str], outputs: Sequence[str], opset: int, name: str
) -> Any:
    """Return an ``onnx.ModelProto`` for a graph without states, checked by ``onnx.checker``.

    Raises:
        GraphError: where ops have no ONNX form; all of them are named.
    """
    onnx = require()
    graph = _simplified(graph)
    emitter = _Emitter(graph, inputs, outputs, opset)
    emitter.run()
    infos = [
        [_value_info(name, value) for name, value in zip(names, values, strict=True)]
        for names, values in ((inputs, graph.inputs), (outputs, graph.outputs))
    ]
    proto = onnx.helper.make_graph(
        emitter.writer.nodes,
        name,
        *infos,
        [_tensor(title, array) for title, array in emitter.writer.arrays.items()],
    )
    imports = [onnx.helper.make_opsetid("", opset)]
    others = sorted({node.domain for node in emitter.writer.nodes if node.domain})
    # Only the version of ONNX's own operators tells what a reader of the file must know.
    version = onnx.helper.find_min_ir_version_for(imports)
    imports += [onnx.helper.make_opsetid(domain, 1) for domain in others]
    model = onnx.helper.make_model(
        proto,
        opset_imports=imports,
        producer_name="tianyuan",
        producer_version=__version__,
        ir_version=version,
    )
    if _size(model) <= _SPLIT:
        try:
            onnx.checker.check_model(model, full_check=True)
        except onnx.shape_inference.InferenceError as error:
            text = " ".join(str(error).split())
            raise GraphError(
                f"onnx.export: an operator of ONNX does not take these dtypes, got {text}, "
                "expected float32 or another that it takes"
            ) from error
    return model


def _simplified(graph: Graph) -> Graph:
    """Return the graph without what is dead, double or computed from constants.

    Weights stay in integers where they are dequantised.
    """
    options, keep = Options(level=1), {"dequantize"}
    graph = fold.run(dead.run(graph, options), options, keep)
    graph = duplicates.run(algebra.run(graph, options), options)
    graph = dead.run(fold.run(graph, options, keep), options)
    passes.verify(graph, "canonical")
    return graph


class _Emitter:
    """Walks a graph and lets the table write each node."""

    def __init__(
        self, graph: Graph, inputs: Sequence[str], outputs: Sequence[str], opset: int
    ) -> None:
        self._graph = graph
        self._names: dict[Value, str] = dict(zip(graph.inputs, inputs, strict=True))
        self._results = outputs
        self._problems: list[str] = []
        self.writer = Writer(opset, _symbol_sources(graph, inputs))
        for name in (*inputs, *outputs):
            self.writer.reserve(name)

    def run(self) -> None:
        """Write all nodes and name the outputs.

        Raises:
            GraphError: where ops have no ONNX form.
        """
        for node in self._graph.nodes:
            self._emit(self._graph, node, self._names)
        if self._problems:
            found = "; ".join(dict.fromkeys(self._problems))
            raise GraphError(f"onnx.export: there is no ONNX form, got {found}")
        self._name_outputs()
        merge_biases(self.writer, set(self._results))

    def _name(self, graph: Graph, value: Value, names: dict[Value, str]) -> str:
        if value not in names:
            constant = graph.constants[value]
            names[value] = self.writer.constant(constant.array, name=constant.name or "constant")
        return names[value]

    def _emit(self, graph: Graph, node: Node, names: dict[Value, str]) -> None:
        given = [self._name(graph, value, names) for value in node.inputs]
        function = EXPORTERS.get(node.op.name)
        try:
            if any(value.spec.dtype.kind == "c" for value in (*node.inputs, *node.outputs)):
                raise UnsupportedError("complex numbers are not exported")
            if function is None:
                found = self._decomposed(node, given)
            else:
                try:
                    found = function(self.writer, node, *given)
                except DecompositionNeededError:
                    found = self._decomposed(node, given)
        except UnsupportedError as error:
            where = f" at {node.origin}" if node.origin else ""
            self._problems.append(f"{node.op.name}{where} ({error})")
            found = tuple("?" for _ in node.outputs)
        made = found if isinstance(found, tuple) else (found,)
        names.update(zip(node.outputs, made, strict=True))

    def _decomposed(self, node: Node, given: Sequence[str]) -> tuple[str, ...]:
        """Write an op in terms of those that it stands for."""
        if node.op.decompose is None:
            raise UnsupportedError("no operator of ONNX computes it")
        tracer = Tracer(capture_as_const=True)
        with tracer.recording():
            tensors = tuple(
                tracer.add_input(value.spec, str(index)) for index, value in enumerate(node.inputs)
            )
            results = node.op.decompose(tensors, node.attrs)
            several = results if isinstance(results, (tuple, list)) else (results,)
            tracer.graph.outputs = [tracer.lift(result) for result in several]
        inner = _simplified(tracer.graph)
        names = dict(zip(inner.inputs, given, strict=True))
        before = len(self._problems)
        for part in inner.nodes:
            part.origin = node.origin
            self._emit(inner, part, names)
        if len(self._problems) > before:
            return tuple("?" for _ in node.outputs)
        return tuple(self._name(inner, value, names) for value in inner.outputs)

    def _name_outputs(self) -> None:
        """Give what the nodes made the names of the outputs."""
        made = {name for node in self.writer.nodes for name in node.output}
        renamed: dict[str, str] = {}
        copies = []
        for value, name in zip(self._graph.outputs, self._results, strict=True):
            source = self._name(self._graph, value, self._names)
            if source in made and source not in renamed:
                renamed[source] = name
            else:
                copies.append((source, name))
        helper = require().helper
        for node in self.writer.nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        for source, name in copies:
            source = renamed.get(source, source)
            self.writer.nodes.append(helper.make_node("Identity", [source], [name], name=name))


def _symbol_sources(graph: Graph, names: Sequence[str]) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for name, value in zip(names, graph.inputs, strict=True):
        for axis, extent in enumerate(value.spec.shape):
            expr = shapes.expr_of(extent)
            if isinstance(expr, str):
                found.setdefault(expr, (name, axis))
    return found


def _value_info(name: str, value: Value) -> Any:
    shape = [
        expr if isinstance(expr, int) else shapes.format_expr(expr)
        for expr in map(shapes.expr_of, value.spec.shape)
    ]
    return require().helper.make_tensor_value_info(name, code_of(value.spec.dtype), shape)


def _tensor(name: str, array: np.ndarray) -> Any:
    onnx = require()
    tensor = onnx.TensorProto()
    tensor.name = name
    tensor.data_type = code_of(array.dtype)
    tensor.dims.extend(array.shape)
    if array.dtype.name in ("int4", "uint4"):
        tensor.raw_data = _two_to_a_byte(array)
        return tensor
    kind = array.dtype.newbyteorder("<") if array.dtype.kind in "iuf" else array.dtype
    tensor.raw_data = array.astype(kind, copy=False).tobytes()
    return tensor


def _two_to_a_byte(array: np.ndarray) -> bytes:
    """Return values of four bits, the even ones in the low halves of bytes."""
    flat = array.reshape(-1).astype(np.int8).view(np.uint8) & 15
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
    return (flat[::2] | flat[1::2] << 4).tobytes()


def _size(model: Any) -> int:
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def _write(model: Any, path: str | os.PathLike[str]) -> None:
    target = Path(os.fspath(path))
    if _size(model) <= _SPLIT:
        replace_file(target, [model.SerializeToString()])
        return
    weights: list[bytes] = []
    position = 0
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) < 1024:
            continue
        weights.append(tensor.raw_data)
        _refer(tensor, f"{target.name}.data", position)
        position += len(weights[-1])
    replace_file(target.with_name(f"{target.name}.data"), weights)
    replace_file(target, [model.SerializeToString()])


def _refer(tensor: Any, file: str, offset: int) -> None:
    """Let a tensor name the place of its bytes in another file."""
    entries: Mapping[str, Any] = {
        "location": file, "offset": offset, "length": len(tensor.raw_data),
    }  # fmt: skip
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    for key, value in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)


__all__ = ["OPSET", "OLDEST", "export", "to_model"]

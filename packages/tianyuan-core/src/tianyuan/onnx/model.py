"""Compile an imported model: one graph for every size, or one per size, or no graph at all."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from .. import dtypes, registry, shapes
from ..errors import ShapeError, TianyuanError, TraceError
from ..graph.graph import Graph, Value
from ..imperative.tensor import Tensor
from ..jit.model import Model, as_input
from ..jit.naming import bind_inputs
from ..jit.sizes import first_difference
from ..jit.tracer import SymbolFixed, Tracer
from ..kernel import FULL
from ..op import TensorSpec
from .build import ValueInfo
from .dims import plain_symbols, read_extent
from .interpret import ValueNeededError
from .known import Known
from .module import OnnxModule, check_shapes

_PROGRAM_LIMIT = 16
# Inputs of at most so many bytes may be known when a graph is made.
_VALUE_BYTES = 1024
# Sizes of the first axis and of all others at which a graph with symbols is tried.
_EXAMPLES = ((2, 224), (2, 64), (2, 32), (2, 16), (2, 8), (3, 5), (2, 128), (1, 1))
# Sizes at which it is made again; the third number is how far each further symbol is from the last,
# so that odd and even, small and large meet. Sizes that the model refuses say nothing.
_OTHERS = (
    (3, 256, 0), (3, 96, 0), (3, 255, 0), (5, 7, 0), (1, 97, 1), (3, 64, 1), (2, 5, 1), (4, 2, 0),
)  # fmt: skip


def load_model(
    module: OnnxModule, backend: str | None, threads: int | None, precision: str = FULL
) -> Model:
    """Return a module's graph as a model that runs compiled.

    Sizes that the file leaves open stay symbols where the graph is the same for every size;
    otherwise a graph is made for each combination of sizes that is met, and of the values of small
    inputs that decide sizes. A model whose shapes depend on other data runs eagerly, which a
    warning says; ``precision``, as ``jit.load`` takes it, means nothing to it.

    >>> import numpy as np, tianyuan as ty
    >>> ty.onnx.export(lambda x: x * 2, "double.onnx", ty.Tensor([1.0]))
    >>> model = load_model(ty.onnx.load("double.onnx"), backend=None, threads=None)
    >>> model(np.array([3.0], "float32"))
    array([6.], dtype=float32)
    """
    if not all(_is_plain(info.dtype) for info in (*module.inputs, *module.outputs)):
        return EagerModel(module, backend, threads, "its inputs or outputs are no plain tensors")
    names = [info.name for info in module.outputs]
    try:
        if _symbols(module):
            graph = symbolic_graph(module)
            if graph is None:
                return SizedModel(module, backend, threads, precision)
        else:
            graph = trace_graph(module, {})
    except ValueNeededError:
        return SizedModel(module, backend, threads, precision)
    except TraceError as error:
        return EagerModel(module, backend, threads, str(error))
    model = Model(graph, names, backend, threads, precision)
    model.release(graph)
    return model


def _is_plain(dtype: np.dtype | None) -> bool:
    return dtype is not None and dtypes.name_of(dtype) in dtypes.CODES


def _symbols(module: OnnxModule) -> bool:
    return any(
        info.shape is None or any(not isinstance(n, int) for n in info.shape)
        for info in module.inputs
    )


def _extents(module: OnnxModule, info: ValueInfo) -> list[shapes.Expr]:
    """Return an input's or output's extents: sizes, symbols, or expressions of symbols."""
    known = plain_symbols(value.shape for value in module.inputs)
    named = [f"{info.name}_{a}" if n is None else n for a, n in enumerate(info.shape or ())]
    return [read_extent(n, known) if isinstance(n, str) else n for n in named]


def symbolic_graph(module: OnnxModule) -> Graph | None:
    """Return a graph that holds for every size, or None where there is none.

    It is believed only where other sizes of the symbols give the very same graph.
    """
    if any(info.shape is None for info in module.inputs):
        return None
    for first, rest in _EXAMPLES:
        sizes = _sizes(module, first, rest)
        try:
            graph = trace_graph(module, sizes)
        except SymbolFixed:
            return None
        except TraceError:
            raise
        except TianyuanError:
            continue
        return graph if _holds(module, graph) else None
    return None


def _sizes(module: OnnxModule, first: int, rest: int, apart: int = 0) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for info in module.inputs:
        for axis, extent in enumerate(_extents(module, info)):
            if isinstance(extent, str):
                later = rest + apart * len(sizes)
                sizes.setdefault(extent, first if axis == 0 else later)
    return sizes


def _holds(module: OnnxModule, graph: Graph) -> bool:
    found = False
    for first, rest, apart in _OTHERS:
        try:
            twin = trace_graph(module, _sizes(module, first, rest, apart))
        except (TianyuanError, SymbolFixed):
            continue
        if first_difference(graph, twin) is not None:
            return False
        found = True
    return found


def trace_graph(module: OnnxModule, sizes: Mapping[str, int], symbols: bool = True) -> Graph:
    """Return the module's graph, its weights as constants.

    Raises:
        TraceError: where it depends on data.
        SymbolFixed: where the size of a symbol decides what is computed.
    """
    specs = []
    for info in module.inputs:
        assert info.dtype is not None
        extents: list[int] = []
        for extent in _extents(module, info):
            size = shapes.evaluate_expr(extent, sizes)
            if size < 0:
                raise ShapeError(f"model: input {info.name!r} would have an extent of {size}")
            symbolic = symbols and not isinstance(extent, int)
            extents.append(shapes.Dim(size, extent) if symbolic else size)
        specs.append(TensorSpec(tuple(extents), info.dtype))
    return trace_specs(module, specs)


def trace_specs(
    module: OnnxModule, specs: Sequence[TensorSpec], values: Mapping[str, Known] | None = None
) -> Graph:
    """Return the module's graph for inputs of these specs, some of which are known.

    Raises:
        ValueNeededError: where another value must be known; ``value`` is among the graph's values.
        TraceError: where the graph depends on data otherwise.
    """
    tracer = Tracer(capture_as_const=True)
    given = values or {}
    with tracer.recording():
        inputs: list[Any] = [
            tracer.add_input(spec, info.name)
            for spec, info in zip(specs, module.inputs, strict=True)
        ]
        inputs = [
            given.get(info.name, tensor) for info, tensor in zip(module.inputs, inputs, strict=True)
        ]
        result = module(*inputs)
        results = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(item, Tensor) for item in results):
            raise TraceError("an output is no plain tensor")
        tracer.graph.outputs = [tracer.lift(item) for item in results]
        tracer.finish()
    if tracer.hosts:
        raise TraceError("it draws random numbers, which a file cannot hold")
    return tracer.graph


def sources(value: Value) -> set[str]:
    """Return the names of the graph's inputs that a value depends on."""
    found: set[str] = set()
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        if item.node is None:
            found.add(item.name)
        else:
            waiting += item.node.inputs
    return found


class SizedModel(Model):
    """A model with a graph of its own for each combination of input shapes and small values."""

    def __init__(
        self, module: OnnxModule, backend: str | None, threads: int | None, precision: str = FULL
    ) -> None:
        self.backend = backend
        self.input_specs = _declared(module, module.inputs)
        self.output_specs = _declared(module, module.outputs)
        self._module = module
        self._threads = threads
        self._precision = precision
        self._valued: set[str] = set()
        self._lock = threading.Lock()
        self._models: OrderedDict[Any, Model] = OrderedDict()

    def __reduce__(self) -> Any:
        return load_model, (self._module, self.backend, self._threads, self._precision)

    def model_for(self, inputs: Sequence[Any]) -> Model:
        """Return the model that serves these inputs."""
        return self._model(self._arrays(inputs))

    def _model(self, given: Sequence[Any]) -> Model:
        """Return the model for inputs, making its graph first where these are new."""
        with self._lock:
            key = self._key(given)
            found = self._models.get(key)
            if found is None:
                check_shapes(self._module.inputs, given)
                found = self._made(given)
                self._models[self._key(given)] = found
                if len(self._models) > _PROGRAM_LIMIT:
                    self._models.popitem(last=False)
            else:
                self._models.move_to_end(key)
            return found

    def _key(self, given: Sequence[Any]) -> Any:
        return tuple(
            (value.shape, value.tobytes() if info.name in self._valued else None)
            for info, value in zip(self._module.inputs, given, strict=True)
        )

    def _made(self, given: Sequence[np.ndarray]) -> Model:
        infos = self._module.inputs
        specs = [
            TensorSpec(value.shape, info.dtype)
            for info, value in zip(infos, given, strict=True)
            if info.dtype is not None
        ]
        while True:
            values = {
                info.name: Known(value)
                for info, value in zip(infos, given, strict=True)
                if info.name in self._valued
            }
            try:
                graph = trace_specs(self._module, specs, values)
            except ValueNeededError as error:
                more = sources(error.value) - self._valued
                sizes = {i.name: v.nbytes for i, v in zip(infos, given, strict=True)}
                if not more or any(sizes.get(name, 0) > _VALUE_BYTES for name in more):
                    return EagerModel(self._module, self.backend, self._threads, str(error))
                self._valued |= more
            except TraceError as error:
                return EagerModel(self._module, self.backend, self._threads, str(error))
            else:
                names = list(self.output_specs)
                return Model(graph, names, self.backend, self._threads, self._precision)

    def _arrays(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        return [
            as_input(name, value, spec)
            for (name, spec), value in zip(self.input_specs.items(), inputs, strict=True)
        ]

    def __call__(
        self, /, *args: Any, out: Sequence[np.ndarray] | None = None, **kwargs: Any
    ) -> Any:
        """Run the model as ``Model`` does, making the graph for new shapes or values first."""
        given = bind_inputs(list(self.input_specs), args, kwargs)
        return self.model_for(given)(*given, out=out)

    def program(self, *inputs: Any, **sizes: int) -> Any:
        """Return the Program that runs for these inputs, or for zeros of these sizes."""
        if inputs:
            return self.model_for(inputs).program(*inputs)
        chosen = {**dict.fromkeys(_all_symbols(self.input_specs), 1), **sizes}
        given = [
            np.zeros(shapes.specialise(spec.shape, chosen), spec.dtype)
            for spec in self.input_specs.values()
        ]
        return self._model(given).program()

    def profile(self, *inputs: Any) -> list[float]:
        """Run once and return the seconds that each step of the program took."""
        return self.model_for(inputs).profile(*inputs)


def _all_symbols(specs: Mapping[str, TensorSpec]) -> set[str]:
    return set().union(*(shapes.symbols_of(spec.shape) for spec in specs.values()))


def _declared(module: OnnxModule, infos: Sequence[Any]) -> dict[str, TensorSpec]:
    found = {}
    for info in infos:
        dtype = info.dtype if info.dtype is not None else np.dtype(object)
        extents = [n if isinstance(n, int) else shapes.Dim(1, n) for n in _extents(module, info)]
        found[info.name] = TensorSpec(tuple(extents), dtype)
    return found


class EagerModel(Model):
    """A model that no graph can hold: its nodes run one by one."""

    def __init__(
        self, module: OnnxModule, backend: str | None, threads: int | None, reason: str
    ) -> None:
        self.backend = backend
        self.input_specs = _declared(module, module.inputs)
        self.output_specs = _declared(module, module.outputs)
        self._module = module
        self._reason = reason
        self._threads = threads
        warnings.warn(f"onnx: the model runs eagerly: {reason}", stacklevel=4)

    def __reduce__(self) -> Any:
        return EagerModel, (self._module, self.backend, self._threads, self._reason)

    def __call__(
        self, /, *args: Any, out: Sequence[np.ndarray] | None = None, **kwargs: Any
    ) -> Any:
        """Run the model; tensors come back where an input is a tensor, else arrays.

        Raises:
            TraceError: where ``out`` is given.
        """
        if out is not None:
            raise TraceError("model: out cannot be used, the model runs eagerly")
        choice = registry.use_backend(self.backend) if self.backend else nullcontext()
        with choice:
            results = self._module(*args, **kwargs)
        if any(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
            return results
        return _arrays(results)

    def program(self, *inputs: Any, **sizes: int) -> Any:
        """Refuse: there is no program.

        Raises:
            TraceError: always; the message says why.
        """
        raise TraceError(f"model: there is no program, it runs eagerly: {self._reason}")

    def profile(self, *inputs: Any) -> list[float]:
        """Refuse: there is no program.

        Raises:
            TraceError: always; the message says why.
        """
        raise TraceError(f"model: there is no program, it runs eagerly: {self._reason}")


def _arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, (list, tuple)):
        return type(value)(_arrays(item) for item in value)
    return value


__all__ = ["EagerModel", "SizedModel", "load_model", "symbolic_graph", "trace_graph"]

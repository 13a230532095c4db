"""Write a graph to a model file, and load one as something that can be called."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import IO, Any

import numpy as np

from .. import dtypes, native, plugins, registry, shapes
from ..collecting import uncollected
from ..device import parse_device
from ..errors import (
    AttrError,
    BackendError,
    DTypeError,
    ModelFormatError,
    TianyuanError,
    TraceError,
)
from ..graph.container import (
    Container,
    container_bytes,
    parse_container,
    read_container,
    replace_file,
)
from ..graph.explain import Explanation, explain
from ..graph.graph import Constant, Graph
from ..graph.options import Options
from ..graph.roofline import Roofline, measure_peaks, roofline
from ..graph.serial import graph_from_json, graph_to_json
from ..imperative.tensor import Tensor, wrap
from ..kernel import FULL
from ..op import TensorSpec
from .compiled import CompiledGraph
from .dumping import DumpResult
from .naming import bind_inputs


def check_target(op: str, file: object) -> None:
    """Raise AttrError where a model file is to be written under the name of another format.

    >>> check_target("trace.dump", "net.tym")
    """
    if isinstance(file, (str, os.PathLike)) and os.fspath(file).endswith(".onnx"):
        raise AttrError(
            f"{op}: what is written is a .tym file, got the name {os.fspath(file)}, expected one "
            "in .tym; tianyuan.onnx.export, or `tianyuan convert`, makes an ONNX file of it"
        )


def write_model(
    file: str | os.PathLike[str] | IO[bytes],
    graph: Graph,
    input_names: Sequence[str],
    output_names: Sequence[str] | None = None,
    extra: Mapping[str, str] | None = None,
) -> DumpResult:
    """Write a graph without states to a model file or stream; equal graphs give equal bytes.

    Raises:
        AttrError: where the name is that of an ONNX file.
        TraceError: where the output names do not match.
        OSError: where the file cannot be written; an old one is still whole then.
    """
    check_target("trace.dump", file)
    names = list(output_names or (f"output_{i}" for i in range(len(graph.outputs))))
    if len(names) != len(graph.outputs) or len(set(names)) != len(names):
        raise TraceError(
            f"trace.dump: output_names do not fit, got {names}, expected {len(graph.outputs)} "
            "different names"
        )
    data, tensors = graph_to_json(graph, input_names, names)
    pieces = container_bytes(tensors, data, extra)
    if isinstance(file, (str, os.PathLike)):
        replace_file(file, pieces)
    else:
        file.writelines(pieces)
    return DumpResult(
        len(graph.nodes), sum(memoryview(piece).nbytes for piece in pieces),
        sum(array.nbytes for array in tensors.values()), list(input_names), names, list(tensors),
    )  # fmt: skip


class Model:
    """A loaded model: call it with arrays or tensors, by position or by name.

    Attributes:
        input_specs: name -> TensorSpec of every input; symbols stand for dynamic dimensions.
        output_specs: name -> TensorSpec of every output.
        backend: name of the backend that was asked for, or None.

    >>> import tianyuan as ty
    >>> double = ty.jit.trace(lambda x: x * 2)
    >>> double(ty.Tensor([1.0, 2.0])).numpy()
    array([2., 4.], dtype=float32)
    >>> written = double.dump("double.tym", arg_names=["x"])
    >>> ty.jit.load("double.tym").input_specs["x"].shape
    (2,)
    """

    def __init__(
        self,
        graph: Graph,
        output_names: Sequence[str],
        backend: str | None,
        threads: int | None,
        precision: str = FULL,
    ) -> None:
        self.backend = backend
        self.input_specs = {value.name: value.spec for value in graph.inputs}
        self.output_specs = {
            name: value.spec for name, value in zip(output_names, graph.outputs, strict=True)
        }
        self._expected = tuple(self.input_specs.items())
        self._compiled = CompiledGraph(graph, threads=threads, precision=precision)

    def release(self, source: Graph) -> None:
        """Let go of the graph that the model was made of, unless it is the one that runs."""
        if self._compiled.graph is not source:
            source.dissolve()

    def __copy__(self) -> Model:
        made = type(self).__new__(type(self))  # shares what runs, which nothing changes
        made.__dict__.update(self.__dict__)
        return made

    def __reduce__(self) -> Any:
        # A deep copy, or a pickle, is a model file: the graph that runs, with its weights.
        content = io.BytesIO()
        graph = self._compiled.graph
        write_model(content, graph, list(self.input_specs), list(self.output_specs))
        return _loaded, (content.getvalue(), self.backend, *self._compiled.settings)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}: {spec}" for name, spec in self.input_specs.items())
        outputs = ", ".join(f"{name}: {spec}" for name, spec in self.output_specs.items())
        return f"Model(({inputs}) -> ({outputs}))"

    def _choice(self) -> Any:
        return registry.use_backend(self.backend) if self.backend else nullcontext()

    def __call__(
        self, /, *args: Any, out: Sequence[np.ndarray] | None = None, **kwargs: Any
    ) -> Any:
        """Run the model.

        Returns what it was given: arrays for arrays, tensors where an input is a tensor; a single
        output by itself, several as a tuple. ``out`` takes arrays to write the outputs to.

        Raises:
            CallError: where an input is missing, unknown or given twice.
            ShapeError, DTypeError: where an input does not fit.
        """
        expected = self._expected
        given: Sequence[Any] = args
        if kwargs or len(args) != len(expected):
            given = bind_inputs(list(self.input_specs), args, kwargs)
        arrays = [
            as_input(name, value, spec) for (name, spec), value in zip(expected, given, strict=True)
        ]
        if self.backend is None:
            results: list[Any] = self._compiled.run(arrays, out)
        else:
            with registry.use_backend(self.backend):
                results = self._compiled.run(arrays, out)
        if True in [isinstance(value, Tensor) for value in given]:
            results = [wrap(array, TensorSpec(array.shape, array.dtype)) for array in results]
        return results[0] if len(results) == 1 else tuple(results)

    def example_inputs(self, sizes: Mapping[str, int] | None = None) -> list[np.ndarray]:
        """Return random inputs (floats) or zeros for given sizes of the dynamic dimensions."""
        known = {name: 1 for spec in self.input_specs.values() for name in _symbols(spec)}
        known.update(sizes or {})
        rng = np.random.default_rng(0)
        found = []
        for spec in self.input_specs.values():
            shape = shapes.specialise(spec.shape, known)
            if dtypes.is_float(spec.dtype):
                found.append(rng.standard_normal(shape).astype(spec.dtype))
            else:
                found.append(np.zeros(shape, spec.dtype))
        return found

    def explain(self, *inputs: Any, **sizes: int) -> Explanation:
        """Show the kernel of every step, its layout, and what refused before it.

        The program is that of the given inputs, or of given sizes of the dynamic dimensions (1
        where none is given).
        """
        return explain(self.program(*inputs, **sizes))

    def program(self, *inputs: Any, **sizes: int) -> Any:
        """Return the Program that runs for these inputs or sizes."""
        return self._compiled_for(inputs, sizes).program

    def profile(self, *inputs: Any) -> list[float]:
        """Run once and return the seconds that each step of the program took."""
        arrays = [
            as_input(name, value, spec)
            for (name, spec), value in zip(self.input_specs.items(), inputs, strict=True)
        ]
        compiled = self._compiled_for(arrays, {})
        outputs = self._compiled.make_outputs(compiled)
        found: list[float] = compiled.executable.profile(arrays, (), outputs)
        return found

    def roofline(self, *inputs: Any, rounds: int = 10) -> Roofline:
        """Run some rounds and hold each step's least time against what the machine allows.

        Measures the machine first, which takes about a second once.
        """
        times = [self.profile(*inputs) for _ in range(rounds)]
        least = [min(taken) for taken in zip(*times, strict=True)]
        program = self.program(*inputs)
        return roofline(program, least, measure_peaks(program.threads))

    def _compiled_for(self, inputs: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        if inputs:
            found = self._compiled.sizes_for([np.shape(value) for value in inputs])
        else:
            found = {name: 1 for spec in self.input_specs.values() for name in _symbols(spec)}
            found.update(sizes)
        with self._choice():
            return self._compiled.compiled_for(found)


def _symbols(spec: TensorSpec) -> set[str]:
    return shapes.symbols_of(spec.shape)


def as_input(name: str, value: Any, spec: TensorSpec) -> np.ndarray:
    """Return an input as C-contiguous array of the dtype that a spec asks for.

    Raises:
        DTypeError: where it has another that is not converted, or a whole number does not fit.
    """
    if value.__class__ is np.ndarray and value.dtype is spec.dtype:
        flags = value.flags
        if flags.c_contiguous and flags.aligned:
            return value
    array = value.__array__(copy=False) if isinstance(value, Tensor) else np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype != spec.dtype:
        whole = array.dtype.kind in "iu" and spec.dtype.kind in "iu"
        weak = not isinstance(value, (np.ndarray, Tensor)) or array.dtype == np.float64
        # int64 data arrives in tensors as int32, and so it does here; both ways.
        weak = weak or (isinstance(value, Tensor) and spec.dtype == np.int64)
        weak = weak or (whole and array.dtype == np.int64)
        both_float = dtypes.is_float(spec.dtype) and array.dtype.kind == "f"
        fits = both_float or whole or (array.dtype.kind in "iu" and spec.dtype.kind == "f")
        if not (weak and fits):
            raise DTypeError(
                f"model: input {name!r} has the wrong dtype, got {array.dtype.name}, "
                f"expected {spec.dtype.name}"
            )
        if whole and array.size:
            for bound in (array.min(), array.max()):
                dtypes.expect_fits(f"model: input {name!r}", int(bound), spec.dtype)
        array = array.astype(spec.dtype)
    return np.require(array, requirements=("C", "A")).reshape(array.shape)


def load(
    path: str | os.PathLike[str] | IO[bytes],
    device: str = "cpu",
    backend: str | None = None,
    threads: int | None = None,
    precision: str = FULL,
    *,
    verify: bool = False,
) -> Model:
    """Load a model file for a device.

    Header and graph are checked at once. A weight is checked against its checksum when it is first
    read: no result is computed with a damaged one, but where the first call reads it, the error
    comes there.

    Args:
        path: a ``.tym`` or, with the extra ``onnx`` installed, an ``.onnx`` file; or a binary
            stream that holds a ``.tym`` file.
        device: where it shall run.
        backend: which plugin's kernels serve it; the cheapest of all if None.
        threads: how many threads take part in a run; ``get_num_threads()`` if None.
        precision: ``bf16`` permits kernels that round float32 operands to bfloat16 and sum in
            float32, where the machine has them and they are faster; inputs and outputs keep their
            dtypes. ``full`` computes in the dtypes of the file.
        verify: whether to check every byte of the file now, whatever will be read of it. Files
            in ``.onnx`` have no checksums.

    Raises:
        AttrError: where the precision is neither, the path is no path and no stream, or a file
            is to be verified that has no checksums.
        FileNotFoundError: where there is no such file.
        ModelFormatError: where it is damaged, or newer than this core.
        BackendError: where the backend is not there; the message says why.
        DeviceError: where no backend serves the device.

    >>> import tianyuan as ty
    >>> double = ty.jit.trace(lambda x: x * 2)
    >>> double(ty.Tensor([1.0])).item()
    2.0
    >>> written = double.dump("double.tym")
    >>> load("double.tym")(np.array([3.0], "float32"))
    array([6.], dtype=float32)
    """
    registry.get_device_spec(parse_device(device))
    if parse_device(device) != "cpu":
        raise BackendError(f"load: the device cannot run programs, got {device!r}, expected 'cpu'")
    if threads is not None:
        native.check_threads("load", threads)
    Options(precision=precision)  # refuses it before the file is read
    if backend is not None and backend not in registry.backends():
        raise BackendError(_why_missing(backend))
    with uncollected():
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).endswith(".onnx"):
            from .. import onnx

            if verify:
                raise AttrError(
                    f"load: an ONNX file has no checksums to verify, got {os.fspath(path)}, "
                    "expected a .tym file"
                )
            return onnx.load_model(onnx.load(path), backend, threads, precision)
        container = open_model(path)
        if verify:
            container.verify()
        graph, names = read_graph(container)
        model = Model(graph, names, backend, threads, precision)
        model.release(graph)
        return model


def _loaded(content: bytes, *options: Any) -> Model:
    return load(io.BytesIO(content), "cpu", *options)


def read_model(path: str | os.PathLike[str] | IO[bytes]) -> tuple[Graph, list[str]]:
    """Return the graph of a model file and the names of its outputs.

    Raises:
        FileNotFoundError: where there is no such file.
        ModelFormatError: where it is damaged, or newer than this core.
    """
    return read_graph(open_model(path))


def open_model(path: str | os.PathLike[str] | IO[bytes]) -> Container:
    """Return an open model file, or a stream that holds one, with header and graph checked."""
    if isinstance(path, (str, os.PathLike)):
        return read_container(path)
    if not hasattr(path, "read"):
        raise AttrError(
            f"load: path is wrong, got {type(path).__name__}, expected the path of a .tym file or "
            "a binary stream"
        )
    return parse_container("stream", path.read())


def read_graph(container: Container) -> tuple[Graph, list[str]]:
    """Return the graph of an open model file and the names of its outputs.

    Raises:
        ModelFormatError: where it is damaged, or newer than this core.
    """
    try:
        return graph_from_json(
            container.path, container.take_graph(), lambda name: _constant(container, name)
        )
    except RecursionError:
        raise ModelFormatError(
            f"model file {container.path}: graph is nested too deep, got more levels than Python "
            "follows, expected extents of few operations"
        ) from None
    except TianyuanError as error:
        if isinstance(error, ModelFormatError):
            raise
        raise ModelFormatError(f"model file {container.path}: {error}") from None


def _constant(container: Container, name: str) -> Constant:
    try:
        entry = container.entry(name)
    except KeyError:
        raise ModelFormatError(
            f"model file {container.path}: graph names a tensor that is not there, got {name!r}, "
            "expected one of the file"
        ) from None
    spec = TensorSpec(entry.shape, entry.dtype)
    return Constant.lazy(spec, name, lambda: container.tensor(name), container.spare)


def _why_missing(backend: str) -> str:
    for record in plugins.records():
        if record.name == backend:
            reason = record.reason or "it brings no kernels for this machine"
            return f"backend: {record.title} is not available: {reason}"
    known = ", ".join(registry.backends())
    return f"backend: not installed, got {backend!r}, expected one of {known}"

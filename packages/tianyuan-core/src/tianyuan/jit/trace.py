"""trace: run a Python function once per kind of call, and its program from then on."""

from __future__ import annotations

import functools
import inspect
import os
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import shapes
from ..errors import TraceError
from ..graph.explain import Explanation, explain
from ..graph.graph import Graph
from ..graph.program import Program
from ..imperative.state import state
from ..imperative.tensor import Tensor, wrap
from ..locks import ForkSafeLock
from ..op import TensorSpec
from . import pytree
from .compiled import CompiledGraph
from .model import write_model
from .recording import Recorder, Recording
from .tracer import SymbolFixed

# What MegEngine's dump takes beside; here the loader decides about all of it.
_MEGENGINE_OPTIONS = frozenset(
    {
        "append", "keep_var_name", "keep_opr_name", "keep_param_name", "keep_opr_priority",
        "no_change_graph", "strip_info_file", "append_json", "optimize_for_inference", "user_info",
        "enable_metadata", "input_data", "repeat", "silent", "no_assert", "maxerr", "resize_input",
        "input_transform", "dump_format", "model_version", "compat_older_version",
    }
)  # fmt: skip

_TRACE_LIMIT = 256  # programs kept per function; beyond it, all are made anew as they are needed

DynamicShapes = Mapping[str, "Mapping[int, str] | Sequence[str | None]"]


@dataclass
class Traced:
    """A recording of the function with its compiled form."""

    recording: Recording
    compiled: CompiledGraph


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


class trace:
    """Turn a function of tensors into one that runs as a compiled program.

    The body runs in Python once per key: the inputs' shapes, dtypes and devices, the other
    arguments, and attributes such as ``Module.training`` that it read. Prints and other effects of
    Python happen then and only then. Tensors from outside are bound by address: parameters that an
    optimiser inside or outside of the function updates are seen by the next call.

    Args:
        function: what to trace; may be left out when used as decorator with options.
        symbolic: accepted for MegEngine's sake; calls always run the compiled program.
        capture_as_const: whether tensors from outside become constants, which may then be folded
            and packed; needed before ``dump`` for a model that is to be deployed.
        opt_level: 0 leaves results bit-equal to eager execution, 1 simplifies, 2 also fuses and
            chooses layouts.
        dynamic_shapes: dimensions that may vary without a new trace, by argument name:
            ``{"x": {0: "batch"}}``. The body then runs at two sizes, to find where one is baked in.
        record_only, sublinear_memory_config, dtr_config, profiling, graph_opt_config,
        symbolic_shape, without_host, imperative: accepted for MegEngine's sake.

    Raises:
        TraceError: where the body does what a graph cannot hold, such as branching on a value.
    """

    def __new__(cls, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        if function is None:
            return functools.partial(cls, **options)
        return super().__new__(cls)

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        symbolic: bool = False,
        capture_as_const: bool = False,
        record_only: bool = False,
        sublinear_memory_config: Any = None,
        dtr_config: Any = None,
        profiling: bool = False,
        opt_level: int = 2,
        graph_opt_config: Any = None,
        symbolic_shape: bool = True,
        without_host: bool = False,
        imperative: bool = False,
        dynamic_shapes: DynamicShapes | None = None,
    ) -> None:
        assert function is not None
        functools.update_wrapper(self, function)
        self._function = function
        self._signature = inspect.signature(function)
        self._capture_as_const = capture_as_const
        self._level = opt_level
        self._dynamic = _normalise_dynamic(dynamic_shapes)
        self._fixed: set[str] = set()
        self._traces: dict[Any, list[Traced]] = {}
        self._last: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._program: Program | None = None
        self._lock = ForkSafeLock()

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        name = f"_traced_{self._function.__name__}"
        bound = instance.__dict__.get(name)
        if bound is None:
            bound = self._rebound(types.MethodType(self._function, instance))
            instance.__dict__[name] = bound
        return bound

    def _rebound(self, function: Callable[..., Any]) -> trace:
        return trace(
            function, capture_as_const=self._capture_as_const, opt_level=self._level,
            dynamic_shapes=self._dynamic,
        )  # fmt: skip

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on these arguments.

        Inside another trace, or while a GradManager outside of the function is recording, the body
        runs as plain Python, so that what happens in it is recorded there.
        """
        if state.recorder is not None or state.tapes:
            return self._function(*args, **kwargs)
        leaves, tensors, structure = self._take(args, kwargs)
        traced = self._find(tensors, structure)
        self._last = (args, kwargs)
        self._program, outputs = traced.compiled.run_program([t._data for t in tensors])
        recording = traced.recording
        for tensor, known, index in recording.grads:
            tensor._grad = known if index < 0 else _tensor(outputs[index])
        for index, output in recording.changed:
            if isinstance(leaves[index], Tensor):
                leaves[index]._rebind(_tensor(outputs[output]))
        results = [_tensor(array) for array in outputs[: recording.n_results]]
        return pytree.unflatten(recording.structure, results)

    def _take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], list[Tensor], pytree.Structure]:
        """Return the tensor and array arguments, all as tensors, and how they are nested."""
        bound = self._signature.bind(*args, **kwargs)
        leaves, structure = pytree.flatten(dict(bound.arguments), _is_leaf)
        tensors = [leaf if isinstance(leaf, Tensor) else Tensor(leaf) for leaf in leaves]
        return leaves, tensors, structure

    def _find(self, tensors: Sequence[Tensor], structure: pytree.Structure) -> Traced:
        with self._lock:
            while True:
                specs = self._specs(tensors, structure)
                key = (pytree.static_key(structure), tuple(map(_spec_key, specs)), state.precision)
                for known in self._traces.get(key, ()):
                    if known.recording.fits(tensors):
                        return known
                try:
                    recording = self._recorder(tensors, structure, self._capture_as_const).record(
                        specs
                    )
                except SymbolFixed as fixed:
                    self._fix(fixed)
                    continue
                tracer = recording.tracer
                compiled = CompiledGraph(
                    recording.graph, tracer.cells, tracer.hosts, level=self._level
                )
                made = Traced(recording, compiled)
                if sum(map(len, self._traces.values())) >= _TRACE_LIMIT:
                    self._traces.clear()
                self._traces.setdefault(key, []).append(made)
                return made

    def _fix(self, fixed: SymbolFixed) -> None:
        names = ", ".join(sorted(fixed.symbols))
        warnings.warn(
            f"trace: the dynamic dimension {names} is used as a plain number at {fixed.line}; "
            "it is fixed to the size of each call",
            stacklevel=4,
        )
        self._fixed |= fixed.symbols

    def _specs(
        self,
        tensors: Sequence[Tensor],
        structure: pytree.Structure,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
    ) -> list[TensorSpec]:
        """Return the inputs' specs with symbols where dimensions are dynamic."""
        declared = self._dynamic if dynamic is None else dynamic
        names = list(pytree.leaf_names(structure, ""))
        unknown = set(declared) - set(names)
        if unknown:
            raise TraceError(
                f"trace: dynamic_shapes names no input, got {', '.join(sorted(unknown))}, "
                f"expected some of {', '.join(names)}"
            )
        specs = []
        for name, tensor in zip(names, tensors, strict=True):
            shape = list(tensor.shape)
            for axis, symbol in declared.get(name, {}).items():
                axis = shapes.normalize_axis("trace", axis, len(shape))
                if symbol not in self._fixed:
                    shape[axis] = shapes.Dim(shape[axis], symbol)
            specs.append(TensorSpec(tuple(shape), tensor.dtype, tensor.device))
        return specs

    def _recorder(
        self, tensors: Sequence[Tensor], structure: pytree.Structure, as_const: bool
    ) -> Recorder:
        return Recorder(self._function, self._signature, structure, tensors, as_const)

    def explain(self) -> Explanation:
        """Show what runs each step of the program that the last call used.

        Raises:
            TraceError: where the function has not been called.
        """
        if self._program is None:
            raise TraceError("trace.explain: the function has not been called yet")
        return explain(self._program)

    def dump(
        self,
        file: str | os.PathLike[str],
        *,
        arg_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        dynamic_shapes: DynamicShapes | None = None,
        **options: Any,
    ) -> None:
        """Write the function, as last called, to a model file with its weights as constants.

        Args:
            file: path of the ``.tym`` file; an old one stays whole until the new one is complete.
            arg_names: names of the inputs, those of the function's parameters by default.
            output_names: names of the outputs, ``output_0`` … by default.
            dynamic_shapes: dimensions that callers of the file may choose, by input name.
            options: MegEngine's further options, accepted and without effect.

        Updates of state are left out: the file holds the function's outputs. It must have been
        called once before.

        Raises:
            TraceError: where it has not been called, or names do not match.
            OSError: where the file cannot be written.
        """
        unknown = [name for name in options if name not in _MEGENGINE_OPTIONS]
        if any(not name.startswith("enable_") for name in unknown):
            raise TraceError(f"trace.dump: unknown options, got {', '.join(sorted(unknown))}")
        graph, names = self.deployable(arg_names=arg_names, dynamic_shapes=dynamic_shapes)
        write_model(file, graph, names, output_names)

    def deployable(
        self,
        *,
        arg_names: Sequence[str] | None = None,
        dynamic_shapes: DynamicShapes | None = None,
        call: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    ) -> tuple[Graph, list[str]]:
        """Return the graph that ``dump`` writes, and the names of its inputs.

        ``call`` gives arguments and keywords to trace with, instead of those of the last call.

        Raises:
            TraceError: as ``dump`` does.
        """
        if call is None and self._last is None:
            raise TraceError("trace.dump: the function has not been called yet")
        args, kwargs = call or self._last or ((), {})
        _, tensors, structure = self._take(args, kwargs)
        names = list(pytree.leaf_names(structure, ""))
        renamed = _rename(names, arg_names)
        declared = {**self._dynamic, **_back(_normalise_dynamic(dynamic_shapes), renamed)}
        specs = self._specs(tensors, structure, declared)
        try:
            recording = self._recorder(tensors, structure, as_const=True).record(specs)
        except SymbolFixed as fixed:
            raise TraceError(
                f"trace.dump: the dynamic dimension {', '.join(sorted(fixed.symbols))} is used as "
                f"a plain number at {fixed.line}, expected code that holds for every size"
            ) from None
        _warn_of_training(recording)
        return recording.deployable(), [renamed[n] for n in names]


def _warn_of_training(recording: Recording) -> None:
    """Warn where a file would hold what only training wants."""
    if any(guard.name == "training" and guard.value for guard in recording.tracer.guards):
        warnings.warn(
            "trace.dump: modules are in training mode; call eval() first, or their dropout and "
            "batch statistics stand in the file",
            stacklevel=4,
        )
    elif recording.tracer.hosts:
        warnings.warn(
            "trace.dump: values that are read from Python at each call, such as the state of the "
            "random numbers, are frozen in the file",
            stacklevel=4,
        )


def _tensor(array: np.ndarray) -> Tensor:
    return wrap(array, TensorSpec(array.shape, array.dtype))


def _spec_key(spec: TensorSpec) -> Any:
    return (tuple(shapes.expr_of(n) for n in spec.shape), spec.dtype, spec.device)


def _normalise_dynamic(declared: DynamicShapes | None) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for name, axes in (declared or {}).items():
        pairs = axes.items() if isinstance(axes, Mapping) else enumerate(axes)
        found[name] = {axis: symbol for axis, symbol in pairs if symbol is not None}
    return found


def _rename(names: Sequence[str], wanted: Sequence[str] | None) -> dict[str, str]:
    if wanted is None:
        return {name: name for name in names}
    if len(wanted) != len(names) or len(set(wanted)) != len(wanted):
        raise TraceError(
            f"trace.dump: arg_names must be {len(names)} different names, got {list(wanted)}, "
            f"expected names for {', '.join(names)}"
        )
    return dict(zip(names, wanted, strict=True))


def _back(
    declared: dict[str, dict[int, str]], renamed: Mapping[str, str]
) -> dict[str, dict[int, str]]:
    """Translate names of a file's inputs to those of the function's parameters."""
    original = {new: old for old, new in renamed.items()}
    return {original.get(name, name): axes for name, axes in declared.items()}

"""trace: run a Python function once per kind of call, and its program from then on."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import shapes
from ..errors import TraceError
from ..graph.explain import Explanation, explain
from ..graph.graph import Constant, Graph
from ..graph.program import Program
from ..imperative import dispatch
from ..imperative.state import state
from ..imperative.tensor import Tensor, wrap
from ..op import TensorSpec
from . import pytree
from .compiled import CompiledGraph
from .model import write_model
from .tracer import Guard, SymbolFixed, Tracer

DynamicShapes = Mapping[str, "Mapping[int, str] | Sequence[str | None]"]


@dataclass
class Traced:
    """What one trace of the function gave, and when it may be used again."""

    graph: Graph
    compiled: CompiledGraph
    tracer: Tracer
    structure: pytree.Structure
    n_results: int
    grads: tuple[tuple[Tensor, Tensor | None, int], ...]

    def fits(self) -> bool:
        """Tell whether the Python facts that the trace relied on still hold."""
        return all(guard.holds() for guard in self.tracer.guards) and all(
            cell.get()._spec == cell.spec for cell in self.tracer.cells
        )


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
            ``{"x": {0: "batch"}}``.
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
        self._lock = threading.RLock()

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
        bound = self._signature.bind(*args, **kwargs)
        leaves, structure = pytree.flatten(dict(bound.arguments), _is_leaf)
        tensors = [leaf if isinstance(leaf, Tensor) else Tensor(leaf) for leaf in leaves]
        traced = self._find(tensors, structure)
        self._last = (args, kwargs)
        self._program, outputs = traced.compiled.run_program([t._data for t in tensors])
        for tensor, constant, index in traced.grads:
            tensor._grad = constant if index < 0 else _tensor(outputs[index])
        results = [_tensor(array) for array in outputs[: traced.n_results]]
        return pytree.unflatten(traced.structure, results)

    def _find(self, tensors: Sequence[Tensor], structure: pytree.Structure) -> Traced:
        with self._lock:
            while True:
                specs = self._specs(tensors, structure)
                key = (pytree.static_key(structure), tuple(map(_spec_key, specs)))
                for known in self._traces.get(key, ()):
                    if known.fits():
                        return known
                try:
                    made = self._trace(specs, structure, self._capture_as_const)
                except SymbolFixed as fixed:
                    self._fix(fixed)
                    continue
                self._traces.setdefault(key, []).append(made)
                return made

    def _fix(self, fixed: SymbolFixed) -> None:
        names = ", ".join(sorted(fixed.symbols))
        warnings.warn(
            f"trace: the dynamic dimension {names} decides a branch at {fixed.line}; "
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

    def _trace(
        self, specs: Sequence[TensorSpec], structure: pytree.Structure, as_const: bool
    ) -> Traced:
        tracer = Tracer(as_const)
        with tracer.recording():
            names = pytree.leaf_names(structure, "")
            inputs = [tracer.add_input(s, n) for s, n in zip(specs, names, strict=True)]
            arguments = pytree.unflatten(structure, inputs)
            bound = inspect.BoundArguments(self._signature, arguments)
            result = self._function(*bound.args, **bound.kwargs)
            leaves, out_structure = pytree.flatten(result, lambda leaf: isinstance(leaf, Tensor))
            tracer.graph.outputs = [tracer.lift(leaf) for leaf in leaves]
            grads = []
            for tensor, grad in tracer.grads.values():
                traced = grad is not None and not dispatch.is_concrete(grad._data)
                grads.append((tensor, grad, len(tracer.graph.outputs) if traced else -1))
                if traced:
                    assert grad is not None
                    tracer.graph.outputs.append(tracer.lift(grad))
            tracer.finish()
        # Host values are declared while the body runs but bound behind the arguments.
        compiled = CompiledGraph(tracer.graph, tracer.cells, tracer.hosts, level=self._level)
        return Traced(tracer.graph, compiled, tracer, out_structure, len(leaves), tuple(grads))

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

        Updates of state are left out: the file holds the function's outputs. It must have been
        called once before.

        Raises:
            TraceError: where it has not been called, or names do not match.
            OSError: where the file cannot be written.
        """
        if options:
            unknown = ", ".join(sorted(options))
            raise TraceError(f"trace.dump: unknown options, got {unknown}")
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
        bound = self._signature.bind(*args, **kwargs)
        leaves, structure = pytree.flatten(dict(bound.arguments), _is_leaf)
        tensors = [leaf if isinstance(leaf, Tensor) else Tensor(leaf) for leaf in leaves]
        names = list(pytree.leaf_names(structure, ""))
        renamed = _rename(names, arg_names)
        declared = {**self._dynamic, **_back(_normalise_dynamic(dynamic_shapes), renamed)}
        specs = self._specs(tensors, structure, declared)
        try:
            traced = self._trace(specs, structure, as_const=True)
        except SymbolFixed as fixed:
            raise TraceError(
                f"trace.dump: the dynamic dimension {', '.join(sorted(fixed.symbols))} decides a "
                f"branch at {fixed.line}, expected code that holds for every size"
            ) from None
        return _deployable(traced), [renamed[n] for n in names]


def _deployable(traced: Traced) -> Graph:
    """Return the traced graph without states: their present data become constants."""
    source, tracer = traced.graph, traced.tracer
    graph = Graph()
    hosts = set(tracer.host_values)
    graph.inputs = [value for value in source.inputs if value not in hosts]
    graph.constants = dict(source.constants)
    for value, cell in zip(source.states, tracer.cells, strict=True):
        graph.constants[value] = Constant(cell.get().numpy(), cell.name)
    for value, host in zip(tracer.host_values, tracer.hosts, strict=True):
        array = np.asarray(host.read(), dtype=host.dtype)
        graph.constants[value] = Constant(array, value.name)
    graph.nodes = list(source.nodes)
    graph.outputs = source.outputs[: traced.n_results]
    return graph


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


__all__ = ["Guard", "Traced", "trace"]

"""trace: run a Python function once per kind of call, and its program from then on."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import shapes
from ..errors import AttrError, CallError, TraceError
from ..graph.explain import Explanation, explain, profile_of
from ..graph.graph import Node, Value
from ..graph.options import Options
from ..graph.program import Program
from ..imperative.state import state
from ..imperative.tensor import Tensor, wrap
from ..kernel import FULL
from ..locks import ForkSafeLock
from ..op import QuantParams, TensorSpec
from . import pytree
from .compiled import CompiledGraph
from .deploy import Deployable
from .exclude import HostCode
from .naming import DynamicShapes, normalise_dynamic
from .options import DTRConfig, GraphOptimizationConfig, SublinearMemoryConfig, memory_limit
from .recording import Recorder, Recording
from .tracer import SymbolFixed

_TRACE_LIMIT = 256  # programs kept per function; beyond it, all are made anew as they are needed


@dataclass
class Traced:
    """A recording of the function with its compiled form."""

    recording: Recording
    compiled: CompiledGraph


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


class trace(Deployable):
    """Turn a function of tensors into one that runs as a compiled program.

    The body runs in Python once per key: the inputs' shapes, dtypes and devices, the other
    arguments, and attributes such as ``Module.training`` that it read. Prints and other effects of
    Python happen then and only then. Tensors from outside are bound by address: parameters that an
    optimiser inside or outside of the function updates are seen by the next call.

    Args:
        function: what to trace; may be left out when used as decorator with options.
        capture_as_const: whether tensors from outside become constants, which may then be folded
            and packed; needed before ``dump`` for a model that is to be deployed.
        record_only: whether a call records the function and runs nothing; what it returns has
            specs and no values, which is enough to ``dump``.
        sublinear_memory_config: compute values twice instead of keeping them from forward to
            backward, where that makes the program's arena smaller.
        dtr_config: the same, down to a given size of the arena.
        profiling: whether each call measures its steps, for ``get_profile``.
        opt_level: 0 leaves results bit-equal to eager execution, 1 simplifies, 2 and more also
            fuse and choose layouts.
        imperative: whether calls run the body in Python, eagerly; ``dump`` still works.
        precision: ``bf16`` permits compiled programs kernels that round float32 operands to
            bfloat16; ``full`` leaves them out.
        dynamic_shapes: dimensions that may vary without a new trace, by argument name:
            ``{"x": {0: "batch"}}``. The body then runs at two sizes, to find where one is baked in.
        symbolic, symbolic_shape, without_host: without effect. Calls always run the compiled
            program, shapes are ints that remember their symbol, and the host's Python runs at
            trace time only.
        graph_opt_config: without effect, see ``GraphOptimizationConfig``.

    Raises:
        TraceError: where the body does what a graph cannot hold, such as branching on a value.
        AttrError: where an option is wrong.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.jit import trace
        >>> @trace
        ... def double(x):
        ...     print("traced")
        ...     return x * 2
        >>> [double(ty.Tensor(value)).item() for value in (1.0, 4.0)]
        traced
        [2.0, 8.0]
    """

    def __new__(cls, *args: Any, **options: Any) -> Any:
        if not args and "function" not in options:
            return functools.partial(cls, **options)
        return super().__new__(cls)

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        symbolic: bool = False,
        capture_as_const: bool = False,
        record_only: bool = False,
        sublinear_memory_config: SublinearMemoryConfig | None = None,
        dtr_config: DTRConfig | None = None,
        profiling: bool = False,
        opt_level: int = 2,
        graph_opt_config: GraphOptimizationConfig | None = None,
        symbolic_shape: bool = True,
        without_host: bool = False,
        imperative: bool = False,
        dynamic_shapes: DynamicShapes | None = None,
        precision: str = FULL,
    ) -> None:
        if not callable(function):
            raise AttrError(f"trace: function is wrong, got {function!r}, expected a callable")
        functools.update_wrapper(self, function)
        if not isinstance(opt_level, int) or opt_level < 0:
            raise AttrError(f"trace: opt_level is wrong, got {opt_level!r}, expected 0, 1 or 2")
        self._options: dict[str, Any] = {
            "symbolic": symbolic, "capture_as_const": capture_as_const, "record_only": record_only,
            "sublinear_memory_config": sublinear_memory_config, "dtr_config": dtr_config,
            "profiling": profiling, "opt_level": opt_level, "graph_opt_config": graph_opt_config,
            "symbolic_shape": symbolic_shape, "without_host": without_host,
            "imperative": imperative, "dynamic_shapes": dynamic_shapes,
            "precision": Options(precision=precision).precision,
        }  # fmt: skip
        self._memory = memory_limit(sublinear_memory_config, dtr_config)
        self._function = function
        self._signature = inspect.signature(function)
        self._dynamic = normalise_dynamic(dynamic_shapes)
        self._last: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._lock = ForkSafeLock()
        self.unset_env()

    def unset_env(self) -> None:
        """Forget everything that was traced; the next call traces anew.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.jit import trace
            >>> run = trace(lambda x: x + 1)
            >>> _ = run(ty.Tensor(1.0))
            >>> run.unset_env()
            >>> run.ops
            ()
        """
        with self._lock:
            self._fixed: set[str] = set()
            self._traces: dict[Any, list[Traced]] = {}
            self._excluded: set[Any] = set()
            self._program: Program | None = None
            self._recording: Recording | None = None
            self._profile: dict[str, Any] | None = None

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        name = f"_traced_{self._function.__name__}"
        bound = instance.__dict__.get(name)
        if bound is None:
            bound = self._rebound(types.MethodType(self._function, instance))
            instance.__dict__[name] = bound
        return bound

    def __reduce__(self) -> Any:
        # What was traced is not carried along: a copy traces anew.
        function = self._function
        if isinstance(function, types.MethodType):
            name, owner = function.__func__.__name__, function.__self__
            found = inspect.getattr_static(type(owner), name, None)
            if isinstance(found, trace) and found._function is function.__func__:
                return getattr, (owner, name)  # made by __get__, as the copy's will be
        elif isinstance(function, types.FunctionType) and _is_named(self, function):
            return function.__qualname__
        return _remade, (type(self), function, self._options)

    def _rebound(self, function: Callable[..., Any]) -> trace:
        return type(self)(function, **self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on these arguments.

        Inside another trace, or while a GradManager or ``trace_module`` outside of the function is
        recording, the body runs as plain Python, so that what happens in it is recorded there.
        """
        if state.recorder is not None or state.tapes or state.interceptor is not None:
            return self._function(*args, **kwargs)
        if self._options["imperative"]:
            return self.trace_normal(*args, **kwargs)
        return self.execute(*args, **kwargs)

    def trace_normal(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body in Python, eagerly, and take note of the arguments for ``dump``.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.jit import trace
            >>> trace(lambda x: x + 1).trace_normal(ty.Tensor(1.0)).item()
            2.0
        """
        self._last = (args, kwargs)
        return self._function(*args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments, tracing first where there is none yet.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.jit import trace
            >>> trace(lambda x: x + 1).execute(ty.Tensor(1.0)).item()
            2.0
        """
        leaves, tensors, structure = self._take(args, kwargs)
        try:
            traced = self._find(tensors, structure)
        except HostCode as found:
            self._warn_of(found)
            return self.trace_normal(*args, **kwargs)
        if traced is None:
            return self.trace_normal(*args, **kwargs)
        self._last = (args, kwargs)
        recording = self._recording = traced.recording
        if self._options["record_only"]:
            values = recording.graph.outputs[: recording.n_results]
            return pytree.unflatten(recording.structure, [wrap(v, v.spec) for v in values])
        arrays = [tensor._data for tensor in tensors]
        if self._options["profiling"]:
            seconds: list[float] = []
            self._program, outputs = traced.compiled.run_program(arrays, seconds=seconds)
            self._profile = profile_of(self._program, seconds)
        else:
            self._program, outputs = traced.compiled.run_program(arrays)
        for tensor, known, index in recording.grads:
            tensor._grad = known if index < 0 else _tensor(outputs[index])
        for index, output in recording.changed:
            if isinstance(leaves[index], Tensor):
                leaves[index]._rebind(_tensor(outputs[output], leaves[index].qparams))
        values = recording.graph.outputs[: recording.n_results]
        results = [_tensor(outputs[i], value.spec.quant) for i, value in enumerate(values)]
        return pytree.unflatten(recording.structure, results)

    # Calls of MegEngine that mean the same here: the host's Python never runs in a program.
    trace_without_host = execute
    trace_without_host_overall = execute

    def flatten_inputs(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        """Return the tensors among the arguments in the order in which the program takes them.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.jit import trace
            >>> run = trace(lambda x, rest: x)
            >>> [t.item() for t in run.flatten_inputs(ty.Tensor(1.0), {"a": [ty.Tensor(2.0)]})]
            [1.0, 2.0]
        """
        return self._take(args, kwargs)[1]

    def convert_optimizer_state_to_tensor(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: optimisers keep their state in tensors, and programs update it in place.

        The learning rate stays a Python number, which a program reads anew at each run.

        Example:
            >>> from tianyuan.jit import trace
            >>> trace(lambda x: x).convert_optimizer_state_to_tensor()
        """

    @property
    def without_host(self) -> bool:
        """The option of that name; programs run without the host's Python whatever it says.

        Example:
            >>> from tianyuan.jit import trace
            >>> trace(lambda x: x, without_host=True).without_host
            True
        """
        return bool(self._options["without_host"])

    @property
    def ops(self) -> tuple[Node, ...]:
        """The ops of the graph that the last call used, as traced; none before a call.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.jit import trace
            >>> run = trace(lambda x: x * x)
            >>> _ = run(ty.Tensor(1.0))
            >>> run.ops
            (Node(mul),)
        """
        return tuple(self._recording.graph.nodes) if self._recording else ()

    @property
    def vars(self) -> tuple[Value, ...]:
        """The values of that graph: inputs, states, constants, then results of ops.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.jit import trace
            >>> run = trace(lambda x: x * x)
            >>> _ = run(ty.Tensor(1.0))
            >>> [str(value.spec) for value in run.vars]
            ['float32()', 'float32()']
        """
        if self._recording is None:
            return ()
        graph = self._recording.graph
        made = (value for node in graph.nodes for value in node.outputs)
        return (*graph.inputs, *graph.states, *graph.constants, *made)

    def get_profile(self) -> dict[str, Any]:
        """Return the seconds that each step of the last call took; needs ``profiling=True``.

        Raises:
            TraceError: where nothing was measured.

        Example:
            >>> import tianyuan as ty
            >>> from tianyuan.jit import trace
            >>> run = trace(lambda x: x + 1, profiling=True)
            >>> _ = run(ty.Tensor(1.0))
            >>> [step["op"] for step in run.get_profile()["steps"]]
            ['add']
        """
        if self._profile is None:
            raise TraceError(
                "trace.get_profile: nothing was measured, got no seconds, expected profiling=True "
                "and a call"
            )
        return self._profile

    def _take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], list[Tensor], pytree.Structure]:
        """Return the tensor and array arguments, all as tensors, and how they are nested."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            name = getattr(self._function, "__name__", type(self._function).__name__)
            raise CallError(f"{name}: {error}, expected {name}{self._signature}") from None
        leaves, structure = pytree.flatten(dict(bound.arguments), _is_leaf)
        tensors = [leaf if isinstance(leaf, Tensor) else Tensor(leaf) for leaf in leaves]
        return leaves, tensors, structure

    def _find(self, tensors: Sequence[Tensor], structure: pytree.Structure) -> Traced | None:
        """Return what serves a call, recording it where needed; None where Python must run."""
        with self._lock:
            while True:
                specs = self._specs(tensors, structure)
                key = (pytree.static_key(structure), tuple(map(_spec_key, specs)), state.precision)
                if key in self._excluded:
                    return None
                for known in self._traces.get(key, ()):
                    if known.recording.fits(tensors):
                        return known
                try:
                    recording = self._recorder(
                        tensors, structure, self._options["capture_as_const"]
                    ).record(specs)
                except SymbolFixed as fixed:
                    self._fix(fixed)
                    continue
                except HostCode:
                    self._excluded.add(key)
                    raise
                made = Traced(recording, self._compile(recording))
                if sum(map(len, self._traces.values())) >= _TRACE_LIMIT:
                    self._traces.clear()
                self._traces.setdefault(key, []).append(made)
                return made

    def _compile(self, recording: Recording) -> CompiledGraph:
        tracer = recording.tracer
        return CompiledGraph(
            recording.graph, tracer.cells, tracer.hosts, level=self._options["opt_level"],
            memory=self._memory, precision=self._options["precision"],
        )  # fmt: skip

    @staticmethod
    def _warn_of(found: HostCode) -> None:
        warnings.warn(
            f"trace: the function holds host code at {found.line}; it runs in Python, eagerly, at "
            "each call",
            stacklevel=4,
        )

    def _fix(self, fixed: SymbolFixed) -> None:
        names = ", ".join(sorted(fixed.symbols))
        warnings.warn(
            f"trace: the dynamic dimension {names} {fixed.reason}; "
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
            spec = TensorSpec(tuple(shape), tensor.dtype, tensor.device, tensor.qparams)
            specs.append(spec)
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
            raise TraceError(
                "trace.explain: the function has not been called yet, got none, expected a call "
                "first"
            )
        return explain(self._program)


def _remade(cls: type[trace], function: Callable[..., Any], options: dict[str, Any]) -> trace:
    made: trace = cls(function, **options)
    return made


def _is_named(traced: trace, function: types.FunctionType) -> bool:
    """Tell whether a decorated function is what its module holds under its name."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
    return found is traced


def _tensor(array: np.ndarray, quant: QuantParams | None = None) -> Tensor:
    return wrap(array, TensorSpec(array.shape, array.dtype, quant=quant))


def _spec_key(spec: TensorSpec) -> Any:
    return (tuple(shapes.expr_of(n) for n in spec.shape), spec.dtype, spec.device, spec.quant)

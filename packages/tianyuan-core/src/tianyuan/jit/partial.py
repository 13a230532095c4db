"""partial_trace: run a part of an eager model, and its gradient, as two programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import GradError, TraceError
from ..graph.graph import Graph, Node, Value
from ..imperative.state import state
from ..imperative.tape import Tape
from ..imperative.tensor import Tensor, wrap
from ..op import GradContext, TensorSpec
from . import pytree
from .compiled import CompiledGraph
from .exclude import HostCode
from .recording import Recording
from .trace import trace
from .tracer import Tracer

_BACKENDS = ("default",)


def partial_trace(
    func: Callable[..., Any] | None = None,
    *,
    backend: str = "default",
    without_host: bool = True,
    trace_gmcallback: bool = True,
    **trace_options: Any,
) -> Any:
    """Trace a function's forward and backward, for use inside an eager ``GradManager``.

    Where one manager is recording, a call runs a program that also returns what backward needs,
    and ``backward`` runs another that starts from there. Where none is, it is a ``trace``; where
    several are nested, or inside another trace, the body runs in Python, so that higher derivatives
    are right.

    Args:
        func: what to trace; may be left out when used as decorator with options.
        backend: ``default``; MegEngine's ``xla`` is refused.
        without_host, trace_gmcallback: without effect. Programs never run the host's Python, and
            callbacks of the manager run on the gradients when these are there.
        trace_options: options of ``trace``.

    Raises:
        TraceError: for another backend, or at the call as ``trace`` does.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.autodiff import GradManager
        >>> from tianyuan.jit import partial_trace
        >>> square = partial_trace(lambda x: x * x)
        >>> p = ty.Parameter([3.0])
        >>> with GradManager().attach(p) as gm:
        ...     gm.backward(square(p) * 2)
        >>> p.grad.numpy().tolist()
        [12.0]
    """
    if backend not in _BACKENDS:
        raise TraceError(
            f"partial_trace: backend cannot be had, got {backend!r}, expected 'default'"
        )
    if func is None:
        return functools.partial(
            partial_trace, backend=backend, without_host=without_host,
            trace_gmcallback=trace_gmcallback, **trace_options,
        )  # fmt: skip
    return PartialTrace(func, **trace_options)


class _UnfitError(Exception):
    """Say that a function does what its two programs cannot hold between them."""


@dataclass
class _Split:
    """A function as two programs.

    Attributes:
        recording: the guards under which it holds.
        forward: gives the results, then what backward reads of it.
        backward: takes ``kept`` arguments and states, what forward gave, and the results'
            gradients; gives a gradient for each of ``sources``.
        sources: what gets gradients: index of an argument, or of a state from ``n_arguments`` on.
        kept: which arguments and states backward reads, numbered alike.
        seeded: which results have gradients.
        watched: whether each state was one that the tape watches.
    """

    recording: Recording
    forward: CompiledGraph
    backward: CompiledGraph
    sources: list[int]
    kept: list[int]
    seeded: list[int]
    watched: list[bool]

    def fits(self, tensors: Sequence[Tensor], tape: Tape) -> bool:
        """Tell whether it serves these arguments under this tape."""
        now = [id(cell.get()._data) in tape.tracked for cell in self.forward.cells]
        return now == self.watched and self.recording.fits(tensors)


class _InnerTape(Tape):
    """The tape of the traced body, which also follows states that the outer tape watches."""

    def __init__(self, tracer: Tracer, outer: Tape) -> None:
        super().__init__()
        self._tracer = tracer
        self._outer = outer

    def record(self, source: Any, attrs: Any, inputs: Any, specs: Any, outputs: Any) -> None:
        states = self._tracer.graph.states
        for data in inputs:
            if data in states and id(data) not in self.tracked:
                cell = self._tracer.cells[states.index(data)]
                if id(cell.get()._data) in self._outer.tracked:
                    self.watch(data)
        super().record(source, attrs, inputs, specs, outputs)


class PartialTrace(trace):
    """A function traced together with its gradient; see ``partial_trace``."""

    def unset_env(self) -> None:
        """Forget everything that was traced; the next call traces anew."""
        super().unset_env()
        self._splits: dict[Any, list[_Split | None]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; see ``partial_trace``."""
        if state.recorder is not None or len(state.tapes) != 1:
            return super().__call__(*args, **kwargs)
        _, tensors, structure = self._take(args, kwargs)
        split = self._split_for(tensors, structure, state.tapes[0])
        if split is None:
            return self._function(*args, **kwargs)
        return _run(split, tensors, state.tapes[0])

    def _split_for(
        self, tensors: list[Tensor], structure: pytree.Structure, tape: Tape
    ) -> _Split | None:
        needs = tuple(id(tensor._data) in tape.tracked for tensor in tensors)
        specs = tuple(tensor._spec for tensor in tensors)
        key = (pytree.static_key(structure), specs, needs, state.precision)
        with self._lock:
            known = self._splits.setdefault(key, [])
            for split in known:
                if split is None or split.fits(tensors, tape):
                    return split
            try:
                made: _Split | None = self._record_split(tensors, structure, specs, tape)
            except (_UnfitError, HostCode):
                made = None
            known.append(made)
            return made

    def _record_split(
        self,
        tensors: Sequence[Tensor],
        structure: pytree.Structure,
        specs: Sequence[TensorSpec],
        tape: Tape,
    ) -> _Split:
        tracer = Tracer(capture_as_const=False)
        graph = tracer.graph
        with tracer.recording():
            names = pytree.leaf_names(structure, "")
            inputs = [
                tracer.add_input(spec, name, known)
                for spec, name, known in zip(specs, names, tensors, strict=True)
            ]
            arguments = list(graph.inputs)
            inner = _InnerTape(tracer, tape)
            for given, value in zip(tensors, arguments, strict=True):
                if id(given._data) in tape.tracked:
                    inner.watch(value)
            state.tapes = [inner]
            result = self._called(pytree.unflatten(structure, inputs))
            state.tapes = []
            if tracer.grads or [t._data for t in inputs] != arguments:
                raise _UnfitError
            leaves, nesting = pytree.flatten(result, lambda leaf: isinstance(leaf, Tensor))
            results = [tracer.lift(leaf) for leaf in leaves]
            tracer.finish()
            split_at = len(graph.nodes)
            seeded = [
                index
                for index, value in enumerate(results)
                if id(value) in inner.tracked and dtypes.is_float(value.spec.dtype)
            ]
            seeds = [tracer.add_input(results[i].spec, f"@grad{i}") for i in seeded]
            found = inner.gradients([results[i] for i in seeded], seeds)
        recording = Recording(tracer, graph, nesting, len(results), (), ())
        parts = _Parts(graph, tracer, arguments, results, [seed._data for seed in seeds], split_at)
        sources, grads = parts.gradients(found)
        kept, between = parts.crossing(grads)
        level = self._options["opt_level"]
        return _Split(
            recording,
            CompiledGraph(parts.forward(between), tracer.cells, tracer.hosts, level=level),
            CompiledGraph(parts.backward(kept, between, grads), level=level),
            sources,
            [parts.outside.index(value) for value in kept],
            seeded,
            [id(cell.get()._data) in tape.tracked for cell in tracer.cells],
        )

    def _called(self, given: dict[str, Any]) -> Any:
        bound = self._signature.bind_partial()
        bound.arguments.update(given)
        return self._function(*bound.args, **bound.kwargs)


@dataclass
class _Parts:
    """Cuts one graph of forward and backward in two."""

    graph: Graph
    tracer: Tracer
    arguments: list[Value]
    results: list[Value]
    seeds: list[Value]
    split_at: int

    @property
    def outside(self) -> list[Value]:
        """What both programs can be given: arguments, then states."""
        return [*self.arguments, *self.graph.states]

    def gradients(self, found: dict[int, Tensor]) -> tuple[list[int], list[Value]]:
        """Return which arguments and states have gradients, and these."""
        pairs = [
            (index, found[id(value)]._data)
            for index, value in enumerate(self.outside)
            if id(value) in found
        ]
        return [index for index, _ in pairs], [grad for _, grad in pairs]

    def crossing(self, grads: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        """Return what backward reads from outside, and what it reads of forward."""
        later = self.graph.nodes[self.split_at :]
        made = {value for node in later for value in node.outputs}
        read = [value for node in later for value in node.inputs] + list(grads)
        needed = [
            value
            for value in dict.fromkeys(read)
            if value not in made and value not in self.seeds and value not in self.graph.constants
        ]
        kept = [value for value in needed if value in self.outside]
        return kept, [value for value in needed if value not in kept]

    def forward(self, between: Sequence[Value]) -> Graph:
        """Return the graph from arguments to results and what backward reads."""
        inputs = [value for value in self.graph.inputs if value not in self.seeds]
        outputs = [*self.results, *between]
        nodes = self.graph.nodes[: self.split_at]
        return self._part(inputs, self.graph.states, nodes, outputs, self.graph.updates)

    def backward(
        self, kept: Sequence[Value], between: Sequence[Value], grads: Sequence[Value]
    ) -> Graph:
        """Return the graph from what backward reads to the gradients."""
        inputs = [*kept, *between, *self.seeds]
        return self._part(inputs, [], self.graph.nodes[self.split_at :], grads, {})

    def _part(
        self,
        inputs: Sequence[Value],
        states: Sequence[Value],
        nodes: Sequence[Node],
        outputs: Sequence[Value],
        updates: dict[int, Value],
    ) -> Graph:
        part, new = Graph(), {}
        for index, value in enumerate(inputs):
            new[value] = part.add_input(value.spec, value.name or f"@kept{index}")
        for value in states:
            new[value] = part.add_state(value.spec, value.name)
        read = {value for node in nodes for value in node.inputs} | {*outputs, *updates.values()}
        for value, constant in self.graph.constants.items():
            if value in read:
                new[value] = part.add_constant(constant)
        for node in nodes:
            given = [new[value] for value in node.inputs]
            made = part.add_node(node.op, given, node.attrs, node.origin)
            new.update(zip(node.outputs, made, strict=True))
        part.outputs = [new[value] for value in outputs]
        part.updates = {index: new[value] for index, value in updates.items()}
        return part


@dataclass
class _Backward:
    """What gradients pass through from a call's results to its arguments and states."""

    split: _Split
    kept: list[np.ndarray]
    between: list[np.ndarray]
    name: str = "partial_trace"

    def grad(self, ctx: GradContext, grads: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
        """Run the second program.

        Raises:
            GradError: where a tape that is open now would have to differentiate it again.
        """
        given = [grad for grad in grads if grad is not None]
        known = [*self.kept, *self.between, *(grad._data for grad in given)]
        if any(id(data) in tape.tracked for tape in state.tapes for data in known):
            raise GradError(
                "partial_trace: a program cannot be differentiated again, got a tape that "
                "watches its values, expected the outer "
                "manager to record when the function was called"
            )
        seeds = []
        for index in self.split.seeded:
            grad = grads[index]
            spec = ctx.outputs[index]._spec
            seeds.append(np.zeros(spec.shape, spec.dtype) if grad is None else grad._data)
        outputs = self.split.backward.run([*self.kept, *self.between, *seeds])
        return [wrap(array, TensorSpec(array.shape, array.dtype)) for array in outputs]


def _run(split: _Split, tensors: Sequence[Tensor], tape: Tape) -> Any:
    # States are read before forward runs, which may update them; being held, they are not written.
    outside = [*tensors, *(cell.get() for cell in split.forward.cells)]
    datas = [tensor._data for tensor in outside]
    outputs = split.forward.run([tensor._data for tensor in tensors])
    count = split.recording.n_results
    results = [wrap(array, TensorSpec(array.shape, array.dtype)) for array in outputs[:count]]
    if split.sources:
        back = _Backward(split, [datas[index] for index in split.kept], outputs[count:])
        tape.record(
            back,
            None,
            [datas[index] for index in split.sources],
            [outside[index]._spec for index in split.sources],
            results,
        )
    return pytree.unflatten(split.recording.structure, results)

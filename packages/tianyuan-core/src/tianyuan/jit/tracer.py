"""Record what one run of a Python function does as a Graph, without computing anything."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import dtypes, shapes
from ..errors import TraceError
from ..graph.graph import Constant, Graph, Value
from ..imperative import dispatch
from ..imperative.observe import Followed, noting_reads, unobserved
from ..imperative.state import state
from ..imperative.tensor import Tensor, wrap
from ..op import Op, TensorSpec
from ..records import record
from .follow import Facts


class SymbolFixed(BaseException):
    """Unwind a trace that used a dynamic dimension as a plain number, to make it anew without.

    Not an Exception: the traced code must not swallow it. ``reason`` goes on after the symbols'
    names, as in "is used as a plain number at ...".
    """

    def __init__(self, symbols: set[str], reason: str) -> None:
        self.symbols = symbols
        self.reason = reason


@record()
class Cell:
    """A tensor from outside that the graph reads, and perhaps updates, by address."""

    get: Callable[[], Tensor]
    spec: TensorSpec
    name: str


@record()
class HostInput:
    """A program input that is read from Python before each run."""

    read: Callable[[], Any]
    after: Callable[[], None] | None
    dtype: np.dtype
    shape: shapes.Shape


@record()
class Guard:
    """A Python fact that the trace relied on."""

    owner: Any
    name: str
    get: Callable[[Any], Any]
    value: Any

    def holds(self) -> bool:
        return bool(self.get(self.owner) == self.value)


def _grad_is_missing(tensor: Tensor) -> bool:
    return tensor._grad is None


class Tracer:
    """The recorder of one trace; see ``imperative.state.Recorder``."""

    def __init__(self, capture_as_const: bool) -> None:
        self.graph = Graph()
        self.cells: list[Cell] = []
        self.hosts: list[HostInput] = []
        self.host_values: list[Value] = []
        self.guards: list[Guard] = []
        self.cuts: dict[shapes.Expr, None] = {}  # quotients and remainders of dynamic dimensions
        self.facts = Facts()
        self.grads: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._capture_as_const = capture_as_const
        self._known: set[Value] = set()
        self._captured: dict[int, tuple[Tensor, Value]] = {}
        self._writes: dict[int, tuple[Tensor, Value]] = {}
        self._created: dict[int, Tensor] = {}
        self._arguments: dict[int, tuple[int, Tensor, Value]] = {}
        self.aliased: list[tuple[int, Tensor]] = []
        self.frozen: list[tuple[Tensor, Any]] = []
        self._guarded: set[tuple[int, str]] = set()
        self._inside = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Make this the active recorder of the thread; open tapes wait outside."""
        saved = state.recorder, state.tapes
        state.recorder, state.tapes = self, []
        try:
            with noting_reads():
                yield
        finally:
            state.recorder, state.tapes = saved
            self.facts.settle()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Let inference compare extents without counting as a branch of the user's code."""
        saved, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = saved

    # Where values come from.

    def add_input(self, spec: TensorSpec, name: str, known: Tensor | None = None) -> Tensor:
        """Declare the next input and return the traced tensor that stands for it.

        ``known`` is the argument of the call at hand: code that reaches it by another way, such
        as a GradManager to which it is attached, means the same value.
        """
        value = self._know(self.graph.add_input(spec, name))
        if known is not None:
            self._arguments[id(known)] = (len(self.graph.inputs) - 1, known, value)
        return wrap(value, spec)

    def _know(self, value: Value) -> Value:
        self._known.add(value)
        return value

    def lift(self, tensor: Tensor) -> Value:
        """Return the graph value that stands for a tensor, capturing it if it is from outside."""
        data = tensor._data
        if not dispatch.is_concrete(data):
            if data not in self._known:
                raise TraceError(
                    f"trace: a tensor of another trace is used, got {tensor._spec} at "
                    f"{dispatch.user_line()}; expected tensors to leave a traced function only "
                    "through its return value"
                )
            return data  # type: ignore[no-any-return]
        key = id(tensor)
        if key in self._writes:
            return self._writes[key][1]
        if key in self._arguments and key not in self._captured:
            index, _, value = self._arguments[key]
            self.aliased.append((index, tensor))
            return value
        return self._capture(tensor)

    def _capture(self, tensor: Tensor) -> Value:
        key = id(tensor)
        if key not in self._captured:
            made_inside = key in self._created
            if made_inside or self._capture_as_const:
                value = self._constant(tensor)
                if not made_inside:
                    self.frozen.append((tensor, tensor._data))
            else:
                value = self._cell(tensor, lambda: tensor)
            self._captured[key] = (tensor, value)
        return self._captured[key][1]

    def _constant(self, tensor: Tensor) -> Value:
        name = tensor.name or f"constant_{len(self.graph.constants)}"
        array = dispatch.host_array(tensor, tensor._data)
        return self._know(self.graph.add_constant(Constant(array, name)))

    def _cell(self, tensor: Tensor, get: Callable[[], Tensor]) -> Value:
        name = tensor.name or f"state_{len(self.cells)}"
        self.cells.append(Cell(get, tensor._spec, name))
        return self._know(self.graph.add_state(tensor._spec, name))

    def note_created(self, tensor: Tensor) -> None:
        """Note a tensor of known data that the traced code made: a constant unless written."""
        self._created[id(tensor)] = tensor

    def host_value(
        self, read: Callable[[], Any], dtype: Any, after: Callable[[], None] | None
    ) -> Tensor:
        """Declare a program input that is read from Python before each run."""
        want = dtypes.as_dtype(dtype)
        shape = np.asarray(read()).shape
        spec = TensorSpec(shape, want)
        value = self._know(self.graph.add_input(spec, f"@host{len(self.hosts)}"))
        self.hosts.append(HostInput(read, after, want, shape))
        self.host_values.append(value)
        return wrap(value, spec)

    # What happens to them.

    def record(self, op: Op, datas: list[Value], attrs: Any) -> list[Tensor]:
        """Append an op and return its outputs as traced tensors."""
        op.check_count(len(datas))
        with self._quiet():
            values = self.graph.add_node(op, datas, attrs, dispatch.user_call(op.name))
        return [wrap(self._know(value), value.spec) for value in values]

    def write(self, tensor: Tensor, value: Tensor) -> None:
        """Note that a tensor from outside takes a new value when the program runs."""
        if (value.dtype, tuple(map(int, value.shape))) != (tensor.dtype, tuple(tensor.shape)):
            raise TraceError(
                f"trace: a tensor from outside cannot change its shape or dtype, got "
                f"{value._spec}, expected {tensor._spec} at {dispatch.user_line()}"
            )
        new = self.lift(value)
        self._capture(tensor)
        self._writes[id(tensor)] = (tensor, new)

    def is_written(self, tensor: Tensor) -> bool:
        """Tell whether the trace has given a tensor from outside a new value."""
        return id(tensor) in self._writes

    def get_grad(self, tensor: Tensor) -> Tensor | None:
        """Return the gradient that a tensor has at this point of the trace."""
        if not dispatch.is_concrete(tensor._data):
            return tensor._grad
        if id(tensor) in self.grads:
            return self.grads[id(tensor)][1]
        self._guard(tensor, "grad is None", _grad_is_missing)
        if tensor._grad is None:
            return None
        known = tensor._grad
        value = self._cell(known, lambda: known if tensor._grad is None else tensor._grad)
        traced = wrap(value, known._spec)
        self.grads[id(tensor)] = (tensor, traced)
        return traced

    def set_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        """Note the gradient that a tensor has from this point of the trace on."""
        if dispatch.is_concrete(tensor._data):
            self.grads[id(tensor)] = (tensor, grad)
        else:
            tensor._grad = grad

    def note_read(self, owner: Any, name: str) -> None:
        """Note that the trace depends on an attribute of a Python object."""
        self._guard(owner, name, operator.attrgetter(name))

    def note_attribute(self, owner: Followed, name: str, written: bool = False) -> None:
        """Note that the traced code read, or gave a value to, an attribute of a followed object."""
        if not self.facts.knows(owner, name):
            with unobserved():
                self.facts.note(owner, name, written)

    def _guard(self, owner: Any, name: str, get: Callable[[Any], Any]) -> None:
        if (id(owner), name) in self._guarded:
            return
        self._guarded.add((id(owner), name))
        with unobserved():
            self.guards.append(Guard(owner, name, get, get(owner)))

    def told_branch(self, dim: shapes.Dim) -> None:
        """Unwind where the user's code compares a dynamic dimension.

        Raises:
            SymbolFixed: outside of inference.
        """
        if not self._inside:
            raise SymbolFixed(
                shapes.symbols_of(dim), f"is used as a plain number at {dispatch.user_line()}"
            )

    def told_cut(self, dim: shapes.Dim) -> None:
        """Keep what the user's code cut a dynamic dimension to."""
        if not self._inside:
            self.cuts.setdefault(dim.expr)

    def finish(self) -> None:
        """Turn the writes into state updates."""
        for key, (tensor, new) in self._writes.items():
            old = self._captured[key][1]
            if old in self.graph.constants:
                del self.graph.constants[old]
                self.frozen = [(t, data) for t, data in self.frozen if t is not tensor]
                self.graph.states.append(old)
                self.cells.append(Cell(_getter(tensor), tensor._spec, old.name))
            if new is not old:
                self.graph.updates[self.graph.states.index(old)] = new


def _getter(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor


def _on_branch(dim: shapes.Dim) -> None:
    recorder = state.recorder
    if isinstance(recorder, Tracer):
        recorder.told_branch(dim)


def _on_cut(dim: shapes.Dim) -> None:
    recorder = state.recorder
    if isinstance(recorder, Tracer):
        recorder.told_cut(dim)


shapes.on_branch = _on_branch
shapes.on_cut = _on_cut

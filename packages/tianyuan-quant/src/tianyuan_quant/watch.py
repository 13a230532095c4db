"""Run a network once and note which value flows from which op or module into which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tianyuan import Tensor
from tianyuan.imperative import dispatch
from tianyuan.imperative.state import state
from tianyuan.jit.pytree import flatten
from tianyuan.module import Module

from .qat.module import QATModule

# Ops that keep integers what they are, whatever scale they have.
MOVES = frozenset({"reshape", "transpose", "slice", "copy", "take", "broadcast_to", "max_pool2d"})
# Ops whose results lie in the range of their input, so that its scale serves for them.
IN_RANGE = frozenset({"adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "pad"})


@dataclass(frozen=True)
class Event:
    """One op or one module seen as a unit.

    Attributes:
        key: name of the module; or the op's name and which of its calls it is.
        kind: the op's name, or ``module``.
        module: the module, None for an op.
        inputs, outputs: identities of the values.
        attrs: the op's attributes.
    """

    key: str
    kind: str
    module: Module | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Any = None


class Calls:
    """Counts the calls of each op, so that a call has the same name in every run."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def next(self, op: str) -> str:
        """Name the next call of an op."""
        number = self._count.get(op, 0)
        self._count[op] = number + 1
        return f"{op}_{number}"


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    leaves, _ = flatten(value, lambda item: isinstance(item, Tensor))
    return leaves


class Watcher:
    """An interceptor that notes every op outside of the modules seen as units."""

    def __init__(self, names: dict[int, str]) -> None:
        self.events: list[Event] = []
        self.depth = 0
        self._names = names
        self._calls = Calls()
        self._alive: list[Any] = []  # identities stay true only while the values live

    def __call__(self, op: Any, operands: Sequence[Any], attrs: Any) -> Any:
        results = run_op(op, operands, attrs)
        if not self.depth:
            found = results if isinstance(results, tuple) else (results,)
            key = self._calls.next(op.name)
            self.events.append(
                Event(key, op.name, None, self._ids(operands), self._ids(found), attrs)
            )
        return results

    def note_module(self, module: Module, inputs: Any, outputs: Any) -> None:
        """Note a module as one event."""
        if self.depth:
            return
        given, made = self._ids(tensors_of(inputs)), self._ids(tensors_of(outputs))
        if set(made) <= set(given) and not isinstance(module, QATModule):
            return  # an identity
        self.events.append(Event(self._names.get(id(module), "?"), "module", module, given, made))

    def _ids(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        self._alive += [tensor._data for tensor in tensors]
        return tuple(id(tensor._data) for tensor in tensors)

    def identify(self, value: Any) -> tuple[int, ...]:
        """Return the identities of the tensors in a value."""
        return self._ids(tensors_of(value))


def run_op(op: Any, operands: Sequence[Any], attrs: Any) -> Any:
    """Apply an op as if nobody intercepted."""
    saved, state.interceptor = state.interceptor, None
    try:
        return dispatch.apply(op, operands, attrs)
    finally:
        state.interceptor = saved


@contextmanager
def as_unit(modules: Iterator[Module] | Sequence[Module], watcher: Any) -> Iterator[None]:
    """See modules as units while a block runs: their ops are hidden from a watcher."""
    handles = []

    def enter(module: Module, inputs: Any) -> None:
        watcher.depth += 1

    def leave(module: Module, inputs: Any, outputs: Any) -> None:
        watcher.depth -= 1
        watcher.note_module(module, inputs, outputs)

    for module in modules:
        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Flow:
    """What one run showed."""

    events: tuple[Event, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def producer(self, value: int) -> Event | None:
        """Return what made a value."""
        for event in reversed(self.events):
            passed = value in event.inputs and not isinstance(event.module, QATModule)
            if value in event.outputs and not passed:
                return event
        return None

    def readers(self, value: int) -> list[Event]:
        """Return what reads a value, and counts once more where the network returns it."""
        return [event for event in self.events if value in event.inputs]

    def only_reader(self, value: int) -> Event | None:
        """Return the one event that reads a value, or None."""
        found = self.readers(value)
        return found[0] if len(found) == 1 and value not in self.outputs else None


def watch(net: Module, example: Sequence[Any], units: Callable[[Module], bool]) -> Flow:
    """Run a network on example inputs, in evaluation form, and return what flowed."""
    names = {id(module): name for name, module in net.named_modules()}
    watcher = Watcher(names)
    training = {id(module): module.training for module in net.modules()}
    net.eval()
    saved = state.interceptor
    seen = [module for module in net.modules() if units(module)]
    try:
        with as_unit(seen, watcher):
            state.interceptor = watcher
            inputs = watcher.identify(list(example))
            outputs = watcher.identify(net(*example))
    finally:
        state.interceptor = saved
        for module in net.modules():
            module.training = training[id(module)]
    return Flow(tuple(watcher.events), inputs, outputs)

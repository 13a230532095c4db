"""Decide where values between layers are quantised, and run a network with these places in it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import get_ident
from typing import Any

import tianyuan.module as M
from tianyuan import Tensor
from tianyuan.errors import TraceError
from tianyuan.imperative.state import state
from tianyuan.jit.pytree import flatten, unflatten
from tianyuan.module import Module

from .qat.module import QATModule, hand_on
from .qat.product import activate
from .registration import qat_class_of
from .steps import one_step
from .watch import IN_RANGE, MOVES, Calls, Event, Flow, run_op, watch

# Ops that have an integer form, which needs quantised inputs and a scale for its result.
INTEGER = frozenset({"add", "concat", "avg_pool2d", "adaptive_avg_pool2d", "mean"})
_BOUNDS = ("relu", "relu6")
# Modules whose ops differ between training and evaluation are seen as units.
UNITS = (
    M.BatchNorm1d, M.BatchNorm2d, M.BatchNorm3d, M.LayerNorm, M.GroupNorm, M.InstanceNorm,
    M.Dropout,
)  # fmt: skip


def is_unit(module: Module) -> bool:
    """Tell whether a module is seen from outside only, as layers that stay in floats are."""
    form = qat_class_of(type(module))
    if form is not None or isinstance(module, UNITS):
        return form is None or form.with_weight
    return module.quantize_disabled and any(qat_class_of(type(m)) for m in module.modules())


def output_key(key: str, index: int) -> str:
    """Name one of the results of a call that has several."""
    return f"{key}.{index}"


def input_key(index: int, layer: str = "") -> str:
    """Name an input of the network, or of a layer that reads what no op makes."""
    return f"{layer}.input_{index}" if layer else f"input_{index}"


_NETWORK_INPUT, _LAYER_INPUT = re.compile(r"input_\d+"), re.compile(r"(.+)\.input_\d+")


class Site(QATModule):
    """One value between layers that is quantised, with the bound that follows its op."""

    with_weight = False

    def __init__(self, epilogue: str = "identity") -> None:
        super().__init__()
        self.epilogue = epilogue

    def forward(self, inp: Tensor) -> Tensor:
        """Return the value bounded, watched and fake-quantised."""
        return self.apply_quant_activation(activate(inp, self.epilogue))


class Sites(Module):
    """All places of a network, by the call whose result they quantise."""

    def __init__(self, table: dict[str, Module]) -> None:
        super().__init__()
        self.table = table

    def forward(self, inputs: Any) -> Any:
        """Return the inputs: the places act where their values are made."""
        return inputs


@dataclass
class _Planner:
    flow: Flow
    done: set[int] = field(default_factory=set)
    table: dict[str, str] = field(default_factory=dict)  # key -> epilogue

    def demand(self, value: int) -> None:
        """See to it that a value is quantised."""
        if value in self.done:
            return
        self.done.add(value)
        event = self.flow.producer(value)
        if event is None:
            if value in self.flow.inputs:
                self.table[input_key(self.flow.inputs.index(value))] = "identity"
            return
        if isinstance(event.module, QATModule):
            return
        if event.kind in MOVES:
            self.demand(event.inputs[0])
        elif event.kind in _BOUNDS or isinstance(event.module, M.ReLU):
            self._bounded(event)
        elif len(event.outputs) > 1:
            self.table[output_key(event.key, event.outputs.index(value))] = "identity"
        else:
            self._place(event, "identity")

    def is_made(self, value: int) -> bool:
        """Tell whether an op or an input makes a value; a parameter is only moved and bounded."""
        event = self.flow.producer(value)
        if event is None:
            return value in self.flow.inputs
        source = event.inputs[0] if event.inputs else None
        if event.kind in _BOUNDS or isinstance(event.module, M.ReLU):
            maker = None if source is None else self.flow.producer(source)
            moved = maker is not None and maker.kind in MOVES
        else:
            moved = event.kind in MOVES
        return self.is_made(source) if moved and source is not None else True

    def _bounded(self, event: Event) -> None:
        """Quantise a bounded value: before the bound, unless it alone reads an integer op."""
        source = event.inputs[0]
        maker = self.flow.producer(source)
        alone = self.flow.only_reader(source) is event
        if maker is not None and maker.kind in INTEGER and alone:
            self._place(maker, event.kind if event.kind in _BOUNDS else "relu")
            self.done.add(source)
        elif maker is not None and (isinstance(maker.module, QATModule) or maker.kind in MOVES):
            self.demand(source)
        else:
            self._place(event, "identity")

    def _place(self, event: Event, epilogue: str) -> None:
        self.table[event.key] = epilogue
        if event.kind in INTEGER:
            for value in event.inputs:
                self.demand(value)


def plan(net: Module, example: Sequence[Any]) -> dict[str, Site]:
    """Return the places that a network in training form needs, by call."""
    flow = watch(net, example, is_unit)
    planner = _Planner(flow)
    for event in flow.events:
        if isinstance(event.module, QATModule):
            for index, value in enumerate(event.inputs):
                if planner.is_made(value):
                    planner.demand(value)
                else:
                    planner.table[input_key(index, event.key)] = "identity"
    return {key: Site(epilogue) for key, epilogue in planner.table.items()}


@cache
def _own_signature(forward: Any) -> inspect.Signature:
    """Return the signature of a class's forward without the instance."""
    found = inspect.signature(forward)
    return found.replace(parameters=list(found.parameters.values())[1:])


class Forward:
    """Takes the place of a network's ``forward``: runs it with the places in between.

    An instance attribute rather than a subclass, so that the network keeps its class and name.
    """

    def __init__(self, net: Module, sites: Sites) -> None:
        self.net, self.sites = net, sites

    def run(self) -> Run:
        """Return the interceptor of one call."""
        return Run(self)

    def enter(self, index: int, value: Any) -> Any:
        """Quantise an input where a place asks for it."""
        site = self.sites.table.get(input_key(index))
        return site(value) if site is not None else value

    def leave(self, outputs: Any) -> Any:
        """Return what the caller gets."""
        return outputs

    def __getattr__(self, name: str) -> Any:
        # What names the inputs of a trace, and what help shows: the network's own parameters.
        if name == "__signature__":
            return _own_signature(type(self.net).forward)
        if name == "__name__":
            return type(self.net).__name__
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _ordered(self, inputs: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return inputs given by name in the places where the example had them."""
        if not kwargs:
            return inputs, kwargs
        try:
            bound = _own_signature(type(self.net).forward).bind(*inputs, **kwargs)
        except TypeError:  # the network's own forward will say it
            return inputs, kwargs
        return bound.args, bound.kwargs

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the network's own forward."""
        inputs, kwargs = self._ordered(inputs, kwargs)
        given = [list(inputs), kwargs]
        leaves, structure = flatten(given, lambda item: isinstance(item, Tensor))
        leaves = [self.enter(index, leaf) for index, leaf in enumerate(leaves)]
        inputs, kwargs = unflatten(structure, leaves)
        saved, run = state.interceptor, self.run()
        handles = run.hide(self.net)
        state.interceptor = run
        try:
            with one_step():
                outputs = type(self.net).forward(self.net, *inputs, **kwargs)
        finally:
            state.interceptor = saved
            for handle in handles:
                handle.remove()
        run.check()
        return self.leave(outputs)


class Run:
    """The interceptor of one call of a network in training form."""

    def __init__(self, owner: Forward) -> None:
        self.owner = owner
        self.depth = 0
        self.met: set[str] = set()
        self._calls = Calls()
        self._thread = get_ident()  # hooks also act on calls that other threads make meanwhile

    def __call__(self, op: Any, operands: Sequence[Any], attrs: Any) -> Any:
        if self.depth:
            return run_op(op, operands, attrs)
        key = self._calls.next(op.name)
        site = self.owner.sites.table.get(key)
        if site is not None:
            self.met.add(key)
            return self.placed(site, op, operands, attrs)
        found = self.plain(op, operands, attrs)
        return self._each(key, found) if isinstance(found, tuple) else found

    def _each(self, key: str, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Quantise those of several results that a place asks for."""
        return tuple(self._asked(output_key(key, i), value) for i, value in enumerate(results))

    def plain(self, op: Any, operands: Sequence[Any], attrs: Any) -> Any:
        """Run an op whose result is not quantised by itself."""
        result = run_op(op, operands, attrs)
        if op.name in MOVES or op.name in _BOUNDS or op.name in IN_RANGE:
            hand_on(operands[:1], result, op.name in IN_RANGE)
        elif op.name == "concat":
            hand_on(operands, result, False)
        return result

    def placed(self, site: Any, op: Any, operands: Sequence[Any], attrs: Any) -> Any:
        """Run an op and quantise its result."""
        return site(run_op(op, operands, attrs))

    def hide(self, net: Module) -> list[Any]:
        """See some modules from outside only, and quantise what they return."""
        handles: list[Any] = []
        found = map(_LAYER_INPUT.fullmatch, self.owner.sites.table)
        readers = {match[1] for match in found if match is not None}
        for name, module in net.named_modules():
            if is_unit(module):
                handles.append(module.register_forward_pre_hook(self._enter))
                handles.append(module.register_forward_hook(self._leave(name)))
            if name in readers:
                handles.append(module.register_forward_pre_hook(self._read(name)))
        return handles

    def _read(self, name: str) -> Any:
        def read(module: Module, inputs: Any) -> Any:
            if get_ident() != self._thread:
                return None
            leaves, structure = flatten(inputs, lambda item: isinstance(item, Tensor))
            keys = [input_key(i, name) for i in range(len(leaves))]
            return unflatten(structure, list(map(self._asked, keys, leaves)))

        return read

    def _enter(self, module: Module, inputs: Any) -> Any:
        if get_ident() != self._thread:
            return None
        self.depth += 1
        return self.unit_inputs(inputs)

    def unit_inputs(self, inputs: Any) -> Any:
        """Return what a unit is given; None leaves it as it is."""
        return None

    def _leave(self, name: str) -> Any:
        def leave(module: Module, inputs: Any, outputs: Any) -> Any:
            if get_ident() != self._thread:
                return None
            self.depth -= 1
            if self.depth:
                return None
            leaves, structure = flatten(outputs, lambda item: isinstance(item, Tensor))
            keys = [name] if len(leaves) == 1 else [output_key(name, i) for i in range(len(leaves))]
            if self.owner.sites.table.keys().isdisjoint(keys):
                return None
            return unflatten(structure, list(map(self._asked, keys, leaves)))

        return leave

    def _asked(self, key: str, value: Any) -> Any:
        """Quantise a value where a place asks for it."""
        site = self.owner.sites.table.get(key)
        if site is None:
            return value
        self.met.add(key)
        return site(value)

    def check(self) -> None:
        """Raise TraceError where the network took another way than when it was planned."""
        wanted = {key for key in self.owner.sites.table if not _NETWORK_INPUT.fullmatch(key)}
        if self.met != wanted:
            missed = ", ".join(sorted(wanted - self.met))
            raise TraceError(
                "quantization: the network runs other ops than on the example, "
                f"got none of {missed}, expected the same way for every input"
            )

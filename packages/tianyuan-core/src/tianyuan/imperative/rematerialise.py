"""Evict values that a tape holds for backward, and compute them again when it comes to them.

Dynamic tensor rematerialisation (Kirisame et al., 2021): when tensors hold more bytes than allowed,
the value goes that costs least to make again per byte and per time since its last use; what its own
evicted inputs cost counts with it. The same kernels run on the same data, so nothing changes but
memory and time.
"""

from __future__ import annotations

import math
import random
import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import native, registry
from ..kernel import Call as KernelCall
from ..op import GradContext, Op, TensorSpec
from . import dispatch, memory
from .state import state
from .tape import Differentiable, Tape, is_effect, passed_back
from .tensor import Tensor, wrap

_HELD_ONCE = 2  # references to data that only its value holds: the value's, and getrefcount's own


@dataclass
class Limits:
    """When values are evicted, and which.

    Attributes:
        threshold: bytes that tensors may hold; 0 allows four fifths of the machine's memory.
        least: bytes of the smallest value that is worth evicting.
        sample: whether only the square root of the number of candidates is weighed.
    """

    threshold: int = 0
    least: int = 1 << 20
    sample: bool = False

    def allowed(self) -> int:
        """Return the bytes that tensors may hold."""
        return self.threshold or memory.HostMemory().total_and_free()[0] * 4 // 5


limits = Limits()


@dataclass(eq=False)
class _Value:
    """A value on a tape: its data while it is there, and the call that makes it."""

    spec: TensorSpec
    data: Any
    maker: _Call | None = None
    used: int = 0
    pinned: bool = False  # watched: never evicted, and its gradient is asked for
    gone: weakref.ref[Any] | None = None  # data that was let go, while somebody else holds it

    def present(self) -> Any:
        """Return the data where it is there, None where it must be made again."""
        if self.data is None and self.gone is not None:
            return self.gone()
        return self.data


@dataclass(eq=False)
class _Call:
    source: Differentiable
    attrs: Any
    inputs: list[_Value]
    needs: tuple[bool, ...]
    outputs: list[_Value] = field(default_factory=list)
    cost: float = 0.0

    @property
    def repeats(self) -> bool:
        """Tell whether the call can be made again with the same result."""
        return isinstance(self.source, Op) and self.source.pure


class _Context(GradContext):
    """The context of a call; its tensors are made again for those who look at them."""

    __slots__ = ("_call", "_tape")

    def __init__(self, tape: RematerialisingTape, call: _Call) -> None:
        self._tape, self._call = tape, call
        self.attrs, self.needs = call.attrs, call.needs

    @property
    def inputs(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self._tape.tensors(self._call.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self._tape.tensors(self._call.outputs)


class RematerialisingTape(Tape):
    """A tape that evicts values while it is the only one open.

    Beside other tapes it keeps everything, because these know values by the identity of the data.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._foreign: dict[int, _Value] = {}
        self._candidates: list[_Value] = []
        self._clock = 0
        self._random = random.Random(0)

    def watch(self, data: Any) -> None:
        """Make a value one whose gradient can be asked for; it is never evicted."""
        value = self.tracked.setdefault(id(data), _Value(_spec_of(data), data))
        value.data, value.pinned = data, True

    def record(
        self,
        source: Differentiable,
        attrs: Any,
        inputs: Sequence[Any],
        specs: Sequence[TensorSpec],
        outputs: Sequence[Tensor],
    ) -> None:
        """Append anything that gradients pass through, if a tracked value flows into it."""
        tracked = self.tracked
        needs = tuple([id(data) in tracked for data in inputs])
        if True not in needs and not is_effect(source):
            return
        self._clock += 1
        values = [
            tracked[id(data)] if need else self._outside(data, spec)
            for data, spec, need in zip(inputs, specs, needs, strict=True)
        ]
        call = _Call(source, attrs, values, needs)
        for value in values:
            value.used = self._clock
        for tensor in outputs:
            made = _Value(tensor._spec, tensor._data, call, self._clock)
            call.outputs.append(made)
            tracked[id(tensor._data)] = made
        if call.repeats:
            call.cost = _cost(call)
            self._candidates += [v for v in call.outputs if v.spec.nbytes >= limits.least]
        self._calls.append(call)
        self._make_room()

    def _outside(self, data: Any, spec: TensorSpec) -> _Value:
        return self._foreign.setdefault(id(data), _Value(spec, data))

    # Eviction.

    def _make_room(self, locked: Iterable[_Value] = ()) -> None:
        if any(tape is not self for tape in state.tapes):
            return
        kept = set(locked)
        while memory.held("cpu") > limits.allowed():
            free = [
                value
                for value in self._candidates
                if value.data is not None
                and not value.pinned
                and value not in kept
                and sys.getrefcount(value.data) <= _HELD_ONCE
            ]
            if not free:
                return
            if limits.sample:
                free = self._random.sample(free, math.ceil(math.sqrt(len(free))))
            self._evict(min(free, key=self._score))

    def _score(self, value: _Value) -> float:
        assert value.maker is not None
        cost, seen, waiting = 0.0, {value.maker}, [value.maker]
        while waiting:
            call = waiting.pop()
            cost += call.cost
            for given in call.inputs:
                maker = given.maker
                if maker is not None and maker not in seen and given.present() is None:
                    seen.add(maker)
                    waiting.append(maker)
        return cost / (value.spec.nbytes * (self._clock - value.used + 1))

    def _evict(self, value: _Value) -> None:
        key, tracked = id(value.data), self.tracked
        value.gone = weakref.ref(value.data, lambda _: tracked.pop(key, None))
        value.data = None

    # Making values again.

    def tensors(self, values: Sequence[_Value]) -> tuple[Tensor, ...]:
        """Return values as tensors."""
        self._clock += 1
        for value in values:
            value.used = self._clock
        return tuple([wrap(self._present(value, values), value.spec) for value in values])

    def _present(self, value: _Value, locked: Sequence[_Value]) -> Any:
        waiting, steps = [value], 0
        while waiting:
            wanted = waiting[-1]
            if wanted.present() is not None:
                waiting.pop()
                continue
            call = wanted.maker
            assert call is not None
            missing = [given for given in call.inputs if given.present() is None]
            if missing:
                waiting += missing
                continue
            self._repeat(call)
            steps += 1
            # Where room for one call's inputs is lacking, they would evict each other for ever.
            if steps <= 4 * len(self._calls):
                self._make_room([*call.inputs, *call.outputs, *locked])
        return value.present()

    def _repeat(self, call: _Call) -> None:
        assert isinstance(call.source, Op)
        saved = state.tapes, state.precision, state.interceptor
        state.tapes, state.precision, state.interceptor = [], None, None
        try:
            inputs = [wrap(given.present(), given.spec) for given in call.inputs]
            result = dispatch.apply(call.source, inputs, call.attrs)
        finally:
            state.tapes, state.precision, state.interceptor = saved
        self._clock += 1
        tensors = result if isinstance(result, tuple) else (result,)
        for value, tensor in zip(call.outputs, tensors, strict=True):
            if value.present() is None:
                value.data, value.used = tensor._data, self._clock
                self.tracked[id(tensor._data)] = value

    # Walking back.

    def gradients(self, targets: Sequence[Any], seeds: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the gradient of every watched value, by id, for output gradients ``seeds``."""
        found: dict[_Value, Tensor] = {}
        for data, seed in zip(targets, seeds, strict=True):
            if id(data) in self.tracked:
                _add(found, self.tracked[id(data)], seed)
        for call in reversed(self._calls):
            grads = tuple([found.get(v) if v.pinned else found.pop(v, None) for v in call.outputs])
            if any(grad is not None for grad in grads) or is_effect(call.source):
                specs = [value.spec for value in call.inputs]
                passed = passed_back(call.source, _Context(self, call), grads, specs)
                for value, need, grad in zip(call.inputs, call.needs, passed, strict=True):
                    if need and grad is not None:
                        _add(found, value, grad)
            if not state.tapes and call.repeats:
                self._let_go(call)
        return {id(value.data): grad for value, grad in found.items()}

    def _let_go(self, call: _Call) -> None:
        """Evict what a call made: nothing that is still to come reads it."""
        for value in call.outputs:
            if value.data is not None and not value.pinned:
                self._evict(value)


def _add(found: dict[_Value, Tensor], value: _Value, grad: Tensor) -> None:
    known = found.get(value)
    found[value] = grad if known is None else registry.get_op("add")(known, grad)


def _spec_of(data: Any) -> TensorSpec:
    return TensorSpec(tuple(data.shape), data.dtype)


def _cost(call: _Call) -> float:
    """Return the estimated seconds of a call."""
    assert isinstance(call.source, Op)
    inputs = tuple(value.spec for value in call.inputs)
    outputs = tuple(value.spec for value in call.outputs)
    asked = KernelCall(call.source, inputs, outputs, call.attrs, native.get_num_threads())
    return registry.select(asked, outputs[0].device).kernel.cost(asked)


def make_tape() -> Tape:
    """Return a tape that evicts; a plain one inside a trace, whose plan is made at compilation."""
    return Tape() if state.recorder is not None else RematerialisingTape()

"""Record what was computed from watched values, and walk it back to their gradients.

Reverse-mode differentiation (Griewank and Walther, Evaluating Derivatives, 2008). Gradients are
computed by ops like everything else, so an outer tape records them and differentiates again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..errors import GradError
from ..op import GradContext, Op, TensorSpec
from ..registry import get_op
from ..shapes import format_shape
from . import dispatch, monitor
from .state import state
from .tensor import Tensor

GradFunction = Callable[[GradContext, "tuple[Tensor | None, ...]"], "Sequence[Tensor | None]"]


class Differentiable(Protocol):
    """Whatever gradients pass through: an op, or a function of the user's."""

    @property
    def name(self) -> str: ...

    @property
    def grad(self) -> GradFunction | None: ...


# One call on a tape: what gradients pass through, its attributes, the data it read with their
# specs, the data it made with theirs, and which inputs are tracked. A plain tuple, because the
# engine of a native plugin writes it too.
Entry = tuple[
    Differentiable,
    Any,
    tuple[Any, ...],
    tuple[TensorSpec, ...],
    tuple[Any, ...],
    tuple[TensorSpec, ...],
    tuple[bool, ...],
]


class _Recorded(GradContext):
    """The context of a call on a tape; its tensors are made for those who look at them."""

    __slots__ = ("_entry",)

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.attrs = entry[1]
        self.needs = entry[6]

    @property
    def inputs(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(map(dispatch.wrap, self._entry[2], self._entry[3]))

    @property
    def outputs(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(map(dispatch.wrap, self._entry[4], self._entry[5]))


class Tape:
    """Watched values, and the calls that depend on them, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.tracked: dict[int, Any] = {}  # id -> data, kept alive so that ids stay unique
        self.lines: dict[int, str] = {}  # the user's line of an entry, where somebody may ask

    def watch(self, data: Any) -> None:
        """Make a value one whose gradient can be asked for."""
        self.tracked[id(data)] = data

    def record_op(
        self,
        op: Op,
        attrs: Any,
        inputs: Sequence[Any],
        specs: Sequence[TensorSpec],
        outputs: Sequence[Tensor],
    ) -> None:
        """Append an op if a tracked value flows into it."""
        if op.differentiable:
            self.record(op, attrs, inputs, specs, outputs)

    def record(
        self,
        source: Differentiable,
        attrs: Any,
        inputs: Sequence[Any],
        specs: Sequence[TensorSpec],
        outputs: Sequence[Tensor],
    ) -> None:
        """Append anything that gradients pass through, if a tracked value flows into it.

        An effect is always appended, and its gradient always runs: other processes wait for it.
        """
        tracked = self.tracked
        needs = tuple([id(data) in tracked for data in inputs])
        if True not in needs and not is_effect(source):
            return
        made = tuple([tensor._data for tensor in outputs])
        made_specs = tuple([tensor._spec for tensor in outputs])
        if monitor.active or state.recorder is not None:
            self.lines[len(self.entries)] = dispatch.user_call(source.name)
        self.entries.append((source, attrs, tuple(inputs), tuple(specs), made, made_specs, needs))
        for data in made:
            tracked[id(data)] = data

    def gradients(self, targets: Sequence[Any], seeds: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the gradient of every tracked value, by id, for output gradients ``seeds``."""
        found: dict[int, Tensor] = {}
        add = get_op("add")
        for data, seed in zip(targets, seeds, strict=True):
            known = found.get(id(data))
            found[id(data)] = seed if known is None else add(known, seed)
        for index in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[index]
            source, _, inputs, specs, outputs, _, needs = entry
            grads = tuple([found.get(id(data)) for data in outputs])
            if (not grads or grads[0] is None) and _all_none(grads) and not is_effect(source):
                continue
            backward = source.grad or _decomposed_grad(source)
            if self.lines:
                with self._at(index, source.name):
                    passed = backward(_Recorded(entry), grads)
            else:
                passed = backward(_Recorded(entry), grads)
            for data, spec, need, grad in zip(inputs, specs, needs, passed, strict=True):
                if need and grad is not None:
                    if grad._spec.shape is not spec.shape:
                        _check(source.name, spec, grad)
                    key = id(data)
                    known = found.get(key)
                    found[key] = grad if known is None else add(known, grad)
        return found

    @contextmanager
    def _at(self, index: int, name: str) -> Iterator[None]:
        """Let what runs name the line of an entry of which it computes the gradient."""
        saved = state.origin
        if index in self.lines:
            state.origin = f"{self.lines[index]} (gradient of {name})"
        try:
            yield
        finally:
            state.origin = saved


def _all_none(grads: tuple[Tensor | None, ...]) -> bool:
    return all(grad is None for grad in grads)


def is_effect(source: Differentiable) -> bool:
    """Tell whether a call has an effect, so that its gradient must always run."""
    return isinstance(source, Op) and not source.pure


_make_tape: Callable[[], Tape] = Tape


def new_tape() -> Tape:
    """Return an empty tape of the kind that is in use."""
    return _make_tape()


def use_tapes(make: Callable[[], Tape]) -> None:
    """Say what kind of tape to use from here on."""
    global _make_tape
    _make_tape = make


def passed_back(
    source: Differentiable,
    context: GradContext,
    grads: tuple[Tensor | None, ...],
    specs: Sequence[TensorSpec],
) -> Sequence[Tensor | None]:
    """Return the gradients of a call's inputs, of the inputs' shapes where they are needed."""
    passed = (source.grad or _decomposed_grad(source))(context, grads)
    for spec, need, grad in zip(specs, context.needs, passed, strict=True):
        if need and grad is not None:
            _check(source.name, spec, grad)
    return passed


def _check(name: str, spec: TensorSpec, grad: Tensor) -> None:
    if tuple(map(int, grad.shape)) != tuple(map(int, spec.shape)):
        raise GradError(
            f"{name}: gradient has the wrong shape, got {format_shape(grad.shape)}, "
            f"expected {format_shape(spec.shape)}"
        )


@contextmanager
def only_tape(tape: Tape | None) -> Iterator[None]:
    """Record on one tape (or none) beside those that were already open below it."""
    saved = state.tapes
    state.tapes = [*saved, tape] if tape is not None else []
    try:
        yield
    finally:
        state.tapes = saved


def _decomposed_grad(op: Differentiable) -> GradFunction:
    """Differentiate an op through its decomposition."""
    decompose: Callable[..., Any] | None = getattr(op, "decompose", None)
    if decompose is None:
        raise GradError(
            f"{op.name}: has neither a gradient nor a decomposition, got none, expected "
            "differentiable=False or one of them"
        )

    def backward(ctx: GradContext, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        tape = Tape()
        inputs = ctx.inputs
        for tensor, need in zip(inputs, ctx.needs, strict=True):
            if need:
                tape.watch(tensor._data)
        with only_tape(tape):
            result = decompose(inputs, ctx.attrs)
        results = (result,) if isinstance(result, Tensor) else tuple(result)
        pairs = [
            (out._data, grad)
            for out, grad in zip(results, grads, strict=True)
            if grad is not None and id(out._data) in tape.tracked
        ]
        found = tape.gradients([data for data, _ in pairs], [grad for _, grad in pairs])
        # An input given twice has one gradient, the sum: it is handed over once.
        return [
            found.pop(id(tensor._data), None) if need else None
            for tensor, need in zip(inputs, ctx.needs, strict=True)
        ]

    return backward

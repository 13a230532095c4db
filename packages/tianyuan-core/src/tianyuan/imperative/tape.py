"""Record what was computed from watched values, and walk it back to their gradients.

Reverse-mode differentiation (Griewank and Walther, Evaluating Derivatives, 2008). Gradients are
computed by ops like everything else, so an outer tape records them and differentiates again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import GradError
from ..op import GradContext, Op, TensorSpec
from ..registry import get_op
from ..shapes import format_shape
from .state import state
from .tensor import Tensor, wrap

GradFunction = Callable[[GradContext, "tuple[Tensor | None, ...]"], "Sequence[Tensor | None]"]


@dataclass(slots=True)
class Entry:
    """One op on a tape: the data it read and made, and how a gradient passes through it."""

    name: str
    backward: GradFunction
    attrs: Any
    inputs: tuple[Any, ...]
    input_specs: tuple[TensorSpec, ...]
    outputs: tuple[Any, ...]
    output_specs: tuple[TensorSpec, ...]
    needs: tuple[bool, ...]


class Tape:
    """Watched values, and the ops that depend on them, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.tracked: dict[int, Any] = {}  # id -> data, kept alive so that ids stay unique

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
            backward = op.grad or _decomposed_grad(op)
            self.record(op.name, backward, attrs, inputs, specs, outputs)

    def record(
        self,
        name: str,
        backward: GradFunction,
        attrs: Any,
        inputs: Sequence[Any],
        specs: Sequence[TensorSpec],
        outputs: Sequence[Tensor],
    ) -> None:
        """Append anything that has a gradient function, if a tracked value flows into it."""
        tracked = self.tracked
        needs = tuple([id(data) in tracked for data in inputs])
        if True not in needs:
            return
        made = tuple([tensor._data for tensor in outputs])
        self.entries.append(
            Entry(
                name, backward, attrs, tuple(inputs), tuple(specs),
                made, tuple([tensor._spec for tensor in outputs]), needs,
            )
        )  # fmt: skip
        for data in made:
            tracked[id(data)] = data

    def gradients(self, targets: Sequence[Any], seeds: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the gradient of every tracked value, by id, for output gradients ``seeds``."""
        found: dict[int, Tensor] = {}
        for data, seed in zip(targets, seeds, strict=True):
            _accumulate(found, data, seed)
        for entry in reversed(self.entries):
            grads = tuple(found.get(id(data)) for data in entry.outputs)
            if all(grad is None for grad in grads):
                continue
            context = GradContext(
                tuple(map(wrap, entry.inputs, entry.input_specs)),
                tuple(map(wrap, entry.outputs, entry.output_specs)),
                entry.attrs,
                entry.needs,
            )
            for data, spec, need, grad in zip(
                entry.inputs,
                entry.input_specs,
                entry.needs,
                entry.backward(context, grads),
                strict=True,
            ):
                if need and grad is not None:
                    _check(entry.name, spec, grad)
                    _accumulate(found, data, grad)
        return found


def _accumulate(found: dict[int, Tensor], data: Any, grad: Tensor) -> None:
    known = found.get(id(data))
    found[id(data)] = grad if known is None else get_op("add")(known, grad)


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


def _decomposed_grad(op: Op) -> GradFunction:
    """Differentiate an op through its decomposition."""
    decompose = op.decompose
    if decompose is None:
        raise GradError(f"{op.name}: has neither a gradient nor a decomposition")

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

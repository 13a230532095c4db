"""Declare collectives as effect ops, so that both runtimes keep them in order.

Every op has one output. Where a rank gets nothing (those that are not the root of a reduction, or
a sender) it is an empty tensor, the *token* of the effect. Where it gives nothing, the input is an
empty tensor that tells the dtype. Gradients are collectives again: whatever every rank does with
its output, each rank takes part in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import registry
from ..dtypes import is_float
from ..errors import DTypeError, ShapeError
from ..kernel import Call, Kernel, bytes_cost
from ..op import GradContext, Ints, Op, Specs, TensorSpec
from ..registry import get_op
from ..shapes import format_shape
from .communicator import MAX, MIN, SUM, Communicator

BACKEND = "distributed"
PREFIX = "collective_"  # of the ops' names: there also are a gather and a scatter of one tensor
_LATENCY = 1e-4


@dataclass(frozen=True)
class Collective:
    """Who takes part, this process's place among them, the root or peer, and what else is needed.

    ``shape`` is the output's where the input does not tell it; ``backend`` names the communicator.
    """

    ranks: Ints
    position: int
    root: int = 0
    shape: Ints = ()
    backend: str = ""

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def is_root(self) -> bool:
        return self.position == self.root


def _same(spec: TensorSpec, attrs: Collective) -> tuple[int, ...]:
    return spec.shape


def _at_root(spec: TensorSpec, attrs: Collective) -> tuple[int, ...]:
    return spec.shape if attrs.is_root else (0,)


def _stacked(spec: TensorSpec, attrs: Collective) -> tuple[int, ...]:
    return (attrs.size, *spec.shape)


def _stacked_at_root(spec: TensorSpec, attrs: Collective) -> tuple[int, ...]:
    return _stacked(spec, attrs) if attrs.is_root else (0,)


def _row(spec: TensorSpec, attrs: Collective) -> tuple[int, ...]:
    return spec.shape[1:]


def _told(spec: TensorSpec, attrs: Collective) -> tuple[int, ...]:
    return attrs.shape


def _nothing(spec: TensorSpec, attrs: Collective) -> tuple[int, ...]:
    return (0,)


def _infer(name: str, shape: Callable[[TensorSpec, Collective], Sequence[int]]) -> Any:
    rows = name in ("reduce_scatter_sum", "all_to_all")

    def infer(specs: Specs, attrs: Collective) -> Specs:
        (spec,) = specs
        if "_sum" in name and spec.dtype.kind == "b":
            raise DTypeError(f"{name}: bool cannot be summed, expected an integer or a float")
        if (rows or (name == "scatter" and attrs.is_root)) and (
            not spec.ndim or int(spec.shape[0]) != attrs.size
        ):
            raise ShapeError(
                f"{name}: input must have one row per rank, got {format_shape(spec.shape)}, "
                f"expected {attrs.size} rows"
            )
        return (spec.with_shape(shape(spec, attrs)),)

    return infer


# Gradients, each from those of the total loss, the sum over all ranks' losses.

Backward = Callable[[GradContext, Any], Any]


def _passing(backward: Backward) -> Any:
    """Make an op's gradient: all ranks take part, with zeros where the output was not used."""

    def grad(ctx: GradContext, grads: tuple[Any, ...]) -> Sequence[Any]:
        if not is_float(ctx.inputs[0].dtype):
            return (None,)
        (given,) = grads
        if given is None:
            given = ctx.outputs[0].full(ctx.outputs[0].shape, 0)
        return (backward(ctx, given),)

    return grad


def _again(name: str, ctx: GradContext, given: Any, **changes: Any) -> Any:
    attrs = replace(ctx.attrs, **changes)
    return given._apply(OPS[name], (given,), attrs)


def _shape_of_input(ctx: GradContext) -> Ints:
    return tuple(ctx.inputs[0].shape)


def _extremum_backward(ctx: GradContext, given: Any) -> Any:
    """Split the gradient equally among ranks that hold the extremum, as ``max`` over an axis."""
    holds = get_op("equal")(ctx.inputs[0], ctx.outputs[0]).cast(given.dtype)
    total = _again("all_reduce_sum", ctx, given)
    return holds * total / _again("all_reduce_sum", ctx, holds)


def _broadcast_backward(ctx: GradContext, given: Any) -> Any:
    found = _again("reduce_sum", ctx, given)
    return found if ctx.attrs.is_root else None


def _scatter_backward(ctx: GradContext, given: Any) -> Any:
    found = _again("gather", ctx, given)
    return found if ctx.attrs.is_root else None


def _receive_backward(ctx: GradContext, given: Any) -> None:
    _again("remote_send", ctx, given)


_TABLE: dict[str, tuple[Any, Backward]] = {
    "all_reduce_sum": (_same, lambda c, g: _again("all_reduce_sum", c, g)),
    "all_reduce_max": (_same, _extremum_backward),
    "all_reduce_min": (_same, _extremum_backward),
    "reduce_sum": (_at_root, lambda c, g: _again("broadcast", c, g, shape=_shape_of_input(c))),
    "broadcast": (_told, _broadcast_backward),
    "all_gather": (_stacked, lambda c, g: _again("reduce_scatter_sum", c, g)),
    "reduce_scatter_sum": (_row, lambda c, g: _again("all_gather", c, g)),
    "gather": (_stacked_at_root, lambda c, g: _again("scatter", c, g, shape=_shape_of_input(c))),
    "scatter": (_told, _scatter_backward),
    "all_to_all": (_same, lambda c, g: _again("all_to_all", c, g)),
    "remote_send": (_nothing, lambda c, g: _again("remote_recv", c, g, shape=_shape_of_input(c))),
    "remote_recv": (_told, _receive_backward),
}

OPS: dict[str, Op] = {
    name: Op(
        PREFIX + name,
        infer=_infer(name, shape),
        grad=_passing(backward),
        attrs=Collective,
        pure=False,
        family="collective",
    )
    for name, (shape, backward) in _TABLE.items()
}


# Running them: what each asks of the communicator.

Run = Callable[[Communicator, Any, Any, Collective], None]

_RUN: dict[str, Run] = {
    "all_reduce_sum": lambda c, x, y, a: c.all_reduce(x, y, SUM),
    "all_reduce_max": lambda c, x, y, a: c.all_reduce(x, y, MAX),
    "all_reduce_min": lambda c, x, y, a: c.all_reduce(x, y, MIN),
    "reduce_sum": lambda c, x, y, a: c.reduce(x, y if a.is_root else None, a.root),
    "broadcast": lambda c, x, y, a: c.broadcast(x if a.is_root else None, y, a.root),
    "all_gather": lambda c, x, y, a: c.all_gather(x, y),
    "reduce_scatter_sum": lambda c, x, y, a: c.reduce_scatter(x, y),
    "gather": lambda c, x, y, a: c.gather(x, y if a.is_root else None, a.root),
    "scatter": lambda c, x, y, a: c.scatter(x if a.is_root else None, y, a.root),
    "all_to_all": lambda c, x, y, a: c.all_to_all(x, y),
    "remote_send": lambda c, x, y, a: c.send(x, a.root),
    "remote_recv": lambda c, x, y, a: c.receive(y, a.root),
}

FindCommunicator = Callable[[str, tuple[int, ...], str], Communicator]


def _kernel(name: str, device: str, find: FindCommunicator) -> Kernel:
    def run(
        ctx: Any,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attrs: Collective,
        workspace: np.ndarray | None,
    ) -> None:
        _RUN[name](find(attrs.backend, attrs.ranks, device), inputs[0], outputs[0], attrs)

    # A last resort like references, so that it serves whichever backend is chosen, and is never
    # timed: running it again would be one message too many.
    return Kernel(
        f"{PREFIX}{name}_any__communicator", PREFIX + name, run, cost=_seconds, is_reference=True
    )


def _seconds(call: Call) -> float:
    return _LATENCY + bytes_cost(call)


_served: set[str] = set()


def serve(device: str, find: FindCommunicator) -> None:
    """Register the collectives' kernels for a kind of device, once."""
    if device not in _served:
        _served.add(device)
        kernels = [_kernel(name, device, find) for name in OPS]
        registry.register_kernels(BACKEND, device, kernels)

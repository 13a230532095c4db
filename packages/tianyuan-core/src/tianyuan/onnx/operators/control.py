"""Control flow: branches and loops over subgraphs, decided now where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes
from ...errors import ShapeError, TraceError
from ...imperative import dispatch
from ...imperative.state import state
from ..interpret import Interpreter, Value, ValueNeededError, array_of, tensor_of
from ..known import Known
from ..node import Node
from ..table import VALUES, operator
from .common import Tensor, reshaped, run, single
from .sequence import stacked

# Most turns of a loop that are written out in a graph, and that run at all.
_MOST_UNROLLED = 4096
_MOST_TURNS = 1 << 16


def _is_known(value: Value) -> bool:
    return (
        value is None
        or isinstance(value, Known)
        or state.recorder is None
        or (isinstance(value, Tensor) and dispatch.is_concrete(value._data))
    )


@operator("If", form=VALUES)
def branch(node: Node, runtime: Interpreter, condition: Value) -> tuple[Value, ...]:
    """Run the branch that the condition chooses; in a graph that cannot know, both.

    Raises:
        ValueNeededError: where the branches differ in shape or dtype.
    """
    names = ("then_branch", "else_branch")
    if _is_known(condition):
        chosen = names[0] if bool(single(array_of(condition))) else names[1]
        return tuple(runtime.run(node.graph(chosen), ()))
    yes, no = (runtime.run(node.graph(name), ()) for name in names)
    mask = reshaped(condition, ())
    found = []
    for one, other in zip(yes, no, strict=True):
        a, b = tensor_of(one), tensor_of(other)
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            raise TraceError("the branches give no plain tensors, and the choice is not known")
        if tuple(map(int, a.shape)) != tuple(map(int, b.shape)) or a.dtype != b.dtype:
            raise ValueNeededError(
                f"the branches differ and the choice depends on data, got {a.dtype.name}"
                f"{tuple(map(int, a.shape))} and {b.dtype.name}{tuple(map(int, b.shape))}",
                condition._data,
            )
        found.append(run("where", mask, a, b))
    return tuple(found)


@operator("Loop", form=VALUES)
def loop(
    node: Node, runtime: Interpreter, count: Value = None, condition: Value = None, *carried: Value
) -> tuple[Value, ...]:
    """Run the body until its count or condition ends it; stack what each turn puts out.

    Raises:
        TraceError: where a graph cannot know how many turns there are, or they are too many.
    """
    body = node.graph("body")
    most = _MOST_TURNS if count is None else int(single(array_of(count)))
    going = condition is None or bool(single(array_of(condition)))
    values = list(carried)
    collected: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(values))]
    turn = 0
    while going and turn < most:
        if turn >= (_MOST_TURNS if state_is_eager() else _MOST_UNROLLED):
            raise TraceError(f"the loop takes more than {turn} turns")
        again, *results = runtime.run(
            body, [Known(np.array(turn, np.int64)), Known(np.array(True)), *values]
        )
        values = results[: len(values)]
        for row, result in zip(collected, results[len(values) :], strict=True):
            row.append(result)
        turn += 1
        going = bool(single(array_of(again)))
    empty = [
        _nothing(body, position)
        for position in range(len(body.outputs) - len(collected), len(body.outputs))
    ]
    rows = [stacked(row, 0) if row else empty[i] for i, row in enumerate(collected)]
    return (*values, *rows)


def state_is_eager() -> bool:
    """Tell whether ops run at once."""
    from ..interpret import _Guard

    return state.recorder is None or isinstance(state.recorder, _Guard)


def _nothing(body: Any, position: int) -> Known:
    """Return what a loop without turns collects, of the type that the body declares."""
    dtype, shape = body.output_types[position] or (np.dtype(np.float32), ())
    if dtypes.name_of(dtype) not in dtypes.CODES:
        raise ShapeError("a loop without turns collects a type that tensors lack")
    return Known(np.zeros((0, *(n if isinstance(n, int) else 0 for n in shape or ())), dtype))


@operator("Scan", 9, form=VALUES)
def scan(node: Node, runtime: Interpreter, *inputs: Value) -> tuple[Value, ...]:
    """Run the body on each slice of the scanned inputs; stack the slices that it puts out."""
    return _scanned(node, runtime, list(inputs), node.int("num_scan_inputs"))


@operator("Scan", 8, 8, form=VALUES)
def scan_batches(
    node: Node, runtime: Interpreter, lengths: Value = None, *inputs: Value
) -> tuple[Value, ...]:
    """Run as newer versions do, for each item of a batch."""
    count = node.int("num_scan_inputs")
    if lengths is not None:
        raise ShapeError("sequence_lens is not supported, expected it to be left out")
    tensors = [tensor_of(value) for value in inputs]
    results = []
    for item in range(int(tensors[0].shape[0])):
        parts: list[Value] = [
            run("take", t, Known(np.array(item)).tensor(), axis=0) for t in tensors
        ]
        results.append(_scanned(node, runtime, parts, count))
    return tuple(stacked([row[i] for row in results], 0) for i in range(len(results[0])))


def _scanned(
    node: Node, runtime: Interpreter, inputs: list[Value], count: int
) -> tuple[Value, ...]:
    body = node.graph("body")
    if any(value is None for value in inputs):
        raise ShapeError(f"input {inputs.index(None)} is left out, expected every one")
    kept = len(inputs) - count
    values = inputs[:kept]
    scanned = [tensor_of(value) for value in inputs[kept:]]
    axes = _axes(node, "scan_input_axes", [t.ndim for t in scanned])
    back = node.ints("scan_input_directions", node.ints("directions", (0,) * count))
    if count < 1 or kept < 0 or len(back) != count:
        raise ShapeError(f"scan inputs do not fit, got {len(inputs)} inputs, {count} scanned")
    length = int(scanned[0].shape[axes[0]])
    if any(int(t.shape[a]) != length for t, a in zip(scanned, axes, strict=True)):
        raise ShapeError("scanned inputs differ in length")
    if length > (_MOST_TURNS if state_is_eager() else _MOST_UNROLLED):
        raise TraceError(f"the scan takes {length} turns")
    collected: list[list[Value]] = [[] for _ in range(len(body.outputs) - kept)]
    for turn in range(length):
        slices: list[Value] = []
        for tensor, axis, reverse in zip(scanned, axes, back, strict=True):
            place = length - 1 - turn if reverse else turn
            slices.append(run("take", tensor, Known(np.array(place)).tensor(), axis=axis))
        results = runtime.run(body, [*values, *slices])
        values = results[:kept]
        for row, result in zip(collected, results[kept:], strict=True):
            row.append(result)
    return (*values, *_rows(node, body, collected, kept))


def _axes(node: Node, name: str, ranks: list[int]) -> list[int]:
    given = node.ints(name, (0,) * len(ranks))
    if len(given) != len(ranks):
        raise ShapeError(f"{name} does not fit, got {given}")
    return [axis % max(rank, 1) for axis, rank in zip(given, ranks, strict=True)]


def _rows(node: Node, body: Any, collected: list[list[Value]], kept: int) -> list[Value]:
    back = node.ints("scan_output_directions", (0,) * len(collected))
    axes = node.ints("scan_output_axes", (0,) * len(collected))
    found: list[Value] = []
    for i, row in enumerate(collected):
        if not row:
            found.append(_nothing(body, kept + i))
            continue
        ordered = row[::-1] if i < len(back) and back[i] else row
        axis = axes[i] if i < len(axes) else 0
        rank = len(ordered[0].shape) + 1
        found.append(stacked(ordered, axis + rank if axis < 0 else axis))
    return found

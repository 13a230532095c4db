"""Sequences of tensors, and values that may be missing."""

from __future__ import annotations

import numpy as np

from ...errors import ModelFormatError
from ..interpret import Interpreter, Value, array_of, tensor_of
from ..known import Known
from ..node import Node
from ..table import VALUES, operator
from .common import cut, extents, normal_axis, reshaped, run, single


def stacked(values: list[Value], axis: int) -> Value:
    """Join tensors of one shape along a new axis."""
    if all(isinstance(value, Known) and not value.is_symbolic for value in values):
        return Known(np.stack([value.array for value in values], axis))
    parts = []
    for value in values:
        tensor = tensor_of(value)
        parts.append(reshaped(tensor, (*tensor.shape[:axis], 1, *tensor.shape[axis:])))
    return run("concat", *parts, axis=axis)


def _sequence(value: Value) -> list[Value]:
    if not isinstance(value, list):
        raise ModelFormatError("a tensor was given, expected a sequence")
    return value


def _place(sequence: list[Value], position: Value, most: int) -> int:
    index = int(single(array_of(position)))
    if not -len(sequence) <= index <= most:
        raise IndexError(f"position {index} of a sequence of {len(sequence)}")
    return index + len(sequence) if index < 0 else index


@operator("SequenceEmpty", 11, form=VALUES)
def sequence_empty(node: Node, runtime: Interpreter) -> list[Value]:
    return []


@operator("SequenceConstruct", 11, form=VALUES)
def sequence_construct(node: Node, runtime: Interpreter, *values: Value) -> list[Value]:
    return list(values)


@operator("SequenceInsert", 11, form=VALUES)
def sequence_insert(
    node: Node, runtime: Interpreter, sequence: Value, value: Value, position: Value = None
) -> list[Value]:
    found = list(_sequence(sequence))
    where = len(found) if position is None else _place(found, position, len(found))
    found.insert(where, value)
    return found


@operator("SequenceErase", 11, form=VALUES)
def sequence_erase(
    node: Node, runtime: Interpreter, sequence: Value, position: Value = None
) -> list[Value]:
    found = list(_sequence(sequence))
    del found[-1 if position is None else _place(found, position, len(found) - 1)]
    return found


@operator("SequenceAt", 11, form=VALUES)
def sequence_at(node: Node, runtime: Interpreter, sequence: Value, position: Value) -> Value:
    found = _sequence(sequence)
    return found[_place(found, position, len(found) - 1)]


@operator("SequenceLength", 11, form=VALUES)
def sequence_length(node: Node, runtime: Interpreter, sequence: Value) -> Known:
    return Known(np.array(len(_sequence(sequence)), np.int64))


@operator("ConcatFromSequence", 11, form=VALUES)
def concat_from_sequence(node: Node, runtime: Interpreter, sequence: Value) -> Value:
    tensors = [tensor_of(value) for value in _sequence(sequence)]
    axis, new = node.int("axis"), node.flag("new_axis")
    axis = normal_axis(axis, tensors[0].ndim + new)
    return stacked(list(tensors), axis) if new else run("concat", *tensors, axis=axis)


@operator("SplitToSequence", 11, form=VALUES)
def split_to_sequence(
    node: Node, runtime: Interpreter, x: Value, sizes: Value = None
) -> list[Value]:
    """Cut into pieces of a size, of several sizes, or of one without its axis."""
    tensor = tensor_of(x)
    axis = normal_axis(node.int("axis", 0), tensor.ndim)
    total = int(tensor.shape[axis])
    if sizes is None:
        found: list[Value] = [cut(tensor, axis, i, 1) for i in range(total)]
        if node.flag("keepdims", True):
            return found
        shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :])
        return [reshaped(part, shape) for part in found]
    given = array_of(sizes)
    if given.ndim == 0:
        step = int(single(given))
        if step < 1:
            raise ModelFormatError(f"pieces must be positive, got {step}")
        each = [min(step, total - i) for i in range(0, total, step)]
    else:
        each = [int(n) for n in extents(given)]
    if sum(each) != total:
        raise ModelFormatError(f"pieces do not fit, got {each} for {total}")
    starts = np.cumsum([0, *each[:-1]])
    return [cut(tensor, axis, int(start), size) for start, size in zip(starts, each, strict=True)]


@operator("SequenceMap", 17, form=VALUES)
def sequence_map(
    node: Node, runtime: Interpreter, sequence: Value, *more: Value
) -> tuple[list[Value], ...]:
    """Run the body on each element; other sequences go along, tensors are given to each."""
    body = node.graph("body")
    rows: list[list[Value]] = []
    for index, item in enumerate(_sequence(sequence)):
        others = [value[index] if isinstance(value, list) else value for value in more]
        rows.append(runtime.run(body, [item, *others]))
    return tuple([row[i] for row in rows] for i in range(len(body.outputs)))


@operator("Optional", 15, form=VALUES)
def optional(node: Node, runtime: Interpreter, x: Value = None) -> Value:
    return x


@operator("OptionalHasElement", 15, form=VALUES)
def optional_has_element(node: Node, runtime: Interpreter, x: Value = None) -> Known:
    return Known(np.array(x is not None))


@operator("OptionalGetElement", 15, form=VALUES)
def optional_get_element(node: Node, runtime: Interpreter, x: Value) -> Value:
    if x is None:
        raise ModelFormatError("the optional value is missing")
    return x

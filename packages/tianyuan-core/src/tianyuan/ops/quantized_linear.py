"""Define linear maps of floats with stored integer weights: int8 with activations, int4 alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import AttrError, ShapeError
from ..op import Op, Specs, TensorSpec, Work
from ..records import record
from . import quantized_rules as rules

Arrays = Sequence[np.ndarray]

LEAST_SCALE = float(np.finfo(np.float32).tiny)


@record()
class LinearDynamic:
    """Whether a bias of floats follows input, weight (out, in) of int8, and scales (out,)."""

    has_bias: bool = False


@record()
class LinearInt4:
    """How many neighbours of a row share a scale, and whether a bias of floats comes last.

    Inputs are x (..., in), bytes (out, ceil(in / 2)) and scales (out, ceil(in / group)).
    """

    group: int
    has_bias: bool = False


def _check(op: str, specs: Specs, attrs: Any, stored: str) -> None:
    count = 3 + int(attrs.has_bias)
    if len(specs) != count:
        raise AttrError(
            f"{op}: wrong number of inputs, got {len(specs)}, expected {count} with "
            f"has_bias={attrs.has_bias}"
        )
    x, w = specs[:2]
    rules.check_storage(op, x, "input", ("float32",))
    rules.check_storage(op, w, "weight", (stored,))
    rules.check_storage(op, specs[2], "scales", ("float32",))
    if x.ndim < 1 or w.ndim != 2:
        raise ShapeError(
            f"{op}: ranks are wrong, got input {rules.shape_text(x.shape)} and weight "
            f"{rules.shape_text(w.shape)}, expected (..., in) and (out, in)"
        )
    if attrs.has_bias:
        rules.check_storage(op, specs[3], "bias", ("float32",))
        _expect(op, "bias", specs[3], (int(w.shape[0]),))


def _expect(op: str, what: str, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    if tuple(map(int, spec.shape)) != shape:
        raise ShapeError(
            f"{op}: {what} has the wrong shape, got {rules.shape_text(spec.shape)}, expected "
            f"{rules.shape_text(shape)}"
        )


def _dynamic_infer(specs: Specs, attrs: LinearDynamic) -> Specs:
    op, (x, w) = "linear_dynamic", specs[:2]
    _check(op, specs, attrs, "int8")
    _expect(op, "weight", w, (int(w.shape[0]), int(x.shape[-1])))
    _expect(op, "scales", specs[2], (int(w.shape[0]),))
    x_form, w_form = (np.dtype("uint8"), (0,)), (w.dtype, (0,))
    rules.check_reduction(op, w.shape[1], x_form, w_form)
    return (TensorSpec((*x.shape[:-1], w.shape[0]), x.dtype, x.device),)


def activation_form(x: np.ndarray) -> tuple[np.float32, int] | None:
    """Return scale and zero point at which a tensor's range and 0 fill uint8.

    None where the range is not finite.
    """
    zero, levels = np.float32(0), np.float32(255)
    low, high = x.min(initial=zero), x.max(initial=zero)  # NaN stays
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.maximum((high - low) / levels, np.float32(LEAST_SCALE))
        if not np.isfinite(scale):
            return None
    return np.float32(scale), int(np.clip(np.rint(-low / scale), 0, 255))


def _dynamic_reference(arrays: Arrays, attrs: LinearDynamic) -> Arrays:
    x, w, scales = arrays[:3]
    form = activation_form(x)
    if form is None:
        return (np.full((*x.shape[:-1], w.shape[0]), np.nan, np.float32),)
    scale, zero = form
    q = np.clip(np.rint((x / scale).astype(np.float64)).astype(np.int64) + zero, 0, 255) - zero
    sums = np.matmul(q, w.astype(np.int64).T)
    y = sums.astype(np.float32) * (scales * scale)
    return (y + arrays[3] if attrs.has_bias else y,)


def _int4_infer(specs: Specs, attrs: LinearInt4) -> Specs:
    op, (x, w) = "linear_int4", specs[:2]
    if attrs.group < 1:
        raise AttrError(f"{op}: group is too small, got {attrs.group}, expected at least 1")
    _check(op, specs, attrs, "uint8")
    rows, inner = int(w.shape[0]), int(x.shape[-1])
    _expect(op, "weight", w, (rows, -(-inner // 2)))
    _expect(op, "scales", specs[2], (rows, -(-inner // attrs.group)))
    return (TensorSpec((*x.shape[:-1], w.shape[0]), x.dtype, x.device),)


def packed_int4(integers: np.ndarray) -> np.ndarray:
    """Pack integers -8..7 (out, in), two to a byte: the even one in the low half, plus 8 each."""
    given = integers.astype(np.int16) + 8
    if given.shape[1] % 2:
        given = np.pad(given, ((0, 0), (0, 1)), constant_values=8)
    return np.asarray((given[:, ::2] | given[:, 1::2] << 4).astype(np.uint8))


def unpacked_int4(stored: np.ndarray, count: int) -> np.ndarray:
    """Return the integers -8..7 (out, count) of bytes."""
    both = np.stack([stored & 15, stored >> 4], axis=-1).reshape(
        stored.shape[0], 2 * stored.shape[1]
    )
    return np.asarray(both[:, :count].astype(np.int8) - np.int8(8))


def float_weight(stored: np.ndarray, scales: np.ndarray, count: int, group: int) -> np.ndarray:
    """Return what stored weights stand for, in float32."""
    wide = np.repeat(scales, group, axis=1)[:, :count]
    return np.asarray(unpacked_int4(stored, count).astype(np.float32) * wide)


def _int4_reference(arrays: Arrays, attrs: LinearInt4) -> Arrays:
    x, stored, scales = arrays[:3]
    weight = float_weight(stored, scales, x.shape[-1], attrs.group).astype(np.float64)
    y = np.matmul(x.astype(np.float64), weight.T)
    y = y + arrays[3] if attrs.has_bias else y
    return (y.astype(np.float32),)


def _work(inputs: Specs, outputs: Specs, attrs: Any) -> Work:
    # Of the input, since a stored weight may hold two values in a byte.
    return Work(outputs[0].size * inputs[0].shape[-1])


LINEAR_DYNAMIC = Op(
    "linear_dynamic",
    infer=_dynamic_infer,
    reference=_dynamic_reference,
    attrs=LinearDynamic,
    n_inputs=(3, 4),
    work=_work,
    family="quantized",
    differentiable=False,
)
LINEAR_INT4 = Op(
    "linear_int4",
    infer=_int4_infer,
    reference=_int4_reference,
    attrs=LinearInt4,
    n_inputs=(3, 4),
    work=_work,
    family="quantized",
    differentiable=False,
)
OPS: tuple[Op, ...] = (LINEAR_DYNAMIC, LINEAR_INT4)

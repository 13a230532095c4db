"""Describe the product of floats with weights of 4 bits and the forms of these weights."""

from __future__ import annotations

import numpy as np
from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts
from tianyuan.shapes import Shape

from .._tier import Tier
from ._int8 import round_up

WEIGHT, SCALES = "int4o16k8", "og16"  # [block of 16 outputs][K / 8][16] and [block][group][16]

_CHUNK = 16  # of int8_linear_int4.cpp: rows that are integers at a time

_BANDWIDTH = 2.5e10  # bytes of weights per second
_RATE = {"avx2": 6e10, "vnni": 1.2e11}  # operations per second and thread


def _weight_extents(shape: Shape) -> Shape:
    o, count = shape
    return (-(-o // 16), -(-count // 4), 16, 4)


def _pack_weight(array: np.ndarray) -> np.ndarray:
    blocks, eights, _, _ = _weight_extents(array.shape)
    padded = np.zeros((blocks * 16, eights * 4), array.dtype)
    padded[: array.shape[0], : array.shape[1]] = array
    split = padded.reshape(blocks, 16, eights, 4)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def _unpack_weight(array: np.ndarray, shape: Shape) -> np.ndarray:
    rows = array.transpose(0, 2, 1, 3).reshape(array.shape[0] * 16, -1)
    return np.ascontiguousarray(rows[: shape[0], : shape[1]])


def _scale_extents(shape: Shape) -> Shape:
    return (-(-shape[0] // 16), shape[1], 16)


def _pack_scales(array: np.ndarray) -> np.ndarray:
    blocks, groups, _ = _scale_extents(array.shape)
    padded = np.zeros((blocks * 16, groups), array.dtype)
    padded[: array.shape[0]] = array
    return np.ascontiguousarray(padded.reshape(blocks, 16, groups).transpose(0, 2, 1))


def _unpack_scales(array: np.ndarray, shape: Shape) -> np.ndarray:
    rows = array.transpose(0, 2, 1).reshape(-1, shape[1])
    return np.ascontiguousarray(rows[: shape[0]])


def layouts() -> list[Layout]:
    """Return the layouts of weights of 4 bits and of their scales."""
    return [
        Layout(WEIGHT, 2, _weight_extents, _pack_weight, _unpack_weight, "undefined"),
        Layout(SCALES, 2, _scale_extents, _pack_scales, _unpack_scales, "undefined"),
    ]


def _extents(call: Call) -> tuple[int, int, int]:
    inner, outputs = int(call.inputs[0].shape[-1]), int(call.outputs[0].shape[-1])
    return int(call.outputs[0].size) // max(outputs, 1), outputs, inner


def _reason(call: Call) -> str | None:
    group, inner = call.attrs.group, call.inputs[0].shape[-1]
    if group % 8 == 0 or group >= inner:
        return None
    return f"serves groups of a multiple of 8 terms, got {group}"


def _workspace(call: Call) -> int:
    rows, _, inner = _extents(call)
    chunk, groups = min(rows, _CHUNK), -(-inner // call.attrs.group)
    return round_up(16 * groups * chunk, 64) + chunk * round_up(24 * -(-inner // 8), 64)


def _cost(tier: Tier, call: Call) -> float:
    rows, outputs, inner = _extents(call)
    flops = 2.0 * outputs * inner
    threads = min(float(call.threads), max(1.0, flops / 1e6))
    seconds = rows * flops / _RATE[tier.name]
    return 5e-7 + max(seconds, call.inputs[1].nbytes / _BANDWIDTH) / threads


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernel of a tier; its activations become integers of 24 bits, group by group."""
    return [
        tier.kernel(
            "linear_int4_f32",
            "digits",
            "linear_int4",
            layouts=Layouts((PLAIN, WEIGHT, SCALES, PLAIN), (PLAIN,)),
            supports=_reason,
            cost=lambda call: _cost(tier, call),
            workspace=_workspace,
        )
    ]

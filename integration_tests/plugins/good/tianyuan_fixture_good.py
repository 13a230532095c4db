"""A sound plugin: one op, one layout, three kernels, and a word in every other hook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tianyuan.plugin import Call, Kernel, Layout, Layouts, Op, TensorSpec, hookimpl

TIANYUAN_API = (1, 0)

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class ScaleShift:
    """Attributes of ``fixture_scale_shift``."""

    scale: float
    shift: float


def _infer(specs: tuple[TensorSpec, ...], attrs: ScaleShift) -> tuple[TensorSpec, ...]:
    return (specs[0],)


def _reference(arrays: Arrays, attrs: ScaleShift) -> Arrays:
    return [(arrays[0] * attrs.scale + attrs.shift).astype(arrays[0].dtype)]


def _grad(context: Any, gradients: Any) -> Any:
    return (gradients[0] * context.attrs.scale,)


SCALE_SHIFT = Op(
    "fixture_scale_shift", _infer, _reference, _grad, attrs=ScaleShift, family="elementwise"
)


def _extents(shape: tuple[int, ...]) -> tuple[int, ...]:
    n, c, h, w = shape
    return n, -(-c // 2), h, w, 2


def _pack(array: np.ndarray) -> np.ndarray:
    n, c, h, w = array.shape
    padded = np.zeros((n, -(-c // 2) * 2, h, w), array.dtype)
    padded[:, :c] = array
    return np.ascontiguousarray(padded.reshape(n, -1, 2, h, w).transpose(0, 1, 3, 4, 2))


def _unpack(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    n, c, h, w = shape
    return np.ascontiguousarray(array.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c])


NCHW2C = Layout("fixture_nchw2c", 4, _extents, _pack, _unpack)


def _run_scale_shift(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, space: Any) -> None:
    np.multiply(inputs[0], attrs.scale, out=outputs[0])
    np.add(outputs[0], attrs.shift, out=outputs[0])


def _run_square(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, space: Any) -> None:
    np.multiply(inputs[0], inputs[0], out=outputs[0])


def _one_dimension(call: Call) -> str | None:
    return None if call.inputs[0].ndim == 1 else "serves one dimension only"


KERNELS = (
    Kernel("scale_shift_any__fixture", SCALE_SHIFT.name, _run_scale_shift),
    Kernel(
        "square_f32__fixture_flat",
        "square",
        _run_square,
        dtypes=("float32",),
        supports=_one_dimension,
        cost=lambda call: 0.0,
    ),
    Kernel(
        "square_f32__fixture_nchw2c",
        "square",
        _run_square,
        dtypes=("float32",),
        layouts=Layouts((NCHW2C.name,), (NCHW2C.name,)),
        # So cheap that repacking pays for any size.
        cost=lambda call: -1.0,
    ),
)


@hookimpl
def tianyuan_ops() -> tuple[Op, ...]:
    return (SCALE_SHIFT,)


@hookimpl
def tianyuan_layouts() -> tuple[Layout, ...]:
    return (NCHW2C,)


@hookimpl
def tianyuan_kernels(device: str) -> tuple[Kernel, ...]:
    return KERNELS if device == "cpu" else ()


@hookimpl
def tianyuan_passes(device: str) -> tuple[Any, ...]:
    from tianyuan.graph.passes import Pass

    return (Pass("canonical", "fixture_nothing", lambda graph, options: graph),)


@hookimpl
def tianyuan_compile(program: Any, device: str) -> str:
    return "the fixture compiles nothing"


@hookimpl
def tianyuan_communicators() -> dict[str, Any]:
    return {"fixture": object}


@hookimpl
def tianyuan_namespaces() -> dict[str, str]:
    return {"fixture_good": __name__}


@hookimpl
def tianyuan_report() -> dict[str, Any]:
    return {"mood": "good"}

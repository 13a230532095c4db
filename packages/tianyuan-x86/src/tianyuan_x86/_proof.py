"""Decide whether kernels compute on this machine what their ops define, before they are offered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from tianyuan import registry
from tianyuan.imperative.dispatch import bind_kernel, empty, logical
from tianyuan.kernel import BF16, PLAIN, Call, Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.conv import Conv2d, Conv2dFused
from tianyuan.ops.matmul import Matmul, MatmulFused
from tianyuan.ops.quantized_linear import LinearDynamic
from tianyuan.ops.quantized_product import Conv2dQuantized, MatmulQuantized
from tianyuan.ops.reference import evaluate

from .kernels import _bf16 as b16
from .kernels import _int8 as q8

_COMMON: dict[str, Any] = {
    "residual_zero_point": 3,
    "residual_multiplier": 0.5,
    "scale": 1.0,
    "zero_point": -3,
    "dtype": "int8",
    "lower": -128,
    "upper": 120,
}


def disproof(kernels: Iterable[Kernel]) -> str | None:
    """Return what the first wrong kernel got wrong, or None where all results are as defined.

    Every kernel of an op of which there are small calls here must serve one of them.
    """
    prepared = [(call, arrays, evaluate(call.op, arrays, call.attrs)) for call, arrays in _calls()]
    for kernel in kernels:
        ran = 0
        for call, arrays, want in prepared:
            if call.op.name != kernel.op or registry.refusal(kernel, call) is not None:
                continue
            ran += 1
            got = _run(kernel, call, arrays)
            wrong = _wrong(kernel, got, want[0])
            if wrong:
                shapes = " and ".join(str(spec.shape) for spec in call.inputs[:2])
                return f"{kernel.name} gave {wrong} of {got.size} wrong numbers for {shapes}"
        if not ran and any(call.op.name == kernel.op for call, _, _ in prepared):
            return f"{kernel.name} serves no call that could prove it"
    return None


def _wrong(kernel: Kernel, got: np.ndarray, want: np.ndarray) -> int:
    """Count the results that are not the defined ones.

    Integers are exact. Operands in bfloat16 come rounded, so that only the order of float32 sums
    and the form in which results are kept let theirs differ.
    """
    if kernel.precision != BF16:
        return int((got != want).sum())
    kept = kernel.layouts.of_output(0) != PLAIN
    limit = (b16.ROUNDING if kept else 1e-5) * np.abs(want).max()
    return int((~(np.abs(got - want) <= limit)).sum())


def _calls() -> Iterator[tuple[Call, list[np.ndarray]]]:
    """Yield products that fill tiles in whole and in part, in place and copied or gathered."""
    yield from _integer_calls()
    yield from _pair_calls()


def _pair_calls() -> Iterator[tuple[Call, list[np.ndarray]]]:
    """Yield products of float32 operands that bfloat16 holds."""
    rng = np.random.default_rng(2)
    for c, o, kernel, stride in ((40, 48, 1, 1), (20, 33, 3, 1), (16, 16, 3, 2)):
        place = ((stride, stride), (kernel // 2,) * 4)
        x, w = _rounded(rng, 1, c, 5, 9), _rounded(rng, o, c, kernel, kernel)
        y = _rounded(rng, 1, o, (5 - 1) // stride + 1, (9 - 1) // stride + 1)
        yield _call("conv2d", [x, w], Conv2d(*place))
        ends: dict[str, Any] = {"has_residual": True, "activation": "relu"}
        biased = Conv2dFused(*place, has_bias=True, **ends)
        yield _call("conv2d_fused", [x, w, _rounded(rng, o), y], biased)
        yield _call("conv2d_fused", [x, w, y], Conv2dFused(*place, **ends))
    for transposed in (False, True):
        for a_shape, n in (((35, 75), 50), ((1, 35, 64), 96)):
            a, b = _rounded(rng, *a_shape), _rounded(rng, a_shape[-1], n)
            b = np.ascontiguousarray(b.T) if transposed else b
            yield _call("matmul", [a, b], Matmul(transpose_b=transposed))
            fused = MatmulFused(transpose_b=transposed, has_bias=True, activation="relu")
            yield _call("matmul_fused", [a, b, _rounded(rng, n)], fused)


def _rounded(rng: np.random.Generator, *shape: int) -> np.ndarray:
    found: np.ndarray = rng.standard_normal(shape).astype(bfloat16).astype(np.float32)
    return found


def _integer_calls() -> Iterator[tuple[Call, list[np.ndarray]]]:
    rng = np.random.default_rng(1)
    for c, o, kernel, stride, dtype, biased in (
        (64, 48, 1, 1, "int8", True),
        (20, 33, 3, 1, "uint8", True),
        (40, 16, 3, 2, "uint8", False),
    ):
        attrs = Conv2dQuantized(
            stride=(stride, stride), padding=(kernel // 2,) * 4, dilation=(1, 1), groups=1,
            has_bias=biased, has_residual=True, x_zero_point=5, w_zero_points=(0,),
            multipliers=tuple(2.0**-12 * (1 + i % 3) for i in range(o)), **_COMMON,
        )  # fmt: skip
        x, w = _bytes(rng, (1, c, 5, 9), dtype), _bytes(rng, (o, c, kernel, kernel), "int8")
        rest = [rng.integers(-9999, 9999, o).astype(np.int32)] if biased else []
        y = ((5 - 1) // stride + 1, (9 - 1) // stride + 1)
        yield _call("conv2d_quantized", [x, w, *rest, _bytes(rng, (1, o, *y), "uint8")], attrs)
    for transposed, dtype in ((False, "uint8"), (True, "int8")):
        product = MatmulQuantized(
            transpose_a=False, transpose_b=transposed, has_bias=False, has_residual=True,
            x_zero_point=7, w_zero_points=(2,), multipliers=(2.0**-11,), **_COMMON,
        )  # fmt: skip
        x, w = _bytes(rng, (35, 68), dtype), _bytes(rng, (68, 50), "int8")
        w = np.ascontiguousarray(w.T) if transposed else w
        yield _call("matmul_quantized", [x, w, _bytes(rng, (35, 50), "int8")], product)
    floats = rng.standard_normal((35, 68)).astype(np.float32)
    scales = rng.uniform(0.5, 2.0, 50).astype(np.float32)
    yield _call("linear_dynamic", [floats, _bytes(rng, (50, 68), "int8"), scales], LinearDynamic())


def _bytes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def _call(name: str, arrays: list[np.ndarray], attrs: Any) -> tuple[Call, list[np.ndarray]]:
    op = registry.get_op(name)
    specs = tuple(TensorSpec(array.shape, array.dtype) for array in arrays)
    return Call(op, specs, op.infer(specs, attrs), attrs, 1), arrays


def _run(kernel: Kernel, call: Call, arrays: list[np.ndarray]) -> np.ndarray:
    """Run a kernel through layouts of this package, since the registry may wait for this proof."""
    known = {layout.name: layout for layout in (*q8.all_layouts(), *b16.all_layouts())}
    inputs = []
    for index, array in enumerate(arrays):
        name = kernel.layouts.of_input(index)
        inputs.append(array if name == PLAIN else known[name].pack(array))
    spec, name = call.outputs[0], kernel.layouts.of_output(0)
    output = empty(spec.shape if name == PLAIN else known[name].extents(spec.shape), spec.dtype)
    size = kernel.workspace(call)
    bind_kernel(kernel, call)(
        [logical(a, s.shape) for a, s in zip(inputs, call.inputs, strict=True)],
        [logical(output, spec.shape)],
        empty((size,), np.dtype(np.uint8)) if size else None,
    )
    return output if name == PLAIN else known[name].unpack(output, spec.shape)

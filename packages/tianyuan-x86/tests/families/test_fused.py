"""Fused chains against the same chain written in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tianyuan.ops.codes import ELEMENTWISE_CODES

F = np.float32
SHAPES = [(7,), (3, 5), (2, 3, 20, 30), (4, 5, 6, 7), (), (0, 4), (70000,), (3, 5, 40, 50)]


def program(*lines: tuple[Any, ...], constants: Any = (), outputs: Any) -> dict[str, Any]:
    """Return the attributes of a program given as lines of op name and registers."""
    code = []
    for name, *registers in lines:
        code += [ELEMENTWISE_CODES[name], *registers, *[0] * (3 - len(registers))]
    return {"code": tuple(code), "constants": tuple(constants), "outputs": tuple(outputs)}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_program(apply: Any, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    """Channels, a scalar, masks of two shapes, constants, float and bool outputs."""
    x = np.asarray(rng.normal(size=shape), F)
    scale = rng.normal(size=(shape[1], 1, 1) if len(shape) == 4 else shape[-1:]).astype(F)
    shift = F(1.5)
    mask, row = np.asarray(rng.random(shape) < 0.5), np.asarray(rng.random(shape[-1:]) < 0.5)
    attrs = program(
        ("mul", 0, 1), ("add", 7, 2), ("relu", 8), ("add", 9, 5), ("where", 3, 10, 0),
        ("greater", 10, 11), ("logical_and", 12, 4), ("tanh", 11), ("mul", 14, 6),
        constants=[2.0, 0.25], outputs=[15, 13, 10],
    )  # fmt: skip
    last, truth, middle = apply("fused_elementwise", x, scale, shift, mask, row, **attrs)
    y = np.maximum(x * scale + shift, 0) + F(2)
    t = np.where(mask, y, x)
    np.testing.assert_allclose(last, np.tanh(t) * F(0.25), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(truth, (y > t) & row)
    np.testing.assert_allclose(middle, y, rtol=1e-6)


def test_registers_are_reused_safely(apply: Any, rng: np.random.Generator) -> None:
    """A long chain in which early results are read late."""
    x = rng.normal(size=(3000,)).astype(F)
    lines: list[tuple[Any, ...]] = [("mul", 0, 0)]
    want = [x, x * x]
    for i in range(2, 60):
        early = i // 2
        lines.append(("add", i - 1, early) if i % 2 else ("sub", early, i - 1))
        want.append(want[i - 1] + want[early] if i % 2 else want[early] - want[i - 1])
    got = apply("fused_elementwise", x, **program(*lines, outputs=[59, 30, 17]))
    for result, register in zip(got, (59, 30, 17), strict=True):
        np.testing.assert_allclose(result, want[register], rtol=1e-4, atol=1e-3)


def test_input_of_one_shape_may_be_overwritten(apply: Any, rng: np.random.Generator) -> None:
    from tianyuan import registry
    from tianyuan.imperative.dispatch import bind_kernel, empty
    from tianyuan.kernel import Call
    from tianyuan.op import TensorSpec

    op = registry.get_op("fused_elementwise")
    attrs = op.attrs(**program(("relu", 0), ("add", 2, 1), ("mul", 3, 0), outputs=[4, 3]))
    x, y = (rng.normal(size=(5000,)).astype(F) for _ in range(2))
    specs = (TensorSpec(x.shape, x.dtype),) * 2
    call = Call(op, specs, op.infer(specs, attrs), attrs, 2)
    total = np.maximum(x, 0) + y
    want = (total * x, total)
    kernels = [
        k
        for k in registry.candidates(op.name, "cpu", "x86")
        if k.backend == "x86" and registry.refusal(k, call) is None
    ]
    assert kernels
    for kernel in kernels:
        a, b = x.copy(), y.copy()
        scratch = empty((kernel.workspace(call),), np.dtype(np.uint8))
        bind_kernel(kernel, call)([a, b], [a, b], scratch)
        np.testing.assert_allclose(a, want[0], rtol=1e-6)
        np.testing.assert_allclose(b, want[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("attrs", "arrays", "reason"),
    [
        (program(("add", 0, 0), outputs=[1]), [np.ones(3, np.int32)], "float32 and bool"),
        (program(("add", 0, 0), outputs=[1]), [np.ones(3, bool)], "not float32"),
        (program(("neg", 0), outputs=[1, 0]), [np.ones(3, F)], "is an input"),
    ],
)
def test_refusals(apply: Any, attrs: Any, arrays: Any, reason: str) -> None:
    with pytest.raises(LookupError, match=reason):
        apply("fused_elementwise", *arrays, **attrs)

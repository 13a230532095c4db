"""One op for a chain of elementwise ops, told as a small register program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dtypes import as_dtype, is_float
from ..errors import AttrError, DTypeError, ShapeError
from ..op import NoAttrs, Op, Specs, TensorSpec, Work
from . import attrs as a
from . import elementwise
from .codes import ELEMENTWISE

BY_CODE: tuple[Op, ...] = tuple(
    {op.name: op for op in elementwise.OPS}[name] for name in ELEMENTWISE
)
WIDTH = 4  # ints per instruction


def instructions(attrs: a.FusedElementwise) -> list[tuple[Op, tuple[int, ...]]]:
    """Return each instruction's op and the registers that it reads.

    Raises:
        AttrError: where the code is cut short or holds an unknown opcode.
    """
    if len(attrs.code) % WIDTH:
        raise AttrError(
            f"fused_elementwise: code is cut short, got {len(attrs.code)} ints, "
            f"expected a multiple of {WIDTH}"
        )
    found: list[tuple[Op, tuple[int, ...]]] = []
    for start in range(0, len(attrs.code), WIDTH):
        opcode, *registers = attrs.code[start : start + WIDTH]
        if not 0 <= opcode < len(BY_CODE):
            raise AttrError(
                f"fused_elementwise: unknown opcode, got {opcode}, expected 0 to {len(BY_CODE) - 1}"
            )
        op = BY_CODE[opcode]
        assert isinstance(op.n_inputs, int)
        found.append((op, tuple(registers[: op.n_inputs])))
    return found


def constant_dtype(dtypes: Sequence[Any]) -> Any:
    """Return the dtype of constants: that of the first float input, else of the first input."""
    return next((dtype for dtype in dtypes if is_float(dtype)), dtypes[0])


def _read(registers: Sequence[Any], indices: Sequence[int]) -> tuple[Any, ...]:
    for index in indices:
        if not 0 <= index < len(registers):
            raise AttrError(
                f"fused_elementwise: register is not set, got {index}, "
                f"expected 0 to {len(registers) - 1}"
            )
    return tuple(registers[index] for index in indices)


def _infer(specs: Specs, attrs: a.FusedElementwise) -> Specs:
    dtype = as_dtype(constant_dtype([spec.dtype for spec in specs]))
    registers = [*specs, *(TensorSpec((), dtype, specs[0].device) for _ in attrs.constants)]
    for op, operands in instructions(attrs):
        try:
            registers += op.infer(_read(registers, operands), NoAttrs())
        except (ShapeError, DTypeError) as error:
            raise type(error)(f"fused_elementwise: {error}") from None
    if not attrs.outputs:
        raise AttrError("fused_elementwise: no output is named, got (), expected at least one")
    return _read(registers, attrs.outputs)


def _decompose(inputs: tuple[Any, ...], attrs: a.FusedElementwise) -> Any:
    dtype = constant_dtype([x.dtype for x in inputs])
    registers = [*inputs, *(inputs[0].full((), value, dtype) for value in attrs.constants)]
    for op, operands in instructions(attrs):
        registers.append(op(*_read(registers, operands)))
    return _read(registers, attrs.outputs)


def _work(inputs: Specs, outputs: Specs, attrs: a.FusedElementwise) -> Work:
    return Work(others=outputs[0].size * len(instructions(attrs)))


FUSED_ELEMENTWISE = Op(
    "fused_elementwise",
    infer=_infer,
    decompose=_decompose,
    attrs=a.FusedElementwise,
    n_inputs=(1, -1),
    work=_work,
    family="elementwise",
)

OPS: tuple[Op, ...] = (FUSED_ELEMENTWISE,)

"""Describe the kernel of fused_elementwise: which programs the float32 interpreter takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from tianyuan import registry
from tianyuan.kernel import SAME, Call, Kernel, Layouts
from tianyuan.ops.attrs import FusedElementwise
from tianyuan.ops.codes import ELEMENTWISE, ELEMENTWISE_CODES
from tianyuan.ops.reference import evaluate

from .._tier import Tier
from ._cost import memory_cost
from ._padded import padded_images
from .layouts import activation_layout

# As in native/kernels/fused.cpp and walk.hpp.
_BLOCK = 512
_MAX_INPUTS, _MAX_CONSTANTS, _MAX_INSTRUCTIONS = 24, 64, 128
_MAX_OUTPUTS = 8

_FIRST_BINARY, _WHERE = ELEMENTWISE_CODES["add"], ELEMENTWISE_CODES["where"]
_COMPARISONS = {
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf",
}  # fmt: skip
_OF_TRUTH = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "maximum", "minimum"}
_NANOSECONDS = 0.06  # per element of a cheap instruction in L1
_HEAVY = {
    "exp": 0.4, "log": 0.4, "expm1": 0.5, "log1p": 0.6, "tanh": 0.6, "sigmoid": 0.5, "silu": 0.5,
    "gelu": 0.8, "erf": 0.7, "softplus": 1.0, "sin": 0.4, "cos": 0.4, "pow": 6.0, "logaddexp": 1.0,
    "div": 0.15, "sqrt": 0.15, "rsqrt": 0.3,
}  # fmt: skip


def _instructions(code: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for at in range(0, len(code), 4):
        opcode, *operands = (int(word) for word in code[at : at + 4])
        arity = 3 if opcode == _WHERE else 1 if opcode < _FIRST_BINARY else 2
        found.append((ELEMENTWISE[opcode], tuple(operands[:arity])))
    return found


def _result_is_truth(name: str, truths: list[bool]) -> bool | None:
    """Return whether a result is bool, or None where the operands' dtypes are not served."""
    if name == "where":
        return truths[1] if truths[0] and truths[1] == truths[2] else None
    if len(set(truths)) != 1:
        return None
    if name in _COMPARISONS:
        return True
    if truths[0]:
        return True if name in _OF_TRUTH else None
    return None if name.startswith("bitwise") or name.endswith("shift") else False


def _supports(call: Call) -> str | None:
    code, outputs = call.attrs.code, call.attrs.outputs
    if any(spec.dtype.name not in ("float32", "bool") for spec in call.inputs):
        return "serves float32 and bool inputs"
    if len(call.inputs) > _MAX_INPUTS or len(call.attrs.constants) > _MAX_CONSTANTS:
        return f"has more than {_MAX_INPUTS} inputs or {_MAX_CONSTANTS} constants"
    if not 0 < len(code) // 4 <= _MAX_INSTRUCTIONS or len(outputs) > _MAX_OUTPUTS:
        return f"has more than {_MAX_INSTRUCTIONS} instructions or {_MAX_OUTPUTS} outputs"
    if any(spec.shape != call.outputs[0].shape for spec in call.outputs):
        return "outputs differ in shape"
    truths = [spec.dtype.kind == "b" for spec in call.inputs]
    constant_is_truth = all(truths)
    truths += [constant_is_truth] * len(call.attrs.constants)
    first = len(truths)
    for name, operands in _instructions(code):
        result = _result_is_truth(name, [truths[r] for r in operands])
        if result is None:
            return f"{name} has operands that are not float32"
        truths.append(result)
    return "an output is an input" if any(int(r) < first for r in outputs) else None


def _cost(call: Call) -> float:
    per_element = sum(_HEAVY.get(n, _NANOSECONDS) for n, _ in _instructions(call.attrs.code))
    size = call.outputs[0].size
    threads = max(1, min(call.threads, size // 8192))
    return 5e-7 + memory_cost(call) + size * per_element * 1e-9 / threads


def _workspace(call: Call) -> int:
    registers = len(call.inputs) + len(call.attrs.code) // 4
    return registers * _BLOCK * 4 * max(1, call.threads)


@lru_cache(maxsize=1024)
def _keeps_zero(attrs: FusedElementwise, dtypes: tuple[np.dtype, ...]) -> bool:
    """Tell whether a program gives zeros for zeros."""
    zeros = [np.zeros((), dtype) for dtype in dtypes]
    with np.errstate(all="ignore"):
        results = evaluate(registry.get_op("fused_elementwise"), zeros, attrs)
    return all(bool(np.all(result == 0)) for result in results)


def _supports_padded(lanes: int) -> Callable[[Call], str | None]:
    images = padded_images(lanes)

    def supports(call: Call) -> str | None:
        reason = images(call) or _supports(call)
        if reason is not None:
            return reason
        dtypes = tuple(spec.dtype for spec in call.inputs)
        return None if _keeps_zero(call.attrs, dtypes) else "does not keep padding lanes zero"

    return supports


def kernels(tier: Tier) -> list[Kernel]:
    """Return the fused elementwise kernels of a tier: for any layout, and for padded blocks."""
    blocked = activation_layout(tier.lanes)
    forms = (
        ("blocks", _supports, Layouts((SAME,), (SAME,))),
        ("padded", _supports_padded(tier.lanes), Layouts((blocked,), (blocked,))),
    )
    return [
        tier.kernel(
            "fused_elementwise_f32",
            variant,
            "fused_elementwise",
            supports=supports,
            cost=_cost,
            workspace=_workspace,
            layouts=layouts,
            inplace=tuple((o, i) for o in range(_MAX_OUTPUTS) for i in range(_MAX_INPUTS)),
        )
        for variant, supports, layouts in forms
    ]

"""Say, op by op, what the kit proves of it, and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..dtypes import as_dtype, is_float
from ..errors import TianyuanError
from ..op import Op, Specs
from ..registry import get_op
from .cases import Case, all_invalid, cases_of, specs_of
from .oracles import ORACLES, Oracle
from .oracles_norm import NORMS
from .oracles_quantized import EXACT
from .oracles_update import UPDATES
from .oracles_window import WINDOWS
from .special import NUMPY

# Whole answers; those of quantised ops are computed element by element.
ANSWERS: dict[str, Oracle] = {**ORACLES, **WINDOWS, **NORMS, **UPDATES}
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip

# Copies take every tensor there is.
TAKES_ALL = frozenset({"copy", "relayout"})
# Factors are unique up to signs only, so a test checks what makes them factors; svd also refuses
# what is not finite.
FACTORS = frozenset({"svd"})
# Ops of a family that do not broadcast although they take several inputs.
ALIKE = frozenset({"concat_quantized", "fused_elementwise"})
# Their cases hold NaN and infinities themselves; others take integers, or weights that are stored.
STATES_SPECIAL = frozenset({"quantize", "linear_dynamic", "linear_int4"})


@dataclass(frozen=True)
class Proof:
    """The table of one op.

    Attributes:
        op: the op.
        cases, invalid: how many calls it is checked on, and how many it must refuse.
        oracle: where an independent answer comes from: ``whole``, ``exact`` (single elements in
            exact arithmetic), ``factors`` or none.
        gradients: how many calls have both derivatives checked; None where there are none.
        sizes: which of ``empty``, ``single``, ``odd``, ``broadcast`` its calls show.
        dtypes: which dtypes of the first input (of the result, without inputs) its calls show.
        declared: which dtypes inference accepts in place of that one.
        special: how NaN and infinities are checked: ``numpy``, ``planted``, ``stated`` or ``none``
            for ops without floats.
    """

    op: Op
    cases: int
    invalid: int
    oracle: str
    gradients: int | None
    sizes: frozenset[str]
    dtypes: frozenset[str]
    declared: frozenset[str]
    special: str


def proof_of(name: str) -> Proof:
    """Return the table of an op."""
    op, cases = get_op(name), cases_of(name)
    seen = [(case, *_specs(op, case)) for case in cases]
    return Proof(
        op,
        len(cases),
        sum(case.op == name for case in all_invalid()),
        _oracle(name),
        sum(bool(case.grad) for case in cases) if op.differentiable else None,
        frozenset(word for _, inputs, outputs in seen for word in _sizes(inputs, outputs)),
        frozenset((inputs or outputs)[0].dtype.name for _, inputs, outputs in seen),
        frozenset(dtype for case, inputs, _ in seen for dtype in _declared(op, case, inputs)),
        _special(name, [inputs for _, inputs, _ in seen]),
    )


def lacks(name: str) -> list[str]:
    """Return what an op's table lacks, in words."""
    proof = proof_of(name)
    found = [] if proof.cases else ["a valid call"]
    if not proof.invalid and name not in TAKES_ALL:
        found.append("an invalid call")
    if not proof.oracle:
        found.append("an independent oracle")
    if proof.gradients == 0:
        found.append("a gradient check")
    wanted = {"empty", "single", "odd"}
    if proof.op.family == "elementwise" and proof.op.n_inputs != 1 and name not in ALIKE:
        wanted.add("broadcast")
    found += [f"sizes: {word}" for word in sorted(wanted - proof.sizes)]
    found += [f"dtype: {name}" for name in sorted(proof.declared - proof.dtypes)]
    if not proof.special:
        found.append("NaN and infinities")
    return found


def _specs(op: Op, case: Case) -> tuple[Specs, Specs]:
    inputs = specs_of(case.arrays())
    return inputs, op.infer(inputs, case.attrs)


def _oracle(name: str) -> str:
    if name in ANSWERS:
        return "whole"
    if name in EXACT:
        return "exact"
    return "factors" if name in FACTORS else ""


def _sizes(inputs: Specs, outputs: Specs) -> list[str]:
    every = (*inputs, *outputs)
    found = ["empty"] if any(spec.size == 0 for spec in every) else []
    if any(spec.size == 1 or 1 in spec.shape for spec in every):
        found.append("single")
    if any(spec.size > 4 and spec.size % 4 for spec in every):
        found.append("odd")
    if len({spec.shape for spec in inputs}) > 1:
        found.append("broadcast")
    return found


def _declared(op: Op, case: Case, inputs: Specs) -> list[str]:
    """Return the dtypes that inference accepts in place of the first input's."""
    if not inputs:
        return []
    first, found = inputs[0].dtype, []
    for name in DTYPES:
        dtype = as_dtype(name)
        other = tuple(replace(s, dtype=dtype) if s.dtype == first else s for s in inputs)
        try:
            op.infer(other, case.attrs)
        except TianyuanError:
            continue
        found.append(name)
    return found


def _special(name: str, seen: Sequence[Specs]) -> str:
    if not any(is_float(spec.dtype) for inputs in seen for spec in inputs):
        return "none"
    if name in NUMPY:
        return "numpy"
    if name in STATES_SPECIAL or name in FACTORS:
        return "stated"
    return "planted" if name in ANSWERS else ""


def small_cases(name: str, limit: int, floats: bool = False) -> list[Case]:
    """Return small calls that differ in dtypes and ranks, on request those of floats only."""
    cases = [case for case in cases_of(name) if _volume(case) <= 4096]
    if floats:
        cases = [c for c in cases if c.inputs and is_float(c.arrays()[0].dtype)]
    chosen: dict[Any, Case] = {}
    for case in cases:
        specs = specs_of(case.arrays())
        key = (tuple((s.dtype.name, s.ndim, 0 in s.shape) for s in specs), type(case.attrs))
        chosen.setdefault(key, case)
    return list(chosen.values())[:limit]


def _volume(case: Case) -> int:
    return sum(x.size for x in case.arrays())


def flipped(array: np.ndarray) -> np.ndarray:
    """Return a view of equal values whose strides are negative along every axis."""
    back = (slice(None, None, -1),) * array.ndim
    return np.asarray(array[back].copy()[back])

"""Compute in integers what stands between layers, and let a network's own ops meet integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan.functional.quantized import QuantizedDType
from tianyuan.ops import quantized_rules as rules

from .. import qat
from ..params import HostParams, host_params
from ..qat.product import BOUNDS, activate
from ..registration import register_quantized
from ..sites import Forward, Run
from ..watch import IN_RANGE, MOVES, run_op
from .module import (
    QuantizedModule,
    dequantise,
    emit,
    integers_of,
    note_rounding,
    on_tensors,
    quantise,
    source_of,
)


def _per_tensor(values: Sequence[Any]) -> list[Tensor] | None:
    """Return the quantised tensors behind operands, or None where there is one without, or none."""
    sources = [source_of(value) for value in values]
    known = [s for s in sources if s.qparams is not None and s.qparams.axis < 0]
    return known if known and len(known) == len(sources) else None


def add(values: Sequence[Tensor], result: HostParams, epilogue: str) -> Tensor:
    """Add two quantised tensors."""
    a, b = (value.qparams for value in values)
    assert a is not None
    assert b is not None
    scale = result.scales[0]
    return emit(
        "add_quantized",
        *values,
        a_zero_point=a.zero_points[0],
        b_zero_point=b.zero_points[0],
        a_multiplier=rules.multiplier(a.scales[0], scale),
        b_multiplier=rules.multiplier(b.scales[0], scale),
        **result.form(*BOUNDS[epilogue]),
    )


def concat(values: Sequence[Tensor], axis: int, result: HostParams, epilogue: str) -> Tensor:
    """Join quantised tensors, each brought to the result's scale."""
    params = [value.qparams for value in values]
    known = [p for p in params if p is not None]
    return emit(
        "concat_quantized",
        *values,
        axis=axis,
        x_zero_points=tuple(p.zero_points[0] for p in known),
        multipliers=tuple(rules.multiplier(p.scales[0], result.scales[0]) for p in known),
        **result.form(*BOUNDS[epilogue]),
    )


def _average(x: Tensor, name: str, places: dict[str, Any], result: HostParams, epi: str) -> Tensor:
    quant = x.qparams
    assert quant is not None
    return emit(
        name,
        x,
        **places,
        x_zero_point=quant.zero_points[0],
        multiplier=rules.multiplier(quant.scales[0], result.scales[0]),
        **result.form(*BOUNDS[epi]),
    )


def _averaged(x: Tensor, op: Any, attrs: Any, result: HostParams, epi: str) -> Tensor | None:
    """Return an average pool of a quantised tensor in integers; None for another op."""
    if op.name == "avg_pool2d":
        return _average(x, "avg_pool2d_quantized", dict(vars(attrs)), result, epi)
    if op.name == "adaptive_avg_pool2d":
        return _average(x, "adaptive_avg_pool2d_quantized", {"size": attrs.size}, result, epi)
    return None


class QuantizedSite(QuantizedModule):
    """One op between layers, in integers where it has such a form.

    >>> from ..params import create_qparams
    >>> form = create_qparams(dtype_meta="qint8", scale=0.5).host("sum")
    >>> site = QuantizedSite("sum", form, "relu")
    >>> site(Tensor([1.2, -3.0])).tolist()
    [2, 0]
    """

    def __init__(self, owner: str, result: HostParams, epilogue: str) -> None:
        super().__init__(owner, result)
        self.epilogue = epilogue

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a place in training form."""
        return cls(owner, qat_module.host_activation(owner), qat_module.epilogue)

    def forward(self, inp: Tensor) -> Tensor:
        """Quantise floats."""
        return quantise(activate(dequantise(inp), self.epilogue), self.result)

    def run(self, op: Any, operands: Sequence[Any], attrs: Any) -> Tensor:
        """Compute an op of the network and quantise its result."""
        found = self._integers(op, operands, attrs)
        if found is not None:
            return found
        result: Tensor = self(run_op(op, [dequantise(x) for x in operands], attrs))
        return result

    def _integers(self, op: Any, operands: Sequence[Any], attrs: Any) -> Tensor | None:
        values = _per_tensor(operands)
        if values is None:
            return None
        x, form = values[0], (self.result, self.epilogue)
        if op.name == "add":
            return add(values, *form)
        if op.name == "concat":
            return concat(values, attrs.axis, *form)
        if op.name == "mean" and x.ndim == 4 and attrs.axes == (2, 3):
            y = _average(x, "adaptive_avg_pool2d_quantized", {"size": (1, 1)}, *form)
            return y if attrs.keepdims else y.reshape(y.shape[0], y.shape[1])
        return _averaged(x, op, attrs, *form)


class QuantizedRun(Run):
    """The interceptor of one call of a network in integers.

    The network's own code sees the numbers that integers stand for, so that whatever it does with
    a tensor's dtype or values is what it did in floats.
    """

    def plain(self, op: Any, operands: Sequence[Any], attrs: Any) -> Any:
        """Move integers as they are; give any other op the numbers that they stand for."""
        x = source_of(operands[0]) if operands else None
        if x is not None and x.qparams is not None:
            if op.name in MOVES:
                return self.numbers(run_op(op, [x, *operands[1:]], attrs))
            if op.name in ("relu", "relu6"):
                return self.numbers(_bounded(x, op.name))
        if op.name == "concat":
            values = [source_of(value) for value in operands]
            if values[0].qparams is not None and len({v.qparams for v in values}) == 1:
                return self.numbers(run_op(op, values, attrs))
        result = run_op(op, [dequantise(value) for value in operands], attrs)
        if op.name in IN_RANGE or op.name in MOVES:
            self._round(op, operands, attrs, result)
        return result

    def _round(self, op: Any, operands: Sequence[Any], attrs: Any, result: Tensor) -> None:
        """Keep integers at the input's scale for a layer that reads the result, as MegEngine does.

        What reads the floats has them exact; integers that nobody reads are dropped from traces.
        """
        x = integers_of(operands[0])
        quant = x.qparams
        if quant is None or quant.axis >= 0:
            return
        if op.name in MOVES:
            note_rounding(result, run_op(op, [x, *operands[1:]], attrs))
            return
        form = QuantizedDType(x.dtype.name, quant.scales[0], quant.zero_points[0])
        params = host_params(form, op.name)
        found = _averaged(x, op, attrs, params, "identity")
        note_rounding(result, quantise(result, params) if found is None else found)

    def placed(self, site: Any, op: Any, operands: Sequence[Any], attrs: Any) -> Any:
        """Run an op in integers where it has such a form."""
        return self.numbers(site.run(op, operands, attrs))

    def numbers(self, outputs: Any) -> Any:
        """Return what integers stand for; layers find the integers behind it."""
        return on_tensors(dequantise, outputs)

    def unit_inputs(self, inputs: Any) -> Any:
        """Give a unit numbers."""
        return tuple(dequantise(x) if isinstance(x, Tensor) else x for x in inputs)


def _bounded(x: Tensor, name: str) -> Tensor:
    """Bound integers, which passes drop where they are bounded already."""
    quant = x.qparams
    assert quant is not None
    low, high = rules.quant_range(x.dtype.name)
    zero, (lower, upper) = quant.zero_points[0], BOUNDS[name]
    top = high if upper == float("inf") else min(high, zero + round(upper / quant.scales[0]))
    return emit(
        "requantize", x, x_zero_point=zero, multiplier=1.0, scale=quant.scales[0], zero_point=zero,
        dtype=x.dtype.name, lower=max(low, zero + int(lower)), upper=top,
    )  # fmt: skip


class QuantizedForward(Forward):
    """A network's forward in integers; floats come in and go out.

    >>> import numpy as np
    >>> from ..static import quantize_static
    >>> net = quantize_static(M.Sequential(M.Linear(2, 2)), [np.ones((4, 2), np.float32)]).module
    >>> type(net.forward).__name__
    'QuantizedForward'
    """

    def run(self) -> Run:
        """Return the interceptor of one call."""
        return QuantizedRun(self)

    def enter(self, index: int, value: Any) -> Any:
        """Quantise an input where a place asks for it; the network sees its numbers."""
        return dequantise(super().enter(index, value))

    def leave(self, outputs: Any) -> Any:
        """Return numbers, not integers, as a network that is one layer would."""
        return on_tensors(dequantise, outputs)


@register_quantized(qat.QuantStub)
class QuantStub(QuantizedModule):
    """Quantise what enters a network.

    Args:
        dtype: how, such as ``functional.quantized.qint8(scale)``.

    >>> from tianyuan.functional.quantized import qint8
    >>> QuantStub(qint8(0.5))(Tensor([1.0, -2.0])).tolist()
    [2, -4]
    """

    def __init__(self, dtype: Any = None, owner: str = "", **kwargs: Any) -> None:
        super().__init__(owner, dtype, **kwargs)

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a stub in training form."""
        return cls(qat_module.host_activation(owner), owner)

    def forward(self, inp: Tensor) -> Tensor:
        """Quantise floats."""
        return quantise(inp, self.result)


@register_quantized(qat.DequantStub)
class DequantStub(QuantizedModule):
    """Return the numbers that integers stand for.

    >>> from tianyuan.functional.quantized import qint8
    >>> DequantStub()(QuantStub(qint8(0.5))(Tensor([1.2]))).tolist()
    [1.0]
    """

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a stub in training form."""
        return cls(owner)

    def forward(self, inp: Tensor) -> Tensor:
        """Return float32 numbers."""
        return dequantise(inp)


@register_quantized(qat.Elemwise)
class Elemwise(QuantizedModule):
    """An elementwise function of quantised tensors; sums in integers, others in floats.

    Args:
        method: as for ``module.Elemwise``.
        dtype: how the result is quantised.

    >>> from tianyuan.functional.quantized import qint8
    >>> x = QuantStub(qint8(0.5))(Tensor([1.0, -2.0]))
    >>> Elemwise("add", qint8(1.0))(x, x).tolist()
    [2, -4]
    """

    def __init__(self, method: str, dtype: Any = None, owner: str = "", **kwargs: Any) -> None:
        super().__init__(owner, dtype, **kwargs)
        self.method = method
        self._function = _Function(method)

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a function in training form."""
        return cls(qat_module.method, qat_module.host_activation(owner), owner)

    def _module_info_string(self) -> str:
        """Return the method, and how the result is quantised."""
        return f"method={self.method}, {super()._module_info_string()}"

    def forward(self, *inps: Tensor) -> Tensor:
        """Return the quantised function of the inputs."""
        values, name = _per_tensor(inps), self.method.lower()
        if values is not None and len(values) == 2 and name in ("add", "fuse_add_relu"):
            return add(values, self.result, "relu" if name == "fuse_add_relu" else "identity")
        floats = [dequantise(x) for x in inps]
        return quantise(self._function(*floats), self.result)


class _Function:
    """The float function of a method, kept out of the network's parts."""

    def __init__(self, method: str) -> None:
        self._module = M.Elemwise(method)

    def __call__(self, *inputs: Tensor) -> Tensor:
        result: Tensor = self._module(*inputs)
        return result


@register_quantized(qat.Concat)
class Concat(QuantizedModule):
    """Joined quantised tensors, each brought to one scale.

    Args:
        dtype: how the result is quantised.

    >>> from tianyuan.functional.quantized import qint8
    >>> a, b = QuantStub(qint8(0.5))(Tensor([1.0])), QuantStub(qint8(0.25))(Tensor([1.0]))
    >>> Concat(qint8(1.0))([a, b]).tolist()
    [1, 1]
    """

    def __init__(self, dtype: Any = None, owner: str = "", **kwargs: Any) -> None:
        super().__init__(owner, dtype, **kwargs)

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a joining in training form."""
        return cls(qat_module.host_activation(owner), owner)

    def forward(self, inps: Iterable[Tensor], axis: int = 0) -> Tensor:
        """Return the tensors joined along an axis."""
        given = list(inps)
        values = _per_tensor(given)
        if values is None:
            return quantise(F.concat([dequantise(x) for x in given], axis), self.result)
        place = axis + values[0].ndim if axis < 0 else axis
        return concat(values, place, self.result, "identity")

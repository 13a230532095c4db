"""Quantise and dequantise in floats, so that training feels what integers will do."""

from __future__ import annotations

from typing import Any

import numpy as np
import tianyuan.functional as F
from tianyuan import Parameter, Tensor
from tianyuan.autodiff import Function
from tianyuan.errors import AttrError, ShapeError
from tianyuan.imperative.state import state
from tianyuan.module import Module

from .arguments import least_scale, params_of, switch, tensor_of
from .params import QParams, QuantDtype, QuantMode, quant_dtype


def _shaped(value: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return values per channel shaped to broadcast along an axis."""
    if value.size == 1:
        return F.reshape(value, ()) if value.ndim else value
    return F.reshape(value, tuple(-1 if i == axis else 1 for i in range(x.ndim)))


class _StraightThrough(Function):
    """Round and clip; the gradient passes where nothing was clipped (Y. Bengio et al., 2013).

    With ``parts``, steps are first rounded to so many parts of one.
    """

    def __init__(self, qmin: int, qmax: int, parts: float | None = None) -> None:
        super().__init__()
        self.qmin, self.qmax, self.parts = float(qmin), float(qmax), parts

    def forward(self, *inputs: Tensor) -> Tensor:
        x, scale, zero = inputs
        steps = x / scale
        if self.parts is not None:
            steps = F.round(steps * self.parts) / self.parts
        q = F.round(steps) + zero
        kept = F.clip(q, self.qmin, self.qmax)
        self.inside = F.equal(q, kept).astype(x.dtype)
        y: Tensor = (kept - zero) * scale
        return y

    def backward(self, *output_grads: Tensor | None) -> Any:
        (g,) = output_grads
        return (None if g is None else g * self.inside), None, None


class _LearnedStep(Function):
    """Round and clip, with a gradient for the scale.

    Inside the range the scale's gradient is round(x/s) - x/s, outside the bound minus the zero
    point (S. Esser et al., Learned Step Size Quantization, 2020, equation 3).
    """

    def __init__(self, qmin: int, qmax: int, share: float) -> None:
        super().__init__()
        self.qmin, self.qmax, self.share = float(qmin), float(qmax), share

    def forward(self, *inputs: Tensor) -> Tensor:
        x, scale, zero = inputs
        ratio = x / scale
        q = F.round(ratio) + zero
        kept = F.clip(q, self.qmin, self.qmax)
        inside = F.equal(q, kept)
        self.inside = inside.astype(x.dtype)
        steps = kept - zero
        self.slope = steps - F.where(inside, ratio, F.zeros_like(ratio))
        self.shape = scale.shape
        y: Tensor = steps * scale
        return y

    def backward(self, *output_grads: Tensor | None) -> Any:
        (g,) = output_grads
        if g is None:
            return None, None, None
        slope = F.sum(g * self.slope) * self.share
        return g * self.inside, F.reshape(slope, self.shape), None


class _Clipped(Function):
    """Clip to [low * alpha, alpha]; alpha's gradient is what was clipped (J. Choi et al., 2018)."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.low = low

    def forward(self, *inputs: Tensor) -> Tensor:
        x, alpha = inputs
        bottom = alpha * self.low
        over, under = F.greater_equal(x, alpha), F.less_equal(x, bottom)
        self.over, self.under = over.astype(x.dtype), under.astype(x.dtype)
        self.shape = alpha.shape
        return F.minimum(F.maximum(x, bottom), alpha)

    def backward(self, *output_grads: Tensor | None) -> Any:
        (g,) = output_grads
        if g is None:
            return None, None
        outside = self.over + self.under * self.low
        return g * (1.0 - self.over) * (1.0 - self.under), F.reshape(F.sum(g * outside), self.shape)


def fake_quant_tensor(inp: Tensor, qparams: QParams) -> Tensor:
    """Return the numbers that the integers of a tensor stand for, in float32.

    Raises:
        AttrError: where scale or zero point is not known.
        ShapeError: where there are several scales, and not as many as channels.
        DTypeError: where the input is no tensor.

    >>> from .params import create_qparams
    >>> qparams = create_qparams(dtype_meta="qint8", scale=0.5)
    >>> fake_quant_tensor(Tensor([0.6, 100.0]), qparams).tolist()
    [0.5, 63.5]
    """
    tensor_of("fake_quant_tensor", inp)
    params_of("fake_quant_tensor", qparams)
    if qparams.scale is None or qparams.zero_point is None:
        raise AttrError(
            "fake_quant_tensor: scale and zero point are not known, got None, expected tensors"
        )
    dtype, axis = qparams.dtype_meta, qparams.channel_axis
    if qparams.scale.size > 1 and not (
        0 <= axis < inp.ndim and inp.shape[axis] == qparams.scale.size
    ):
        raise ShapeError(
            f"fake_quant_tensor: scales do not fit the input, got {qparams.scale.size} along axis "
            f"{axis} and shape {inp.shape}, expected one, or one for each extent of the axis"
        )
    scale, zero = (_shaped(v, inp, axis) for v in (qparams.scale, qparams.zero_point))
    result: Tensor = _StraightThrough(dtype.qmin, dtype.qmax)(inp, scale, zero)
    return result


# Means of few numbers on steps often lie halfway between two; 1024 parts bring those that floats
# missed by a little back there, so that they fall to the side that sums of integers fall to.
_PARTS = 1024.0


def fake_quant_mean(inp: Tensor, qparams: QParams) -> Tensor:
    """Return means of fake-quantised numbers as ``fake_quant_tensor`` does, ties as integers have.

    >>> from .params import create_qparams
    >>> qparams = create_qparams(dtype_meta="qint8", scale=0.1)
    >>> (fake_quant_mean(Tensor([0.35001, 0.24999, 0.27]), qparams) / 0.1).numpy().round(3).tolist()
    [4.0, 2.0, 3.0]
    """
    assert qparams.scale is not None
    assert qparams.zero_point is not None
    dtype = qparams.dtype_meta
    step = _StraightThrough(dtype.qmin, dtype.qmax, _PARTS)
    result: Tensor = step(inp, qparams.scale, qparams.zero_point)
    return result


def fake_quant_bias(bias: Tensor | None, inp: QParams | None, w_qat: QParams | None) -> Tensor:
    """Return a bias rounded to the accumulator's scale, that of input times weight.

    ``inp`` and ``w_qat`` are the parameters of input and weight; unless both are known, the bias
    is returned as it is.

    >>> from .params import create_qparams
    >>> qparams = create_qparams(dtype_meta="qint8", scale=0.5)
    >>> fake_quant_bias(Tensor([0.6]), qparams, qparams).tolist()
    [0.5]
    """
    if bias is None or inp is None or w_qat is None:
        return bias  # type: ignore[return-value]
    tensor_of("fake_quant_bias", bias)
    for given in (inp, w_qat):
        params_of("fake_quant_bias", given)
    if inp.scale is None or w_qat.scale is None:
        return bias
    scale = inp.scale * w_qat.scale
    scale = F.reshape(scale, (1, -1, 1, 1)) if scale.size > 1 and bias.ndim == 4 else scale
    limits = quant_dtype("qint32")
    result: Tensor = _StraightThrough(limits.qmin, limits.qmax)(bias, scale, F.zeros_like(scale))
    return result


class FakeQuantize(Module):
    """Quantise and dequantise with the observer's parameters, gradient straight through.

    Args:
        dtype: the quantised dtype.
        enable: whether it acts from the start.

    >>> from .params import create_qparams
    >>> qparams = create_qparams(dtype_meta="qint8", scale=0.5)
    >>> FakeQuantize("qint8")(Tensor([0.6, 100.0]), qparams).tolist()
    [0.5, 63.5]
    """

    def __init__(self, dtype: str | QuantDtype, enable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dtype = quant_dtype(dtype)
        self.enabled = switch(type(self).__name__, "enable", enable)

    def enable(self) -> None:
        """Quantise from now on."""
        self.enabled = True

    def disable(self) -> None:
        """Let values through as they are."""
        self.enabled = False

    def forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """Return the input as integers give it, where enabled."""
        return self.fake_quant_forward(inp, qparams) if self.enabled else inp

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """Return the input as integers give it."""
        if qparams is None:
            raise AttrError(
                f"{type(self).__name__}: parameters are missing, got None, expected those of an "
                "observer"
            )
        return fake_quant_tensor(inp, qparams)


class LearnableFakeQuantize(FakeQuantize):
    """Base of fake quantisers that learn their range; it starts from the observer's.

    >>> from .params import create_qparams
    >>> qparams = create_qparams(dtype_meta="qint8", scale=0.5)
    >>> fake = LSQ("qint8")
    >>> fake.set_qparams(qparams)
    >>> fake.get_qparams().scale.item()
    0.5
    """

    def __init__(self, dtype: str | QuantDtype, enable: bool = True, **kwargs: Any) -> None:
        super().__init__(dtype, enable, **kwargs)
        self.mode = QuantMode.SYMMERTIC
        self.started = Tensor(np.float32(0.0))
        self.zero_point = Tensor(np.float32(0.0))

    def _begin(self, qparams: QParams | None) -> None:
        """Take the observer's parameters over on first use.

        A trace that is made before runs this in every step: there the data decides.
        """
        tracer = state.recorder
        known = tracer is None or not tracer.is_written(self.started)
        if qparams is None or (known and float(self.started.item()) > 0):
            return
        if tracer is None:
            self.set_qparams(qparams)
            return
        held = [(value, value * 1.0) for value in (*self.parameters(), self.zero_point)]
        begun = self.started * 1.0 > 0
        self.set_qparams(qparams)
        for value, old in held:
            value[...] = F.where(begun, old, value)

    def set_qparams(self, qparams: QParams) -> None:
        """Start from given parameters, one scale for the tensor.

        Raises:
            AttrError: where there are several scales.
        """
        params_of(type(self).__name__, qparams)
        if qparams.scale is None or qparams.zero_point is None or qparams.scale.size != 1:
            found = "none" if qparams.scale is None else f"{qparams.scale.size} scales"
            raise AttrError(
                f"{type(self).__name__}: parameters must be known and per tensor, got {found}, "
                "expected one scale; weights with a scale per channel cannot learn theirs"
            )
        self.mode = qparams.mode
        self.zero_point[...] = F.reshape(qparams.zero_point, ())
        self._start(F.reshape(qparams.scale, ()).detach())
        self.started[...] = Tensor(np.float32(1.0))

    def _start(self, scale: Tensor) -> None:
        raise NotImplementedError

    def learned_scale(self) -> Tensor:
        """Return the scale in use."""
        raise NotImplementedError

    def get_qparams(self) -> QParams:
        """Return the parameters in use."""
        return QParams(self.mode, self.dtype, self.learned_scale(), self.zero_point)


class LSQ(LearnableFakeQuantize):
    """Learn the step size (S. Esser et al., Learned Step Size Quantization, 2020).

    Args:
        dtype, enable: as for ``FakeQuantize``.
        eps: the least step.

    >>> from .params import create_qparams
    >>> qparams = create_qparams(dtype_meta="qint8", scale=0.5)
    >>> LSQ("qint8")(Tensor([0.6, 100.0]), qparams).tolist()
    [0.5, 63.5]
    """

    def __init__(
        self, dtype: str | QuantDtype, enable: bool = True, eps: float = 1e-5, **kwargs: Any
    ) -> None:
        super().__init__(dtype, enable, **kwargs)
        self.eps = least_scale(type(self).__name__, eps)
        self.step_size = Parameter(np.float32(1.0))

    def _start(self, scale: Tensor) -> None:
        self.step_size[...] = scale

    def learned_scale(self) -> Tensor:
        """Return |step|, at least eps."""
        result: Tensor = F.maximum(F.abs(self.step_size), self.eps)
        return result

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """Return the input as integers give it."""
        self._begin(qparams)
        share = 1 / float(np.sqrt(max(int(inp.size), 1) * max(self.dtype.qmax, 1)))
        step = _LearnedStep(self.dtype.qmin, self.dtype.qmax, share)
        result: Tensor = step(inp, self.learned_scale(), self.zero_point.detach())
        return result


class TQT(LearnableFakeQuantize):
    """Learn the logarithm of a scale that is a power of two (S. Jain et al., 2020, TQT).

    Args:
        dtype, enable: as for ``FakeQuantize``.

    >>> from .params import create_qparams
    >>> qparams = create_qparams(dtype_meta="qint8", scale=0.5)
    >>> TQT("qint8")(Tensor([0.6, 100.0]), qparams).tolist()
    [0.5, 63.5]
    """

    def __init__(self, dtype: str | QuantDtype, enable: bool = True, **kwargs: Any) -> None:
        super().__init__(dtype, enable, **kwargs)
        self.scale = Parameter(np.float32(0.0))

    def _start(self, scale: Tensor) -> None:
        self.scale[...] = F.log(scale) * float(1 / np.log(2))

    def learned_scale(self) -> Tensor:
        """Return two to the power of the scale's logarithm, rounded up; its gradient passes."""
        power = F.pow(F.full_like(self.scale, 2.0), F.ceil(self.scale)).detach()
        # The second factor is one; it carries the gradient ln 2.
        result: Tensor = power * F.exp((self.scale - self.scale.detach()) * float(np.log(2)))
        return result

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """Return the input as integers give it."""
        self._begin(qparams)
        step = _LearnedStep(self.dtype.qmin, self.dtype.qmax, 1.0)
        result: Tensor = step(inp, self.learned_scale(), self.zero_point.detach())
        return result


class PACT(LearnableFakeQuantize):
    """Learn the value at which activations are clipped (J. Choi et al., PACT, 2018).

    Unsigned dtypes cover [0, alpha], signed ones [-alpha, alpha].

    Args:
        dtype, enable: as for ``FakeQuantize``.
        eps: the least scale.

    >>> from .params import create_qparams
    >>> qparams = create_qparams(dtype_meta="qint8", scale=0.5)
    >>> PACT("qint8")(Tensor([0.6, 100.0]), qparams).tolist()
    [0.5, 63.5]
    """

    def __init__(
        self, dtype: str | QuantDtype, enable: bool = True, eps: float = 1e-5, **kwargs: Any
    ) -> None:
        super().__init__(dtype, enable, **kwargs)
        self.eps = least_scale(type(self).__name__, eps)
        self.alpha = Parameter(np.float32(1.0))

    def set_qparams(self, qparams: QParams) -> None:
        """Start from given parameters, with the zero point that the range needs."""
        super().set_qparams(qparams)
        self.zero_point[...] = Tensor(np.float32(0.0))

    def _start(self, scale: Tensor) -> None:
        steps = self.dtype.qmax if not self.dtype.is_unsigned else self.dtype.qmax - self.dtype.qmin
        self.alpha[...] = scale * float(steps)

    def _bounded_alpha(self) -> Tensor:
        result: Tensor = F.maximum(self.alpha, self.eps * self.dtype.qmax)
        return result

    def learned_scale(self) -> Tensor:
        """Return alpha / qmax."""
        result: Tensor = self._bounded_alpha() / float(self.dtype.qmax)
        return result

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """Return the input as integers give it."""
        self._begin(qparams)
        low = 0.0 if self.dtype.is_unsigned else -1.0
        clipped = _Clipped(low)(inp, self._bounded_alpha())
        return fake_quant_tensor(
            clipped,
            QParams(self.mode, self.dtype, self.learned_scale().detach(), self.zero_point.detach()),
        )

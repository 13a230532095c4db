"""Bring one's own observer, fake quantiser and quantised module, each by a decorator.

Usage: python examples/quantize_own.py
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import registry
from tianyuan.module.qat import QATModule
from tianyuan.module.quantized import QuantizedModule


@Q.register_observer("three_sigma")
class ThreeSigma(Q.Observer):
    """Cover three standard deviations around zero: far values are clipped."""

    def __init__(self, dtype: str = "qint8") -> None:
        super().__init__(dtype)
        self.squares, self.count = 0.0, 0

    def sideeffect_forward(self, x: ty.Tensor) -> None:
        values = x.numpy()
        self.squares += float(np.square(values, dtype=np.float64).sum())
        self.count += values.size

    def get_qparams(self) -> Q.QParams:
        spread = (self.squares / max(self.count, 1)) ** 0.5
        return Q.create_qparams(dtype_meta=self.dtype, scale=max(3 * spread, 1e-5) / self.qmax)


@Q.register_fake_quant("dithered")
class Dithered(Q.FakeQuantize):
    """Add half a step of noise before rounding in training, so that no weight gets stuck."""

    def __init__(self, dtype: str = "qint8") -> None:
        super().__init__(dtype)

    def fake_quant_forward(self, inp: ty.Tensor, qparams: Q.QParams | None = None) -> ty.Tensor:
        if self.training and qparams is not None:
            noise = ty.random.uniform(-0.5, 0.5, inp.shape)
            inp = inp + noise * qparams.scale
        return super().fake_quant_forward(inp, qparams)


class Scaled(M.Module):
    """Multiply by a constant: a module that quantisation does not know."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return x * self.factor


@Q.register_qat(Scaled)
class QATScaled(QATModule, Scaled):
    """Its training form: the result is watched and fake-quantised."""

    with_weight = False

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return self.apply_quant_activation(x * self.factor)


@Q.register_quantized(QATScaled)
class QuantizedScaled(QuantizedModule):
    """Its integer form: the factor is part of the rescaling, so nothing is multiplied twice."""

    factor: float

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        found = cls(owner, qat_module.host_activation(owner))
        found.factor = qat_module.factor
        return found

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        quant, result = self.quantised(x), self.result
        factor = float(np.float32(self.factor * quant.scales[0] / result.scales[0]))
        requantize = registry.get_op("requantize")
        return requantize(
            x, x_zero_point=quant.zero_points[0], multiplier=factor, **result.form()
        )  # fmt: skip


def main() -> None:
    """Quantise a network by these parts and print what each configuration loses."""
    ty.random.seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 16)).astype(np.float32)
    x[0] *= 30  # one sample is far out

    def net() -> M.Module:
        ty.random.seed(1)
        return M.Sequential(
            M.QuantStub(), M.Linear(16, 32), Scaled(2.5), M.LinearRelu(32, 8), M.DequantStub()
        )

    weights = partial(Q.MinMaxObserver, dtype="qint8_narrow", channel_axis=0)
    own = Q.QConfig(weights, "three_sigma", partial(Q.FakeQuantize, dtype="qint8_narrow"),
                    "dithered")  # fmt: skip
    plain = Q.min_max_fakequant_qconfig
    print("observer of activations  SNR of most samples, dB")
    for name, config in (("min-max", plain), ("three_sigma", own)):
        want = net().eval()(ty.Tensor(x)).numpy()[1:]
        quantised = Q.quantize_qat(net(), qconfig=config).train()
        quantised(ty.Tensor(x))
        integers = Q.quantize(quantised.eval())
        got = integers(ty.Tensor(x)).numpy()[1:]
        ratio = 10 * np.log10(np.square(want).sum() / np.square(got - want).sum())
        kinds = {type(part).__name__ for part in integers.modules()}
        assert "QuantizedScaled" in kinds
        print(f"{name:<24} {ratio:.1f}")


if __name__ == "__main__":
    main()

"""Compute linear maps in integers."""

from __future__ import annotations

from typing import Any

import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError

from .. import qat
from ..registration import register_quantized
from .module import QuantizedModule, emit, integers_of
from .product import QuantizedProduct


class _LinearMap(QuantizedProduct):
    def __init__(self, dtype: Any = None, owner: str = "", **kwargs: Any) -> None:
        super().__init__(owner, dtype, **kwargs)

    def forward(self, inp: Tensor) -> Tensor:
        """Return the quantised product of quantised rows with the weight."""
        quant, x = self.quantised(inp), integers_of(inp)
        lead = x.shape[:-1]
        if len(lead) == 0:
            x = x.reshape(1, x.shape[0])
        y = emit(
            "matmul_quantized", *self.operands(x, quant), transpose_a=False, transpose_b=True,
            **self.product_attrs(quant),
        )  # fmt: skip
        return y if lead else y.reshape(y.shape[-1])


@register_quantized(qat.BatchMatMulActivation)
class BatchMatMulActivation(QuantizedProduct):
    """One matrix for each item of a batch, in integers; one scale for all of them.

    Args:
        batch, in_features, out_features, bias, nonlinear_mode: as for the float module.
        dtype: how the result is quantised.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = BatchMatMulActivation(1, 2, 1, dtype=qint8(0.5))
    >>> layer.fill([[[1.0, 2.0]]], [[1.0]], qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[[1.0], [3.0]]]))).tolist()
    [[[16]]]
    """

    channel_axis = 1

    def __init__(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        nonlinear_mode: str = "identity",
        dtype: Any = None,
        owner: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(owner, dtype, **kwargs)
        self.batch, self.in_features, self.out_features = batch, in_features, out_features
        self.epilogue = str(nonlinear_mode).lower()
        if self.epilogue not in ("identity", "relu"):
            raise AttrError(
                f"{self.owner}: unknown nonlinear_mode, got {nonlinear_mode!r}, expected identity "
                "or relu"
            )

    @classmethod
    def from_qat_module(cls, qat_module: Any, owner: str = "") -> QuantizedModule:
        """Return the integer form of a layer in training form."""
        found = cls(
            qat_module.batch, qat_module.in_features, qat_module.out_features,
            qat_module.bias is not None, qat_module.nonlinear_mode,
            qat_module.host_activation(owner), owner,
        )  # fmt: skip
        found.fill(qat_module.weight, qat_module.bias, qat_module.host_weight(owner))
        return found

    def forward(self, inp: Tensor) -> Tensor:
        """Map quantised (batch, in_features, n) to (batch, out_features, n)."""
        quant, x = self.quantised(inp), integers_of(inp)
        # Channels of a product are its columns, so the transposed product is computed.
        y = emit(
            "matmul_quantized", *self.operands(x, quant), transpose_a=True, transpose_b=True,
            **self.product_attrs(quant),
        )  # fmt: skip
        result: Tensor = F.transpose(y, (0, 2, 1))
        return result


@register_quantized(qat.Linear)
class Linear(_LinearMap):
    """``Linear`` in integers.

    Args:
        dtype: how the result is quantised, such as ``functional.quantized.qint8(scale)``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = Linear(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[1.0, 3.0]]))).tolist()
    [[-2]]
    """


@register_quantized(qat.LinearRelu)
class LinearRelu(_LinearMap):
    """``LinearRelu`` in integers; arguments as for ``Linear``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = LinearRelu(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[1.0, 3.0]]))).tolist()
    [[0]]
    """

    epilogue = "relu"


@register_quantized(qat.LinearBn1d)
class LinearBn1d(_LinearMap):
    """``LinearBn1d`` in integers, the normalisation folded in; arguments as for ``Linear``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = LinearBn1d(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[1.0, 3.0]]))).tolist()
    [[-2]]
    """


@register_quantized(qat.LinearBnRelu1d)
class LinearBnRelu1d(_LinearMap):
    """``LinearBnRelu1d`` in integers, the normalisation folded in; as ``Linear``.

    >>> from tianyuan.functional.quantized import qint8
    >>> from .other import QuantStub
    >>> layer = LinearBnRelu1d(qint8(0.5))
    >>> layer.fill([[2.0, -1.0]], None, qint8(0.25))
    >>> layer(QuantStub(qint8(0.5))(Tensor([[1.0, 3.0]]))).tolist()
    [[0]]
    """

    epilogue = "relu"

"""The encoder of a transformer: attention and a small network, each beside a shortcut."""

from __future__ import annotations

import copy
from typing import Any

from .. import functional as F
from ..errors import AttrError
from ..functional.arguments import choice, real_number, share, whole
from ..imperative.tensor import Tensor
from .attention import MultiHeadAttention
from .linear import Dropout, Linear
from .module import Module
from .norm import LayerNorm


class TransformerEncoderLayer(Module):
    """Attend within a sequence, then map each element (Vaswani et al. 2017).

    x = norm1(x + attention(x)), x = norm2(x + linear2(activation(linear1(x)))); with
    ``norm_first``, what is added is computed from the normalised x instead.

    Args:
        d_model: extent of each element, a multiple of ``nhead``.
        nhead: count of heads.
        dim_feedforward: extent between the two linear maps.
        dropout: probability of dropping, in training, attention weights and what is added.
        activation: ``relu`` or ``gelu``.
        layer_norm_eps: added to variances.
        norm_first: whether normalisation comes first.

    Raises:
        AttrError: where the heads do not divide the extent, or for an unknown activation.

    >>> TransformerEncoderLayer(8, 2, 16).eval()(F.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        name = type(self).__name__
        d_model = whole(name, "d_model", d_model, 1)
        nhead = whole(name, "nhead", nhead, 1)
        dim_feedforward = whole(name, "dim_feedforward", dim_feedforward, 1)
        dropout = share(name, "dropout", dropout)
        layer_norm_eps = real_number(name, "layer_norm_eps", layer_norm_eps, 0.0)
        if d_model % nhead:
            raise AttrError(
                f"{name}: nhead must divide d_model, got {nhead} heads for {d_model}, expected a "
                "divisor"
            )
        self.activation = choice(name, "activation", activation, ("relu", "gelu"))
        self.norm_first = norm_first
        self.self_attn = MultiHeadAttention(d_model, nhead, dropout)
        self.linear1 = Linear(d_model, dim_feedforward)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model)
        self.norm1 = LayerNorm(d_model, layer_norm_eps)
        self.norm2 = LayerNorm(d_model, layer_norm_eps)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)

    def _attended(self, x: Tensor, **masks: Any) -> Tensor:
        found: Tensor = self.dropout1(self.self_attn(x, x, x, **masks)[0])
        return found

    def _mapped(self, x: Tensor) -> Tensor:
        act = F.nn.relu if self.activation == "relu" else F.nn.gelu
        found: Tensor = self.dropout2(self.linear2(self.dropout(act(self.linear1(x)))))
        return found

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return (N, L, d_model) for (N, L, d_model).

        Args:
            src: the sequences.
            src_mask, src_key_padding_mask, is_causal: ``attn_mask``, ``key_padding_mask`` and
                ``is_causal`` of ``MultiHeadAttention``.
        """
        masks = {
            "attn_mask": src_mask, "key_padding_mask": src_key_padding_mask, "is_causal": is_causal,
        }  # fmt: skip
        result: Tensor
        if self.norm_first:
            src = src + self._attended(self.norm1(src), **masks)
            result = src + self._mapped(self.norm2(src))
        else:
            src = self.norm1(src + self._attended(src, **masks))
            result = self.norm2(src + self._mapped(src))
        return result


class TransformerEncoder(Module):
    """Run copies of an encoder layer one after another.

    Args:
        encoder_layer: what is copied; it is not used itself, so that all copies start alike.
        num_layers: how many copies there are.
        norm: run on the result, if given.

    >>> TransformerEncoder(TransformerEncoderLayer(8, 2, 16), 2).eval()(F.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_layers = whole("TransformerEncoder", "num_layers", num_layers, 0)
        self.layers = [copy.deepcopy(encoder_layer) for _ in range(self.num_layers)]
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return (N, L, d_model) for (N, L, d_model); masks as for the layer."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)

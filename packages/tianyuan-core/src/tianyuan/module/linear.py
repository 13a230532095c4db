"""Linear maps and look-ups: Linear, Embedding, Dropout."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import Any

import numpy as np

from .. import functional as F
from ..errors import AttrError, ShapeError
from ..functional.arguments import share, whole
from ..imperative.tensor import Parameter, Tensor
from ..shapes import format_shape
from . import init
from .module import Module


class Linear(Module):
    """Apply y = x W^T + b over the last axis.

    Weight (out_features, in_features) starts from N(0, 1 / in_features), bias (out_features,)
    from zero.

    Args:
        in_features: extent of the last axis of the input.
        out_features: extent of the last axis of the output.
        bias: whether there is a bias.
        compute_mode: accepted for MegEngine's sake.

    Raises:
        AttrError: where an extent is no int, or negative.

    >>> Linear(2, 3)(F.ones((4, 2))).shape
    (4, 3)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        compute_mode: str = "default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        name = type(self).__name__
        self.in_features = whole(name, "in_features", in_features, 0)
        self.out_features = whole(name, "out_features", out_features, 0)
        self.compute_mode = compute_mode
        shape = (self.out_features, self.in_features)
        self.weight = Parameter(np.zeros(shape, np.float32))
        self.bias = Parameter(np.zeros(shape[:1], np.float32)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew and set the bias to zero."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self.in_features, 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        result: Tensor = F.nn.linear(x, self.weight, self.bias, compute_mode=self.compute_mode)
        return result

    def _module_info_string(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Embedding(Module):
    """Look rows of a table up by integer index.

    Weight (num_embeddings, embedding_dim) starts from N(0, 1).

    Args:
        num_embeddings: count of rows.
        embedding_dim: length of a row.
        padding_idx, max_norm, norm_type: must be None.
        initial_weight: the table to start from.
        freeze: keeps the table as it is: no gradient flows into it.

    Raises:
        AttrError: for an option that must be None, or an extent that is no int or negative.
        ShapeError: where the initial weight has another shape.

    >>> table = Embedding.from_pretrained([[1.0, 2.0], [3.0, 4.0]])
    >>> table(Tensor([1])).numpy()
    array([[3., 4.]], dtype=float32)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
        initial_weight: Parameter | None = None,
        freeze: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given = {
            "padding_idx": padding_idx,
            "max_norm": max_norm,
            "norm_type": norm_type,
        }
        for option, value in given.items():
            if value is not None:
                raise AttrError(
                    f"Embedding: {option} is not supported, got {value!r}, expected None"
                )
        self.padding_idx = padding_idx
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.num_embeddings = whole("Embedding", "num_embeddings", num_embeddings, 0)
        self.embedding_dim = whole("Embedding", "embedding_dim", embedding_dim, 0)
        self.freeze = freeze
        shape = (self.num_embeddings, self.embedding_dim)
        if initial_weight is None:
            self.weight = Parameter(np.zeros(shape, np.float32))
            self.reset_parameters()
            return
        if tuple(np.shape(initial_weight)) != shape:
            raise ShapeError(
                f"Embedding: initial weight has the wrong shape, got "
                f"{format_shape(np.shape(initial_weight))}, expected {format_shape(shape)}"
            )
        self.weight = Parameter(initial_weight)

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        init.normal_(self.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map indices (...) to rows (..., embedding_dim)."""
        weight = self.weight.detach() if self.freeze else self.weight
        result: Tensor = F.nn.embedding(inputs, weight)
        return result

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
    ) -> Embedding:
        """Make an embedding of a table of rows, frozen unless said otherwise."""
        shape = np.shape(embeddings)
        if len(shape) != 2:
            raise ShapeError(
                f"Embedding.from_pretrained: embeddings have the wrong rank, got "
                f"{format_shape(shape)}, expected 2 dimensions"
            )
        rows, length = shape
        return cls(
            rows,
            length,
            padding_idx,
            max_norm,
            norm_type,
            Parameter(embeddings),
            freeze,
        )

    def _module_info_string(self) -> str:
        return f"num_embeddings={self.num_embeddings}, embedding_dim={self.embedding_dim}"


class Dropout(Module):
    """In training, set elements to zero with a probability and scale the others up.

    Args:
        drop_prob: probability of zero, in [0, 1).

    Raises:
        AttrError: for another probability.

    >>> Dropout(0.5).eval()(Tensor([1.0])).numpy()
    array([1.], dtype=float32)
    """

    def __init__(self, drop_prob: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drop_prob = share("Dropout", "drop_prob", drop_prob)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the input, in training with elements dropped."""
        if not self.training:
            return inputs
        result: Tensor = F.nn.dropout(inputs, self.drop_prob, training=True)
        return result

    def _module_info_string(self) -> str:
        return f"drop_prob={self.drop_prob}"


# MegEngine has this one too in the module of this name; here they stand above it.
_ABOVE = ("LinearRelu",)


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        return getattr(import_module(__package__), name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )

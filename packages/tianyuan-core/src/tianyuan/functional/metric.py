"""Measures of how good a prediction is; not differentiable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import shapes
from ..errors import ShapeError
from ..imperative.tensor import Tensor
from . import elemwise, math
from .arguments import run, same_shape, tensor
from .joining import cut

__all__ = ["topk_accuracy"]


def topk_accuracy(logits: Tensor, target: Tensor, topk: int | Iterable[int] = 1) -> Any:
    """Return the share of samples whose class is among the k largest logits.

    ``logits`` is (N, classes) and ``target`` (N,) of class indices. Returns a scalar, or a list of
    them for several k.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where a k is not between 1 and the count of classes.

    >>> topk_accuracy(Tensor([[0.1, 0.9], [0.8, 0.2]]), Tensor([1, 1])).item()
    0.5
    """
    scores = tensor("topk_accuracy", logits, "logits")
    classes = tensor("topk_accuracy", target, "target")
    if scores.ndim != 2 or not same_shape(classes.shape, scores.shape[:1]):
        raise ShapeError(
            f"topk_accuracy: shapes do not fit, got {shapes.format_shape(scores.shape)} and "
            f"target {shapes.format_shape(classes.shape)}, expected (N, classes) and (N,)"
        )
    counts = list(topk) if isinstance(topk, Iterable) else [topk]
    _, found = math.topk(scores, max(counts))
    hits = elemwise.equal(found, run("reshape", classes, shape=(classes.shape[0], 1)))
    shares = [math.mean(math.max(cut(hits, 1, 0, k), axis=1)) for k in counts]
    return shares if isinstance(topk, Iterable) else shares[0]

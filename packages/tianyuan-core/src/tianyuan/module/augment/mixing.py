"""Mix the images of a batch, and their labels, in a random proportion."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import functional as F
from ...errors import AttrError, DTypeError
from ...functional.arguments import real_number
from ...imperative.tensor import Tensor
from .base import Random, images, like


class _Mixing(Random):
    """Mix each image with another one of the batch.

    Args:
        beta: the share lambda of an image itself comes from Beta(beta, beta).
        seed: of a generator of its own; None draws from ``tianyuan.random``.
    """

    def __init__(self, beta: float, seed: int | None = None) -> None:
        super().__init__(seed)
        name = type(self).__name__
        self.beta = real_number(name, "beta", beta)
        if not self.beta > 0:
            raise AttrError(f"{name}: beta is out of range, got {beta}, expected a number > 0")

    def _draw(self, count: int) -> tuple[float, Tensor]:
        """Return a share, and who is mixed with whom."""
        share = float(self.rng.beta(self.beta, self.beta))
        return share, self.rng.permutation(int(count))

    def _labels(self, label: Tensor, share: float, order: Tensor) -> Tensor:
        if label.dtype.kind in "iub":
            raise DTypeError(
                f"{type(self).__name__}: label must be shares of classes, got {label.dtype}, "
                "expected floats, as functional.nn.one_hot(label).astype('float32') gives"
            )
        result: Tensor = label * share + label[order] * (1.0 - share)
        return result

    def _module_info_string(self) -> str:
        return f"beta={self.beta}"


class Mixup(_Mixing):
    """Blend images: lambda x + (1 - lambda) x', and labels alike (Zhang et al. 2018).

    x' are the images of the batch in random order, and there is one lambda for a batch. Not
    offered inside a trace.

    Args:
        beta: lambda comes from Beta(beta, beta).
        seed: of a generator of its own; None draws from ``tianyuan.random``.

    Raises:
        AttrError: where ``beta`` is not positive.

    >>> image, label = Mixup(1.0, seed=1)(F.ones((2, 1, 2, 2)), F.ones((2, 3)))
    >>> image.shape, label.numpy()[0]
    ((2, 1, 2, 2), array([1., 1., 1.], dtype=float32))
    """

    def forward(self, inp: Tensor, label: Tensor | None = None) -> Any:
        """Return the mixed images (N, C, H, W), and the mixed labels (N, ...) if given.

        Raises:
            ShapeError: where the input has another rank.
            DTypeError: where labels are integers: shares of classes are mixed.
        """
        image = images("Mixup", inp)
        share, order = self._draw(image.shape[0])
        labels = None if label is None else self._labels(label, share, order)
        mixed = like(image * share + image[order] * (1.0 - share), inp)
        return mixed if labels is None else (mixed, labels)


class Cutmix(_Mixing):
    """Paste a box of another image, and mix labels by area (Yun et al. 2019).

    The box has sides of sqrt(1 - lambda) times the image's, around a random pixel, cut off at the
    border; it is the same for all images of a batch. Not offered inside a trace.

    Args:
        beta: lambda comes from Beta(beta, beta).
        seed: of a generator of its own; None draws from ``tianyuan.random``.

    Raises:
        AttrError: where ``beta`` is not positive.

    >>> image, label = Cutmix(1.0, seed=1)(F.ones((2, 1, 4, 4)), F.ones((2, 3)))
    >>> image.shape, label.numpy()[0]
    ((2, 1, 4, 4), array([1., 1., 1.], dtype=float32))
    """

    def forward(self, inp: Tensor, label: Tensor | None = None) -> Any:
        """Return the mixed images (N, C, H, W), and the mixed labels (N, ...) if given.

        Raises:
            ShapeError: where the input has another rank.
            DTypeError: where labels are integers: shares of classes are mixed.
        """
        images("Cutmix", inp)  # checks the rank; pixels are moved as they are
        height, width = (int(extent) for extent in inp.shape[2:])
        share, order = self._draw(inp.shape[0])
        middle = np.floor(self.rng.uniform(size=2).numpy() * (height, width)).astype(int)
        sides = (np.array([height, width]) * np.sqrt(1.0 - share)).astype(int)
        top, left = np.maximum(middle - sides // 2, 0)
        bottom, right = np.minimum(middle + (sides + 1) // 2, (height, width))
        inside = np.zeros((1, 1, height, width), bool)
        inside[:, :, top:bottom, left:right] = True
        labels = None
        if label is not None:
            labels = self._labels(label, 1.0 - float(inside.mean()), order)
        box = F.broadcast_to(Tensor(inside, device=inp.device), inp.shape)
        mixed: Tensor = F.where(box, inp[order], inp)
        return mixed if labels is None else (mixed, labels)

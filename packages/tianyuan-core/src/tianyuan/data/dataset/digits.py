"""Decide how the small set of real digits that ships with Tianyuan is split and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .base import Dataset

CLASSES = 10
_FILE = Path(__file__).parent / "digits.npz"
_TRAIN_SHARE = 0.8
_SEED = 0


class Digits(Dataset):
    """1,797 real handwritten digits of 8 x 8 pixels, usable without any download.

    A sample is (uint8 image of shape (8, 8, 1) with values 0 to 16, int label). A fixed
    permutation splits them into 1,437 training and 360 test samples.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
    Learning Repository, 1998, https://doi.org/10.24432/C50P49, CC BY 4.0 (``digits.LICENSE.md``).

    >>> len(Digits()), len(Digits(train=False)), Digits()[0][0].shape
    (1437, 360, (8, 8, 1))
    """

    def __init__(self, train: bool = True) -> None:
        super().__init__()
        with np.load(_FILE, allow_pickle=False) as stored:
            images, labels = stored["images"], stored["labels"]
        # The stream of RandomState is frozen for all numpy versions.
        order = np.random.RandomState(_SEED).permutation(len(labels))
        cut = int(_TRAIN_SHARE * len(labels))
        chosen = order[:cut] if train else order[cut:]
        self.images: np.ndarray = images[chosen][..., np.newaxis]
        self.labels: np.ndarray = labels[chosen]

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index], int(self.labels[index])

    def __len__(self) -> int:
        return len(self.labels)

"""Decide how the files of CIFAR-10 and CIFAR-100 are read, in either of their two forms."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from .vision import VisionDataset, default_root

_PIXELS = 3 * 32 * 32


class CIFAR10(VisionDataset):
    """Photographs of 32 x 32 pixels in ten classes.

    A sample is (uint8 image of shape (32, 32, 3) in the order blue, green, red, int label). The
    folder holds ``cifar-10-batches-bin`` or ``cifar-10-batches-py``, or is one of them. Nothing is
    downloaded.

    Args:
        root: the folder; ``datasets/CIFAR10`` in TIANYUAN_HOME by default.
        train: whether to read the 50,000 images for training or the 10,000 for tests.
        download, timeout: accepted for MegEngine's sake.

    Raises:
        FileNotFoundError: where a file is missing.
        ValueError: where a file is damaged.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "test_batch.bin")
    >>> _ = path.write_bytes(bytes([7]) + bytes(3072))
    >>> image, label = CIFAR10(folder.name, train=False)[0]
    >>> image.shape, label
    ((32, 32, 3), 7)
    """

    name = "CIFAR10"
    classes = 10
    _folders: Sequence[str] = ("cifar-10-batches-bin", "cifar-10-batches-py")
    _train_files: Sequence[str] = tuple(f"data_batch_{number}" for number in range(1, 6))
    _test_files: Sequence[str] = ("test_batch",)
    _label_key = b"labels"
    _label_bytes = 1  # before the pixels of the binary form; the last one counts

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        train: bool = True,
        download: bool = True,
        timeout: int = 500,
    ) -> None:
        super().__init__(default_root(self.name) if root is None else root, order=("image",))
        self.train = bool(train)
        parts = [
            self._read(_find(self.name, self.root, self._folders, stem))
            for stem in (self._train_files if train else self._test_files)
        ]
        planes = np.concatenate([images for images, _ in parts])
        # Stored as planes of red, green and blue.
        self.images = np.ascontiguousarray(
            planes.reshape(-1, 3, 32, 32)[:, ::-1].transpose(0, 2, 3, 1)
        )
        self.labels = np.concatenate([labels for _, labels in parts]).astype(np.int32)
        if self.labels.size and not 0 <= self.labels.min() <= self.labels.max() < self.classes:
            raise ValueError(
                f"{self.name}: label out of range in {self.root}, got {self.labels.min()} to "
                f"{self.labels.max()}, expected 0 to {self.classes - 1}"
            )

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index], int(self.labels[index])

    def __len__(self) -> int:
        return len(self.labels)

    def _read(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        if path.endswith(".bin"):
            return self._read_binary(path)
        return self._read_pickle(path)

    def _read_binary(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        raw = np.fromfile(path, np.uint8)
        width = self._label_bytes + _PIXELS
        if raw.size % width:
            raise ValueError(
                f"{path}: file has the wrong size, got {raw.size} bytes, expected a multiple of "
                f"{width}"
            )
        rows = raw.reshape(-1, width)
        return rows[:, self._label_bytes :], rows[:, self._label_bytes - 1]

    def _read_pickle(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        with open(path, "rb") as file:
            try:
                found = _ArraysOnly(file, encoding="bytes").load()
                images, labels = found[b"data"], np.asarray(found[self._label_key])
            except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}: is no CIFAR batch, got {error!r}") from None
        fits = isinstance(images, np.ndarray) and images.dtype == np.uint8
        if not fits or images.shape != (len(labels), _PIXELS):
            raise ValueError(f"{path}: images do not fit {len(labels)} labels")
        return images, labels


class CIFAR100(CIFAR10):
    """Photographs of 32 x 32 pixels in a hundred classes; see ``CIFAR10``.

    The folder holds ``cifar-100-binary`` or ``cifar-100-python``; labels are the fine ones.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "test.bin")
    >>> _ = path.write_bytes(bytes([2, 42]) + bytes(3072))
    >>> CIFAR100(folder.name, train=False)[0][1]
    42
    """

    name = "CIFAR100"
    classes = 100
    _folders = ("cifar-100-binary", "cifar-100-python")
    _train_files = ("train",)
    _test_files = ("test",)
    _label_key = b"fine_labels"
    _label_bytes = 2


def _find(owner: str, root: str, folders: Sequence[str], stem: str) -> str:
    names = [
        os.path.join(root, folder, stem + end) for folder in (*folders, "") for end in (".bin", "")
    ]
    for name in names:
        if os.path.isfile(name):
            return name
    raise FileNotFoundError(
        f"{owner}: {stem} is missing in {root}; nothing is downloaded, expected one of "
        f"{', '.join(names[:4])}"
    )


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that makes numpy arrays and plain collections and calls nothing else."""

    _ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
        }
    )  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for.

        Raises:
            UnpicklingError: for any name that an array does not need.
        """
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module.replace("numpy.core", "numpy._core")
                                  if hasattr(np, "_core") else module, name)  # fmt: skip

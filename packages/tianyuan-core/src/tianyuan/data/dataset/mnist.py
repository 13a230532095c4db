"""Decide how MNIST's IDX files are found and read."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np

from .vision import VisionDataset, default_root

_UBYTE = 0x08
_LIMIT = 1 << 31  # bytes; a damaged header must not make us ask for more


def read_idx(path: str | os.PathLike[str], ndim: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes, plain or gzipped (name ends in ``.gz``).

    The format: two zero bytes, type code 8, rank, one big-endian u32 per extent, data.

    Returns:
        uint8 array of rank ``ndim``.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where the file is no IDX file of that rank, or is cut or too long.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "labels")
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 9]))
    >>> read_idx(path, 1)
    array([5, 9], dtype=uint8)
    """
    name = os.fspath(path)
    opener = gzip.open if name.endswith(".gz") else open
    try:
        with opener(name, "rb") as file:
            shape = _read_shape(name, file.read(4 + 4 * ndim), ndim)
            raw = file.read(math.prod(shape) + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{name}: gzip data is damaged or cut, got {error}") from None
    if len(raw) != math.prod(shape):
        got = f"{len(raw)} bytes" if len(raw) < math.prod(shape) else "more"
        raise ValueError(
            f"{name}: file has the wrong size for shape {shape}, got {got}, "
            f"expected {math.prod(shape)} bytes of data"
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _read_shape(name: str, head: bytes, ndim: int) -> tuple[int, ...]:
    magic = bytes((0, 0, _UBYTE, ndim))
    if head[:4] != magic:
        raise ValueError(
            f"{name}: not an IDX file of {ndim}-d bytes, got magic {head[:4].hex()}, "
            f"expected {magic.hex()}"
        )
    if len(head) < 4 + 4 * ndim:
        raise ValueError(f"{name}: file is cut, got {len(head)} bytes, expected a whole header")
    shape = tuple(int.from_bytes(head[at : at + 4], "big") for at in range(4, len(head), 4))
    if math.prod(extent for extent in shape if extent) > _LIMIT:
        raise ValueError(f"{name}: shape is absurd, got {shape}, expected at most {_LIMIT} bytes")
    return shape


class MNIST(VisionDataset):
    """Handwritten digits of 28 x 28 pixels, read from the four IDX files in a folder.

    A sample is (uint8 image of shape (28, 28, 1), int label). Nothing is downloaded.

    Args:
        root: folder that holds ``train-images-idx3-ubyte`` and so on, plain or with ``.gz``;
            ``datasets/MNIST`` in TIANYUAN_HOME by default.
        train: whether to read the training files or the test files (``t10k-…``).
        download, timeout: accepted for MegEngine's sake.

    Raises:
        FileNotFoundError: where a file is missing.
        ValueError: where a file is damaged or the files do not belong together.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> root = pathlib.Path(folder.name)
    >>> head = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28])
    >>> _ = (root / "t10k-images-idx3-ubyte").write_bytes(head + bytes(28 * 28))
    >>> _ = (root / "t10k-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 4]))
    >>> image, label = MNIST(root, train=False)[0]
    >>> image.shape, label
    ((28, 28, 1), 4)
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        train: bool = True,
        download: bool = True,
        timeout: int = 500,
    ) -> None:
        super().__init__(default_root("MNIST") if root is None else root)
        self.train = bool(train)
        part = "train" if train else "t10k"
        images_path = _find(Path(self.root), f"{part}-images", "idx3-ubyte")
        labels_path = _find(Path(self.root), f"{part}-labels", "idx1-ubyte")
        self.images = read_idx(images_path, 3)[..., np.newaxis]
        self.labels = read_idx(labels_path, 1)
        if len(self.images) != len(self.labels):
            raise ValueError(
                f"MNIST: images and labels differ in number, got {len(self.images)} in "
                f"{images_path} and {len(self.labels)} in {labels_path}"
            )
        if self.labels.size and self.labels.max() > 9:
            raise ValueError(
                f"{labels_path}: label out of range, got {self.labels.max()}, expected 0 to 9"
            )

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index], int(self.labels[index])

    def __len__(self) -> int:
        return len(self.labels)


def _find(root: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{dot}{kind}{end}" for end in ("", ".gz") for dot in "-."]
    for name in names:
        if (root / name).is_file():
            return root / name
    raise FileNotFoundError(f"MNIST: file is missing in {root}, expected one of {', '.join(names)}")

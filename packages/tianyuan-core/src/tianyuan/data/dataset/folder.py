"""Decide how images in folders by class become samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .images import SUFFIXES, read_image
from .vision import VisionDataset, default_root, need_folder


class ImageFolder(VisionDataset):
    """Images in one folder per class: ``root/cat/1.png``, ``root/dog/a/2.jpg``.

    A sample is (uint8 image of shape (height, width, 3) in the order blue, green, red, int label),
    where labels number the classes in the order of their names.

    Args:
        root: the folder.
        check_valid_func: tells by its path whether a file counts; by its ending by default.
        class_name: whether a sample's label is the name of its class.

    Attributes:
        classes: names of the classes.
        class_to_idx: their labels.
        samples: (path, label) of every image, sorted by path.

    Raises:
        FileNotFoundError: where there is no such folder, or no image in it.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name in ("dog/1.png", "cat/2.png"):
    ...     path = pathlib.Path(folder.name, name)
    ...     path.parent.mkdir(parents=True)
    ...     path.touch()
    >>> ImageFolder(folder.name).classes
    ['cat', 'dog']
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        check_valid_func: Callable[[str], bool] | None = None,
        class_name: bool = False,
    ) -> None:
        super().__init__(root, order=("image",))
        name = type(self).__name__
        need_folder(name, self.root)
        self.class_name = class_name
        with os.scandir(self.root) as entries:
            self.classes = sorted(entry.name for entry in entries if entry.is_dir())
        self.class_to_idx = {label: index for index, label in enumerate(self.classes)}
        check = check_valid_func or _is_image
        self.samples = [
            (path, index)
            for label, index in self.class_to_idx.items()
            for path in sorted(_files(os.path.join(self.root, label)))
            if check(path)
        ]
        if not self.samples:
            raise FileNotFoundError(
                f"{name}: no image in {self.root}, expected {self.root}/<class>/<image>"
            )

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        path, label = self.samples[index]
        return read_image(path), self.classes[label] if self.class_name else label

    def __len__(self) -> int:
        return len(self.samples)


class ImageNet(ImageFolder):
    """The ImageNet classification set: ``root/train/<wnid>/*.JPEG`` and ``root/val/<wnid>/…``.

    The archives are to be unpacked beforehand, the images for validation into a folder per class.

    Args:
        root: the folder; ``datasets/ImageNet`` in TIANYUAN_HOME by default.
        train: whether to read the images for training or those for validation.
        kwargs: as for ``ImageFolder``.

    Raises:
        FileNotFoundError: as ``ImageFolder``.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name in ("dog/1.png", "cat/2.png"):
    ...     path = pathlib.Path(folder.name, "val", name)
    ...     path.parent.mkdir(parents=True)
    ...     path.touch()
    >>> ImageNet(folder.name, train=False).classes
    ['cat', 'dog']
    """

    def __init__(
        self, root: str | os.PathLike[str] | None = None, train: bool = True, **kwargs: Any
    ) -> None:
        base = default_root("ImageNet") if root is None else os.fspath(root)
        self.train = bool(train)
        super().__init__(os.path.join(base, "train" if train else "val"), **kwargs)


def _is_image(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def _files(folder: str) -> list[str]:
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]

"""Decide what the datasets of images share: a folder, and which fields make up a sample."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .base import Dataset


def default_root(name: str) -> str:
    """Return where a dataset lies if the user does not say: in TIANYUAN_HOME or the user's cache.

    >>> import os
    >>> os.path.basename(default_root("MNIST"))
    'MNIST'
    """
    home = os.environ.get("TIANYUAN_HOME")
    return os.path.join(home or os.path.expanduser("~/.cache/tianyuan"), "datasets", name)


class VisionDataset(Dataset):
    """The base of datasets whose samples are tuples of the fields that ``order`` names.

    Args:
        root: the folder.
        order: names of the fields of a sample; ``("image",)`` by default.
        supported_order: names that a subclass knows.

    Raises:
        ValueError: where a name is unknown.

    >>> class Black(VisionDataset):
    ...     def __getitem__(self, index):
    ...         return self.fields(index)
    ...     def __len__(self):
    ...         return 1
    ...     def field(self, index, name):
    ...         return f"{name} of {index}"
    >>> Black("folder", order=("image", "info"))[0]
    ('image of 0', 'info of 0')
    """

    supported_order: tuple[str, ...] = (
        "image", "coords", "boxes", "boxes_category", "keypoints", "mask", "category", "info",
    )  # fmt: skip

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        order: Sequence[str] | None = None,
        supported_order: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.root = os.fspath(root)
        self.order = ("image",) if order is None else tuple(order)
        known = self.supported_order if supported_order is None else tuple(supported_order)
        unknown = [name for name in self.order if name not in known]
        if unknown:
            raise ValueError(
                f"{type(self).__name__}: order is wrong, got {unknown[0]!r}, expected names of "
                f"{', '.join(known)}"
            )

    def fields(self, index: int) -> tuple[Any, ...]:
        """Return a sample, asking ``field(index, name)`` for each of its fields."""
        return tuple(self.field(index, name) for name in self.order)

    def field(self, index: int, name: str) -> Any:
        """Return one field of a sample; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__}: has no field {name!r}")


def need_folder(owner: str, path: str) -> str:
    """Return a folder's path.

    Raises:
        FileNotFoundError: where it is not there.
    """
    if not os.path.isdir(path):
        raise FileNotFoundError(
            f"{owner}: folder is missing, got {path!r}; nothing is downloaded, expected the data "
            "there"
        )
    return path


def __getattr__(name: str) -> Any:
    # MegEngine has a package of this name that holds all datasets of pictures.
    package = import_module(__package__)
    if name in package.__all__:
        return getattr(package, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )

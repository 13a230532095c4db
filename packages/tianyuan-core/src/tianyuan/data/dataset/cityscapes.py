"""Decide how the folders of Cityscapes are read, and which of its labels are classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .images import read_image, read_labels
from .vision import VisionDataset, need_folder

IGNORED = 255  # labels that are no class


class Cityscapes(VisionDataset):
    """Street scenes with a class per pixel.

    A sample is a tuple of the fields that ``order`` names:

    - ``image``: uint8 (height, width, 3), blue, green, red, from ``leftImg8bit``;
    - ``mask``: int32 (height, width, 1): numbers of ``class_names``, 255 for labels that do not
      count;
    - ``info``: [height, width, name of the file].

    Args:
        root: folder that holds ``leftImg8bit`` and ``gtFine`` or ``gtCoarse``.
        image_set: ``train``, ``val`` or ``test``; with ``gtCoarse`` also ``train_extra``.
        mode: ``gtFine`` or ``gtCoarse``; ``fine`` and ``coarse`` mean the same.
        order: as above; ``("image",)`` by default.

    Raises:
        FileNotFoundError: where a folder is missing.
        ValueError: where ``mode``, ``image_set`` or ``order`` is wrong.

    >>> Cityscapes.class_names[13], Cityscapes.class_ids[13]
    ('car', 26)
    """

    supported_order: tuple[str, ...] = ("image", "mask", "info")

    class_names = (
        "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign",
        "vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train",
        "motorcycle", "bicycle",
    )  # fmt: skip
    class_ids = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)

    def __init__(
        self,
        root: str | os.PathLike[str],
        image_set: str,
        mode: str,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(root, order=order)
        folder = {"fine": "gtFine", "coarse": "gtCoarse"}.get(mode, mode)
        sets = {"gtFine": ("train", "val", "test"), "gtCoarse": ("train", "train_extra", "val")}
        if folder not in sets or image_set not in sets[folder]:
            raise ValueError(
                f"Cityscapes: mode or image_set is wrong, got {mode!r} and {image_set!r}, expected "
                + " or ".join(f"{name} with {', '.join(known)}" for name, known in sets.items())
            )
        self.mode, self.image_set = folder, image_set
        images = need_folder("Cityscapes", os.path.join(self.root, "leftImg8bit", image_set))
        labels = os.path.join(self.root, folder, image_set)
        if "mask" in self.order:
            need_folder("Cityscapes", labels)
        self.items: list[tuple[str, str]] = []
        for city in sorted(os.listdir(images)):
            for name in sorted(os.listdir(os.path.join(images, city))):
                stem = name.removesuffix("_leftImg8bit.png")
                if stem != name:
                    mask = os.path.join(labels, city, f"{stem}_{folder}_labelIds.png")
                    self.items.append((os.path.join(images, city, name), mask))
        self._table = np.full(256, IGNORED, np.int32)
        self._table[list(self.class_ids)] = np.arange(len(self.class_ids))

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.fields(index)

    def __len__(self) -> int:
        return len(self.items)

    def field(self, index: int, name: str) -> Any:
        """Return one field of a sample."""
        image, mask = self.items[index]
        if name == "image":
            return read_image(image)
        if name == "mask":
            return self._table[read_labels(mask).astype(np.uint8)][..., np.newaxis]
        height, width = read_image(image).shape[:2]
        return [height, width, os.path.basename(image)]

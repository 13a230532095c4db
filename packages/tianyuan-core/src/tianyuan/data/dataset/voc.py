"""Decide how Pascal VOC's annotations and masks are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np

from .images import read_image, read_labels
from .vision import VisionDataset, need_folder

VOID = 255  # pixels whose class is not told


class PascalVOC(VisionDataset):
    """The photographs of Pascal VOC: ``JPEGImages``, ``Annotations``, ``ImageSets`` in a folder.

    A sample is a tuple of the fields that ``order`` names:

    - ``image``: uint8 (height, width, 3), blue, green, red;
    - ``boxes``: float32 (n, 4), x and y of two corners, as annotated;
    - ``boxes_category``: int32 (n,), numbers of ``class_names``;
    - ``mask``: int32 (height, width, 1): 0 for background, then the classes from 1 on, 255 where
      the class is not told;
    - ``info``: [height, width, name of the file].

    Args:
        root: the folder, as ``VOCdevkit/VOC2012``.
        image_set: name of the list of images: ``train``, ``val``, ``trainval`` …, looked for in
            ``ImageSets/Segmentation`` where masks are asked for, in ``ImageSets/Main`` otherwise.
        order: as above; ``("image",)`` by default.

    Raises:
        FileNotFoundError: where folder or list are missing.
        ValueError: where ``order`` is wrong, or, on use, an annotation.

    >>> PascalVOC.class_names[14]
    'person'
    """

    supported_order: tuple[str, ...] = ("image", "boxes", "boxes_category", "mask", "info")

    class_names = (
        "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
        "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
        "train", "tvmonitor",
    )  # fmt: skip

    def __init__(
        self,
        root: str | os.PathLike[str],
        image_set: str,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(root, order=order)
        need_folder("PascalVOC", self.root)
        self.image_set = image_set
        kind = "Segmentation" if "mask" in self.order else "Main"
        path = os.path.join(self.root, "ImageSets", kind, f"{image_set}.txt")
        with open(path, encoding="utf-8") as file:
            # Lists by class tell in a second column whether the class is there.
            self.file_names = [line.split()[0] for line in file if line.strip()]
        self._numbers = {name: number for number, name in enumerate(self.class_names)}

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.fields(index)

    def __len__(self) -> int:
        return len(self.file_names)

    def get_img_info(self, index: int) -> dict[str, Any]:
        """Return height, width and file name as the annotation tells them."""
        tree = self._annotation(index)
        found = {name: int(tree.findtext(f"size/{name}") or 0) for name in ("height", "width")}
        return {**found, "file_name": f"{self.file_names[index]}.jpg"}

    def field(self, index: int, name: str) -> Any:
        """Return one field of a sample."""
        stem = self.file_names[index]
        if name == "image":
            return read_image(os.path.join(self.root, "JPEGImages", f"{stem}.jpg"))
        if name == "mask":
            found = read_labels(os.path.join(self.root, "SegmentationClass", f"{stem}.png"))
            return classes_of(found)[..., np.newaxis].astype(np.int32)
        if name == "info":
            return list(self.get_img_info(index).values())
        objects = self._annotation(index).findall("object")
        if name == "boxes":
            corners = [
                [_corner(o, key) for key in ("xmin", "ymin", "xmax", "ymax")] for o in objects
            ]
            return np.array(corners, np.float32).reshape(-1, 4)
        return np.array([self._number(o.findtext("name") or "") for o in objects], np.int32)

    def _annotation(self, index: int) -> ElementTree.Element:
        path = os.path.join(self.root, "Annotations", f"{self.file_names[index]}.xml")
        try:
            return ElementTree.parse(path).getroot()
        except ElementTree.ParseError as error:
            raise ValueError(f"PascalVOC: {path} is damaged, got {error}") from None

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise ValueError(
                f"PascalVOC: class is unknown, got {name!r}, expected one of class_names"
            )
        return self._numbers[name]


def _corner(entry: ElementTree.Element, key: str) -> float:
    text = entry.findtext(f"bndbox/{key}")
    if text is None:
        raise ValueError(f"PascalVOC: a box lacks {key}")
    return float(text)


def color_of(number: int) -> tuple[int, int, int]:
    """Return the colour (red, green, blue) of a class in VOC's palette.

    The bits of a number go to the three colours in turn, the lowest to their highest.

    >>> color_of(1), color_of(15)
    ((128, 0, 0), (192, 128, 128))
    """
    red = green = blue = 0
    for bit in range(8):
        red |= (number & 1) << (7 - bit)
        green |= (number >> 1 & 1) << (7 - bit)
        blue |= (number >> 2 & 1) << (7 - bit)
        number >>= 3
    return red, green, blue


def classes_of(labels: np.ndarray) -> np.ndarray:
    """Return class numbers (height, width) for indices of VOC's palette or its colours in BGR."""
    if labels.ndim == 2:
        return labels
    found = np.full(labels.shape[:2], VOID, np.uint8)
    for number in range(len(PascalVOC.class_names) + 1):
        found[(labels[..., ::-1] == color_of(number)).all(axis=-1)] = number
    return found

"""Decide how annotations in COCO's form become boxes, classes and keypoints."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from .images import read_image
from .vision import VisionDataset

_MIN_KEYPOINTS = 10  # visible ones that make an image worth its keypoints
_MIN_SIDE = 1.0  # pixels


class COCO(VisionDataset):
    """Photographs with boxes, from a folder of images and a file of annotations in COCO's form.

    A sample is a tuple of the fields that ``order`` names:

    - ``image``: uint8 (height, width, 3), blue, green, red;
    - ``boxes``: float32 (n, 4), x and y of the upper left and the lower right corner;
    - ``boxes_category``: int32 (n,), from 1 on, in the order of the file's category ids;
    - ``keypoints``: float32 (n, points, 3), x, y and visibility;
    - ``info``: [height, width, name of the file].

    Annotations of crowds, and boxes that cover no pixel, are left out.

    Args:
        root: folder of the images.
        ann_file: the annotations, JSON.
        remove_images_without_annotations: whether to leave out images without a box, or, where
            keypoints are asked for, with fewer than ten visible ones.
        order: as above; ``("image",)`` by default.

    Raises:
        FileNotFoundError: where the annotations are missing.
        ValueError: where they are not in COCO's form, or ``order`` is wrong.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "annotations.json")
    >>> names = '"categories": [{"id": 3, "name": "cat"}]'
    >>> _ = path.write_text('{"images": [], "annotations": [], ' + names + "}")
    >>> COCO(folder.name, path, order=("image", "boxes")).class_names
    ('cat',)
    """

    supported_order: tuple[str, ...] = ("image", "boxes", "boxes_category", "keypoints", "info")

    def __init__(
        self,
        root: str | os.PathLike[str],
        ann_file: str | os.PathLike[str],
        remove_images_without_annotations: bool = False,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(root, order=order)
        images, annotations, categories = _parse(type(self).__name__, os.fspath(ann_file))
        self.imgs: dict[Any, dict[str, Any]] = {image["id"]: image for image in images}
        self.cats: dict[int, dict[str, Any]] = {entry["id"]: entry for entry in categories}
        numbers = sorted(self.cats)
        self.json_category_id_to_contiguous_id = {n: i + 1 for i, n in enumerate(numbers)}
        self.contiguous_category_id_to_json_id = {i + 1: n for i, n in enumerate(numbers)}
        self.class_names = tuple(str(self.cats[number]["name"]) for number in numbers)
        self.img_to_anns: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
        for entry in annotations:
            if not entry.get("iscrowd", 0) and _has_area(entry["bbox"]):
                self.img_to_anns[entry["image_id"]].append(entry)
        self.ids = [
            number
            for number in sorted(self.imgs)
            if not remove_images_without_annotations or self._is_annotated(number)
        ]

    def _is_annotated(self, number: Any) -> bool:
        entries = self.img_to_anns[number]
        if not any(min(entry["bbox"][2:]) > _MIN_SIDE for entry in entries):
            return False
        if "keypoints" not in self.order:
            return True
        seen = sum(v > 0 for entry in entries for v in entry.get("keypoints", ())[2::3])
        return bool(seen >= _MIN_KEYPOINTS)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.fields(index)

    def __len__(self) -> int:
        return len(self.ids)

    def get_img_info(self, index: int) -> dict[str, Any]:
        """Return what the annotations say about an image."""
        return self.imgs[self.ids[index]]

    def field(self, index: int, name: str) -> Any:
        """Return one field of a sample."""
        entries = self.img_to_anns[self.ids[index]]
        info = self.get_img_info(index)
        if name == "image":
            return read_image(os.path.join(self.root, info["file_name"]))
        if name == "boxes":
            boxes = np.array([entry["bbox"] for entry in entries], np.float32).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            return boxes
        if name == "boxes_category":
            known = self.json_category_id_to_contiguous_id
            return np.array([known[entry["category_id"]] for entry in entries], np.int32)
        if name == "keypoints":
            points = np.array([entry["keypoints"] for entry in entries], np.float32)
            return points.reshape(len(entries), -1, 3) if entries else points.reshape(0, 0, 3)
        return [info["height"], info["width"], info["file_name"]]


class Objects365(COCO):
    """Photographs with boxes of 365 classes, in COCO's form; see ``COCO``.

    >>> "keypoints" in Objects365.supported_order
    False
    """

    supported_order: tuple[str, ...] = ("image", "boxes", "boxes_category", "info")


def _has_area(box: Sequence[float]) -> bool:
    return box[2] > 0 and box[3] > 0


def _parse(owner: str, path: str) -> tuple[list[Any], list[Any], list[Any]]:
    with open(path, "rb") as file:
        try:
            found = json.load(file)
            return found["images"], found["annotations"], found["categories"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{owner}: {path} is not in COCO's form, got {error!r}, expected images, "
                "annotations and categories"
            ) from None

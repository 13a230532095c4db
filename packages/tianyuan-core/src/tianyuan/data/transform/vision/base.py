"""Decide how a transform is spread over the fields of a sample, and how transforms combine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....errors import AttrError
from ..base import Transform
from .arguments import list_of

FIELDS = ("image", "coords", "boxes", "keypoints", "polygons", "mask", "category", "info")


class VisionTransform(Transform):
    """A transform of the fields of a sample, which are named by ``order``.

    A sample is a tuple whose first fields are what ``order`` says; further fields pass unchanged.
    Anything but a tuple is taken as its first field alone. Subclasses define ``_apply_image`` and,
    where it differs from that or from nothing, ``_apply_coords`` and so on.

    Args:
        order: names of the first fields: ``image`` (height, width, channels), ``coords`` (n, 2)
            as x and y, ``boxes`` (n, 4) as x and y of two corners, ``keypoints`` (n, k, 2 or more)
            as x, y and marks that stay, ``polygons`` as lists of coords, ``mask``, ``category``,
            ``info``. Names that end in ``category``, as ``boxes_category``, pass unchanged; a
            subclass has further names by defining ``_apply_`` and the name. By default
            ``("image",)``.

    Raises:
        AttrError: where a name is unknown.

    >>> import numpy as np
    >>> class Invert(VisionTransform):
    ...     def _apply_image(self, image):
    ...         return 255 - image
    >>> Invert().apply(np.array([[0, 255]], np.uint8))
    array([[255,   0]], dtype=uint8)
    """

    def __init__(self, order: Sequence[str] | None = None) -> None:
        super().__init__()
        self._take_order(("image",) if order is None else self._names(order))

    def _names(self, order: Any) -> tuple[str, ...]:
        """Return an order, in which a text by itself is no sequence of names."""
        if isinstance(order, str) or not isinstance(order, Sequence):
            raise AttrError(
                f"{type(self).__name__}: order is wrong, got {order!r}, expected a tuple of names "
                f"of {', '.join(FIELDS)}"
            )
        return tuple(order)

    def _take_order(self, order: tuple[str, ...]) -> None:
        unknown = [
            name for name in order if not isinstance(name, str) or self._applier(name) is None
        ]
        if unknown:
            raise AttrError(
                f"{type(self).__name__}: order is wrong, got {unknown[0]!r}, "
                f"expected names of {', '.join(FIELDS)}"
            )
        self.order = order

    def _applier(self, name: str) -> Callable[[Any], Any] | None:
        own: Callable[[Any], Any] | None = getattr(self, f"_apply_{name}", None)
        return self._apply_category if own is None and name.endswith("category") else own

    def apply(self, input: Any) -> Any:
        """Return the transformed sample, a tuple if one was given."""
        fields = input if isinstance(input, tuple) else (input,)
        self._draw(fields[self.order.index("image")] if "image" in self.order else None)
        appliers = [self._applier(name) for name in self.order]
        done = [apply(field) for apply, field in zip(appliers, fields, strict=False) if apply]
        result = (*done, *fields[len(done) :])
        return result if isinstance(input, tuple) else result[0]

    def _draw(self, image: Any) -> None:
        """Choose what is random, once for all fields of a sample."""

    @abstractmethod
    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        """Return the transformed image."""

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return coords

    def _apply_boxes(self, boxes: np.ndarray) -> np.ndarray:
        """Return the boxes around the transformed corners."""
        corners = np.asarray(boxes)[:, [0, 1, 2, 1, 0, 3, 2, 3]].reshape(-1, 2)
        moved = self._apply_coords(corners).reshape(-1, 4, 2)
        return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)

    def _apply_keypoints(self, keypoints: np.ndarray) -> np.ndarray:
        """Return the points moved as coordinates are, with their marks."""
        points = np.asarray(keypoints)
        moved = self._apply_coords(points[..., :2].reshape(-1, 2)).reshape(*points.shape[:-1], 2)
        return np.concatenate([moved, points[..., 2:]], axis=-1)

    def _apply_polygons(self, polygons: Any) -> Any:
        """Return polygons, or lists of them, with their corners moved as coordinates are."""
        if isinstance(polygons, np.ndarray) and polygons.ndim < 3:
            return self._apply_coords(polygons.reshape(-1, 2)).reshape(polygons.shape)
        return [self._apply_polygons(polygon) for polygon in polygons]

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return mask

    def _apply_category(self, category: Any) -> Any:
        return category

    def _apply_info(self, info: Any) -> Any:
        return info


def _are_groups(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(group, (list, tuple, range))
        and all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in group)
        for group in value
    )


class Compose(VisionTransform):
    """Apply transforms one after the other.

    Args:
        transforms: what to apply, in this order.
        batch_compose: whether each transform is given all samples of a batch at once.
        shuffle_indices: groups of positions in ``transforms``, as in ``[(0, 1, 2)]``, whose
            transforms change places at random, for each sample anew (each batch with
            ``batch_compose``).
        order: given to all transforms where not None.

    Raises:
        AttrError: where a position is out of range or stands twice.

    >>> import numpy as np
    >>> from tianyuan.data.transform import CenterCrop, ToMode
    >>> Compose([CenterCrop(2), ToMode()]).apply(np.zeros((4, 6, 3))).shape
    (3, 2, 2)
    """

    def __init__(
        self,
        transforms: Sequence[Transform] = (),
        batch_compose: bool = False,
        shuffle_indices: Sequence[Sequence[int]] | None = None,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.transforms = list_of("Compose", "transforms", transforms, "apply")
        self.batch_compose = batch_compose
        given = () if shuffle_indices is None else shuffle_indices
        if not _are_groups(given):
            raise AttrError(
                f"Compose: shuffle_indices is wrong, got {shuffle_indices!r}, expected groups of "
                "positions, such as [(0, 1)]"
            )
        self.shuffle_indices = [list(group) for group in given]
        positions = [position for group in self.shuffle_indices for position in group]
        if sorted(set(positions) & set(range(len(self.transforms)))) != sorted(positions):
            raise AttrError(
                f"Compose: shuffle_indices is wrong, got {shuffle_indices!r}, expected distinct "
                f"positions below {len(self.transforms)}"
            )
        if order is not None:
            self._take_order(self._names(order))

    def _take_order(self, order: tuple[str, ...]) -> None:
        own = [t for t in getattr(self, "transforms", ()) if isinstance(t, VisionTransform)]
        for transform in own:
            transform._take_order(order)
        if not own:
            super()._take_order(order)
        self.order = order

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the transformed samples of a batch."""
        if not self.batch_compose:
            return super().apply_batch(inputs)
        for transform in self._shuffled():
            inputs = transform.apply_batch(inputs)
        return inputs

    def apply(self, input: Any) -> Any:
        """Return one transformed sample."""
        for transform in self._shuffled():
            input = transform.apply(input)
        return input

    def _shuffled(self) -> list[Transform]:
        result = list(self.transforms)
        for group in self.shuffle_indices:
            for position, source in zip(group, np.random.permutation(group), strict=True):
                result[position] = self.transforms[source]
        return result

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        transformed: np.ndarray = self.apply(image)
        return transformed

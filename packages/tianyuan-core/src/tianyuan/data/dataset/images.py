"""Decide how image files are read: with OpenCV, or else with Pillow, as uint8 BGR."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from ...errors import MissingPackageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

Path = str | os.PathLike[str]


def read_image(path: Path) -> np.ndarray:
    """Return an image file as uint8 array (height, width, 3) in the order blue, green, red.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where it is no image.
        ImportError: where neither OpenCV nor Pillow is installed.
    """
    return _read(path, color=True)


def read_labels(path: Path) -> np.ndarray:
    """Return an image of labels: (height, width), or (height, width, 3) BGR where it has colours.

    An image with a palette gives its indices where Pillow reads it, its colours with OpenCV alone.

    Raises:
        FileNotFoundError, ValueError, ImportError: as ``read_image``.
    """
    return _read(path, color=False)


def _read(path: Path, color: bool) -> np.ndarray:
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileNotFoundError(f"{name}: no such image file")
    # Only Pillow gives the indices of a palette; OpenCV decodes photographs faster.
    readers = [("cv2", _read_opencv), ("PIL.Image", _read_pillow)]
    for module, reader in readers if color else readers[::-1]:
        with suppress(ImportError):
            library = import_module(module)
            found = reader(library, name, color)
            if found is None:
                raise ValueError(f"{name}: is not an image that {module} can read")
            return found
    raise MissingPackageError(
        f"{name}: reading images needs OpenCV or Pillow, got neither, expected "
        "`pip install pillow` or `pip install opencv-python-headless`"
    )


def _read_opencv(cv2: Any, name: str, color: bool) -> np.ndarray | None:
    found: np.ndarray | None = cv2.imread(name, cv2.IMREAD_COLOR if color else cv2.IMREAD_UNCHANGED)
    return found


def _read_pillow(pillow: Any, name: str, color: bool) -> np.ndarray | None:
    try:
        with pillow.open(name) as image:
            if not color and image.mode in ("P", "L", "I", "I;16"):
                return np.array(image)
            return np.ascontiguousarray(np.array(image.convert("RGB"))[..., ::-1])
    except (pillow.UnidentifiedImageError, OSError, SyntaxError):
        return None

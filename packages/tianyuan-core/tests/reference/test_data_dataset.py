"""Datasets and the collator."""

from __future__ import annotations

import gzip
import struct
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tianyuan.data import Collator
from tianyuan.data.dataset import (
    MNIST,
    ArrayDataset,
    ConcatDataset,
    Dataset,
    Digits,
    StreamDataset,
)


class _Count(Dataset):
    def __init__(self, start: int, length: int) -> None:
        super().__init__()
        self.start, self.length = start, length

    def __getitem__(self, index: int) -> int:
        if not -self.length <= index < self.length:
            raise IndexError(index)
        return self.start + index

    def __len__(self) -> int:
        return self.length


class _Stream(StreamDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_datasets_are_abstract() -> None:
    for base in (Dataset, StreamDataset):
        with pytest.raises(TypeError, match="abstract"):
            base()  # type: ignore[abstract]


def test_stream_has_neither_index_nor_length() -> None:
    stream = _Stream()
    assert list(stream) == [0, 1, 2]
    with pytest.raises(TypeError, match="no index"):
        stream[0]
    with pytest.raises(TypeError, match="no length"):
        len(stream)


def test_array_dataset() -> None:
    images, labels = np.arange(12).reshape(4, 3), np.array([5, 6, 7, 8])
    dataset = ArrayDataset(images, labels)
    assert len(dataset) == 4
    image, label = dataset[2]
    assert image.tolist() == [6, 7, 8]
    assert label == 7
    assert len(ArrayDataset(images)[0]) == 1
    with pytest.raises(ValueError, match=r"one length, got \[4, 3\]"):
        ArrayDataset(images, labels[:3])
    with pytest.raises(ValueError, match="no array"):
        ArrayDataset()


def test_concat_dataset() -> None:
    dataset = ConcatDataset([_Count(0, 2), _Count(10, 0), _Count(20, 3)])
    wanted = [0, 1, 20, 21, 22]
    assert [dataset[i] for i in range(len(dataset))] == wanted
    assert [dataset[i] for i in range(-5, 0)] == wanted
    for index in (5, -6):
        with pytest.raises(IndexError, match="expected -5 to 4"):
            dataset[index]
    with pytest.raises(ValueError, match="no dataset"):
        ConcatDataset([])
    with pytest.raises(ValueError, match="StreamDataset"):
        ConcatDataset([_Count(0, 2), _Stream()])


# MNIST


def _idx(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(np.uint8).tobytes()
    )


IMAGES = np.random.default_rng(3).integers(0, 256, (5, 28, 28))
LABELS = np.array([7, 2, 1, 0, 9])


def _write(root: Path, part: str, images: bytes, labels: bytes, end: str = "") -> None:
    pack = gzip.compress if end else bytes
    (root / f"{part}-images-idx3-ubyte{end}").write_bytes(pack(images))
    (root / f"{part}-labels-idx1-ubyte{end}").write_bytes(pack(labels))


@pytest.mark.parametrize("end", ["", ".gz"])
def test_mnist(tmp_path: Path, end: str) -> None:
    _write(tmp_path, "train", _idx(IMAGES), _idx(LABELS), end)
    _write(tmp_path, "t10k", _idx(IMAGES[:2]), _idx(LABELS[:2]), end)
    dataset = MNIST(str(tmp_path))
    assert len(dataset) == 5
    assert len(MNIST(tmp_path, train=False)) == 2
    for index in range(5):
        image, label = dataset[index]
        assert image.dtype == np.uint8
        assert image.shape == (28, 28, 1)
        np.testing.assert_array_equal(image[..., 0], IMAGES[index])
        assert label == LABELS[index]


BROKEN = {
    "empty": (b"", "not an IDX file"),
    "wrong magic": (_idx(LABELS), "got magic 00000801, expected 00000803"),
    "cut in the header": (_idx(IMAGES)[:9], "file is cut"),
    "cut in the data": (_idx(IMAGES)[:-1], "got 3919 bytes, expected 3920"),
    "too long": (_idx(IMAGES) + b"\0", "got more, expected 3920"),
    "absurd shape": (bytes((0, 0, 8, 3)) + b"\xff" * 12, "absurd"),
    "absurd beside zero": (bytes((0, 0, 8, 3, 0, 0, 0, 0)) + b"\xff" * 8, "absurd"),
}


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.replace(" ", "-"))
def test_mnist_with_a_damaged_file(tmp_path: Path, case: str, end: str) -> None:
    raw, message = BROKEN[case]
    _write(tmp_path, "train", raw, _idx(LABELS), end)
    with pytest.raises(ValueError, match=message) as caught:
        MNIST(tmp_path)
    assert f"train-images-idx3-ubyte{end}" in str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 30, -10])
def test_mnist_with_a_damaged_gzip_file(tmp_path: Path, keep: int) -> None:
    _write(tmp_path, "train", _idx(IMAGES), _idx(LABELS), ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"train-images.*gz"):
        MNIST(tmp_path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(ValueError, match="gzip data is damaged"):
        MNIST(tmp_path)


def test_mnist_files_must_be_there_and_belong_together(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="train-images"):
        MNIST(tmp_path)
    _write(tmp_path, "train", _idx(IMAGES), _idx(LABELS[:4]))
    with pytest.raises(ValueError, match="differ in number, got 5 .* and 4"):
        MNIST(tmp_path)
    _write(tmp_path, "train", _idx(IMAGES), _idx(LABELS + 5))
    with pytest.raises(ValueError, match="label out of range, got 14"):
        MNIST(tmp_path)


# Digits


def test_digits_are_split_once_and_for_all() -> None:
    train, test = Digits(), Digits(train=False)
    assert (len(train), len(test)) == (1437, 360)
    images = np.concatenate([train.images, test.images])
    labels = np.concatenate([train.labels, test.labels])
    assert images.dtype == np.uint8
    assert images.shape == (1797, 8, 8, 1)
    # Facts of the published data: its classes' sizes and its range.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (images.min(), images.max()) == (0, 16)
    np.testing.assert_array_equal(train.images, Digits(train=True).images)
    image, label = train[-1]
    np.testing.assert_array_equal(image, train.images[1436])
    assert type(label) is int
    assert label == train.labels[1436]


def test_digits_split_keeps_all_images_apart() -> None:
    seen = [image.tobytes() for part in (True, False) for image in Digits(train=part).images]
    assert len(seen) == 1797
    assert len(set(seen)) == len(set(seen[:1437])) + len(set(seen[1437:]))


def test_digits_can_be_learnt() -> None:
    """Tell the digits by the nearest training image: labels and images belong together."""
    train, test = Digits(), Digits(train=False)
    a = train.images.reshape(-1, 64).astype(np.float64)
    b = test.images.reshape(-1, 64).astype(np.float64)
    distance = (a**2).sum(1) - 2 * b @ a.T
    assert (train.labels[distance.argmin(1)] == test.labels).mean() > 0.97


# Collator


def test_collator_keeps_structure() -> None:
    Pair = namedtuple("Pair", "image label")
    samples = [
        {
            "pair": Pair(np.full((2, 3), k, np.float32), np.int16(k)),
            "list": [k, float(k), "text" * k],
            "flag": k == 1,
            "bytes": b"x" * k,
        }
        for k in range(3)
    ]
    batch = Collator().apply(samples)
    assert isinstance(batch["pair"], Pair)
    assert type(batch["list"]) is list
    assert batch["pair"].image.shape == (3, 2, 3)
    assert batch["pair"].image.dtype == np.float32
    assert batch["pair"].image[2].tolist() == [[2.0] * 3] * 2
    assert batch["pair"].label.dtype == np.int16
    assert batch["list"][0].dtype == np.int64
    assert batch["list"][1].dtype == np.float64
    assert batch["list"][2] == ["", "text", "texttext"]
    assert batch["flag"].dtype == np.bool_
    assert batch["flag"].tolist() == [False, True, False]
    assert batch["bytes"] == [b"", b"x", b"xx"]


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        ([np.zeros(2), np.zeros(3)], ValueError, r"differ in shape, got \[\(2,\), \(3,\)\]"),
        ([(1, 2), (1,)], ValueError, "number of fields"),
        ([object()], TypeError, "got object"),
    ],
)
def test_collator_refuses(samples: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Collator().apply(samples)

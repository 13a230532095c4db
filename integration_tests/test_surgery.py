"""Networks of integers, and of real size, pass through surgery and run on every backend."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.jit import load, trace
from tianyuan.registry import backends
from tianyuan.utils.network import Network

sys.path.insert(0, str(Path(__file__).parent))
from models import MobileNetV2, ResNet18

IMAGES = np.random.default_rng(1).standard_normal((4, 3, 32, 32)).astype(np.float32)


def dumped(net: M.Module, path: Path) -> np.ndarray:
    """Dump a module and return its results for the first two images."""
    traced = trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    result = traced(ty.Tensor(IMAGES[:2])).numpy()
    traced.dump(path, arg_names=["x"], output_names=["y"])
    return result


def test_integers_pass_through_surgery_unchanged(tmp_path: Path) -> None:
    quantization = pytest.importorskip("tianyuan_quant")
    ty.random.seed(0)
    result = quantization.quantize_static(ResNet18(16).eval(), [IMAGES])
    file = tmp_path / "integers.tym"
    dumped(result.module, file)
    network = Network.load(file)
    assert network.opr_filter.type("ConvBiasForward").as_count() > 0
    [y] = network.dest_vars
    label = F.argmax(y, axis=1)
    label.name = "label"
    network.add_output(label)
    changed = tmp_path / "changed.tym"
    network.dump(changed)
    for backend in backends():
        plain = load(file, backend=backend)(IMAGES[:2])
        values, labels = load(changed, backend=backend)(IMAGES[:2])
        np.testing.assert_array_equal(values, plain)
        np.testing.assert_array_equal(labels, plain.argmax(1))
    network.reset_batch_size(4)
    network.dump(changed)
    values, _ = load(changed, backend="numpy")(IMAGES)
    np.testing.assert_array_equal(values[:2], load(file, backend="numpy")(IMAGES[:2]))


@pytest.mark.parametrize("model", [ResNet18, MobileNetV2])
def test_relu_is_replaced_in_whole_networks(model: type[M.Module], tmp_path: Path) -> None:
    ty.random.seed(0)
    net = model().eval()
    file, changed = tmp_path / "net.tym", tmp_path / "changed.tym"
    dumped(net, file)
    network = Network.load(file)
    kinds = [o for o in network.all_oprs if o.type in ("relu", "relu6", "clip", "minimum")]
    relus = kinds or network.get_opr_by_type("maximum", unique=False)
    assert relus
    network.replace_oprs({opr: F.silu(opr.inputs[0]).owner for opr in relus})
    network.dump(changed)
    results = [load(changed, backend=name)(IMAGES[:2]) for name in backends()]
    for other in results[1:]:
        scale = np.abs(results[0]).max()
        np.testing.assert_allclose(other, results[0], rtol=1e-3, atol=1e-4 * scale)
    assert not np.allclose(results[0], load(file, backend="numpy")(IMAGES[:2]))

"""Weights of torch's layers, loaded into Tianyuan's, compute what torch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan.errors import StateDictError
from tianyuan.torch import load_into


def randomise(torch: Any, network: Any) -> Any:
    torch.manual_seed(0)
    for name, value in network.state_dict().items():
        if value.dtype.is_floating_point:
            value.copy_(torch.rand(value.shape) + (0.5 if name.endswith("var") else -0.5))
    return network.eval()


def inputs(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def layer_pairs(torch: Any) -> dict[str, tuple[Any, M.Module, tuple[int, ...]]]:
    nn = torch.nn
    return {
        "conv1d": (nn.Conv1d(4, 6, 3), M.Conv1d(4, 6, 3), (2, 4, 9)),
        "conv2d": (nn.Conv2d(4, 6, 3, 2, 1), M.Conv2d(4, 6, 3, 2, 1), (2, 4, 9, 9)),
        "grouped": (nn.Conv2d(4, 6, 3, groups=2), M.Conv2d(4, 6, 3, groups=2), (2, 4, 7, 7)),
        "depthwise": (nn.Conv2d(4, 8, 3, groups=4), M.Conv2d(4, 8, 3, groups=4), (2, 4, 7, 7)),
        "no_bias": (nn.Conv2d(4, 6, 1, bias=False), M.Conv2d(4, 6, 1, bias=False), (2, 4, 7, 7)),
        "conv3d": (nn.Conv3d(2, 3, 2), M.Conv3d(2, 3, 2), (1, 2, 4, 5, 6)),
        "transposed": (
            nn.ConvTranspose2d(4, 6, 3, 2, 1, 1),
            M.ConvTranspose2d(4, 6, 3, 2, 1, 1),
            (2, 4, 5, 5),
        ),
        "transposed_grouped": (
            nn.ConvTranspose2d(4, 6, 3, groups=2),
            M.ConvTranspose2d(4, 6, 3, groups=2),
            (2, 4, 5, 5),
        ),
        "batch_norm1d": (nn.BatchNorm1d(4), M.BatchNorm1d(4), (5, 4)),
        "batch_norm2d": (nn.BatchNorm2d(4, 1e-3), M.BatchNorm2d(4, 1e-3), (5, 4, 3, 3)),
        "layer_norm": (nn.LayerNorm(6), M.LayerNorm(6), (3, 4, 6)),
        "group_norm": (nn.GroupNorm(2, 6), M.GroupNorm(2, 6), (3, 6, 4)),
        "linear": (nn.Linear(6, 3), M.Linear(6, 3), (4, 6)),
        "sequence": (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            M.Sequential(M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.ReLU()),
            (2, 3, 5, 5),
        ),
    }


NAMES = (
    "conv1d", "conv2d", "grouped", "depthwise", "no_bias", "conv3d", "transposed",
    "transposed_grouped", "batch_norm1d", "batch_norm2d", "layer_norm", "group_norm", "linear",
    "sequence",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_computes_as_torchs_does(torch: Any, name: str, tmp_path: Path) -> None:
    theirs, ours, shape = layer_pairs(torch)[name]
    randomise(torch, theirs)
    torch.save(theirs.state_dict(), tmp_path / "x.pt")
    assert load_into(ours, tmp_path / "x.pt") == ([], [])
    x = inputs(*shape)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours.eval()(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_attention(torch: Any) -> None:
    theirs = randomise(torch, torch.nn.MultiheadAttention(8, 2, batch_first=True))
    ours = M.MultiHeadAttention(8, 2).eval()
    assert load_into(ours, theirs.state_dict()) == ([], [])
    x = inputs(3, 5, 8)
    given = torch.from_numpy(x)
    with torch.no_grad():
        expected = theirs(given, given, given)[0].numpy()
    found, _ = ours(Tensor(x), Tensor(x), Tensor(x))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    other = torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True)
    ours = M.MultiHeadAttention(8, 2, kdim=6, vdim=4).eval()
    assert load_into(ours, randomise(torch, other).state_dict()) == ([], [])
    k, v = inputs(3, 7, 6), inputs(3, 7, 4)
    with torch.no_grad():
        expected = other(given, torch.from_numpy(k), torch.from_numpy(v))[0].numpy()
    found, _ = ours(Tensor(x), Tensor(k), Tensor(v))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "RNN", "GRU"])
def test_recurrent_layers(torch: Any, kind: str) -> None:
    options = {"num_layers": 2, "bidirectional": True}
    theirs = randomise(torch, getattr(torch.nn, kind)(5, 4, **options))
    ours = getattr(M, kind)(5, 4, **options)
    assert load_into(ours, theirs.state_dict()) == ([], [])
    x = inputs(6, 3, 5)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x))[0].numpy()
    np.testing.assert_allclose(ours(Tensor(x))[0].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_transformer_layer(torch: Any) -> None:
    options = {"d_model": 16, "nhead": 2, "dim_feedforward": 32, "dropout": 0.0}
    theirs = torch.nn.TransformerEncoderLayer(**options, batch_first=True)
    theirs = randomise(torch, theirs).eval()
    ours = M.TransformerEncoderLayer(**options).eval()
    assert load_into(ours, theirs.state_dict()) == ([], [])
    x = inputs(2, 5, 16)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_weights_arrive_in_the_modules_dtype(torch: Any) -> None:
    theirs = randomise(torch, torch.nn.Linear(3, 2)).bfloat16()
    ours = M.Linear(3, 2)
    load_into(ours, theirs.state_dict())
    assert ours.weight.dtype == np.float32
    np.testing.assert_array_equal(ours.weight.numpy(), theirs.weight.detach().float().numpy())


def test_a_prefix_is_taken_off() -> None:
    ours = M.Linear(3, 2)
    state = {"module.weight": np.ones((2, 3), np.float32), "module.bias": np.zeros(2, np.float32)}
    load_into(ours, state, prefix="module.")
    np.testing.assert_array_equal(ours.weight.numpy(), np.ones((2, 3)))
    with pytest.raises(StateDictError, match="lacks the prefix"):
        load_into(ours, {"weight": np.ones((2, 3))}, prefix="module.")


def test_all_that_does_not_fit_is_named_at_once_and_nothing_changes() -> None:
    ours = M.Sequential(M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.Linear(4, 2))
    before = {name: value.copy() for name, value in ours.state_dict().items()}
    state = {
        "0.weight": np.zeros((4, 3, 5, 5), np.float32),
        "0.bias": np.zeros(4, np.float32),
        "1.weight": np.zeros(5, np.float32),
        "1.running_mean": np.zeros(4, np.float32),
        "1.running_var": np.zeros(4, np.float32),
        "1.num_batches_tracked": np.int64(3),
        "2.weight": np.zeros((4, 2), np.float32),
        "2.bias": np.zeros(2, np.float32),
        "3.weight": np.zeros(1, np.float32),
    }
    with pytest.raises(StateDictError) as caught:
        load_into(ours, state)
    text = str(caught.value)
    for part in ("missing: 1.bias", "unexpected: 3.weight", "0.weight got (4, 3, 5, 5)",
                 "1.weight got (5,)", "2.weight got (4, 2)"):  # fmt: skip
        assert part in text
    assert "num_batches_tracked" not in text
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    missing, unexpected = load_into(
        ours, {"2.bias": np.ones(2, np.float32), "x": np.zeros(1)}, strict=False
    )
    assert "0.weight" in missing
    assert unexpected == ["x"]
    np.testing.assert_array_equal(ours.state_dict()["2.bias"], np.ones(2))


def test_batch_norm_momentum_is_one_minus_torchs(torch: Any) -> None:
    theirs = torch.nn.BatchNorm2d(3, momentum=0.2).train()
    ours = M.BatchNorm2d(3, momentum=0.8)
    load_into(ours, theirs.state_dict())
    x = inputs(4, 3, 5, 5)
    theirs(torch.from_numpy(x))
    ours(Tensor(x))
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(
            getattr(ours, name).numpy().reshape(-1), getattr(theirs, name).numpy(), rtol=1e-5,
            atol=1e-6,
        )  # fmt: skip

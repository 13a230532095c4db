"""Causal transformers come from PyTorch with one graph for every length, however they mask."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tianyuan import Tensor, jit
from tianyuan.torch import from_module

pytest.importorskip("onnx", reason="onnx is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
WORDS, WIDTH, HEADS, LONGEST = 31, 16, 2, 24


def attend(torch: Any, q: Any, k: Any, v: Any, mask: str, kept: Any) -> Any:
    """Attend to what stands before, with a mask made in one of the usual ways."""
    count = q.shape[2]
    if mask == "fused":
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
    if mask == "buffer":
        scores = scores.masked_fill(kept[:, :, :count, :count] == 0, float("-inf"))
    elif mask == "triu":
        scores = scores + torch.triu(torch.full((count, count), float("-inf")), 1)
    elif mask == "tril":
        seen = torch.tril(torch.ones(count, count, dtype=torch.bool))
        scores = scores.masked_fill(~seen, float("-inf"))
    else:
        place = torch.arange(count)
        scores = torch.where(place[:, None] >= place[None], scores, torch.tensor(-1e9))
    return torch.softmax(scores, -1) @ v


def language_model(torch: Any, mask: str) -> Any:
    """Return a small model of the next word."""
    nn = torch.nn

    class Model(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
            self.norm, self.parts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
            self.head = nn.Linear(WIDTH, WORDS)
            kept = torch.tril(torch.ones(LONGEST, LONGEST)).view(1, 1, LONGEST, LONGEST)
            self.register_buffer("kept", kept)

        def forward(self, ids: Any) -> Any:
            batch, count = ids.shape
            x = self.words(ids) + self.places(torch.arange(count))
            parts = self.parts(self.norm(x)).view(batch, count, 3, HEADS, WIDTH // HEADS)
            q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
            y = attend(torch, q, k, v, mask, self.kept).transpose(1, 2)
            return self.head(x + y.reshape(batch, count, WIDTH))

    torch.manual_seed(3)
    return Model().eval()


MASKS = ("fused", "buffer", "triu", "tril", "arange")


def sentences(batch: int, count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, WORDS, (batch, count))


@pytest.mark.parametrize("exporter", ["script", "dynamo"])
@pytest.mark.parametrize("mask", MASKS)
def test_causal_masks_of_exported_files(
    torch: Any, mask: str, exporter: str, tmp_path: Path
) -> None:
    model, path = language_model(torch, mask), str(tmp_path / "x.onnx")
    ids = (torch.from_numpy(sentences(2, 7)),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            pytest.importorskip("onnxscript", reason="onnxscript is not installed")
            sizes = {0: torch.export.Dim("b", max=9), 1: torch.export.Dim("t", max=LONGEST)}
            torch.onnx.export(model, ids, path, dynamo=True, verbose=False, input_names=["ids"],
                              dynamic_shapes={"ids": sizes})  # fmt: skip
        else:
            torch.onnx.export(
                model, ids, path, dynamo=False, input_names=["ids"], output_names=["y"],
                dynamic_axes={"ids": {0: "b", 1: "t"}},
            )  # fmt: skip
    loaded = jit.load(path)
    assert type(loaded) is jit.model.Model
    for batch, count in ((2, 7), (3, LONGEST), (1, 1)):
        given = sentences(batch, count)
        with torch.no_grad():
            want = model(torch.from_numpy(given)).numpy()
        np.testing.assert_allclose(loaded(given), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", MASKS)
def test_causal_masks_of_modules(torch: Any, mask: str, tmp_path: Path) -> None:
    model = language_model(torch, mask)
    sizes = {0: torch.export.Dim("b", max=9), 1: torch.export.Dim("t", max=LONGEST)}
    ids = torch.from_numpy(sentences(2, 7))
    module = from_module(model, (ids,), dynamic_shapes={"ids": sizes})
    compute = jit.trace(module, capture_as_const=True)
    compute(Tensor(sentences(2, 7), dtype="int64"))
    compute.dump(tmp_path / "x.tym", arg_names=["ids"], dynamic_shapes={"ids": {0: "b", 1: "t"}})
    loaded = jit.load(tmp_path / "x.tym")
    for batch, count in ((2, 7), (3, LONGEST)):
        given = sentences(batch, count)
        with torch.no_grad():
            want = model(torch.from_numpy(given)).numpy()
        np.testing.assert_allclose(loaded(given), want, rtol=1e-4, atol=1e-5)


def test_a_cache_of_keys_whose_length_is_a_sum(torch: Any, tmp_path: Path) -> None:
    class Cached(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, query: Any, mask: Any, past: Any) -> Any:
            keys = torch.cat([past, query], 1)
            place = torch.arange(keys.shape[1])
            seen = place[None] <= place[past.shape[1] :, None]
            seen = seen[None] & (mask[:, None, :] > 0)
            scores = (query @ keys.transpose(1, 2)).masked_fill(~seen, -1e9)
            return torch.softmax(scores, -1) @ keys, keys

    def given(batch: int, past: int, count: int) -> list[np.ndarray]:
        rng = np.random.default_rng(past)
        drawn = [rng.standard_normal((batch, n, 8)).astype(np.float32) for n in (count, past)]
        return [drawn[0], np.ones((batch, past + count), np.int64), drawn[1]]

    path, names = str(tmp_path / "x.onnx"), ["query", "mask", "past"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Cached(), tuple(map(torch.from_numpy, given(2, 5, 3))), path, dynamo=False,
            input_names=names, output_names=["y", "keys"],
            dynamic_axes={"query": {0: "b", 1: "t"}, "mask": {0: "b", 1: "past + t"},
                          "past": {0: "b", 1: "past"}},
        )  # fmt: skip
    loaded = jit.load(path)
    assert type(loaded) is jit.model.Model
    for sizes in ((2, 5, 3), (1, 9, 1), (3, 2, 6)):
        inputs = given(*sizes)
        with torch.no_grad():
            want = Cached()(*map(torch.from_numpy, inputs))
        for got, other in zip(loaded(*inputs), want, strict=True):
            np.testing.assert_allclose(got, other.numpy(), rtol=1e-4, atol=1e-5)

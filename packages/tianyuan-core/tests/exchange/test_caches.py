"""Models with a cache of keys and values are written with one of any length, also an empty one."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import jit
from tianyuan.shapes import Dim, evaluate_expr, expr_of, format_expr


class Decoder(M.Module):
    """One attention layer that reads a cache, with positions counted on from its length."""

    def __init__(self):
        super().__init__()
        self.words, self.places = M.Embedding(50, 8), M.Embedding(64, 8)
        self.qkv = M.Linear(8, 24)

    def forward(self, ids, keys, values):
        batch, length = ids.shape
        past = keys.shape[2]
        place = F.arange(past, past + length, dtype="int32")
        x = self.qkv(self.words(ids) + self.places(place))
        query, key, value = F.transpose(x.reshape(batch, length, 3, 2, 4), (2, 0, 3, 1, 4))
        keys, values = F.concat([keys, key], 2), F.concat([values, value], 2)
        seen = F.expand_dims(F.arange(past + length, dtype="int32"), 0) <= F.expand_dims(place, 1)
        scores = F.matmul(query, F.transpose(keys, (0, 1, 3, 2))) / 2.0
        scores = F.where(seen, scores, F.full_like(scores, -1e9))
        y = F.matmul(F.softmax(scores, -1), values)
        return F.transpose(y, (0, 2, 1, 3)).reshape(batch, length, 8), keys, values


def whole(net, ids):
    """Return what the decoder gives without a cache, by numpy, in one go."""
    state = {name: value.numpy() for name, value in net.named_parameters()}
    count = ids.shape[1]
    x = state["words.weight"][ids] + state["places.weight"][:count]
    x = x @ state["qkv.weight"].T + state["qkv.bias"]
    query, key, value = x.reshape(*ids.shape, 3, 2, 4).transpose(2, 0, 3, 1, 4)
    scores = query @ key.transpose(0, 1, 3, 2) / 2 + np.triu(np.full((count, count), -1e9), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = weights / weights.sum(-1, keepdims=True) @ value
    return y.transpose(0, 2, 1, 3).reshape(*ids.shape, 8)


def steps_of(model, ids, lengths):
    """Return results of pieces of the ids, each with the cache of those before."""
    cache, found, start = [np.zeros((len(ids), 2, 0, 4), np.float32)] * 2, [], 0
    for length in lengths:
        piece = ids[:, start : start + length].astype(np.int32)
        y, *cache = (np.asarray(part) for part in model(piece, *cache))
        found.append(y)
        start += length
    return np.concatenate(found, 1)


@pytest.mark.parametrize("past", [0, 1, 4])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("way", ["tym", "onnx", "back"])
def test_a_cache_of_any_length_is_the_example(way, length, past, tmp_path):
    ty.random.seed(5)
    net = Decoder().eval()
    ids, cache = np.zeros((2, length), np.int32), np.zeros((2, 2, past, 4), np.float32)
    dynamic = {"ids": {0: "b"}, "keys": {0: "b", 2: "p"}, "values": {0: "b", 2: "p"}}
    if length > 1:
        dynamic["ids"][1] = "t"
    path = str(tmp_path / f"net.{'tym' if way == 'tym' else 'onnx'}")
    if way == "tym":
        run = jit.trace(lambda ids, keys, values: net(ids, keys, values), capture_as_const=True)
        run(*map(ty.Tensor, (ids, cache, cache)))
        run.dump(path, dynamic_shapes=dynamic)
    else:
        pytest.importorskip("onnx")
        from tianyuan.onnx import export

        export(net, path, ids, cache, cache, dynamic_shapes=dynamic)
    if way == "back":
        from click.testing import CliRunner
        from tianyuan.cli.main import main

        target = str(tmp_path / "back.tym")
        done = CliRunner().invoke(main, ["convert", path, target])
        assert done.exit_code == 0, done.output
        path = target
    ids = np.random.default_rng(1).integers(0, 50, (3, 7))
    lengths = [1] * 7 if length == 1 else [3, 1, 2, 1]
    found = steps_of(jit.load(path), ids, lengths)
    np.testing.assert_allclose(found, whole(net, ids), rtol=1e-4, atol=1e-5)


def test_ranges_from_a_dynamic_start():
    for step in (1, 2, -3):
        run = jit.trace(
            lambda x, step=step: F.arange(x.shape[0], x.shape[0] + 5 * step, step, dtype="int32"),
            dynamic_shapes={"x": {0: "n"}},
        )
        for n in (2, 7, 1, 40):
            want = np.arange(n, n + 5 * step, step)
            np.testing.assert_array_equal(run(ty.Tensor(np.zeros(n, np.float32))).numpy(), want)


def test_sums_of_extents_have_one_form():
    n, m = Dim(4, "n"), Dim(3, "m")
    pairs = [
        (n + 1 - n, 1), (1 + n, n + 1), (n + m - m, n), (n + n, 2 * n), (n - m + m - n, 0),
        ((n + 3) - (n + 1), 2), (m + n, n + m), (n * m + m * n, 2 * m * n), (0 - n + n, 0),
        (2 * n - 3 * n, -n),
    ]  # fmt: skip
    for one, other in pairs:
        assert expr_of(one) == expr_of(other)
        assert int(one) == int(other)
    assert [format_expr(expr_of(e)) for e in (1 + n, 2 - n, m - 1)] == [
        "(n + 1)",
        "(2 - n)",
        "(m - 1)",
    ]
    rng = np.random.default_rng(0)
    for _ in range(300):
        made, expected = Dim(4, "n"), "n"
        for _ in range(6):
            sign, other = rng.choice(["+", "-", "*"]), rng.choice(["n", "m", "2", "5"])
            value = {"n": n, "m": m}.get(other) or int(other)
            made = {"+": made + value, "-": made - value, "*": made * value}[sign]
            expected = f"({expected} {sign} {other})"
        for sizes in ({"n": 4, "m": 3}, {"n": 7, "m": 0}):
            assert evaluate_expr(expr_of(made), sizes) == eval(expected, dict(sizes))

"""Change bytes of ONNX files: each gives a clear error or the right answer, in bounded memory."""

from __future__ import annotations

import resource
import signal
import warnings
from collections import Counter
from contextlib import contextmanager

import numpy as np
import onnx
import pytest
import tianyuan
import tianyuan.onnx
from onnx.reference import ReferenceEvaluator
from test_models import FUNCTIONS, IF, LOOP, cnn, qdq_convolution
from tianyuan.errors import TianyuanError
from written import floats, model, rng

SECONDS = 40
LIMIT = 64 << 20

MIXED = """
agraph (float[2, 6] x) => (float[a, b] y, int64[c, d] places)
{
  s = Shape (x)
  e = Einsum <equation = "ij,kj->ik"> (x, x)
  p = Pad (e, pads)
  t, places = TopK <axis = 1> (p, k)
  u = Softmax <axis = -1> (t)
  v, w = Split <axis = 1, num_outputs = 2> (u)
  z = Concat <axis = 0> (v, w)
  q = ReduceMean <keepdims = 1> (z, axes)
  r = Where (mask, z, q)
  y = Transpose <perm = [1, 0]> (r)
}
"""
RECURRENT = """
agraph (float[3, 2, 4] x) => (float[3, 1, 2, 5] y)
{
  y, last = LSTM <hidden_size = 5> (x, w, r, b)
}
"""


def seeds():
    """Return models to be changed, with inputs that fit them."""
    mixed = model(
        MIXED,
        weights={
            "pads": np.array([0, 1, 0, 1], np.int64), "k": np.array([2], np.int64),
            "axes": np.array([1], np.int64), "mask": np.array([[True], [False]] * 2),
        },
    )  # fmt: skip
    recurrent = model(
        RECURRENT,
        weights={"w": floats(1, 20, 4), "r": floats(1, 20, 5, seed=1), "b": floats(1, 40, seed=2)},
    )
    loop = model(LOOP, weights={"count": np.array(4, np.int64), "yes": np.array(True)})
    return {
        "cnn": (cnn(), {"x": floats(2, 3, 16, 16)}),
        "mixed": (mixed, {"x": floats(2, 6)}),
        "recurrent": (recurrent, {"x": floats(3, 2, 4)}),
        "quantised": (qdq_convolution(), {"x": floats(1, 3, 9, 9)}),
        "branch": (model(IF), {"c": np.array(True), "x": floats(3)}),
        "loop": (loop, {"x": floats(2)}),
        "functions": (onnx.parser.parse_model(FUNCTIONS), {"x": floats(3)}),
    }


def mutated(data: bytes, source: np.random.Generator) -> bytes:
    """Return data with a few bytes changed, taken out, put in or moved."""
    changed = bytearray(data)
    for _ in range(int(source.integers(1, 4))):
        place = int(source.integers(len(changed)))
        kind = int(source.integers(5))
        if kind == 0:
            changed[place] = int(source.integers(256))
        elif kind == 1:
            changed[place] ^= 1 << int(source.integers(8))
        elif kind == 2:
            del changed[place : place + int(source.integers(1, 9))]
        elif kind == 3:
            changed[place:place] = source.bytes(int(source.integers(1, 9)))
        else:
            other = int(source.integers(len(changed)))
            changed[place : place + 8] = changed[other : other + 8]
    return bytes(changed)


NUMBERS = (-(2**63), -(10**9), -2, -1, 0, 1, 2, 3, 7, 10**9, 2**63 - 1)


def edited(made, source: np.random.Generator) -> bytes:
    """Return a model with one thing changed that is still well-formed protobuf."""
    model = onnx.ModelProto()
    model.CopyFrom(made)
    graph = model.graph

    def pick(items):
        return items[int(source.integers(len(items)))]

    node, number = pick(graph.node), int(pick(NUMBERS))
    kind = int(source.integers(9))
    if kind == 0:
        node.op_type = pick(("Add", "Conv", "Reshape", "Slice", "TopK", "Gather", "Pad", "LSTM"))
    elif kind == 1 and node.input:
        node.input[int(source.integers(len(node.input)))] = pick(
            [*node.input, *(v.name for v in graph.initializer), *(v.name for v in graph.input), ""]
        )
    elif kind == 2 and node.attribute:
        attribute = pick(node.attribute)
        attribute.i = number
        for place in range(len(attribute.ints)):
            attribute.ints[place] = number if source.integers(2) else attribute.ints[place]
    elif kind == 3 and node.attribute:
        attribute = pick(node.attribute)
        attribute.f = float(pick((0.0, -1.0, np.inf, np.nan, 1e30)))
        del attribute.ints[: int(source.integers(3))]
    elif kind == 4 and graph.initializer:
        pick(graph.initializer).dims.append(pick((0, 1, 2, 10**9)))
    elif kind == 5 and graph.initializer:
        tensor = pick(graph.initializer)
        if tensor.data_type == onnx.TensorProto.INT64:
            array = onnx.numpy_helper.to_array(tensor).copy()
            array.reshape(-1)[:1] = number
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        else:
            tensor.data_type = int(source.integers(27))
    elif kind == 6:
        pick(graph.input).type.tensor_type.elem_type = int(source.integers(27))
    elif kind == 7:
        dim = pick(
            pick(graph.input).type.tensor_type.shape.dim or [onnx.TensorShapeProto.Dimension()]
        )
        dim.dim_value = number
    else:
        del (node.input if source.integers(2) else node.output)[-1:]
    return model.SerializeToString()


@contextmanager
def within(seconds: int):
    def late(*_):
        raise AssertionError(f"took more than {seconds} seconds")

    saved = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, saved)


def answers(data: bytes, inputs):
    """Return what the module and the compiled model give, or raise what they raise."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        module = tianyuan.onnx.load(data, max_bytes=LIMIT)
        names = [info.name for info in module.inputs]
        given = dict(zip(names, inputs.values(), strict=False))
        eager = module(**given)
        compiled = tianyuan.onnx.load_model(module, None, None)(**given)
    eager = eager if isinstance(eager, tuple) else (eager,)
    compiled = compiled if isinstance(compiled, tuple) else (compiled,)
    return [plain(value) for value in eager], [plain(value) for value in compiled], given


def plain(value):
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.numpy() if isinstance(value, tianyuan.Tensor) else value


def expected(data: bytes, given):
    """Return the answers of ONNX's own evaluator, or None where it has none."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return ReferenceEvaluator(onnx.load_from_string(data)).run(None, given)
    except Exception:
        return None


def agree(got, want) -> bool:
    if got.shape != want.shape:
        return False
    if got.dtype.kind not in "fiub" or want.dtype.kind not in "fiub":
        return True
    quantum = 1 if got.dtype.itemsize == 1 else 0
    got, want = got.astype(np.float64), want.astype(np.float64)
    scale = np.abs(want[np.isfinite(want)]).max(initial=1e-6)
    with np.errstate(all="ignore"):
        close = np.abs(got - want) <= 1e-3 * scale + quantum
    # Sums of mutated weights may overflow, to infinity or beyond, in one order and not another.
    wild = ~(np.abs(got) < 1e37) & ~(np.abs(want) < 1e37)
    return bool(np.all(close | wild | (got == want)))


def run_mutants(name: str, count: int, seed: int) -> Counter:
    """Change a model so often; return how it went."""
    made, inputs = seeds()[name]
    data = made.SerializeToString()
    source = rng(seed)
    outcome: Counter = Counter()
    for number in range(count):
        changed = edited(made, source) if number % 2 else mutated(data, source)
        with within(SECONDS):
            try:
                eager, compiled, given = answers(changed, inputs)
            except (TianyuanError, TypeError) as error:
                if not str(error).startswith(("onnx: ", "model: ")):
                    raise AssertionError(f"{name} {number}: {error!r}") from error
                outcome["refused"] += 1
                continue
            for one, other in zip(eager, compiled, strict=True):
                assert agree(one, other), f"{name} {number}: eager and compiled differ"
            want = expected(changed, given)
            if want is None:
                outcome["no second opinion"] += 1
                continue
            same = len(want) == len(eager) and all(map(agree, eager, map(np.asarray, want)))
            outcome["right" if same else "other"] += 1
            if not same:
                outcome[f"other {number}"] += 1
    return outcome


def check(outcome: Counter, count: int) -> None:
    assert sum(n for what, n in outcome.items() if not what.startswith("other ")) == count
    assert outcome["refused"]
    assert not outcome["other"], outcome


NAMES = ("cnn", "mixed", "recurrent", "quantised", "branch", "loop", "functions")


@pytest.mark.parametrize("name", NAMES)
def test_unchanged_files_give_the_answers_of_the_evaluator(name: str) -> None:
    made, inputs = seeds()[name]
    data = made.SerializeToString()
    eager, compiled, given = answers(data, inputs)
    want = expected(data, given)
    assert want is not None or name == "quantised"  # whose DequantizeLinear the evaluator refuses
    for one, other in zip(eager, compiled, strict=True):
        assert agree(one, other)
    assert want is None or all(map(agree, eager, map(np.asarray, want)))


@pytest.mark.parametrize("name", NAMES)
def test_mutated_files(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check(run_mutants(name, 22, 7), 22)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_mutated_files(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check(run_mutants(name, 286, 11), 286)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024

"""Every public constructor refuses values that its numbers cannot have, and says so by name.

The calls are made from the signatures: a class that is new is covered as soon as it is exported. A
parameter that has no default takes its value from ``EXAMPLES``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tianyuan import Parameter, amp, data, distributions
from tianyuan import module as M
from tianyuan import optimizer as optim
from tianyuan.errors import AttrError, DTypeError, ShapeError, TianyuanError

# What parameters without a default are given, whichever class they belong to.
EXAMPLES: dict[str, Any] = {
    "alpha": 0.5, "batch": 2, "batch_size": 2, "beta": 1.0, "d_model": 4, "dataset": "abcd",
    "embed_dim": 4, "embedding_dim": 2, "gamma": 0.5, "hidden_size": 3, "high": 2.0,
    "in_channels": 4, "in_features": 3, "input_height": 5, "input_size": 3, "input_width": 5,
    "kernel_size": 3, "lightness": 1.0, "loc": 0.0, "low": 1.0, "lr": 0.1, "max_lr": 0.5,
    "method": "relu", "milestones": [2, 3], "modules": {}, "nhead": 2, "no_trans": True,
    "normalized_shape": 3, "num_channels": 4, "num_embeddings": 5, "num_features": 4,
    "num_groups": 2, "num_heads": 2, "num_layers": 1, "oshp": 2, "out_channels": 4,
    "out_features": 3, "output_size": 4, "pad_width": ((1, 1),), "part_size": 1, "pooled_h": 1,
    "pooled_w": 1, "rate": 1.0, "sample_per_part": 2, "scale": 1.0, "size": 4,
    "spatial_scale": 1.0, "step_size": 2, "strength": 0.5, "T_max": 3, "total_steps": 5,
    "upscale_factor": 2, "warmup": 2,
}  # fmt: skip
# What needs an object of its own, or is another number in another class.
MADE = {
    "params": lambda: Parameter([1.0]),
    "optimizer": lambda: optim.SGD(Parameter([1.0]), 0.5),
    "lr_lambda": lambda: lambda epoch: 1.0,
    "encoder_layer": lambda: M.TransformerEncoderLayer(4, 2, 8),
    "sampler": lambda: data.SequentialSampler("abc"),
    "probs": lambda: [0.5, 0.5],
}
OF_CLASS: dict[str, dict[str, Any]] = {
    "DataLoader": {"dataset": data.dataset.ArrayDataset(np.arange(3)), "sampler": None},
    "Upsample": {"size": None, "scale_factor": 2.0},
    "GeneralNorm": {"normalized_shape": 3, "normalized_axis": 0},
    "SyncBatchNorm": {"group": None},
}
# Not numbers, whatever their annotation says.
OTHERS = {
    "params", "defaults", "dataset", "group", "optimizer", "lr_lambda", "sampler", "transform",
    "collator", "modules", "initial_weight", "method", "name", "weights", "indices",
}  # fmt: skip
SIGNED = {"axis", "normalized_axis", "start_axis", "end_axis", "seed", "current_epoch"}
# What a module of others makes of its arguments, and which therefore speaks.
PARTS = {
    **{f"ConvBn{n}d": f"Conv{n}d|BatchNorm{n}d" for n in (1, 2, 3)},
    **{f"ConvBnRelu{n}d": f"Conv{n}d|BatchNorm{n}d" for n in (1, 2, 3)},
    "ConvTransposeBn2d": "ConvTranspose2d|BatchNorm2d",
    "ConvTransposeBnRelu2d": "ConvTranspose2d|BatchNorm2d",
    "LinearBn1d": "Linear|BatchNorm1d",
    "LinearBnRelu1d": "Linear|BatchNorm1d",
}
WORDS = re.compile(r"\b(int|float|Pair|Triple|Range|Any)\b")


def _classes() -> Iterator[type]:
    for room in (M, optim, data, distributions, amp):
        for name in dir(room) if room is data else room.__all__:
            found = getattr(room, name)
            public = inspect.isclass(found) and not name.startswith("_")
            if public and not inspect.isabstract(found) and found.__module__.startswith("tianyuan"):
                yield found


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of the first constructor that names them."""
    for owner in cls.__mro__:
        if "__init__" not in vars(owner) or owner is object:
            continue
        found = dict(inspect.signature(owner.__init__).parameters)
        found.pop("self")
        named = {k: p for k, p in found.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        if named or len(found) < 2:
            return named
    return {}


def _explicit(cls: type) -> dict[str, inspect.Parameter]:
    part = PARTS.get(cls.__name__)
    return _parameters(getattr(M, part.split("|")[0]) if part else cls)


def _arguments(cls: type) -> dict[str, Any]:
    own = OF_CLASS.get(cls.__name__, {})
    found = {}
    for name, parameter in _explicit(cls).items():
        if name in own:
            found[name] = own[name]
        elif parameter.default is parameter.empty:
            found[name] = MADE[name]() if name in MADE else EXAMPLES[name]
    return found


def _numbers(cls: type) -> Iterator[tuple[str, str]]:
    for name, parameter in _explicit(cls).items():
        if name not in OTHERS and WORDS.search(str(parameter.annotation)):
            yield name, str(parameter.annotation)


def _wrong(name: str, annotation: str) -> Iterator[Any]:
    yield "x"
    yield object()
    if "None" not in annotation and "Any" not in annotation:
        yield None
    if not re.search(r"\b(float|Range|Any)\b", annotation):
        yield 2.5
        if name not in SIGNED:
            yield -1


CLASSES = list(_classes())
CALLS = [(cls, name, annotation) for cls in CLASSES for name, annotation in _numbers(cls)]


def test_the_signatures_give_what_is_called() -> None:
    assert len(CLASSES) > 100
    assert len(CALLS) > 200
    assert {M.Linear, optim.SGD, optim.StepLR, data.RandomSampler} <= set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_examples_are_accepted(cls: type) -> None:
    cls(**_arguments(cls))


@pytest.mark.parametrize(
    ("cls", "name", "annotation"), CALLS, ids=[f"{cls.__name__}-{name}" for cls, name, _ in CALLS]
)
def test_wrong_numbers_are_refused_by_name(cls: type, name: str, annotation: str) -> None:
    speaker = PARTS.get(cls.__name__, cls.__name__)
    for value in _wrong(name, annotation):
        arguments = {**_arguments(cls), name: value}
        with pytest.raises(TianyuanError) as caught:
            cls(**arguments)
        message = str(caught.value)
        assert re.match(rf"^({speaker}): .*, got .*, expected ", message, re.S), (value, message)
        assert name in message, (value, message)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_numpy_integers_are_ints(cls: type) -> None:
    defaults = {
        name: parameter.default
        for name, parameter in _explicit(cls).items()
        if type(parameter.default) is int
    }
    arguments = {**defaults, **_arguments(cls)}
    cls(**{k: np.int64(v) if type(v) is int else v for k, v in arguments.items()})


def test_layers_without_features_are_layers() -> None:
    assert M.Linear(0, 3).weight.shape == (3, 0)
    assert M.Linear(3, 0)(Parameter(np.ones((2, 3)))).shape == (2, 0)
    assert M.Embedding(0, 2).weight.shape == (0, 2)
    assert M.BatchNorm2d(0).running_mean.shape == (1, 0, 1, 1)


@pytest.mark.parametrize("wrong", [None, 3, "weights", {"lr": 0.1}, [1.0], [{"params": None}]])
def test_optimisers_ask_for_parameters(wrong: Any) -> None:
    for make in (optim.SGD, optim.Adam, optim.LAMB, optim.Adagrad):
        with pytest.raises(
            (AttrError, DTypeError), match=rf"^{make.__name__}: .* got .* expected "
        ):
            make(wrong, lr=0.1)


@pytest.mark.parametrize("betas", [3, (0.9,), (0.9, 1.0), ("a", "b"), (0.9, float("nan")), "ab"])
def test_betas_are_two_shares(betas: Any) -> None:
    for make in (optim.Adam, optim.AdamW, optim.LAMB):
        with pytest.raises(AttrError, match=rf"^{make.__name__}: betas .* got .* expected "):
            make(Parameter([1.0]), 0.1, betas=betas)


def test_groups_are_checked_before_they_are_added() -> None:
    first, second = Parameter([1.0]), Parameter([2.0])
    optimizer = optim.Adam(first, 0.1)
    with pytest.raises(AttrError, match="^Adam: betas "):
        optimizer.add_param_group({"params": second, "betas": [0.9]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": second, "betas": [0.5, 0.6], "lr": np.float32(0.5)})
    assert optimizer.param_groups[1]["betas"] == (0.5, 0.6)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: optim.MultiStepLR(o, [2, 3], "x"),
        lambda o: optim.MultiStepLR(o, [3, 2]),
        lambda o: optim.StepLR(o, 2, 0.5, 1.5),
        lambda o: optim.ExponentialLR(o, None),
        lambda o: optim.LambdaLR(o, 3),
        lambda o: optim.CosineAnnealingLR(o, 4, "x"),
        lambda o: optim.OneCycleLR(o, "x", 5),
        lambda o: optim.OneCycleLR(o, 1.0, 5, div_factor=0.0),
        lambda o: optim.LinearWarmup(o, 2, schedule=3),
        lambda o: optim.ReduceLROnPlateau(o, min_lr=["x"]),
    ],
)
def test_a_refused_schedule_leaves_the_optimiser_alone(make: Any) -> None:
    optimizer = optim.SGD(Parameter([1.0]), 0.5)
    with pytest.raises(AttrError, match=r"^\w+LR|Warmup|OnPlateau: .*, got .*, expected "):
        make(optimizer)
    assert set(optimizer.param_groups[0]) == {*optimizer.defaults, "params"}
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_tables_of_other_ranks_are_no_embeddings() -> None:
    with pytest.raises(ShapeError, match="^Embedding.from_pretrained: .* got .*expected 2"):
        M.Embedding.from_pretrained([1.0, 2.0])
    with pytest.raises(ShapeError, match="^Embedding: initial weight has the wrong shape, got"):
        M.Embedding(2, 2, initial_weight=Parameter([[1.0]]))


def test_weights_and_datasets_of_samplers() -> None:
    with pytest.raises(DTypeError, match="^SequentialSampler: dataset is wrong, got int, expected"):
        data.SequentialSampler(3)
    with pytest.raises(AttrError, match="^ReplacementSampler: weights .*, got .*, expected "):
        data.ReplacementSampler("abc", weights=["x", 1, 2])
    with pytest.raises(
        DTypeError, match="^Infinite: sampler is wrong, got list, expected a Sampler"
    ):
        data.Infinite([[0]])


@pytest.mark.parametrize("name", ["fill_", "uniform_", "normal_", "xavier_uniform_"])
def test_initialisers_are_asked_in_numbers(name: str) -> None:
    weight, fill = Parameter(np.ones((2, 2))), getattr(M.init, name)
    with pytest.raises(AttrError, match=rf"^{name}: \w+ must be a number, got 'x', expected "):
        fill(weight, "x")
    with pytest.raises(TianyuanError, match=r"^\w+: input must be a tensor, got int, expected "):
        fill(3, 1.0)
    np.testing.assert_array_equal(weight.numpy(), 1)

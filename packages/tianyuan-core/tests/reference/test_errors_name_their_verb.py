"""An error names the function that was called, also where that is composed of others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError, TianyuanError

X = Tensor(np.arange(27, dtype=np.float32).reshape(3, 3, 3) + 1)
PLACES = Tensor(np.zeros((3, 3, 3), np.int32))
EXAMPLES: dict[str, Any] = {
    "inps": [X, X], "index": PLACES, "indices": PLACES, "axis": 0, "axis1": 0, "axis2": 0,
    "repeats": 2, "nsplits_or_sections": 1, "label": Tensor(np.zeros((3, 3), np.int32)),
}  # fmt: skip


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    seen = set()
    for room in (F, F.nn, F.vision, F.elemwise, F.math, F.tensor, F.loss, F.metric):
        for name in getattr(room, "__all__", ()):
            function = getattr(room, name)
            if inspect.isfunction(function) and function not in seen:
                seen.add(function)
                yield name, function


VERBS = dict(_public())
AXES = [
    (name, parameter)
    for name, function in VERBS.items()
    for parameter in inspect.signature(function).parameters
    if "axis" in parameter or parameter == "pattern"
]


def test_the_signatures_give_what_is_called() -> None:
    assert {"norm", "var", "std", "stack", "normalize", "cross"} <= {name for name, _ in AXES}


@pytest.mark.parametrize("wrong", [9, -9, "x", 1.5], ids=repr)
@pytest.mark.parametrize(("name", "parameter"), AXES)
def test_a_wrong_axis(name: str, parameter: str, wrong: Any) -> None:
    arguments = {}
    for other, given in inspect.signature(VERBS[name]).parameters.items():
        if other == parameter:
            arguments[other] = wrong
        elif given.default is given.empty and given.kind is not given.VAR_KEYWORD:
            arguments[other] = EXAMPLES.get(other, X)
    if name == "index_select":
        arguments["index"] = PLACES[0, 0]
    if (name, parameter, wrong) == ("transpose", "pattern", "x"):
        pytest.skip("a new axis")
    with pytest.raises(AttrError, match=rf"^{name}: .*, got .*, expected ") as caught:
        VERBS[name](**arguments)
    assert re.search("axis|axes|pattern", str(caught.value))


def test_orders_of_norms_are_named_too() -> None:
    with pytest.raises(AttrError, match="^normalize: ord must be a number, got 'x', expected"):
        F.normalize(X, ord="x")  # type: ignore[arg-type]
    np.testing.assert_allclose(
        F.normalize(X, 2, axis=-1).numpy(),
        X.numpy() / np.linalg.norm(X.numpy(), axis=-1, keepdims=True),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        F.cross(X, X[0], axisc=0).numpy(), np.cross(X.numpy(), X.numpy()[0], axisc=0)
    )


@pytest.mark.parametrize("name", VERBS)
def test_text_is_no_input(name: str) -> None:
    """Text in the place of every argument without a default is refused by the verb itself."""
    needed = [
        parameter.name
        for parameter in inspect.signature(VERBS[name]).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if not needed:
        pytest.skip("it needs nothing")
    with pytest.raises(TianyuanError, match=f"^{name}: "):
        VERBS[name](**dict.fromkeys(needed, "text"))

"""Process-wide switches reach both runtimes and come back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import config
from tianyuan.errors import AttrError
from tianyuan.graph.options import Options
from tianyuan.jit import trace


@pytest.fixture(autouse=True)
def restored(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("TIANYUAN_CACHE_DIR", str(tmp_path))
    with config._override():
        yield


def test_policies_of_the_switches() -> None:
    assert (config.policy(), Options().policy) == ("heuristic", "heuristic")
    config.benchmark_kernel = True
    assert (config.policy(), Options().policy) == ("profile", "profile")
    config.deterministic_kernel = True
    assert (config.policy(), Options().policy) == ("reproducible", "reproducible")
    assert Options(policy="heuristic").policy == "heuristic"


def kernels_of(function) -> set[str]:
    return {step.kernel.name for step in function._program.steps}


def test_deterministic_kernels_serve_both_runtimes_from_the_next_call_on() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((17, 33)).astype("f"), rng.standard_normal((33, 9)).astype("f"))
    product = trace(lambda x, y: x @ y)
    x, y = ty.Tensor(a), ty.Tensor(b)
    with ty.use_backend("numpy"):
        product(x, y)
        assert kernels_of(product) == {"matmul_any__numpy_blas"}
        config.deterministic_kernel = True
        whole = (x @ y).numpy()
        traced = product(x, y).numpy()
        assert kernels_of(product).isdisjoint({"matmul_any__numpy_blas"})
        # Reproducible: a row's result does not depend on the rows beside it.
        np.testing.assert_array_equal((x[3:5] @ y).numpy(), whole[3:5])
        np.testing.assert_array_equal(traced, whole)
        config.deterministic_kernel = False
        product(x, y)
        assert kernels_of(product) == {"matmul_any__numpy_blas"}
    np.testing.assert_allclose(whole, a.astype("d") @ b, rtol=1e-5, atol=1e-5)


def test_measured_kernels_give_the_same_values(tmp_path) -> None:
    x = ty.Tensor(np.arange(12, dtype="f").reshape(3, 4))
    function = trace(lambda x: (x @ x.transpose()).sum(axis=0))
    config.benchmark_kernel = True
    np.testing.assert_allclose(function(x).numpy(), (x.numpy() @ x.numpy().T).sum(0), rtol=1e-6)
    assert list(tmp_path.glob("kernel-times-*.json"))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("async_level", 0, 3), ("benchmark_kernel", True, 1), ("deterministic_kernel", True, "yes"),
        ("benchmark_with_subprocess", True, None), ("disable_memory_forwarding", True, 0),
        ("_compute_mode", "float32", "float64"), ("_auto_format_convert", True, 2),
        ("winograd", False, 1),
    ],
)  # fmt: skip
def test_switches_check_what_they_are_given(name: str, good: object, bad: object) -> None:
    before = getattr(config, name)
    with pytest.raises(AttrError, match=f"config: {name} is wrong"):
        setattr(config, name, bad)
    assert getattr(config, name) == before
    setattr(config, name, good)
    assert getattr(config, name) == good
    setattr(config, name, before)


def test_override_and_reset() -> None:
    def fail() -> None:
        with config._override(True, True, 0, "float32"):
            assert config._reset_execution_config() == (True, True, 0, "float32")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert config._reset_execution_config(async_level=1) == (False, False, 2, "default")
    assert config.async_level == 1

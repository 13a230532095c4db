"""A precision permits kernels and orders none: who may run, where, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tianyuan as ty
from click.testing import CliRunner
from tianyuan import jit, registry
from tianyuan.cli.main import main
from tianyuan.errors import AttrError
from tianyuan.kernel import BF16, Kernel

X = np.array([1.0, 1.0 + 2.0**-10, -3.0], np.float32)


def coarse_exp(ctx, inputs, outputs, attrs, workspace) -> None:
    """Compute exp of operands without their low halves, as a stand-in for rounding."""
    cut = (inputs[0].view(np.uint32) & 0xFFFF0000).view(np.float32)
    np.exp(cut, out=outputs[0])


@pytest.fixture(autouse=True)
def coarse() -> Iterator[None]:
    """Offer a kernel that rounds and costs less than any other, its call-out included."""
    kernel = Kernel(
        "exp_bf16__any_coarse", "exp", coarse_exp, ("float32",), cost=lambda call: -1.0,
        precision=BF16,
    )  # fmt: skip
    registry.register_kernels("coarse", "cpu", [kernel])
    yield
    registry.unregister("coarse")


def exp_of(value: ty.Tensor) -> ty.Tensor:
    return ty.functional.exp(value)


def test_eager_calls_keep_the_dtypes_precision() -> None:
    """An eager call never takes a kernel that rounds, however cheap, and says why."""
    np.testing.assert_allclose(exp_of(ty.Tensor(X)).numpy(), np.exp(X), rtol=1e-6)


def test_programs_round_where_they_may(tmp_path) -> None:
    """The same file runs at either precision, and explains what it chose."""
    traced = jit.trace(exp_of)
    np.testing.assert_allclose(traced(ty.Tensor(X)).numpy(), np.exp(X), rtol=1e-6)
    traced.dump(tmp_path / "exp.tym")
    exact, fast = (jit.load(tmp_path / "exp.tym", precision=p) for p in ("full", "bf16"))
    np.testing.assert_allclose(exact(X), np.exp(X), rtol=1e-6)
    assert fast(X)[1] == fast(X)[0]
    refusal = "exp_bf16__any_coarse: computes in bf16, which the precision does not permit"
    assert any(refusal in f"{name}: {why}" for step in exact.program().steps
               for name, why in step.refusals)  # fmt: skip
    assert [step.kernel.name for step in fast.program().steps] == ["exp_bf16__any_coarse"]


def test_traces_take_a_precision() -> None:
    """A traced function rounds only where it was told that it may."""
    fast = jit.trace(exp_of, precision="bf16")(ty.Tensor(X)).numpy()
    assert fast[1] == fast[0]


def test_another_precision_is_refused() -> None:
    """The name is checked before anything is traced or read."""
    with pytest.raises(
        AttrError, match="unknown precision, got 'half', expected one of full, bf16"
    ):
        jit.trace(exp_of, precision="half")
    with pytest.raises(AttrError, match="unknown precision"):
        jit.load("there is no such file.tym", precision="half")


def test_commands_take_a_precision(tmp_path) -> None:
    """``tianyuan explain`` shows the kernel that a precision brings, and refuses others."""
    traced = jit.trace(exp_of)
    traced(ty.Tensor(X))
    traced.dump(tmp_path / "exp.tym")
    for command in (["explain"], ["bench", "--rounds", "1"]):
        for precision, shown in (("bf16", True), ("full", False)):
            given = [*command, str(tmp_path / "exp.tym"), "--precision", precision]
            result = CliRunner().invoke(main, given)
            assert result.exit_code == 0, result.output
            # Refused kernels are named in brackets behind the chosen one.
            chosen = [
                line for line in result.output.splitlines() if "exp_bf16__any_coarse " in line
            ]
            assert bool(chosen) == shown, result.output
    assert CliRunner().invoke(main, ["explain", "x.tym", "--precision", "half"]).exit_code == 2

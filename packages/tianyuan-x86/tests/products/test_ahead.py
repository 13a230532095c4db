"""Layers that fetch a classifier's weights while they compute: sums are as right as without."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import functional as F  # noqa: N812
from tianyuan import jit, native


@pytest.fixture(params=[1, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = native.get_num_threads()
    native.set_num_threads(request.param)
    yield
    native.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("outputs", [1024, 1000])
def test_layers_before_a_classifier(outputs: int) -> None:
    rng = np.random.default_rng(outputs)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x = normal(1, 48, 7, 7)
    narrow, filters, wide = normal(288, 48, 1, 1), normal(288, 1, 1, 3, 3), normal(48, 288, 1, 1)
    last, matrix, bias = normal(512, 48, 1, 1), normal(outputs, 512), normal(outputs)
    packed = [ty.Tensor(w) for w in (narrow, filters, wide, last, matrix, bias)]

    @jit.trace(symbolic=True, capture_as_const=True)
    def network(x: ty.Tensor) -> ty.Tensor:
        y = F.relu6(F.conv2d(x, packed[0]))
        y = F.relu6(F.conv2d(y, packed[1], padding=1, groups=288))
        y = F.relu(F.conv2d(F.conv2d(y, packed[2]), packed[3]))
        return F.linear(F.mean(y, axis=(2, 3)), packed[4], packed[5])

    got = network(ty.Tensor(x)).numpy()

    y = np.clip(np.einsum("oc,nchw->nohw", narrow[:, :, 0, 0].astype(float), x), 0, 6)
    padded = np.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = sum(
        filters[None, :, 0, 0, i, j, None, None] * padded[:, :, i : i + 7, j : j + 7]
        for i in range(3)
        for j in range(3)
    )
    y = np.einsum("oc,nchw->nohw", wide[:, :, 0, 0], np.clip(y, 0, 6))
    y = np.maximum(np.einsum("oc,nchw->nohw", last[:, :, 0, 0], y), 0)
    want = y.mean((2, 3)) @ matrix.T.astype(float) + bias
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())

"""Complex numbers and singular values against numpy, their gradients against differences."""

from __future__ import annotations

import operator
import pickle

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor, registry
from tianyuan.autodiff import GradManager
from tianyuan.errors import DTypeError, GradError, KernelError, ShapeError
from tianyuan.graph.container import write_container
from tianyuan.jit import trace
from tianyuan.op import TensorSpec

RNG = np.random.default_rng(41)


def numbers(*shape):
    real, imag = RNG.normal(size=(2, *shape))
    return real + 1j * imag


A, B = numbers(3, 4), numbers(4) + 3


def test_complex_arrives_as_complex64_unless_asked():
    assert Tensor(A).dtype == np.complex64
    assert Tensor([1 + 2j, 3.0]).dtype == np.complex64
    assert Tensor(A, "complex128").dtype == np.complex128
    assert Tensor([1.0, 2.0], "complex64").tolist() == [1, 2]
    assert Tensor(1 + 2j).item() == 1 + 2j
    assert complex(Tensor(3j)) == 3j
    with pytest.raises(DTypeError, match="complex data cannot become float32"):
        Tensor(A, "float32")
    with pytest.raises(DTypeError, match="^cast: complex numbers cannot become real"):
        Tensor(A).astype("float32")


def test_parts():
    real, imag = RNG.normal(size=(2, 3)), RNG.normal(size=(3,))
    z = F.complex(Tensor(real), Tensor(imag))
    assert z.dtype == np.complex64
    np.testing.assert_array_equal(z.numpy(), (real + 1j * imag).astype(np.complex64))
    np.testing.assert_array_equal(F.real(z).numpy(), real.astype(np.float32))
    np.testing.assert_array_equal(
        F.imag(z).numpy(), np.broadcast_to(imag, (2, 3)).astype(np.float32)
    )
    wide = F.complex(Tensor(real, "float64"), 2.0)
    assert wide.dtype == np.complex128
    assert F.real(wide).dtype == np.float64
    assert F.complex(Tensor([1], "int32"), Tensor([2], "float16")).dtype == np.complex64
    turn = F.polar(Tensor(real), Tensor(imag)).numpy()
    np.testing.assert_allclose(turn, real * np.exp(1j * imag), rtol=1e-5)
    for part in (F.real, F.imag):
        with pytest.raises(DTypeError, match="input must be complex, got float32"):
            part(Tensor(real))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "eq", "ne"])
def test_arithmetic(name):
    function = getattr(operator, name)
    pairs = [(A, B), (A, np.float32(2)), (A, 2), (A, 1.5 - 2j), (B.real, B[:, None]), (2j, B)]
    for left, right in pairs:
        ours = [Tensor(x) if isinstance(x, np.ndarray) else x for x in (left, right)]
        got, want = function(*ours), function(left, right)
        assert got.dtype == (np.bool_ if name in ("eq", "ne") else np.complex64)
        if name == "eq":
            want = want & (np.abs(np.asarray(left)) > -1)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


def test_a_float_tensor_beside_a_complex_scalar():
    assert (Tensor([1.0, 2.0]) * 1j).tolist() == [1j, 2j]
    assert F.add(Tensor([1.0]), 2j).tolist() == [1 + 2j]
    assert (Tensor([1.0], "float64") + 1j).dtype == np.complex128


def test_magnitude_negation_sum_and_movement():
    z = Tensor(A)
    np.testing.assert_allclose(F.abs(z).numpy(), np.abs(A), rtol=1e-6)
    assert F.abs(z).dtype == np.float32
    np.testing.assert_allclose((-z).numpy(), -A, rtol=1e-6)
    np.testing.assert_allclose(F.sum(z, 1).numpy(), A.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(z.T[1:, ::2].numpy(), A.astype(np.complex64).T[1:, ::2])
    np.testing.assert_array_equal(z[[2, 0]].numpy(), A.astype(np.complex64)[[2, 0]])
    flags = np.array([True, False, True])
    np.testing.assert_array_equal(z[Tensor(flags)].numpy(), A.astype(np.complex64)[flags])
    square = numbers(3, 3)
    np.testing.assert_allclose(F.matinv(Tensor(square)).numpy() @ square, np.eye(3), atol=1e-4)
    both = F.concat([z, F.complex(Tensor([[1.0] * 4]), 0.0)])
    assert both.shape == (4, 4)
    assert both.numpy()[3].tolist() == [1] * 4


def test_a_real_op_says_that_it_does_not_take_complex_numbers():
    spec = TensorSpec((2, 2), np.dtype(np.complex64))
    for name in ("exp", "matmul", "max", "sort", "less", "softmax", "maximum", "round"):
        op = registry.get_op(name)
        with pytest.raises(DTypeError, match=f"^{name}: complex numbers are not taken"):
            op.infer((spec,) * (2 if op.n_inputs == 2 else 1), None)
    z = Tensor(numbers(2, 2))
    for function in (F.exp, F.sqrt, F.nn.relu, F.mean, F.argmax, F.svd, F.nn.gelu):
        with pytest.raises(DTypeError, match="complex"):
            function(z)


def test_complex_numbers_are_not_written_to_model_files(tmp_path):
    with pytest.raises(DTypeError, match="files do not hold, got complex64"):
        write_container(tmp_path / "x.tym", {"z": A.astype(np.complex64)}, {})
    assert not any(tmp_path.iterdir())
    again = pickle.loads(pickle.dumps(Tensor(A)))
    np.testing.assert_array_equal(again.numpy(), A.astype(np.complex64))


def test_complex_numbers_in_a_trace():
    @trace
    def work(x, y):
        z = F.complex(x, y)
        return F.imag(z * z / 2.0 + z * (1 + 2j)), F.abs(z)

    x, y = RNG.normal(size=(2, 5)).astype(np.float32)
    z = x + 1j * y
    for _ in range(2):
        first, second = work(Tensor(x), Tensor(y))
        np.testing.assert_allclose(
            first.numpy(), (z * z / 2 + z * (1 + 2j)).imag, rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(second.numpy(), np.abs(z), rtol=1e-5)


def test_gradients_through_complex_numbers():
    def ours(x, y):
        z = F.complex(x, y)
        w = (z * z - 2j * z) / (z + 3.0)
        return F.sum(F.abs(w)) + F.sum(F.real(w * (1 + 2j))) - F.sum(F.imag(w)) * 0.5

    def peer(x, y):
        z = x + 1j * y
        w = (z * z - 2j * z) / (z + 3)
        return np.abs(w).sum() + (w * (1 + 2j)).real.sum() - w.imag.sum() * 0.5

    arrays = [RNG.normal(size=(2, 3)), RNG.normal(size=(3,))]
    tensors = [Tensor(a, "float64") for a in arrays]
    with GradManager() as gm:
        gm.attach(tensors)
        gm.backward(ours(*tensors))
    for which, array in enumerate(arrays):
        for place in np.ndindex(*array.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [a.copy() for a in arrays]
                moved[which][place] += step
                ends.append(peer(*moved))
            want = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(tensors[which].grad.numpy()[place], want, rtol=1e-6)


def test_the_gradient_of_a_magnitude_is_zero_at_zero():
    x = Tensor([0.0, 3.0])
    with GradManager() as gm:
        gm.attach([x])
        gm.backward(F.sum(F.abs(F.complex(x, x * 0.0))))
    assert x.grad.tolist() == [0.0, 1.0]


# singular values


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 3), (1, 5)])
@pytest.mark.parametrize("full", [False, True])
def test_svd(shape, full):
    x = RNG.normal(size=shape)
    u, s, vh = (t.numpy() for t in F.svd(Tensor(x, "float64"), full))
    k = min(shape[-2:])
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), rtol=1e-12)
    np.testing.assert_allclose(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x, atol=1e-12)
    for unitary in (u.swapaxes(-1, -2) @ u, vh @ vh.swapaxes(-1, -2)):
        np.testing.assert_allclose(
            unitary, np.broadcast_to(np.eye(unitary.shape[-1]), unitary.shape), atol=1e-12
        )
    assert u.shape[-1] == (shape[-2] if full else k)
    alone = F.svd(Tensor(x.astype(np.float32)), full, compute_uv=False)
    assert alone.dtype == np.float32
    np.testing.assert_allclose(alone.numpy(), s, rtol=1e-4, atol=1e-5)


def test_svd_gradient_against_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for shape in ((4, 3), (3, 5), (2, 3, 3)):
        x = RNG.normal(size=shape)
        peer = torch.tensor(x, requires_grad=True)
        # Signs of vectors are free, so the loss takes what does not depend on them.
        u, s, vh = torch.linalg.svd(peer, full_matrices=False)
        weights = RNG.normal(size=tuple(s.shape))
        ((u**2).sum(-2) ** 2 * torch.tensor(weights)).sum().backward(retain_graph=True)
        (u[..., :1, :] ** 2 * s.unsqueeze(-2)).sum().backward(retain_graph=True)
        (vh[..., :, :1] ** 4).sum().backward()
        tensor = Tensor(x, "float64")
        with GradManager() as gm:
            gm.attach([tensor])
            u, s, vh = F.svd(tensor)
            loss = F.sum(u[..., :1, :] ** 2 * F.expand_dims(s, -2)) + F.sum(vh[..., :, :1] ** 4)
            gm.backward(loss + F.sum(F.sum(u**2, -2) ** 2 * Tensor(weights, "float64")))
        np.testing.assert_allclose(tensor.grad.numpy(), peer.grad.numpy(), rtol=1e-7, atol=1e-9)


def test_svd_gradient_of_values_alone_and_what_has_none():
    x = Tensor(RNG.normal(size=(4, 3)), "float64")
    u, _, vh = np.linalg.svd(x.numpy(), full_matrices=False)
    for options in ({"compute_uv": False}, {"full_matrices": True}):
        with GradManager() as gm:
            gm.attach([x])
            found = F.svd(x, **options)
            gm.backward(F.sum(found[1] if isinstance(found, tuple) else found))
        np.testing.assert_allclose(x.grad.numpy(), u @ vh, rtol=1e-10)
        x.grad = None
    with GradManager() as gm:
        gm.attach([x])
        loss = F.sum(F.svd(x, full_matrices=True)[0])
        with pytest.raises(GradError, match="^svd: U and Vh have no gradient"):
            gm.backward(loss)


def test_svd_refuses():
    with pytest.raises(KernelError, match="^svd: .*expected finite matrices"):
        F.svd(Tensor([[np.nan, 1.0], [1.0, 1.0]]))
    with pytest.raises(ShapeError, match="^svd: input must hold matrices"):
        F.svd(Tensor([1.0]))


def test_svd_in_a_trace():
    x = RNG.normal(size=(5, 3)).astype(np.float32)
    found = trace(lambda a: F.svd(a, compute_uv=False))
    for _ in range(2):
        want = np.linalg.svd(x, compute_uv=False)
        np.testing.assert_allclose(found(Tensor(x)).numpy(), want, rtol=1e-4)

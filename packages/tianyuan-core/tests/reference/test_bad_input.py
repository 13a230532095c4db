"""What is wrong gets an error that names what was got and what was expected, before any change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.errors import (
    AttrError,
    BackendError,
    DeviceError,
    DTypeError,
    IndexRangeError,
    KernelError,
    ModelFormatError,
    ShapeError,
)
from tianyuan.jit import load, trace


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    fc = M.Linear(3, 2)
    predict = trace(lambda x: F.relu(fc(x)), capture_as_const=True)
    predict(ty.Tensor(np.zeros((2, 3), np.float32)))
    predict.dump(tmp_path / "model.tym", dynamic_shapes={"x": ["n"]})
    return tmp_path / "model.tym"


def test_wrong_shapes_name_both() -> None:
    with pytest.raises(ShapeError, match=r"matmul: .*\(2, 3\).*\(4, 5\)"):
        F.matmul(ty.Tensor(np.ones((2, 3))), ty.Tensor(np.ones((4, 5))))
    with pytest.raises(ShapeError, match=r"add: .*\(2,\) and \(3,\)"):
        ty.Tensor([1.0, 2.0]) + ty.Tensor([1.0, 2.0, 3.0])


def test_wrong_dtypes_name_what_was_got() -> None:
    with pytest.raises(DTypeError, match="got <U1"):
        ty.Tensor(["a"])
    with pytest.raises(DTypeError, match="got 'float31', expected one of"):
        ty.Tensor([1.0], dtype="float31")
    with pytest.raises(DTypeError, match="does not fit, got 4294967296, expected dtype='int64'"):
        ty.Tensor([2**32])
    assert ty.Tensor([2**32], dtype="int64").item() == 2**32


@pytest.mark.parametrize(
    ("name", "match"),
    [("moon:0", "no backend serves it"), ("c p u", "cannot be parsed"), ("", "cannot be parsed")],
)
def test_wrong_devices(name: str, match: str, model_file: Path) -> None:
    with pytest.raises(DeviceError, match=match):
        ty.Tensor([1.0], device=name)
    with pytest.raises(DeviceError, match=match):
        load(model_file, device=name)


def test_wrong_backends_name_those_that_are_there(model_file: Path) -> None:
    with pytest.raises(BackendError, match=r"got 'abacus', expected one of .*numpy"):
        load(model_file, backend="abacus")
    with pytest.raises(BackendError, match="abacus"), ty.use_backend("abacus"):
        ty.Tensor([1.0]) + 1


@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.parametrize("traced", [False, True])
def test_labels_outside_the_classes(label: int, traced: bool) -> None:
    loss = trace(F.nn.cross_entropy) if traced else F.nn.cross_entropy
    with pytest.raises((IndexRangeError, KernelError), match="out of range"):
        loss(ty.Tensor([[0.0, 0.0, 9.0]]), ty.Tensor([label]))


def test_a_module_that_forgets_its_base_is_told_so() -> None:
    class Forgetful(M.Module):
        def __init__(self) -> None:
            self.fc = M.Linear(1, 1)

        def forward(self, x: ty.Tensor) -> ty.Tensor:
            return self.fc(x)

    with pytest.raises(AttributeError, match=r"Forgetful: super\(\).__init__\(\) must be called"):
        Forgetful()


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.tym")
    foreign = tmp_path / "foreign.tym"
    for content in (b"", b"\x80\x04K\x01.", os.urandom(1000), b"PK\x03\x04" + bytes(100)):
        foreign.write_bytes(content)
        with pytest.raises(ModelFormatError, match=r"foreign\.tym"):
            load(foreign)
    with pytest.raises((ModelFormatError, OSError)):
        load(tmp_path)


def test_nan_flows_through_as_in_numpy(model_file: Path) -> None:
    x = np.array([[np.nan, 1, 2], [1, 2, 3]], np.float32)
    result = load(model_file)(x)
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1]).all()


@pytest.mark.parametrize("dtype", [">f4", "<f4", ">f8", ">i4"])
def test_inputs_of_the_other_byte_order_are_turned(model_file: Path, dtype: str) -> None:
    x = np.array([[1, 2, -3], [4, 5, 6]])
    model = load(model_file)
    if dtype == ">i4":
        with pytest.raises(DTypeError, match="got int32, expected float32"):
            model(x.astype(dtype))
    else:
        got, want = model(x.astype(dtype)), model(x.astype(np.float32))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", 2000])
def test_threads_that_are_none(model_file: Path, threads: object) -> None:
    for call in (lambda: load(model_file, threads=threads), lambda: ty.set_num_threads(threads)):
        with pytest.raises(AttrError, match="threads must be an integer, got .* 1 to 1024"):
            call()


def test_outputs_that_nothing_can_be_written_to(model_file: Path) -> None:
    model, x = load(model_file), np.ones((2, 3), np.float32)
    for out in ([None], [ty.Tensor(np.zeros((2, 2), np.float32))], ["a"]):
        with pytest.raises(DTypeError, match="model: out holds .*, expected numpy arrays"):
            model(x, out=out)
    with pytest.raises(ShapeError, match=r"got >f4\(2, 2\), expected a writeable .* float32"):
        model(x, out=[np.zeros((2, 2), ">f4")])
    shifted = np.zeros(17, np.uint8)[1:].view(np.float32).reshape(2, 2)
    with pytest.raises(ShapeError, match=r"got float32\(2, 2\), expected a writeable aligned"):
        model(x, out=[shifted])


def test_an_empty_batch_gives_an_empty_result(model_file: Path) -> None:
    assert load(model_file)(np.zeros((0, 3), np.float32)).shape == (0, 2)
    net = M.Sequential(M.Conv2d(1, 2, 3), M.BatchNorm2d(2), M.ReLU(), M.MaxPool2d(2, 2))
    net.eval()
    assert net(ty.Tensor(np.zeros((0, 1, 8, 8), np.float32))).shape == (0, 2, 3, 3)


def test_an_old_file_stays_whole_where_the_new_one_cannot_be_written(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model_file.read_bytes()
    predict = trace(lambda x: x * 2)
    predict(ty.Tensor([1.0]))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        predict.dump(model_file)
    monkeypatch.undo()
    assert model_file.read_bytes() == before
    assert [path.name for path in model_file.parent.iterdir()] == [model_file.name]


def test_a_folder_that_is_missing_is_named_with_the_file(model_file: Path, tmp_path: Path) -> None:
    predict = trace(lambda x: F.relu(x), capture_as_const=True)
    predict(ty.Tensor([1.0]))
    target = tmp_path / "none" / "net.tym"
    with pytest.raises(FileNotFoundError, match=f"'{target}'$"):
        predict.dump(target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(model_file: Path) -> None:
    predict = trace(lambda x: x * 2)
    predict(ty.Tensor([1.0]))
    model_file.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(PermissionError):
        predict.dump(model_file)
    model_file.parent.chmod(stat.S_IRWXU)


def test_state_dicts_that_do_not_fit_list_all_at_once_and_change_nothing() -> None:
    net = M.Sequential(M.Linear(3, 2), M.Linear(2, 2))
    state = net.state_dict()
    before = {name: np.array(value) for name, value in state.items()}
    broken = dict(state)
    first, second = sorted(broken)[:2]
    del broken[first]
    broken[second] = np.zeros((7, 7), np.float32)
    broken["stranger"] = np.zeros(1, np.float32)
    with pytest.raises((KeyError, ValueError)) as caught:
        net.load_state_dict(broken)
    for name in (first, second, "stranger"):
        assert name in str(caught.value)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.fixture
def picker(tmp_path: Path) -> Path:
    """Write a model that looks rows of a table up by int32 numbers."""
    rows = M.Embedding(300, 4)
    table = np.arange(1200, dtype=np.float32).reshape(300, 4)
    rows.weight[...] = ty.Tensor(table)
    run = trace(lambda index: rows(index), capture_as_const=True)
    run(ty.Tensor(np.zeros(3), dtype="int32"))
    run.dump(tmp_path / "rows.tym", arg_names=["index"], dynamic_shapes={"index": {0: "n"}})
    return tmp_path / "rows.tym"


def test_int64_arrives_as_int32_in_models_too(picker: Path) -> None:
    model = load(picker)
    table = np.arange(1200, dtype=np.float32).reshape(300, 4)
    np.testing.assert_array_equal(model(np.array([7, 299])), table[[7, 299]])
    np.testing.assert_array_equal(model([1, 2, 3]), table[1:4])
    for wrong in (np.array([0, 2**40]), [2**40], np.array([-(2**40)])):
        with pytest.raises(DTypeError, match="input 'index': a number does not fit int32, got -?1"):
            model(wrong)
    with pytest.raises(DTypeError, match="got int16, expected int32"):
        model(np.array([1], np.int16))
    with pytest.raises(DTypeError, match="got float64, expected int32"):
        model(np.array([1.5]))


def test_lists_do_not_wrap_around(tmp_path: Path) -> None:
    run = trace(lambda x: x.astype("float32") * 2)
    run(ty.Tensor([1], dtype="uint8"))
    run.dump(tmp_path / "bytes.tym", arg_names=["x"])
    model = load(tmp_path / "bytes.tym")
    assert model([255]).tolist() == [510.0]
    for wrong in (256, -1):
        with pytest.raises(DTypeError, match=f"a number does not fit uint8, got {wrong}, expected"):
            model([wrong])

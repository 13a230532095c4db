"""Programs as MegEngine's users write them give numpy's and PyTorch's numbers on every backend."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tianyuan as mge
import tianyuan.data.transform as T
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan import registry
from tianyuan.autodiff import GradManager
from tianyuan.data import DataLoader, SequentialSampler
from tianyuan.data.dataset import ArrayDataset
from tianyuan.jit import trace

torch = pytest.importorskip("torch")
TF = torch.nn.functional


@pytest.fixture(params=registry.backends("cpu"), autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with mge.use_backend(request.param):
        yield request.param


def close(got: Any, want: Any, tolerance: float = 2e-4) -> None:
    got = got.numpy() if isinstance(got, mge.Tensor) else got
    want = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


class ShuffleBlock(M.Module):
    def __init__(self, half: int) -> None:
        super().__init__()
        self.main = M.Sequential(
            M.Conv2d(half, half, 1, bias=False), M.BatchNorm2d(half), M.ReLU(),
            M.Conv2d(half, half, 3, padding=1, groups=half, bias=False), M.BatchNorm2d(half),
        )  # fmt: skip

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        n, c, h, w = x.shape
        x = F.reshape(x, (n * c // 2, 2, h * w))
        x = F.reshape(F.transpose(x, (1, 0, 2)), (2, -1, c // 2, h, w))
        return F.concat((x[0], self.main(x[1])), 1)


def test_a_shuffle_block_trains_as_in_pytorch() -> None:
    net, image = ShuffleBlock(4), np.random.default_rng(0).normal(size=(2, 8, 5, 5))
    image = image.astype(np.float32)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(4, 4, 1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), torch.nn.BatchNorm2d(4),
    )  # fmt: skip
    start = net.main.state_dict()
    theirs.load_state_dict(
        {k: torch.tensor(v.reshape(theirs.state_dict()[k].shape)) for k, v in start.items()}, False
    )
    groups = [
        {"params": [p for p in net.parameters() if p.ndim == 5], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.ndim != 5]},
    ]
    opt = optim.SGD(groups, lr=0.1, momentum=0.9)
    decayed = [p for name, p in theirs.named_parameters() if name == "3.weight"]
    others = [p for name, p in theirs.named_parameters() if name != "3.weight"]
    their_opt = torch.optim.SGD(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others}], 0.1, 0.9
    )
    gm = GradManager().attach(net.parameters())

    @trace(symbolic=True)
    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = (net(x) ** 3).mean()
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    for rate in (0.1, 0.05, 0.01):
        for group in (*opt.param_groups, *their_opt.param_groups):
            group["lr"] = rate
        ours = step(mge.Tensor(image))
        x = torch.tensor(image).reshape(2 * 4, 2, 25).transpose(0, 1).reshape(2, -1, 4, 5, 5)
        loss = (torch.cat([x[0], theirs(x[1])], 1) ** 3).mean()
        their_opt.zero_grad()
        loss.backward()
        their_opt.step()
        close(ours, loss)
    for name, value in net.main.state_dict().items():
        close(value.reshape(-1), theirs.state_dict()[name].reshape(-1), 2e-3)


def test_a_gradient_penalty_is_that_of_pytorch() -> None:
    critic = M.Sequential(M.Conv2d(3, 4, 4, 2, 1), M.LeakyReLU(0.2), M.Conv2d(4, 1, 4, 1, 0))
    real = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32)
    x = mge.Tensor(real)
    with GradManager().attach(critic.parameters()) as outer:
        with GradManager().attach([x]) as inner:
            inner.backward(F.flatten(critic(x), 1).mean(axis=1).sum())
        penalty = ((F.norm(F.flatten(x.grad, 1), axis=1) - 1) ** 2).mean()
        outer.backward(penalty)
    t = torch.tensor(real, requires_grad=True)
    weights = [torch.tensor(p.numpy(), requires_grad=True) for p in critic.parameters()]
    names = [name for name, _ in critic.named_parameters()]
    at = dict(zip(names, weights, strict=True))
    y = TF.leaky_relu(TF.conv2d(t, at["0.weight"], at["0.bias"].reshape(-1), 2, 1), 0.2)
    y = TF.conv2d(y, at["2.weight"], at["2.bias"].reshape(-1)).flatten(1).mean(1).sum()
    (slope,) = torch.autograd.grad(y, t, create_graph=True)
    expected = ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
    expected.backward()
    close(penalty, expected)
    close(critic[0].weight.grad, at["0.weight"].grad)
    optim.clip_grad_value([critic[0].weight], lower=-1e-3, upper=1e-3)
    close(critic[0].weight.grad, at["0.weight"].grad.clamp(-1e-3, 1e-3))


def test_a_detection_head_decodes_matches_and_suppresses() -> None:
    rng = np.random.default_rng(2)
    x = F.broadcast_to(F.linspace(0, 32, 5).reshape(1, -1), (3, None)).flatten()
    y = F.broadcast_to(F.linspace(0, 16, 3).reshape(-1, 1), (None, 5)).flatten()
    base = mge.tensor([[-4, -4, 4, 4], [-8, -8, 8, 8]], dtype="float32")
    anchors = F.expand_dims(F.stack([x, y, x, y], axis=1), 1) + F.expand_dims(base, 0)
    anchors = anchors.reshape(-1, 4)
    boxes = mge.tensor([[0, 0, 8, 8], [10, 6, 30, 20.0]])
    low = F.maximum(F.expand_dims(boxes, 1)[..., :2], F.expand_dims(anchors, 0)[..., :2])
    high = F.minimum(F.expand_dims(boxes, 1)[..., 2:], F.expand_dims(anchors, 0)[..., 2:])
    shared = F.prod(F.clip(high - low, lower=0), axis=2)
    areas = [F.prod(b[:, 2:] - b[:, :2], axis=1) for b in (boxes, anchors)]
    iou = shared / (F.expand_dims(areas[0], 1) + F.expand_dims(areas[1], 0) - shared)
    best = iou.max(axis=0)
    labels = F.full((best.shape[0],), -1, dtype="int32")
    labels[best < 0.1] = 0
    labels[best >= 0.2] = 1
    labels[(iou == F.max(iou, axis=1, keepdims=True)).sum(axis=0) > 0] = 1
    values = iou.numpy()
    expected = np.where(values.max(0) >= 0.2, 1, np.where(values.max(0) < 0.1, 0, -1))
    expected[(values == values.max(1, keepdims=True)).any(0)] = 1
    np.testing.assert_array_equal(labels.numpy(), expected)

    scores = mge.Tensor(rng.uniform(size=30))
    anchors[:, 0::2] = F.clip(anchors[:, 0::2], 0, 30.0)
    kept = F.vision.nms(anchors, scores, iou_thresh=0.3)
    a, order, wanted = anchors.numpy(), np.argsort(-scores.numpy()), []
    area = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    while len(order):
        first, order = order[0], order[1:]
        wanted.append(first)
        sides = np.minimum(a[first, 2:], a[order, 2:]) - np.maximum(a[first, :2], a[order, :2])
        shared_area = np.maximum(sides, 0).prod(1)
        order = order[shared_area / (area[first] + area[order] - shared_area) <= 0.3]
    np.testing.assert_array_equal(kept.numpy(), wanted)


def test_an_encoder_of_lstm_cells_is_that_of_pytorch_traced_or_not() -> None:
    rng = np.random.default_rng(3)
    encoder, embedding = M.LSTM(6, 8, batch_first=True), M.Embedding(10, 6)
    words = rng.integers(0, 10, (3, 5))
    theirs = torch.nn.LSTM(6, 8, batch_first=True)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    state = encoder.state_dict()
    theirs.load_state_dict({f"{n}_l0": torch.tensor(state[f"cells.0.0.{n}"]) for n in names})
    table = torch.tensor(embedding.weight.numpy(), requires_grad=True)
    result, (hidden, cell) = theirs(TF.embedding(torch.tensor(words), table))
    (result.sum() + (cell * hidden).sum()).backward()
    gm = GradManager().attach([*encoder.parameters(), *embedding.parameters()])

    def step(given: mge.Tensor) -> Any:
        with gm:
            out, (h, c) = encoder(embedding(given))
            gm.backward(out.sum() + (c * h).sum())
        return out, embedding.weight.grad

    for run in (step, trace(step, symbolic=True)):
        for dtype in ("int32", "uint8"):
            embedding.weight.grad = None
            out, slope = run(mge.tensor(words, dtype=dtype))
            close(out, result)
            close(slope, table.grad)


def test_a_detection_pipeline_moves_boxes_with_images() -> None:
    rng = np.random.default_rng(4)
    images = rng.integers(0, 255, (4, 12, 16, 3)).astype(np.uint8)
    boxes = np.tile(np.array([[1, 2, 5, 8.0]]), (4, 1, 1))
    transform = T.Compose(
        [T.Pad((1, 1, 2, 2)), T.RandomHorizontalFlip(prob=1.0), T.Normalize(10.0, 2.0), T.ToMode()],
        order=("image", "boxes", "boxes_category"),
    )
    data = ArrayDataset(images, boxes, np.arange(4).reshape(4, 1))
    batches = list(DataLoader(data, SequentialSampler(data, batch_size=2), transform))
    assert len(batches) == 2
    for start, (image, box, category) in zip((0, 2), batches, strict=True):
        padded = np.pad(images[start : start + 2], ((0, 0), (1, 1), (2, 2), (0, 0)))
        close(image, (padded[:, :, ::-1].transpose(0, 3, 1, 2) - 10.0) / 2.0)
        close(box, np.tile([[20 - 7, 3, 20 - 3, 9]], (2, 1, 1)))
        np.testing.assert_array_equal(category, [[start], [start + 1]])


def test_a_calibrated_network_is_tuned_converted_and_dumped() -> None:
    Q = pytest.importorskip("tianyuan_quant")  # noqa: N806
    rng = np.random.default_rng(5)
    net = M.Sequential(
        M.QuantStub(), M.ConvBnRelu2d(3, 8, 3, padding=1), M.ConvRelu2d(8, 8, 3), M.DequantStub()
    )
    net.eval()
    x = mge.Tensor(rng.normal(size=(4, 3, 8, 8)))
    wanted = net(x).numpy()
    Q.quantize_qat(net, qconfig=Q.calibration_qconfig)
    Q.enable_observer(net)
    net(x)
    Q.disable_observer(net)
    Q.reset_qconfig(net, Q.passive_qconfig)
    Q.apply_easy_quant(net, x)
    Q.enable_fake_quant(net)
    fake = net(x)
    close(fake, wanted, 0.05 * float(np.abs(wanted).max()))
    integers = Q.quantize(net, inplace=False)

    @trace(symbolic=True, capture_as_const=True)
    def infer(data: mge.Tensor, *, net: M.Module) -> mge.Tensor:
        return net(data)

    close(infer(x, net=integers), fake, 0.02 * float(np.abs(wanted).max()))
    stream = io.BytesIO()
    infer.dump(stream, arg_names=["data"], output_names=["feature"])
    stream.seek(0)
    close(mge.jit.load(stream)(x.numpy()), infer(x, net=integers), 1e-5)

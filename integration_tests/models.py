"""The networks that the integration tests train and ship: LeNet, ResNet-18 and MobileNetV2."""

from __future__ import annotations

import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M


class LeNet(M.Module):
    """LeNet for 1x32x32 pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = M.Conv2d(1, 6, 5), M.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = M.Linear(400, 120), M.Linear(120, 84), M.Linear(84, 10)
        self.pool, self.relu = M.MaxPool2d(2, 2), M.ReLU()

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = F.flatten(self.pool(self.relu(self.conv2(x))), 1)
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


class Residual(M.Module):
    """The basic block of ResNet."""

    def __init__(self, inp: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(inp, out, 3, stride, 1, bias=False)
        self.bn1 = M.BatchNorm2d(out)
        self.conv2 = M.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = M.BatchNorm2d(out)
        self.skip = M.Identity()
        if stride != 1 or inp != out:
            self.skip = M.Sequential(M.Conv2d(inp, out, 1, stride, bias=False), M.BatchNorm2d(out))

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class ResNet18(M.Module):
    """ResNet-18; ``width`` scales its channels, 64 in the paper."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem = M.Sequential(
            M.Conv2d(3, width, 7, 2, 3, bias=False), M.BatchNorm2d(width), M.ReLU(),
            M.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks, inp = [], width
        for stage in range(4):
            for index in range(2):
                out = width << stage
                blocks.append(Residual(inp, out, 2 if stage and not index else 1))
                inp = out
        self.blocks = M.Sequential(*blocks)
        self.fc = M.Linear(inp, classes)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = self.blocks(self.stem(x))
        return self.fc(F.flatten(F.nn.adaptive_avg_pool2d(x, 1), 1))


class InvertedResidual(M.Module):
    """The block of MobileNetV2: expand, depthwise, project."""

    def __init__(self, inp: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        mid = inp * expand
        layers: list[M.Module] = []
        if expand != 1:
            layers += [M.Conv2d(inp, mid, 1, bias=False), M.BatchNorm2d(mid), Relu6()]
        layers += [
            M.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False), M.BatchNorm2d(mid), Relu6(),
            M.Conv2d(mid, out, 1, bias=False), M.BatchNorm2d(out),
        ]  # fmt: skip
        self.layers = M.Sequential(*layers)
        self.residual = stride == 1 and inp == out

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


class Relu6(M.Module):
    """relu6 as a module."""

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return F.relu6(x)


class MobileNetV2(M.Module):
    """MobileNetV2 with the paper's stages; ``last`` is the width before the classifier."""

    STAGES = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip

    def __init__(self, classes: int = 10, last: int = 1280) -> None:
        super().__init__()
        layers: list[M.Module] = [M.Conv2d(3, 32, 3, 2, 1, bias=False), M.BatchNorm2d(32), Relu6()]
        inp = 32
        for expand, out, count, stride in self.STAGES:
            for index in range(count):
                layers.append(InvertedResidual(inp, out, 1 if index else stride, expand))
                inp = out
        layers += [M.Conv2d(inp, last, 1, bias=False), M.BatchNorm2d(last), Relu6()]
        self.features = M.Sequential(*layers)
        self.drop = M.Dropout(0.2)
        self.fc = M.Linear(last, classes)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = F.mean(self.features(x), (2, 3))
        return self.fc(self.drop(x))

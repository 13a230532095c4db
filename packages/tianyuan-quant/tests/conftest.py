"""Real digits, and networks trained on them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tianyuan

sys.path.insert(0, str(Path(__file__).parent))
from networks import Digit, Residual, Shuffled, accuracy, logits, train  # noqa: E402


@pytest.fixture(scope="session")
def digits():
    return Digit(True), Digit(False)


@pytest.fixture(scope="session", params=[Residual, Shuffled])
def trained(request, digits):
    """Return a float network trained on digits, and its accuracy."""
    tianyuan.random.seed(0)
    net = train(request.param(), digits[0], 6, 3e-3)
    return net, accuracy(logits(net, digits[1]), digits[1])

"""Learn, layer by layer, which weights to round up and which down, from what comes out.

M. Nagel et al., Up or down? Adaptive rounding for post-training quantization, 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tianyuan.functional as F
from tianyuan import Parameter, Tensor
from tianyuan.autodiff import GradManager
from tianyuan.optimizer import Adam

from .params import HostParams

# The sigmoid is stretched beyond [0, 1] and clipped, so that it reaches both ends.
_LOW, _HIGH = -0.1, 1.1
_RATE = 0.1
_WEIGHT = 5.0
_LEAST = np.finfo(np.float32).tiny
_WARM = 0.2  # the share of steps without the term that drives roundings to an end
_STEEP, _FLAT = 20.0, 2.0

Product = Callable[[Tensor, Tensor], Tensor]


def learn_rounding(
    weight: np.ndarray,
    params: HostParams,
    product: Product,
    pairs: Sequence[tuple[Tensor, Tensor]],
    steps: int,
) -> np.ndarray:
    """Return integers of a weight whose products are closest to what is wanted.

    Each integer is the one below or the one above its weight; nearest rounding is where the search
    starts, and stays where the search finds nothing better.

    Args:
        weight: the floats.
        params: how they are quantised.
        product: computes with an input and another weight.
        pairs: inputs as the quantised network gives them, and results wanted of them.
        steps: of Adam, each on one pair.
    """
    scale, _ = params.along(weight.ndim)
    ratio = weight.astype(np.float32) / scale
    floor = np.floor(ratio)
    part = np.clip((ratio - floor - _LOW) / (_HIGH - _LOW), 1e-3, 1 - 1e-3)
    logit = Parameter(np.log(part / (1 - part)).astype(np.float32))
    base, step, low, high = Tensor(floor), Tensor(scale), params.dtype.qmin, params.dtype.qmax

    def up() -> Tensor:
        return F.clip(F.sigmoid(logit) * (_HIGH - _LOW) + _LOW, 0.0, 1.0)

    def rounded(share: Tensor) -> Tensor:
        found: Tensor = F.clip(base + share, float(low), float(high)) * step
        return found

    manager, optimizer = GradManager().attach([logit]), Adam([logit], lr=_RATE)
    nearest = params.stored(weight)
    # Measured in units of what nearest rounding loses, so that the terms below weigh alike.
    size = max(_error(nearest * scale, product, pairs) / len(pairs), float(_LEAST))
    for index in range(steps):
        x, want = pairs[index % len(pairs)]
        with manager:
            share = up()
            loss = F.mean(F.square(product(x, rounded(share)) - want)) / size
            if index >= _WARM * steps:
                done = (index - _WARM * steps) / max(steps * (1 - _WARM), 1)
                power = _FLAT + (_STEEP - _FLAT) * (1 - done)
                ends = F.mean(1.0 - F.pow(F.abs(2.0 * share - 1.0), power))
                loss = loss + _WEIGHT * ends
            manager.backward(loss)
        optimizer.step().clear_grad()
    found = np.clip(floor + (up().numpy() >= 0.5), low, high).astype(nearest.dtype)
    errors = [_error(q * scale, product, pairs) for q in (nearest, found)]
    return found if errors[1] < errors[0] else nearest


def _error(weight: np.ndarray, product: Product, pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    given = Tensor(np.asarray(weight, np.float32))
    return sum(float(np.square(product(x, given).numpy() - y.numpy()).mean()) for x, y in pairs)

"""Carry out ``tianyuan quantize``: read samples, choose a configuration, quantise, and report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tianyuan.errors import AttrError

from .config import QConfig
from .fake import FakeQuantize
from .files import read_floats, whole_batch
from .histogram import HistogramObserver, PercentileObserver
from .observer import MinMaxObserver
from .params import QuantMode
from .report import StaticResult
from .static import quantize_static
from .weights import quantize_dynamic, quantize_weights

RANGES: Mapping[str, Any] = {
    "l2": HistogramObserver,
    "kl": partial(HistogramObserver, method="kl"),
    "percentile": PercentileObserver,
    "minmax": MinMaxObserver,
}


def quantize_model(
    model: Path,
    calibration: Path | None,
    output: Path,
    *,
    batch: int = 32,
    per_channel: bool = True,
    ranges: str = "l2",
    keep: Sequence[str] = (),
    bias_correction: bool = True,
    equalize: bool = False,
    rounding_steps: int = 0,
    sensitivity: bool = False,
    dynamic: bool = False,
    int4_group: int | None = None,
) -> StaticResult:
    """Quantise a file as the options of the command say.

    Args:
        model: a ``.tym`` or ``.onnx`` file of floats.
        calibration: ``.npy`` of samples of the only input, ``.npz`` with one array per input (by
            name, or in order where no name is an input's), or a folder of such files; needed
            unless only weights are quantised.
        output: the ``.tym`` file to write.
        batch: samples per run; where the model fixes how many it takes, a multiple of that.
        per_channel: whether each output channel of a weight has a scale of its own.
        ranges: how the range of activations is chosen, a key of ``RANGES``.
        dynamic, int4_group: quantise weights alone, see ``quantize_dynamic`` and
            ``quantize_weights``.
        others: as for ``quantize_static``.

    Raises:
        AttrError: where options contradict each other, or samples are missing or do not fit.
    """
    if dynamic or int4_group is not None:
        if calibration is not None or (dynamic and int4_group is not None):
            raise AttrError(
                "quantize: --dynamic and --int4 exclude each other and take no samples, got "
                f"{calibration if calibration is not None else 'both'}, expected one of them alone"
            )
        if equalize or rounding_steps or sensitivity:
            raise AttrError(
                "quantize: --equalize, --rounding-steps and --sensitivity need samples, got one "
                "with --dynamic or --int4, expected it without"
            )
        if int4_group is None:
            return quantize_dynamic(model, keep, target=output)
        return quantize_weights(model, group=int4_group, keep=keep, target=output)
    if calibration is None:
        raise AttrError(
            "quantize: samples are missing, got none, expected .npy, .npz, or a folder of them"
        )
    graph, _ = read_floats(model)
    whole = whole_batch(graph) or 1
    size = max(batch // whole, 1) * whole
    names = [value.name for value in graph.inputs]
    batches = list(batches_of(calibration, names, size, whole))
    return quantize_static(
        model,
        batches,
        configuration(per_channel, ranges),
        bias_correction,
        sensitivity,
        equalize,
        rounding_steps,
        keep,
        output,
    )


def configuration(per_channel: bool, ranges: str) -> QConfig:
    """Return the configuration of two options.

    >>> configuration(False, "minmax").weight_observer().channel_axis is None
    True
    """
    axis = 0 if per_channel else None
    return QConfig(
        partial(MinMaxObserver, dtype="qint8_narrow", channel_axis=axis),
        partial(RANGES[ranges], dtype="quint8", mode=QuantMode.ASYMMERTIC),
        partial(FakeQuantize, dtype="qint8_narrow"),
        partial(FakeQuantize, dtype="quint8"),
    )


def batches_of(
    source: Path, inputs: Sequence[str], size: int, whole: int = 1
) -> Iterator[tuple[np.ndarray, ...]]:
    """Give the samples of a file or a folder of files, so many at a time.

    Samples at the end of a file that do not make up a multiple of ``whole`` are left out.

    Raises:
        AttrError: where there is no such file, it has fewer samples than ``whole``, or an input
            has no array of as many samples.
    """
    files = [source]
    if source.is_dir():
        files = sorted(p for p in source.iterdir() if p.suffix in (".npy", ".npz"))
        if not files:
            raise AttrError(
                f"quantize: the folder {source} has no samples, got no .npy and no .npz file, "
                "expected some"
            )
    for path in files:
        arrays = _arrays(path, inputs)
        counts = {len(array) if array.ndim else 0 for array in arrays}
        if len(counts) != 1:
            raise AttrError(
                f"quantize: inputs in {path} differ in count, got {sorted(counts)}, expected one"
            )
        count = counts.pop()
        if 0 < count < whole:
            raise AttrError(
                f"quantize: {path} has too few samples for one batch of the model, got {count}, "
                f"expected {whole}"
            )
        count -= count % whole
        for start in range(0, count, size):
            yield tuple(array[start : min(start + size, count)] for array in arrays)


def _arrays(path: Path, inputs: Sequence[str]) -> list[np.ndarray]:
    if path.suffix not in (".npy", ".npz"):
        raise AttrError(
            f"quantize: samples are of another format, got {path}, expected .npy or .npz"
        )
    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise AttrError(
            f"quantize: {path} cannot be read, got {error}, expected what numpy.save writes"
        ) from error
    if isinstance(found, np.ndarray):
        return [found]
    with found:
        names = list(inputs) if set(inputs) & set(found.files) else found.files
        if len(names) != len(inputs) or not set(names) <= set(found.files):
            raise AttrError(
                f"quantize: {path} has other arrays than the model has inputs, got "
                f"{', '.join(found.files)}, expected {', '.join(inputs)}"
            )
        return [found[name] for name in names]
